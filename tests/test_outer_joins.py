"""Outer joins: joined rows, statistics and models are those of DuckDB on the raw tables, the missing row among them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, given, settings
from sklearn.linear_model import Ridge
from sklearn.preprocessing import StandardScaler

import tablepuppet as tp
from tablepuppet.errors import QueryError
from tablepuppet.sql.plan import KeySpec
from tests.relations import Oracle, Parties, World, federation, hide_order, places, worlds, write_party
from tests.wire.hostile import Attacker, accounts, write_bank
from tests.wire.services import calling, served

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


@settings(deadline=None, max_examples=40, derandomize=True, suppress_health_check=SLOW)
@given(worlds(outer=True))
def test_joined_rows_are_duckdbs(world: World) -> None:
    """Over random shards, keys, chains of outer joins, conditions of ON and WHERE, and unions."""
    expected = world.expected()
    with world.urls() as urls:
        try:
            relation = world.relation(urls)
        except QueryError as error:
            assume("no way yet" not in str(error))
            raise
        assert len(relation) == len(expected)
        assert Counter(places(relation)) == Counter(expected)


CUSTOMERS = 40
FROM = """
    FROM customers c LEFT JOIN orders o ON c.id = o.customer AND o.amount > 1 LEFT JOIN items i ON i.item = o.item
    WHERE c.age < 60 AND (o.amount IS NULL OR o.amount < 9)
"""
COLUMNS = {
    "age": "c.age", "amount": "o.amount", "town": "c.town", "kind": "i.kind", "weight": "i.weight",
    "paid": "coalesce(o.amount, 0)", "has": "o.customer IS NOT NULL", "what": "coalesce(i.kind, 'none')",
}  # fmt: skip
SQL = f"SELECT c.spent, {', '.join(f'{text} AS {name}' for name, text in COLUMNS.items())} {FROM}"


def tables() -> dict[str, dict[str, pa.Table]]:
    """Customers of whom some have no order, orders in two shards of which some have no item, and items."""
    rng = np.random.default_rng(5)

    def orders(count: int) -> pa.Table:
        customer = rng.integers(0, CUSTOMERS // 2, count)
        item = [None if each == 5 else int(each) for each in rng.integers(0, 8, count)]
        return pa.table({"customer": customer, "item": item, "amount": rng.integers(0, 11, count) / 1.0})

    row = np.arange(CUSTOMERS)
    customers = {"id": row, "age": 20 + row, "town": [f"t{i % 3}" for i in row], "spent": np.round(np.sin(row), 3)}
    items = {"item": np.arange(6), "kind": list("aabbca"), "weight": [1.5, None, 2.0, 4.0, 0.5, 3.0]}
    return {
        "bank": {"customers": pa.table(customers)},
        "east": {"orders": orders(25)},
        "west": {"orders": orders(30)},
        "shop": {"items": pa.table(items)},
    }


def pooled(parties: Parties, sql: str = SQL) -> dict[str, list[Any]]:
    """DuckDB's columns of a query over the raw tables."""
    found = Oracle().load(parties).connection.sql(sql).to_arrow_table()
    return {name: found[name].to_pylist() for name in found.column_names}


@pytest.fixture(params=["here", "services"])
def fed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tp.Federation]:
    """The parties in this process with secret orders of rows, and as services."""
    if request.param == "here":
        found = federation(tmp_path, tables())
        hide_order(found)
        yield found
        return
    urls = {name: write_party(tmp_path, name, each) for name, each in tables().items()}
    with served(urls) as servers:
        yield calling(servers, wire="float64")


def test_all_that_learns_sees_the_missing_row(fed: tp.Federation) -> None:
    """Statistics, counts by category, and a linear model equal those of DuckDB's rows, expressions over NULLs too."""
    relation, whole = fed.sql(SQL, label="spent"), pooled(tables())
    assert len(relation) == len(whole["age"])
    described = {row["column"]: row for row in relation.describe().to_arrow().to_pylist()}
    for name in COLUMNS:
        present = [value for value in whole[name] if value is not None]
        assert described[name]["missing"] == len(whole[name]) - len(present), name
        if name in ("amount", "weight", "paid", "has"):
            assert described[name]["mean"] == pytest.approx(np.mean(present)), name
    counted = Counter(zip(whole["town"], whole["what"], strict=True))
    found = relation.crosstab("town", "what").to_arrow().to_pylist()
    assert {(row["town"], row["what"]): row["count"] for row in found if row["count"]} == counted
    cells = pd.DataFrame({name: whole[name] for name in COLUMNS})
    numbers = cells[["age", "amount", "weight", "paid", "has"]].astype(float)
    scaled = StandardScaler().fit_transform(numbers.fillna(numbers.mean()))
    X = np.hstack([scaled, pd.get_dummies(cells[["town", "kind", "what"]]).to_numpy(float)])
    ridge = Ridge(alpha=1e-2 * len(X)).fit(X, whole["spent"])
    model = tp.LinearRegression(l2=1e-2).fit(relation)
    np.testing.assert_allclose(np.sort(model.predict(relation)), np.sort(ridge.predict(X)), atol=1e-6)
    assert model.evaluate(relation)["r2"] == pytest.approx(ridge.score(X, whole["spent"]), abs=1e-6)


def test_what_identifies_a_row_is_null_where_there_is_none(fed: tp.Federation) -> None:
    """Ids of the missing row are NULL, also where another row of the table is NULL in all that was read."""
    relation, whole = fed.sql(SQL, label="spent"), pooled(tables(), f"SELECT c.id, o.customer, i.item {FROM}")
    ids = tp.LinearRegression().fit(relation).predict(relation, ids=["c.id", "o.customer", "i.item"])
    assert Counter(zip(*(ids[f"{name}"].to_pylist() for name in ("c.id", "o.customer", "i.item")), strict=True)) == (
        Counter(zip(*whole.values(), strict=True))
    )


def test_splits_are_of_a_table_that_every_row_has(tmp_path: Path) -> None:
    """With a label over a table that may have no row, rows of the first table are split, not all orders from none."""
    fed = federation(tmp_path, tables())
    relation = fed.sql(
        "SELECT c.age, o.customer IS NOT NULL AS buys FROM customers c LEFT JOIN orders o ON c.id = o.customer",
        label="buys",
    )
    train, test = relation.split(0.25, seed=3)
    sides = [set(each.rows()["c.row"].to_pylist()) for each in (train, test)]
    assert len(sides[1]) == 10
    assert not sides[0] & sides[1]
    for each in (train, test):
        assert None in each.rows()["o.row"].to_pylist()
    folds = tp.cross_validate(tp.LogisticRegression(), relation, folds=3)
    assert len(folds.to_arrow()) == 3


def bank(folder: Path, sql: str, table: str = "", **changed: Any) -> Attacker:
    """At a bank, with a session over one table and its missing row, which has the row id 60."""
    attacker = Attacker(write_bank(folder, table=table))
    attacker.open("s", replace(attacker.scan(sql, keys=()), missing=True, **changed))
    return attacker


def test_the_missing_row_hides_nobody(tmp_path: Path) -> None:
    """It counts for no ``min_group``: four rows and the missing row are four; alone it is known, and nobody's."""
    attacker = bank(
        tmp_path, "SELECT coalesce(cards.amount, 1000.0) AS amount FROM cards", "min_group = 5\nmin_rows = 0"
    )
    found = {}
    for rows in (0, 4, 5):
        attacker.use("s", f"v{rows}", np.append(np.arange(rows), 60), np.ones(rows + 1, np.int32))
        asked = attacker.run("s", "statistics.numbers", view=f"v{rows}", columns=["amount"])
        found[rows] = float(asked["sums"].ravel()[0])
    assert found == {0: 1.0, 4: 0.0, 5: 6.0}


def test_the_missing_row_counts_for_no_min_rows(tmp_path: Path) -> None:
    """A relation over too few rows is refused, whatever is joined to none."""
    attacker = bank(tmp_path, "SELECT cards.amount FROM cards", "min_rows = 5")
    with pytest.raises(tp.PrivacyError, match="min_rows"):
        attacker.use("s", "v", np.append(np.arange(4), 60), np.ones(5, np.int32))
    attacker.use("s", "w", np.append(np.arange(5), 60), np.ones(6, np.int32))
    attacker.use("s", "x", np.array([60]), np.array([1000]))


def test_a_condition_of_an_outer_join_is_a_filter(tmp_path: Path) -> None:
    """A column that may not be filtered by is in no condition, and conditions count as filters."""
    with pytest.raises(tp.PrivacyError, match="may not be used as filter"):
        bank(
            tmp_path / "uses",
            "SELECT cards.amount FROM cards",
            conditions=("id > 3",),
            columns={"id": "BIGINT", "amount": "DOUBLE"},
        )
    write_party(tmp_path, "bank", {"cards": accounts()})
    attacker = Attacker(write_bank(tmp_path, limits="max_filters = 2"))
    scan = attacker.scan("SELECT cards.amount FROM cards", keys=())
    attacker.open("s", replace(scan, conditions=("amount > 3", "amount > 4")))
    with pytest.raises(tp.PrivacyError, match="max_filters"):
        attacker.open("t", replace(scan, conditions=("amount > 5",)))


def test_the_missing_row_has_no_key(tmp_path: Path) -> None:
    """An expression that gives NULL a value would have the digest of a value that the caller chose."""
    scan: dict[str, Any] = {
        "keys": (KeySpec("k", ("coalesce(id, 7)",), ("number",)),),
        "columns": {"id": "BIGINT", "amount": "DOUBLE"},
    }
    attacker = bank(tmp_path, "SELECT cards.amount FROM cards", 'keys = ["coalesce(id, 7)"]')
    told = attacker.open("t", replace(attacker.scan("SELECT cards.amount FROM cards"), missing=True, **scan))
    assert told["codes0"][-1] == len(told["digests0"].view(np.uint8)) == 60
    with pytest.raises(tp.TablePuppetError):  # a party is asked for an expression, not for a statement
        attacker.open(
            "u",
            replace(
                attacker.scan("SELECT amount FROM cards", keys=()),
                missing=True,
                columns={"amount": "DOUBLE); DROP TABLE x"},
            ),
        )


def test_labels_of_rows_without_a_row(tmp_path: Path) -> None:
    """A label that they do not have is refused, with what to write instead; the advice works."""
    fed = federation(tmp_path, tables())
    text = "SELECT c.age, o.amount FROM customers c LEFT JOIN orders o ON c.id = o.customer"
    with pytest.raises(QueryError, match=r"add WHERE o\.amount IS NOT NULL, or make o the table whose rows are kept"):
        fed.sql(text, label="amount")
    assert len(fed.sql(f"{text} WHERE o.amount IS NOT NULL", label="amount")) == 55
    assert len(fed.sql(text.replace("LEFT", "RIGHT"), label="amount")) == 55
