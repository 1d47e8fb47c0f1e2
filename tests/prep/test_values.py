"""Columns as numbers."""

from __future__ import annotations

import math
import random
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import tablepuppet as tp
from tablepuppet.prep.columns.values import numbers


@pytest.mark.parametrize(
    ("values", "type_", "expected"),
    [
        ([True, False, None], pa.bool_(), [1.0, 0.0, 0.0]),
        ([date(1970, 1, 2), date(1969, 12, 31), None], pa.date32(), [1.0, -1.0, 0.0]),
        ([Decimal("1.25"), Decimal("-3"), None], pa.decimal128(9, 2), [1.25, -3.0, 0.0]),
        ([1, -128, None], pa.int8(), [1.0, -128.0, 0.0]),
        ([2**64 - 1, 0, None], pa.uint64(), [float(2**64), 0.0, 0.0]),
        ([0.5, math.inf, None], pa.float32(), [0.5, math.inf, 0.0]),
        *(
            ([datetime(1970, 1, 1, 12), datetime(1969, 12, 31), None], pa.timestamp(unit, zone), [0.5, -1.0, 0.0])
            for unit in ("s", "ms", "us", "ns")
            for zone in (None, "UTC")
        ),
    ],
)
def test_every_numeric_type(values: list[Any], type_: Any, expected: list[float]) -> None:
    """Numbers of all types, days for dates and times, 0 and 1 for booleans; what is missing is told apart."""
    found, present = numbers(pa.chunked_array([pa.array(values, type_)]))
    assert found.tolist() == expected
    assert present.tolist() == [True, True, False]


@pytest.mark.parametrize(("precision", "scale"), [(9, 2), (15, 4), (18, 3), (38, 10), (38, 30), (5, 0)])
def test_decimals_are_the_nearest_floats(precision: int, scale: int) -> None:
    """As Python and NumPy read them, to the last bit: few digits and many, in a part of a column too."""
    rng = random.Random(precision)
    digits = [rng.randrange(10 ** rng.randrange(1, precision)) * (-1) ** place for place in range(3000)]
    values = [None if place % 7 == 0 else Decimal(each).scaleb(-scale) for place, each in enumerate(digits)]
    whole = pa.array(values, pa.decimal128(precision, scale))
    found, present = numbers(pa.chunked_array([whole, whole.slice(3, 100)]))
    expected = [0.0 if value is None else float(value) for value in values]
    assert found.tolist() == [*expected, *expected[3:103]]
    assert present[: len(values)].tolist() == [value is not None for value in values]


def test_infinite_times_are_infinite(tmp_path: Path) -> None:
    """DuckDB's infinite dates and timestamps are no days: they have no mean, as infinite floats have none."""
    with duckdb.connect(str(tmp_path / "x.duckdb")) as connection:
        connection.execute(
            "CREATE TABLE t (a DATE, b TIMESTAMP, c TIMESTAMPTZ, d TIMESTAMP_S, e TIMESTAMP_MS, f TIMESTAMP_NS)"
        )
        connection.execute(
            "INSERT INTO t VALUES ('-infinity', 'infinity', 'infinity', 'infinity', '-infinity', 'infinity')"
        )
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("INSERT INTO t SELECT d, d, d, d, d, d FROM (SELECT DATE '2020-01-01' AS d)")
    told = tp.Federation({"p0": f"duckdb:///{tmp_path}/x.duckdb"}).sql("SELECT * FROM t").describe().to_arrow()
    assert told["mean"].to_pylist() == [None] * 6
    assert told["min"].to_pylist() == [-math.inf, 18262.0, 18262.0, 18262.0, -math.inf, 18262.0]
    assert told["max"].to_pylist() == [18262.0, math.inf, math.inf, math.inf, 18262.0, math.inf]
