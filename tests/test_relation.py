"""Relations: the joined rows are those of DuckDB on the raw tables; splits are of source rows, and repeatable."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings

import tablepuppet as tp
from tablepuppet.wire.engine import Capabilities
from tests.relations import (
    Joined,
    World,
    base_rows,
    collect_garbage,
    federation,
    hide_order,
    number_of,
    party_of,
    places,
    sums_by_place,
    weight_of,
    worlds,
)

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]


@settings(deadline=None, max_examples=40, derandomize=True, suppress_health_check=SLOW)
@given(worlds())
def test_joined_rows_are_duckdbs(world: World) -> None:
    """Over random shards, keys, joins, filters and unions, rows, counts, gather and scatter_sum equal DuckDB's."""
    expected = world.expected()
    with world.urls() as urls:
        relation = world.relation(urls)
        assert len(relation) == len(expected)
        assert Counter(places(relation)) == Counter(expected)
        for number, alias in enumerate(world.aliases):
            check_table(relation, alias, number, expected)
        check_gather(relation, world, expected)
        check_order(relation)


def check_table(relation: tp.Relation, alias: str, number: int, expected: Sequence[Joined]) -> None:
    """Rows that take part, counts and scatter_sum of one table."""
    rows, mapping = base_rows(relation, alias), relation.mapping
    assert len(set(rows)) == len(rows) == mapping.tables[alias].rows
    counts = Counter(combination[number] for combination in expected)
    assert dict(zip(rows, mapping.counts(alias).tolist(), strict=True)) == dict(counts)
    weights = np.array([[weight_of(row, column) for column in range(3)] for row in places(relation)]).reshape(-1, 3)
    one, three = mapping.scatter_sum(alias, weights[:, 0]), mapping.scatter_sum(alias, weights)
    assert (one.shape, three.shape) == ((len(rows),), (len(rows), 3))
    for column, sums in enumerate(three.T):
        told = sums_by_place(expected, number, column)
        np.testing.assert_allclose(sums, [told[row] for row in rows], rtol=0, atol=1e-11)
    np.testing.assert_allclose(one, three[:, 0], rtol=0, atol=1e-11)


def check_gather(relation: tp.Relation, world: World, expected: Sequence[Joined]) -> None:
    """Values of base rows, gathered from every table, meet as DuckDB's rows do."""
    gathered = []
    for alias in world.aliases:
        values = np.array([number_of(row) for row in base_rows(relation, alias)])
        wide = relation.mapping.gather(alias, np.stack([values, -values, values * 2], axis=1))
        one = relation.mapping.gather(alias, values)
        np.testing.assert_array_equal(wide, np.stack([one, -one, one * 2], axis=1))
        gathered.append(one.tolist())
    numbers = [tuple(number_of(place) for place in combination) for combination in expected]
    assert Counter(zip(*gathered, strict=True)) == Counter(numbers)


def check_order(relation: tp.Relation) -> None:
    """The largest table is read sequentially, and the order of rows is the same when it is asked for again."""
    read = Counter[str]()
    for (_, alias), rows in relation._session.rows_read.items():
        read[alias] += rows
    largest = max(relation.plan.tables, key=lambda alias: read[alias])
    assert np.all(np.diff(relation.mapping.tables[largest].index) >= 0)
    assert relation.rows().equals(relation.rows())


@settings(deadline=None, max_examples=6, derandomize=True, suppress_health_check=SLOW)
@given(worlds())
def test_order_is_the_same_in_another_federation(world: World) -> None:
    """The order of joined rows depends on the data alone, not on the blinding secret of the day."""
    with world.urls() as urls:
        first, second = (world.relation(urls) for _ in range(2))
        assert first.rows().equals(second.rows())
        for alias in world.aliases:
            assert np.array_equal(first.mapping.tables[alias].index, second.mapping.tables[alias].index)


ORDERS = {
    "p0": {"orders": pa.table({"item": [1, 1, 2, 9, None, 3] * 4, "card": [7, 8, 7, 8, 7, 7] * 4, "n": range(24)})},
    "p1": {"orders": pa.table({"item": [2, 4, 1, 1, 3, 7], "card": [8, 7, 8, 8, 8, 7], "n": range(100, 106)})},
    "p2": {
        "items": pa.table({"item": [1, 2, 2, 3, 5, 7], "price": [1.0, 2.0, 2.5, None, 5.0, 0.5]}),
        "cards": pa.table({"card": [7, 8], "item": [1, 2]}),
    },
}
JOIN = "SELECT n, price FROM orders o JOIN items i USING (item)"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> tp.Federation:
    """Orders in two shards, items with a duplicate, cards; some orders join nothing."""
    return federation(tmp_path_factory.mktemp("shop"), ORDERS)


@pytest.mark.parametrize(
    ("aliases", "branch"),
    [
        ("o i c", "FROM orders o JOIN items i ON o.item = i.item JOIN cards c ON i.item = c.item AND c.card = o.card"),
        ("o i c", "FROM orders o JOIN items i ON o.item = i.item JOIN cards c ON c.item = i.item"),
        ("a b", "FROM orders a JOIN orders b ON a.item = b.item AND a.card = b.card WHERE a.n < 10"),
        ("a b c", "FROM items a JOIN items b ON a.item = b.item JOIN items c ON b.item = c.item"),
        ("o c", "FROM p1.orders o CROSS JOIN cards c WHERE o.n > 101"),
        ("o i", "FROM orders o JOIN items i ON o.item = i.item AND o.card = i.item"),
        ("o i", "FROM orders o JOIN items i ON o.item = i.item WHERE i.price > 1000"),
    ],
    ids=["triangle", "three in one class", "self-join", "triple self-join", "cross", "two keys, one class", "empty"],
)
def test_shapes_of_joins(shop: tp.Federation, aliases: str, branch: str) -> None:
    """Cyclic joins, classes of three tables, self-joins, cross joins and empty joins have DuckDB's rows."""
    names = tuple(aliases.split())
    select = ", ".join(f"{name}.{'price' if 'items ' + name in branch else 'card'} AS {name}" for name in names)
    world = World(ORDERS, (), names, select, (branch,), "UNION ALL")
    expected = world.expected()
    assert bool(expected) == ("1000" not in branch)
    assert Counter(places(shop.sql(world.sql))) == Counter(expected)


@pytest.mark.parametrize("union", ["UNION ALL", "UNION"])
def test_unions_of_shards(shop: tp.Federation, union: str) -> None:
    """Branches over other shards, filters and even other join keys overlap once with UNION, twice with UNION ALL."""
    branches = (
        "FROM p0.orders o JOIN items i ON o.item = i.item WHERE o.n < 12",
        "FROM orders o JOIN items i ON o.item = i.item WHERE i.price > 1",
        "FROM p1.orders o JOIN items i ON o.card = i.item",
    )
    world = World(ORDERS, (), ("o", "i"), "n, price", branches, union)
    expected = world.expected()
    assert (len(set(expected)) == len(expected)) == (union == "UNION")
    assert Counter(places(shop.sql(world.sql))) == Counter(expected)


def test_one_table_is_a_relation(shop: tp.Federation) -> None:
    """One table alone has its own rows, shard after shard, NULL keys included."""
    relation = shop.sql("SELECT n FROM orders")
    assert Counter(places(relation)) == Counter(
        [(("p0", row),) for row in range(24)] + [(("p1", row),) for row in range(6)]
    )


def test_what_a_relation_says_of_itself(shop: tp.Federation) -> None:
    """Columns are the features in SELECT order; repr does not join, and tells the size once it is known."""
    relation = shop.sql("SELECT price, n, o.card FROM orders o JOIN items i USING (item)", label="n")
    assert relation.columns == ["price", "card"]
    assert repr(relation) == "<Relation: not joined yet, 2 features, label 'n'>"
    size = len(relation)
    assert repr(relation) == f"<Relation: {size} joined rows, 2 features, label 'n'>"


def test_rows_of_remote_parties_are_not_told(shop: tp.Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a party is in another process, rows() is refused by its name."""
    relation = shop.sql(JOIN)
    assert len(relation)
    monkeypatch.setattr(type(relation._session.engine), "capabilities", lambda engine, party: Capabilities())
    with pytest.raises(tp.PrivacyError, match="'p0' runs elsewhere"):
        relation.rows()


def test_a_dropped_relation_frees_its_snapshots(shop: tp.Federation) -> None:
    """Parties keep a snapshot as long as a relation over it is alive, a split included, and no longer."""
    parties = [party_of(shop.engine, name) for name in ORDERS]
    collect_garbage()
    before = [len(party._sessions) for party in parties if party]
    relation = shop.sql(JOIN)
    train, test = relation.split()
    assert [len(party._sessions) for party in parties if party] == [count + 1 for count in before]
    del relation, train
    collect_garbage()
    assert len(test.rows()) == len(test)
    del test
    collect_garbage()
    assert [len(party._sessions) for party in parties if party] == before


def test_a_failed_query_leaves_no_snapshot(shop: tp.Federation) -> None:
    """When one party fails to read, the others' snapshots are freed too."""
    parties = [party_of(shop.engine, name) for name in ORDERS]
    collect_garbage()
    before = [len(party._sessions) for party in parties if party]
    with pytest.raises(tp.PartyError, match="fails on its rows"):
        shop.sql("SELECT n, CAST(CAST(price AS VARCHAR) AS DATE) AS d FROM orders o JOIN items i USING (item)")
    collect_garbage()
    assert [len(party._sessions) for party in parties if party] == before


# split


def label_rows(relation: tp.Relation, alias: str = "o") -> set[tuple[str, int]]:
    return set(base_rows(relation, alias))


@pytest.mark.parametrize("label", ["n", "price", None])
def test_split_sizes(shop: tp.Federation, label: str | None) -> None:
    """round(test * n) of the label table's rows that take part are held out; no row is on both sides, none is lost."""
    relation = shop.sql(JOIN, label=label)
    alias = "i" if label == "price" else "o"  # without a label, the first table of FROM
    everything = label_rows(relation, alias)
    for share in (0, 0.1, 0.15, 0.5, 0.99, 1):
        train, test = relation.split(test=share, seed=3)
        held_out = label_rows(test, alias)
        assert len(held_out) == round(share * len(everything))
        assert held_out | label_rows(train, alias) == everything
        assert not held_out & label_rows(train, alias)
        assert Counter(places(train)) + Counter(places(test)) == Counter(places(relation))


def test_split_of_a_split(shop: tp.Federation) -> None:
    """A side of a split splits again, and its order is that of the relation."""
    relation = shop.sql(JOIN, label="n")
    train, _ = relation.split(test=0.3, seed=1)
    inner, validation = train.split(test=0.5, seed=1)
    assert len(label_rows(validation)) == round(0.5 * len(label_rows(train)))
    assert not label_rows(inner) & label_rows(validation)
    assert label_rows(inner) | label_rows(validation) == label_rows(train)
    inside = set(places(validation))
    assert places(validation) == [row for row in places(relation) if row in inside]


def test_seeds_differ(shop: tp.Federation) -> None:
    """Another seed holds out other rows; every row is held out by some seed, of whatever shard."""
    relation = shop.sql(JOIN, label="n")
    chosen = [frozenset(label_rows(relation.split(test=0.2, seed=seed)[1])) for seed in range(40)]
    assert len(set(chosen)) > 30
    assert frozenset().union(*chosen) == label_rows(relation)


def test_split_is_the_same_everywhere(shop: tp.Federation, tmp_path: Path) -> None:
    """One seed holds out the same source rows in another federation, another process, under another order of rows."""
    mine = places(shop.sql(JOIN, label="n").split(test=0.4, seed=11)[1])
    fed = federation(tmp_path, ORDERS)
    assert places(fed.sql(JOIN, label="n").split(test=0.4, seed=11)[1]) == mine
    urls = {name: f"parquet:///{tmp_path / name}" for name in ORDERS}
    code = (
        "import json, sys, tablepuppet as tp\n"
        "urls, sql = json.loads(sys.argv[1])\n"
        "print(json.dumps(tp.Federation(urls).sql(sql, label='n').split(test=0.4, seed=11)[1].rows().to_pydict()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps([urls, JOIN])], capture_output=True, text=True, check=True
    )
    told = json.loads(done.stdout)
    assert list(zip(*(zip(told[f"{a}.party"], told[f"{a}.row"], strict=True) for a in "oi"), strict=True)) == mine
    hide_order(fed)
    other = fed.sql(JOIN, label="n")
    assert places(other) != places(shop.sql(JOIN, label="n"))
    assert label_rows(other.split(test=0.4, seed=11)[1]) == {joined[0] for joined in mine}


def test_bad_shares_and_seeds(shop: tp.Federation) -> None:
    """A share outside of 0 to 1, or a seed that is no whole number from 0, is a LearnError that says so."""
    relation = shop.sql(JOIN)
    for share in (-0.1, 1.1, float("nan"), float("inf"), "half", None):
        with pytest.raises(tp.LearnError, match="between 0 and 1"):
            relation.split(test=share)  # type: ignore[arg-type]
    for seed in (-1, 1.5, "x", None):
        with pytest.raises(tp.LearnError, match="seed"):
            relation.split(seed=seed)  # type: ignore[arg-type]


def test_a_side_without_rows_is_told(shop: tp.Federation) -> None:
    """A share that holds out all rows, or none, is a warning."""
    seen: list[tp.Event] = []
    shop.events.subscribe(seen.append)
    for share in (0.0, 0.5, 1.0):
        shop.sql(JOIN, label="n").split(test=share)
    assert [event.fields["side"] for event in seen if event.name == "split.empty"] == ["test", "train"]


def test_split_of_nothing(shop: tp.Federation) -> None:
    """An empty relation splits into two empty ones."""
    for side in shop.sql(f"{JOIN} WHERE FALSE", label="n").split():
        assert len(side) == 0
        assert len(side.rows()) == 0
