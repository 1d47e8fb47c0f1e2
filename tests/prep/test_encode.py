"""Encoding: what parties hold, gathered to joined rows, is the encoding of the materialised join."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

import tablepuppet as tp
from tablepuppet.prep.encode.encode import Encoding, apply_encoding
from tablepuppet.prep.pipelines.pipeline import DEFAULT, fit_encoding
from tests.relations import Parties, federation, hide_order, materialised, party_of, warnings_of


def fit(relation: tp.Relation) -> Encoding:
    """The encoding that a learner would fit on a relation."""
    return fit_encoding(relation.client, DEFAULT, relation.max_categories, relation.events)


def encoded(relation: tp.Relation, encoding: Encoding) -> dict[str, NDArray[np.float64]]:
    """Encoded columns by name, for every joined row."""
    apply_encoding(relation.client, encoding)
    relation.client.outbox.send()
    found = {}
    for alias in relation.mapping.tables:
        names = encoding.names(alias)
        parts = [np.zeros((0, len(names)))]
        for shard in relation.client.shards(alias):
            party = party_of(relation._session.engine, shard.party)
            table = party.table(relation._session.id, alias).state[f"{relation._view}/{encoding.id}"].data.open()
            assert table.width == len(names)
            parts.append(table.matrix())
        joined = relation.mapping.gather(alias, np.concatenate(parts))
        found.update({name: joined[:, place] for place, name in enumerate(names)})
    return found


def standardised(values: Sequence[Any]) -> NDArray[np.float64]:
    """Missing filled with the mean, then centred and scaled by the deviation with ddof 0."""
    numbers = np.array([math.nan if value is None else float(value) for value in values])
    filled = np.where(np.isnan(numbers), np.nanmean(numbers), numbers)
    scaled: NDArray[np.float64] = (filled - filled.mean()) / filled.std()
    return scaled


def indicators(columns: dict[str, NDArray[np.float64]], name: str) -> set[tuple[float, ...]]:
    return {tuple(values.tolist()) for column, values in columns.items() if column.startswith(f"{name}=")}


def expected_indicators(values: Sequence[Any]) -> set[tuple[float, ...]]:
    return {tuple(float(value == category) for value in values) for category in set(values) - {None}}


@pytest.fixture
def shop() -> Parties:
    """Sales in two shards with NULLs, and items of which some sell more often than others."""
    random = np.random.default_rng(3)

    def sales(size: int, seed: int) -> pa.Table:
        draw = np.random.default_rng(seed)
        return pa.table(
            {
                "item": draw.integers(0, 12, size),
                "price": pa.array(draw.normal(50, 9, size), mask=draw.random(size) < 0.2),
                "day": pa.array([date(2024, 1, 1 + int(d)) for d in draw.integers(0, 28, size)]),
                "shop": pa.array(draw.choice(["north", "south", "wést 😀"], size), mask=draw.random(size) < 0.2),
                "paid": pa.array(draw.random(size) < 0.4),
                "size": draw.choice([36, 38, 40], size),
            }
        )

    items = pa.table({"item": range(10), "weight": random.normal(1e9, 1e-2, 10), "kind": [*list("aabbbccdd"), None]})
    return {"p0": {"sales": sales(40, 1)}, "p1": {"sales": sales(25, 2)}, "p2": {"items": items}}


SQL = "SELECT s.price, s.day, s.shop, s.paid, s.size, i.weight, i.kind FROM sales s JOIN items i USING (item)"


@pytest.mark.parametrize("hidden", [False, True])
def test_encoding_is_that_of_the_join(tmp_path: Path, shop: Parties, hidden: bool) -> None:
    """Numbers are filled and standardised over joined rows, categories are 0/1, in every shard alike."""
    fed = federation(tmp_path, shop)
    if hidden:
        hide_order(fed)
    relation = fed.sql(SQL)
    columns = encoded(relation, fit(relation))
    assert 0 < len(relation) < 65
    for alias, name in (("s", "price"), ("s", "size"), ("s", "paid"), ("i", "weight")):
        values = materialised(relation, shop, alias, name)
        offset = 1e9 if name == "weight" else 0.0
        shifted = [None if value is None else value - offset for value in values]
        tolerance = 2**-23 / 1e-2 if offset else 1e-9  # half a unit in the last place of the mean
        np.testing.assert_allclose(columns[f"{alias}.{name}"], standardised(shifted), atol=tolerance)
    days = [(day - date(1970, 1, 1)).days for day in materialised(relation, shop, "s", "day")]
    np.testing.assert_allclose(columns["s.day"], standardised(days), atol=1e-9)
    for alias, name in (("s", "shop"), ("i", "kind")):
        values = materialised(relation, shop, alias, name)
        assert indicators(columns, f"{alias}.{name}") == expected_indicators(values)
        missing = np.array([value is None for value in values])
        assert missing.any()
        for column in [values for key, values in columns.items() if key.startswith(f"{alias}.{name}=")]:
            assert not column[missing].any()
    assert len(columns) == 5 + 3 + len(set(materialised(relation, shop, "i", "kind")) - {None})


def test_frequent_categories_come_first(tmp_path: Path) -> None:
    """The code 0 is the most frequent category over joined rows and all shards, and so on."""
    parties = {
        "p0": {"t": pa.table({"c": ["rare", "some", "often", "often", None]})},
        "p1": {"t": pa.table({"c": ["some", "often", "some", "often"]})},
    }
    relation = federation(tmp_path, parties).sql("SELECT c FROM t")
    columns = encoded(relation, fit(relation))
    assert list(columns) == ["t.c=0", "t.c=1", "t.c=2"]
    assert [values.sum() for values in columns.values()] == [4, 3, 1]


def test_constant_empty_and_wide_columns_are_left_out(tmp_path: Path) -> None:
    """Columns that say nothing, or have too many categories, are dropped, each with a warning event that names it."""
    rows = {
        "constant": [0.1] * 6,
        "single": ["x"] * 6,
        "empty": pa.array([None] * 6, pa.float64()),
        "silent": pa.array([None] * 6, pa.string()),
        "wide": list("abcdef"),
        "flag": [True] * 6,
        "good": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
        "present": ["x", None, "x", "x", "x", None],
    }
    parties = {"p0": {"t": pa.table(rows).slice(0, 3)}, "p1": {"t": pa.table(rows).slice(3)}}
    fed = federation(tmp_path, parties)
    warned = warnings_of(fed)
    relation = fed.sql("SELECT * FROM t", max_categories=5)
    assert sorted(encoded(relation, fit(relation))) == ["t.good", "t.present=0"]
    reasons = {event.fields["column"]: event.fields["reason"] for event in warned}
    assert {event.name for event in warned} == {"column.dropped"}
    assert all(event.fields["column"] in event.message for event in warned)
    assert set(reasons) == {f"t.{name}" for name in ("constant", "single", "empty", "silent", "wide", "flag")}
    assert [reasons[f"t.{name}"] for name in ("constant", "empty", "silent")] == [
        "has one value only",
        "is empty",
        "is empty",
    ]
    assert reasons["t.wide"].startswith("has 6 or more categories; raise max_categories (5)")


@pytest.mark.parametrize("shards", [1, 2])
def test_exactly_max_categories_are_kept(tmp_path: Path, shards: int) -> None:
    """As many categories as allowed are a feature; the count is over all shards together."""
    rows = pa.table({"c": list("abcdef")})
    parties = {f"p{i}": {"t": rows.slice(i * 6 // shards, 6 // shards)} for i in range(shards)}
    fed = federation(tmp_path, parties)
    warned = warnings_of(fed)
    for most, width in ((6, 6), (5, 0)):
        relation = fed.sql("SELECT c FROM t", max_categories=most)
        assert len(encoded(relation, fit(relation))) == width
    assert len(warned) == 1
    assert "has 6 or more categories" in warned[0].message


def ids(rows: int, distinct: int) -> list[str]:
    return [f"id {min(number, distinct - 1)}" for number in range(rows)]


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize(
    ("rows", "distinct", "categorical", "kept"),
    [(200, 200, [], 0), (200, 190, [], 0), (200, 189, [], 189), (49, 49, [], 49), (200, 200, ["c"], 200)],
)
def test_text_that_names_rows_is_no_feature(
    tmp_path: Path, shards: int, rows: int, distinct: int, categorical: list[str], kept: int
) -> None:
    """Text that differs in 95 % of 50 or more base rows, over all shards, is left out with a warning that says how to
    keep it: by listing it in `categorical`.
    """
    whole = pa.table({"c": ids(rows, distinct), "x": np.arange(rows) / 2})
    cut = [round(rows * place / shards) for place in range(shards + 1)]
    parties = {f"p{i}": {"t": whole.slice(cut[i], cut[i + 1] - cut[i])} for i in range(shards)}
    fed = federation(tmp_path, parties)
    warned = warnings_of(fed)
    relation = fed.sql("SELECT c, x FROM t", categorical=categorical)
    assert len(encoded(relation, fit(relation))) == kept + 1
    assert [event.fields["column"] for event in warned] == ([] if kept else ["t.c"])
    for event in warned:
        assert event.name == "column.dropped"
        assert "looks like an id" in event.message
        assert "list it in categorical to keep it" in event.message


def test_base_rows_that_take_part_are_counted(tmp_path: Path) -> None:
    """60 names in 60 rows are ids however often these are joined; in 40 rows that take part they are categories."""
    parties = {
        "p0": {"t": pa.table({"k": np.arange(60), "c": ids(60, 60)})},
        "p1": {"u": pa.table({"k": np.arange(600) % 60})},
    }
    fed = federation(tmp_path, parties)
    for where, width in (("", 0), (" WHERE t.k < 40", 40)):
        relation = fed.sql(f"SELECT t.c FROM t JOIN u USING (k){where}")
        assert len(encoded(relation, fit(relation))) == width


def test_constant_over_joined_rows(tmp_path: Path) -> None:
    """What counts is the join: a column that varies only in rows that do not join is constant; shards may differ."""
    parties = {
        "p0": {"t": pa.table({"k": [1, 1, 9], "x": [5.0, 5.0, 7.0], "y": [1.0, 1.0, 1.0]})},
        "p1": {"t": pa.table({"k": [1], "x": [5.0], "y": [2.0]})},
        "p2": {"u": pa.table({"k": [1]})},
    }
    fed = federation(tmp_path, parties)
    warned = warnings_of(fed)
    relation = fed.sql("SELECT t.x, t.y FROM t JOIN u USING (k)")
    columns = encoded(relation, fit(relation))
    assert list(columns) == ["t.y"]
    assert [event.fields["column"] for event in warned] == ["t.x"]
    np.testing.assert_allclose(sorted(columns["t.y"]), np.array([-1, -1, 2]) / math.sqrt(2))


def test_prediction_uses_what_was_fitted(tmp_path: Path) -> None:
    """On another relation, means and scales are those of the fit, and a new category is all zeros."""
    train = {"p0": {"t": pa.table({"x": [1.0, 3.0, None], "c": ["a", "b", "a"], "part": [0, 0, 0]})}}
    both = pa.concat_tables(
        [train["p0"]["t"], pa.table({"x": [11.0, None], "c": ["new", "b"], "part": [1, 1]})], promote_options="default"
    )
    relation = federation(tmp_path, {"p0": {"t": both}})
    fitted = relation.sql("SELECT x, c FROM t WHERE part = 0")
    encoding = fit(fitted)
    columns = encoded(relation.sql("SELECT x, c FROM t WHERE part = 1"), encoding)
    assert columns["t.x"].tolist() == pytest.approx([9.0 / np.sqrt(2 / 3), 0.0])
    assert columns["t.c=0"].tolist() == [0.0, 0.0]
    assert columns["t.c=1"].tolist() == [0.0, 1.0]
    assert encoded(fitted, encoding)["t.c=0"].tolist() == [1.0, 0.0, 1.0]


def test_split_is_encoded_by_its_training_rows(tmp_path: Path, shop: Parties) -> None:
    """An encoding fitted on one side of a split gives the other side the same codes for the same categories."""
    relation = federation(tmp_path, shop).sql(SQL, label="paid")
    train, test = relation.split(test=0.4, seed=1)
    encoding = fit(train)
    here, there = encoded(train, encoding), encoded(test, encoding)
    assert list(here) == list(there)
    assert "s.paid" not in here
    prices = materialised(train, shop, "s", "price")
    mean = np.mean([value for value in prices if value is not None])
    filled = [mean if value is None else value for value in prices]
    told = [mean if value is None else value for value in materialised(test, shop, "s", "price")]
    np.testing.assert_allclose(there["s.price"], (np.array(told) - mean) / np.std(filled), atol=1e-9)
    meaning: dict[str, set[Any]] = {}
    for side, columns in ((train, here), (test, there)):
        shops = materialised(side, shop, "s", "shop")
        for name in [name for name in columns if name.startswith("s.shop=")]:
            meaning.setdefault(name, set()).update(v for v, on in zip(shops, columns[name], strict=True) if on)
    assert [len(values) for values in meaning.values()] == [1] * 3


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused(tmp_path: Path, odd: float) -> None:
    """NaN or infinity in a joined row is a LearnError with column and number of rows; elsewhere it does no harm."""
    parties = {"p0": {"t": pa.table({"k": [1, 1, 2], "x": [1.0, odd, 2.0]}), "u": pa.table({"k": [1, 1, 2]})}}
    fed = federation(tmp_path, parties)
    with pytest.raises(tp.LearnError, match=r"column t\.x has values that are not finite .* in 2 joined rows"):
        fit(fed.sql("SELECT t.x FROM t JOIN u USING (k)"))
    fit(fed.sql("SELECT t.x FROM t JOIN u USING (k) WHERE u.k = 2"))


def test_whole_numbers_as_categories(tmp_path: Path) -> None:
    """`categorical` turns integers, of different widths in different shards, into shared categories."""
    parties = {
        "p0": {"t": pa.table({"n": pa.array([1, 2, None], pa.int8()), "b": [True, False, None]})},
        "p1": {"t": pa.table({"n": pa.array([2, 300], pa.int64()), "b": [True, True]})},
    }
    relation = federation(tmp_path, parties).sql("SELECT n, b FROM t", categorical=["n", "b"])
    columns = encoded(relation, fit(relation))
    assert indicators(columns, "t.n") == expected_indicators([1, 2, None, 2, 300])
    assert indicators(columns, "t.b") == expected_indicators([True, False, None, True, True])


def test_nothing_to_encode(tmp_path: Path) -> None:
    """A relation without rows has no encoded column; each is reported as empty."""
    fed = federation(tmp_path, {"p0": {"t": pa.table({"x": [1.0], "c": ["a"]})}})
    warned = warnings_of(fed)
    relation = fed.sql("SELECT x, c FROM t WHERE x > 5")
    assert encoded(relation, fit(relation)) == {}
    assert [event.fields["reason"] for event in warned] == ["is empty"] * 2
