"""Sums at base rows: those of the mapping, however rows are ordered, and whatever is not finite is found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tablepuppet as tp
from tablepuppet.mapping.table_mapping import MappedTable, RowSums, ShardRows, TableMapping
from tests.relations import federation


@settings(deadline=None, max_examples=40, derandomize=True)
@given(st.integers(0, 999), st.sampled_from([0, 1, 5, 4000]), st.integers(1, 7), st.booleans())
def test_sums_at_base_rows(seed: int, joined: int, width: int, in_order: bool) -> None:
    """To 1e-12 those of `scatter_sum`, and rounded once if the wire is narrow; rows that join nothing have 0."""
    rng = np.random.default_rng(seed)
    index = rng.integers(0, 50, joined).astype(np.int32)
    table = MappedTable(np.sort(index) if in_order else index, (ShardRows("p", np.arange(50, dtype=np.int32), 0),))
    values = rng.normal(size=(joined, width))
    known = TableMapping({"t": table}, joined).scatter_sum("t", values)
    sums = RowSums(table)
    np.testing.assert_allclose(sums.of(values), known, atol=1e-12)
    narrow = sums.of(values, "float32")
    assert narrow.dtype == np.float32
    np.testing.assert_array_equal(narrow, sums.of(values).astype(np.float32))


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("values", [(np.nan, 0.0), (np.inf, -np.inf), (np.inf, 1.0), (1e200, 1e200)])
def test_numbers_that_are_not_finite(tmp_path: Path, width: int, values: tuple[float, float]) -> None:
    """Nothing is asked for U with NaN, infinity or too large numbers, also where they meet at one base row."""
    tables = {
        "a": {"t": pa.table({"k": [0, 0, 1], "x": [1.0, 2.0, 5.0]})},
        "b": {"s": pa.table({"k": [0, 1], "z": [1.0, 4.0]})},
    }
    x = federation(tmp_path, tables).sql("SELECT t.x, s.z FROM t JOIN s USING (k)").matrix()
    u = np.zeros((3, width))
    u[:2, -1] = values
    with pytest.raises(tp.LearnError, match=r"U of X.T @ U has numbers that are not finite, or above 1e\+100"):
        x.T @ u
