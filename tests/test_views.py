"""Subqueries and WITH over one table: rows are made at the party, and are those of DuckDB on the raw tables."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sklearn.linear_model import Ridge
from sklearn.preprocessing import StandardScaler

import tablepuppet as tp
from tablepuppet.party.audit import AuditLog
from tablepuppet.party.request import UNDECLARED, Request, Step
from tablepuppet.sql.plan import text_of
from tests.relations import Oracle, federation, hide_order, party_of, write_party
from tests.wire.hostile import Attacker, write_bank
from tests.wire.services import calling, served

TABLES = {
    "bank": {"customers": pa.table({"id": np.arange(30), "age": 20.0 + np.arange(30), "spent": np.sin(np.arange(30))})},
    "shop": {
        "orders": pa.table(
            {
                "customer": np.arange(90) * 7 % 24,
                "amount": [None if i % 11 == 0 else i % 13 / 3 for i in range(90)],
                "kind": [("toy", "food", None)[i % 3] for i in range(90)],
                "day": np.arange(90) % 31,
            }
        )
    },
    "east": {"visits": pa.table({"id": [1, 2, 2, None], "seconds": [3.0, 4.0, 5.0, 6.0]})},
    "west": {"visits": pa.table({"id": [2, 7, 8], "seconds": [1.0, None, 2.0]})},
}
VIEWS = {
    "groups": "SELECT customer AS id, count(*) AS n, avg(amount) AS mean, sum(amount) AS total, max(day) AS last, "
    "stddev(amount) AS sd, median(amount) AS middle, quantile_cont(amount, 0.9) AS high FROM orders GROUP BY 1",
    "filters": "SELECT customer AS id, count(*) FILTER (WHERE kind = 'toy') AS toys, count(DISTINCT kind) AS kinds, "
    "arg_max(kind, day) AS last FROM orders WHERE day > 3 AND amount IS NOT NULL GROUP BY customer HAVING count(*) > 2",
    "expressions": "SELECT customer % 12 AS id, max(amount) - min(amount) AS spread, sum(amount * day) / count(*) AS x"
    ", corr(amount, day) AS r, mode(kind) AS usual FROM orders GROUP BY customer % 12",
    "distinct": "SELECT DISTINCT customer AS id, kind FROM orders",
    "rows": "SELECT customer AS id, coalesce(amount, 0) * 2 AS twice, kind FROM orders WHERE kind <> 'toy'",
    "shards": "SELECT id, seconds + 1 AS more FROM visits WHERE seconds > 1",
    "all": "SELECT * FROM west.visits",
}


def values(relation: tp.Relation) -> Counter[str]:
    """The values that parties read for each joined row, NULL where there is no row."""
    columns = []
    for column in relation.query.outputs:
        table, parts = relation.mapping.tables[column.alias], []
        for shard in table.shards:
            party = party_of(relation._session.engine, shard.party)
            snapshot = party.table(relation._session.id, column.alias).snapshot
            parts += snapshot.outputs[column.name].take(pa.array(snapshot.place(shard.row_ids))).to_pylist()
        columns.append([parts[place] for place in table.index])
    return Counter(repr(tuple(map(rounded, row))) for row in zip(*columns, strict=True))


def rounded(value: Any) -> Any:
    """A float without its last digits: DuckDB adds up in any order."""
    return float(f"{value:.9g}") if isinstance(value, float) else value


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("join", ["JOIN", "LEFT JOIN"])
def test_rows_of_a_view_are_duckdbs(name: str, join: str, tmp_path: Path) -> None:
    """In FROM and in WITH, joined inner and outer, with secret orders of rows."""
    fed = federation(tmp_path, TABLES)
    hide_order(fed)
    items = ", ".join(f"f.{each}" for each in fed.sql(f"SELECT * FROM ({VIEWS[name]}) AS f").columns if each != "id")
    rest = f"SELECT c.age, f.id AS other, {items} FROM customers c {join}"
    raw = Oracle().load(TABLES)
    for text in (
        f"{rest} ({VIEWS[name].replace('*', 'id, seconds') if name == 'all' else VIEWS[name]}) AS f ON f.id = c.id",
        f"WITH f AS ({VIEWS[name]}) {rest} f USING (id) WHERE c.age > 22 AND f.id % 2 = 0",
    ):
        expected = Counter(repr(tuple(map(rounded, row))) for row in raw.rows(text))
        assert values(fed.sql(text)) == expected


@pytest.fixture(params=["here", "services"])
def fed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tp.Federation]:
    """The parties in this process, and as services."""
    if request.param == "here":
        yield federation(tmp_path, TABLES)
        return
    with served({name: write_party(tmp_path, name, each) for name, each in TABLES.items()}) as servers:
        yield calling(servers, wire="float64")


def test_a_model_over_a_view(fed: tp.Federation) -> None:
    """Features made of another party's rows: coefficients and predictions are scikit-learn's on DuckDB's rows."""
    text = f"""
        WITH f AS ({VIEWS["groups"]}) SELECT c.age, f.n, f.mean, coalesce(f.n, 0) = 0 AS never, c.spent
        FROM customers c LEFT JOIN f USING (id)
    """
    relation = fed.sql(text, label="spent")
    whole = Oracle().load(TABLES).connection.sql(text.replace("c.spent", "c.spent, c.id")).df().sort_values("id")
    numbers = whole[["age", "n", "mean", "never"]].astype(float)
    X = StandardScaler().fit_transform(numbers.fillna(numbers.mean()))
    ridge = Ridge(alpha=1e-2 * len(X)).fit(X, whole["spent"])
    found = tp.LinearRegression(l2=1e-2).fit(relation).predict(relation, ids=["c.id"]).to_pandas().sort_values("c.id")
    np.testing.assert_allclose(found["prediction"], ridge.predict(X), atol=1e-6)


def test_what_has_no_row_of_the_table(fed: tp.Federation) -> None:
    """Ids and deliveries of rows that a view makes, and noise that would hide one of them, are refused."""
    text = f"WITH f AS ({VIEWS['groups']}) SELECT c.age, f.n, c.spent FROM customers c JOIN f USING (id)"
    relation = fed.sql(text, label="spent")
    model = tp.LinearRegression().fit(relation)
    with pytest.raises(tp.PartyError, match="rows of a subquery over 'orders' have no columns"):
        model.predict(relation, ids=["f.n"])
    assert len(model.predict(relation, ids=["c.id"])) == len(relation)
    with pytest.raises(tp.PartyError, match="rows of a subquery over 'orders' are no rows"):
        model.predict(relation, deliver_to="shop")
    noise = tp.Privacy(feature_epsilon=1.0)
    with pytest.raises(tp.PrivacyError, match=r"noise would hide one of its rows.*leave privacy out"):
        relation.describe(["n"], privacy=noise, bounds={"n": (0, 10)})


def attacked(folder: Path, sql: str, table: str = "", **changed: Any) -> Attacker:
    """At a bank, with a session over a view of its cards, changed at will."""
    attacker = Attacker(write_bank(folder, table=table, limits=changed.pop("limits", "")))
    scan = attacker.scan(sql, keys=())
    assert scan.view is not None
    attacker.open("s", replace(scan, view=replace(scan.view, **changed)))
    return attacker


GROUPS = "SELECT f.total FROM (SELECT code, sum(amount) AS total FROM cards GROUP BY code) AS f"


@pytest.mark.parametrize(
    ("sql", "rule"),
    [
        ("SELECT f.x FROM (SELECT code, sum(other) AS x FROM cards GROUP BY 1) AS f", "uses"),
        ("SELECT f.x FROM (SELECT code, sum(fraud) AS x FROM cards GROUP BY 1) AS f", ""),
        ("SELECT f.x FROM (SELECT amount AS x FROM cards WHERE fraud > 0) AS f", "uses"),
        ("SELECT f.x FROM (SELECT code, sum(amount) AS x FROM cards GROUP BY 1 HAVING max(other) > 3) AS f", "uses"),
        ("SELECT f.x FROM (SELECT fraud, sum(amount) AS x FROM cards GROUP BY 1) AS f", "uses"),
        ("SELECT f.x FROM (SELECT DISTINCT fraud, amount AS x FROM cards) AS f", "uses"),
    ],
)
def test_a_view_may_use_what_its_columns_may_be_used_for(tmp_path: Path, sql: str, rule: str) -> None:
    """Of WHERE, HAVING, GROUP BY and aggregates alike; a sum of labels is a label."""
    if not rule:
        attacked(tmp_path, sql)
        return
    with pytest.raises(tp.PrivacyError, match=f"policy rule {rule}"):
        attacked(tmp_path, sql)


@pytest.mark.parametrize("made", ["DISTINCT id, -amount AS total", "id, -sum(amount) AS total"])
def test_rows_of_a_view_are_in_the_order_of_the_source(tmp_path: Path, made: str) -> None:
    """Splits tell an order of rows. It is that of the first row of each group, and not one by what is selected, nor by
    a column that nothing uses.
    """
    fed = federation(tmp_path, {"bank": {"cards": pa.table({"id": [3, 1, 3, 2], "amount": [7.0, 9.0, 7.0, 8.0]})}})
    relation = fed.sql(f"SELECT f.id FROM (SELECT {made} FROM cards {'GROUP BY id' * ('sum' in made)}) AS f")
    snapshot = party_of(relation._session.engine, "bank").table(relation._session.id, "f").snapshot
    order = np.argsort(snapshot.position(np.arange(3)))
    assert snapshot.outputs["id"].take(order).to_pylist() == [3, 1, 2]


def test_a_column_of_a_view_that_nothing_uses_is_as_if_it_were_selected(tmp_path: Path) -> None:
    """It is evaluated too: at level private it is refused."""
    file = write_bank(tmp_path)
    for uses, is_refused in (('"key"', False), ('{ uses = ["key"], level = "private" }', True)):
        file.write_text(re.sub("^other = .*", f"other = {uses}", file.read_text(), flags=re.MULTILINE))
        attacker = Attacker(file)
        scan = attacker.scan(GROUPS, keys=())
        assert scan.view is not None
        columns, read = {**scan.view.columns, "a": "max(other)"}, {**scan.view.read, "other": "BIGINT"}
        with pytest.raises(tp.PrivacyError, match="level") if is_refused else nullcontext():
            attacker.open("s", replace(scan, view=replace(scan.view, columns=columns, read=read)))


def test_a_table_that_demands_noise_has_no_views(tmp_path: Path) -> None:
    """One row may be in several of a view's, so that noise for one would not hide it."""
    with pytest.raises(tp.PrivacyError, match=r"noise hides one row.*require_dp"):
        attacked(tmp_path, GROUPS, "budget = { epsilon = 5.0, delta = 1e-6, require_dp = true }")


WITH_OTHER = {"amount": "DOUBLE", "code": "VARCHAR", "other": "BIGINT"}  # it may be a key, and no feature or filter


@pytest.mark.parametrize(
    "changed",
    [
        {"columns": {"TOTAL": "max(other)", "total": "sum(amount)"}, "read": WITH_OTHER},
        {"columns": {"total": "sum(amount)", "__position": "max(other)"}, "read": WITH_OTHER},
        {"columns": {"total": "sum(amount)", "amount": "max(other)"}, "having": "amount > 6", "read": WITH_OTHER},
        {"columns": {"other": "sum(amount)"}},
        {"columns": {"total": "(SELECT max(amount) FROM cards)"}},
        {"columns": {"total": "sum(getenv('HOME'))"}},
        {"columns": {"total": "sum(sum(amount))"}},
        {"columns": {"total": "sum(pin)"}},
        {"columns": {"total": "first(amount)"}},
        {"columns": {"total": "sum(amount) OVER ()"}},
        {"columns": {"total": "count(*) FILTER (WHERE id IN (SELECT id FROM cards))"}},
        {"columns": {"total": "1 AS x, (2"}},
        {"columns": {'x" FROM cards; --': "sum(amount)"}},
        {"groups": ("code) HAVING (SELECT true",)},
        {"groups": ("pin",)},
        {"having": "read_csv('/etc/passwd') IS NULL"},
        {"filter": "amount > (SELECT avg(amount) FROM cards)"},
        {"read": {"amount": "DOUBLE", "code": "VARCHAR", "pin": "DOUBLE"}},
        {"read": {"amount": "DOUBLE) FROM cards; --", "code": "VARCHAR"}},
    ],
)
def test_a_view_that_is_none_is_refused(tmp_path: Path, changed: dict[str, Any]) -> None:
    """A party checks every expression that it is sent, and writes the SELECT itself: no name stands for another one."""
    with pytest.raises(tp.TablePuppetError):
        attacked(tmp_path, GROUPS, **changed)


def test_views_count_as_filters_and_are_shown(tmp_path: Path) -> None:
    """What decides which rows there are counts for ``max_filters``; an operator reads the SELECT that is evaluated."""
    attacker = attacked(tmp_path, GROUPS, limits="max_filters = 1")
    scan = attacker.scan(GROUPS, keys=())
    made = "SELECT code, sum(amount) AS total FROM cards GROUP BY code"
    assert text_of(scan) == f"SELECT total FROM ({made}) AS f"
    attacker.open("t", scan)  # the same one
    with pytest.raises(tp.PrivacyError, match="max_filters"):
        attacker.open("u", attacker.scan(GROUPS.replace("GROUP BY code", "GROUP BY code HAVING count(*) > 1"), keys=()))
    view = scan.view
    assert view is not None
    hidden = replace(scan, view=replace(view, columns={"total": "sum(amount) /* GROUP BY code */"}))
    assert "/*" not in text_of(hidden)
    log = AuditLog(tmp_path / "audit.jsonl", state=tmp_path / "state")
    other = replace(scan, view=replace(view, filter="amount > 3"))
    filters = [log.about(UNDECLARED, [each]).filter for each in (scan, other, replace(scan, view=None))]
    assert filters[0] != filters[1] != ""
    assert not filters[2]


def test_groups_of_a_view_are_of_its_rows(tmp_path: Path) -> None:
    """A view of fewer rows than ``min_group`` has no statistics."""
    sql = (
        "SELECT f.total FROM (SELECT amount > {0} AS many, sum(amount) AS total FROM cards GROUP BY amount > {0}) AS f"
    )
    attacker = attacked(tmp_path, sql.format(3), "min_rows = 0\nmin_group = 5")
    attacker.sent["s"] = 0
    step = Step("rows.use", "f", {"view": "v", "chosen": None, "counts": np.ones(2, np.int32)})
    asked = Step("statistics.numbers", "f", {"view": "v", "columns": ["total"]})
    found = attacker.send(Request("run", "s", {}, (step, asked), 1))[1]
    assert float(found["sums"].ravel()[0]) == 0.0
