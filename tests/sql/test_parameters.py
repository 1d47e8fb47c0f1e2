"""Parameters of a query: values are what DuckDB's own prepared statements make of them, and never SQL."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, tzinfo
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import duckdb
import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import tablepuppet as tp

ROWS = """
    SELECT i, i * 0.1::DOUBLE AS x, (i * 1.25)::DECIMAL(18,2) AS m, DATE '2024-01-01' + i::INT AS d,
           TIMESTAMP '2024-01-01 00:00:00' + to_hours(i) AS t, 'it''s ' || (i % 7) AS s, i % 2 = 0 AS b
    FROM range(50) r(i)
"""
DAY = date(2024, 1, 1)


@pytest.fixture(scope="module")
def orders() -> Any:
    """The table, as DuckDB has it and as a party of this process."""
    connection = duckdb.connect()
    connection.execute(f"CREATE TABLE orders AS {ROWS}")
    return connection, tp.Federation({"mine": {"orders": connection.sql("FROM orders").to_arrow_table()}})


CASES = st.one_of(
    st.tuples(st.just("i > $p"), st.integers(-(2**40), 2**40)),
    st.tuples(st.just("x <= $p"), st.floats(allow_nan=False)),
    st.tuples(st.just("m = $p OR m > $p"), st.decimals(-1000, 1000, places=3)),
    st.tuples(st.just("d >= $p"), st.integers(-5, 60).map(lambda days: DAY + timedelta(days))),
    st.tuples(st.just("t < $p"), st.integers(-5, 60).map(lambda hours: datetime(2024, 1, 1) + timedelta(hours=hours))),
    st.tuples(st.just("s = $p OR s < $p"), st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))),
    st.tuples(st.just("b = $p"), st.booleans()),
    st.tuples(st.just("i IS NOT DISTINCT FROM $p"), st.none()),
)  # fmt: skip


@given(CASES)
@example(("s = $p", "it's 3"))
@example(("s <> $p", "x' OR '1' = '1"))
@example(("i - $p > 0", -3))
@example(("x >= $p", np.float64(0.30000000000000004)))
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_value_is_what_duckdb_binds(orders: Any, case: tuple[str, Any]) -> None:
    """A query with a value has the rows that DuckDB's prepared statement finds."""
    connection, fed = orders
    condition, value = case
    bound = value.item() if isinstance(value, np.generic) else value
    found = connection.execute(f"SELECT i FROM orders WHERE {condition} ORDER BY i", {"p": bound}).fetchall()
    relation = fed.sql(f"SELECT i, x FROM orders WHERE {condition}", params={"p": value})
    assert len(relation) == len(found)


class Word(str, Enum):  # noqa: UP042 - a StrEnum prints its value
    """Its members print as ``Word.THIRD``."""

    THIRD = "it's 3"


class Digit(int, Enum):
    """Its members print as ``Digit.TWO``."""

    TWO = 2


class Share(float, Enum):
    """Its members print as ``<Share.HALF: 0.5>``."""

    HALF = 0.5


class Sly(int):
    """A number that prints as a condition."""

    def __repr__(self) -> str:
        return "0 OR TRUE"

    __str__ = __repr__


class Nowhere(tzinfo):
    """A zone that knows no offset: a time stamp with it is a naive one."""

    def utcoffset(self, _: datetime | None) -> None:
        return None

    dst = tzname = utcoffset


@pytest.mark.parametrize(
    ("condition", "value", "plain"),
    [
        ("s = $p", Word.THIRD, "'it''s 3'"),
        ("i = $p", Digit.TWO, "2"),
        ("i = $p", Sly(7), "7"),
        ("x = $p", Share.HALF, "CAST('0.5' AS DOUBLE)"),
        ("t = $p", np.datetime64("2024-01-02T03", "ns"), "CAST('2024-01-02 03:00:00' AS TIMESTAMP)"),
        ("t = $p", np.datetime64("2024-01-02T03"), "CAST('2024-01-02 03:00:00' AS TIMESTAMP)"),
        ("t = $p", pd.Timestamp("2024-01-02 03:00"), "CAST('2024-01-02 03:00:00' AS TIMESTAMP)"),
        ("t = $p", datetime(2024, 1, 2, 3, tzinfo=Nowhere()), "CAST('2024-01-02 03:00:00' AS TIMESTAMP)"),
        ("t = $p", datetime(2024, 1, 2, 3, tzinfo=UTC), "CAST('2024-01-02 03:00:00+00:00' AS TIMESTAMPTZ)"),
        ("t = $p", pd.NaT, "NULL"),
        ("t IN ($p)", np.array(["2024-01-02T03"], "M8[ns]"), "CAST('2024-01-02 03:00:00' AS TIMESTAMP)"),
    ],
)
def test_a_value_is_that_of_its_type_whatever_its_class_prints(
    orders: Any, condition: str, value: Any, plain: str
) -> None:
    """Members of enumerations are their values, a time of NumPy or pandas is a time; no text of a class is read."""
    _, fed = orders
    query = fed.sql(f"SELECT i FROM orders WHERE {condition}", params={"p": value}).query
    same = fed.sql(f"SELECT i FROM orders WHERE {condition.replace('$p', plain)}").query
    assert query.branches[0].filters["orders"] == same.branches[0].filters["orders"]


def test_lists_stand_after_in(orders: Any) -> None:
    """A list is the values of IN, beside others or by itself, of any type."""
    _, fed = orders
    both = fed.sql("SELECT i FROM orders WHERE i IN (1, $n) AND s IN ($s)", params={"n": [2, 3], "s": ("it's 2", "y")})
    assert len(both) == 1
    assert len(fed.sql("SELECT i FROM orders WHERE i IN ($n)", params={"n": np.arange(5)})) == 5


def test_values_are_in_the_plan_like_literals(orders: Any) -> None:
    """Outputs and filters have typed literals: a UUID, a decimal with its digits, a date."""
    _, fed = orders
    text = "SELECT m * $rate AS fee FROM orders WHERE d > $d AND s <> CAST($u AS VARCHAR)"
    values = {"rate": Decimal("0.10"), "d": DAY, "u": UUID(int=1)}
    query = fed.sql(text, params=values).query
    assert query.features[0].expression == "m * CAST('0.10' AS DECIMAL(2, 2))"
    assert query.branches[0].filters["orders"] == (
        "(d > CAST('2024-01-01' AS DATE)) AND (s <> CAST(CAST('00000000-0000-0000-0000-000000000001' AS UUID) AS TEXT))"
    )


@pytest.mark.parametrize(
    ("text", "params", "words", "underlined"),
    [
        ("i > $n", {}, "$n has no value", "$n"),
        ("i > $least", {"leest": 1}, "the SQL has no $leest; did you mean 'least'?", ""),
        ("i > $n", {"n": 1, "m": 2}, "the SQL has no $m", ""),
        ("i > ?", {"n": 1}, "parameters have names here", "?"),
        ("i > $n", {"n": [1, 2]}, "$n is a list: write it as IN ($n)", "$n"),
        ("i IN ($n)", {"n": []}, "$n is an empty list", "$n"),
        ("i IN ($n)", {"n": [1, object()]}, "$n is object: a parameter is a number", "$n"),
        ("i > $n", {"n": 2**130}, "$n is int", "$n"),
        ("s > $n AND i", {"n": "a"}, "a condition must be true or false", "i"),
        ("b AND $n", {"n": 7}, "a condition must be true or false", "$n"),
        ("s = $n", {"n": "a\0"}, "$n is str", "$n"),
        ("s = $n", {"n": "a\ud800"}, "$n is str", "$n"),
        ("i > $n", {"n": np.timedelta64(5, "ns")}, "$n is timedelta64", "$n"),
        ("t > $n", {"n": np.datetime64(1, "ns")}, "$n is datetime64", "$n"),
        ("t > $n", {"n": np.datetime64(10**12, "s")}, "$n is datetime64", "$n"),
        ("t > $n", {"n": pd.Timestamp(1)}, "$n is Timestamp", "$n"),
    ],
)
def test_a_wrong_parameter_is_named(
    orders: Any, text: str, params: dict[str, Any], words: str, underlined: str
) -> None:
    """The error says which parameter, and underlines it where the SQL has it."""
    _, fed = orders
    with pytest.raises(tp.QueryError) as caught:
        fed.sql(f"SELECT i FROM orders WHERE {text}", params=params)
    message = str(caught.value)
    assert words in message
    if underlined:
        assert message.splitlines()[-1].strip() == "^" * len(underlined)


def test_params_is_a_dict(orders: Any) -> None:
    """A list of values is refused: parameters have names."""
    _, fed = orders
    with pytest.raises(tp.QueryError, match="params is a dict"):
        fed.sql("SELECT i FROM orders WHERE i > $n", params=[1])
