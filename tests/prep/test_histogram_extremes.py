"""Columns at the ends of what a float can hold: NumPy's numbers, or a sentence that says what to do."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

import tablepuppet as tp

MOST = float(np.finfo(np.float64).max)
SHARES = [0.0, 0.25, 0.5, 0.9, 1.0]


def relation(values: Sequence[float], item: str = "x") -> tp.Relation:
    table = pa.table({"x": pa.array(values, pa.float64()), "y": np.arange(float(len(values)))})
    return tp.Federation({"a": {"t": table}}).sql(f"SELECT {item}, y FROM t")


@pytest.mark.parametrize(
    "values",
    [
        [-MOST, MOST] * 20,
        [-MOST, MOST, 0.0, 1.0] * 10,
        [1.7e308] * 39 + [1.0],
        [5e-324, 1e-323, 0.0, -5e-324] * 10,
        [5e-324, 1.7e308] * 20,
        [1e100, -1e100, 3.0, 4.0] * 10,
    ],
)
def test_extremes(values: list[float]) -> None:
    """Quantiles are NumPy's, also where NumPy overflows; nothing warns, and a profile has the other columns."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = relation(values)
        quantiles = found.quantile(SHARES)["x"]
        described = {row["column"]: row for row in found.describe().to_arrow().to_pylist()}
        assert {row["column"] for row in found.profile().description.to_arrow().to_pylist()} == {"x", "y"}
    wide = np.quantile(np.array(values, np.longdouble), SHARES).astype(np.float64)
    np.testing.assert_allclose(quantiles, wide, rtol=1e-12, atol=5e-324)
    assert (described["x"]["min"], described["x"]["max"]) == (min(values), max(values))


@pytest.mark.parametrize(
    ("values", "says", "instead"),
    [
        ([-MOST, MOST] * 20, "has values beyond 1e+100; divide it by a number in SELECT", "x / 1e300 AS x"),
        (
            [5e-324, 1e-323] * 20,
            "has too narrow a range for 5 bins; shift it towards 0, or multiply it",
            "x * 1e300 AS x",
        ),
        ([1e20] * 40, "has too narrow a range for 5 bins; shift it towards 0, or multiply it", "x - 1e20 AS x"),
    ],
)
def test_a_histogram_that_has_no_bins(values: list[float], says: str, instead: str) -> None:
    """The error says why, and what it advises works."""
    with pytest.raises(tp.LearnError) as error:
        relation(values).histogram("x", bins=5)
    assert f"histogram: column 'x' {says}" in str(error.value)
    assert relation(values, instead).histogram("x", bins=5).counts.sum() == 40
