"""`TableMapping`: gather and scatter_sum are products with the 0/1 selection matrix."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tablepuppet.arrays import Floats
from tablepuppet.mapping import table_mapping
from tablepuppet.mapping.join import number_digests
from tablepuppet.mapping.table_mapping import MappedTable, ShardRows, TableMapping, compact


def mapping_of(index: list[int], sizes: list[int]) -> TableMapping:
    """One table of shards of these sizes; every row that is not in ``index`` is left out."""
    starts = np.cumsum([0, *sizes])
    shards = tuple(ShardRows(f"p{i}", np.arange(n, dtype=np.int32), int(starts[i])) for i, n in enumerate(sizes))
    return compact({"t": MappedTable(np.array(index, np.int32), shards)}, len(index))


@st.composite
def mappings(draw: st.DrawFn) -> TableMapping:
    sizes = draw(st.lists(st.integers(0, 5), min_size=1, max_size=3))
    rows = sum(sizes)
    index = draw(st.lists(st.integers(0, rows - 1), max_size=30)) if rows else []
    return mapping_of(index, sizes)


@settings(deadline=None, derandomize=True)
@given(mappings(), st.integers(1, 4))
def test_gather_and_scatter_sum_are_matrix_products(mapping: TableMapping, classes: int) -> None:
    """gather is S @ v and scatter_sum is S.T @ u, for vectors and matrices; counts are S.T @ 1."""
    table = mapping.tables["t"]
    selection = np.zeros((len(mapping), table.rows))
    selection[np.arange(len(mapping)), table.index] = 1
    random = np.random.default_rng(0)
    values, joined = random.normal(size=(table.rows, classes)), random.normal(size=(len(mapping), classes))
    np.testing.assert_array_equal(mapping.gather("t", values), selection @ values)
    np.testing.assert_array_equal(mapping.gather("t", values[:, 0]), selection @ values[:, 0])
    np.testing.assert_allclose(mapping.scatter_sum("t", joined), selection.T @ joined, atol=1e-12)
    np.testing.assert_allclose(mapping.scatter_sum("t", joined[:, 0]), selection.T @ joined[:, 0], atol=1e-12)
    np.testing.assert_array_equal(mapping.counts("t"), selection.sum(axis=0))


@settings(deadline=None, derandomize=True)
@given(mappings(), st.integers(0, 1000))
def test_where_keeps_chosen_rows(mapping: TableMapping, seed: int) -> None:
    """`where` keeps exactly the joined rows of chosen base rows, in their order, and no other base row."""
    table = mapping.tables["t"]
    chosen = np.random.default_rng(seed).random(table.rows) < 0.5
    kept = mapping.where("t", chosen)
    ids = np.concatenate([s.row_ids + 100 * i for i, s in enumerate(table.shards)])
    kept_ids = np.concatenate([s.row_ids + 100 * i for i, s in enumerate(kept.tables["t"].shards)])
    expected = ids[table.index][chosen[table.index]]
    np.testing.assert_array_equal(kept_ids[kept.tables["t"].index], expected)
    assert set(kept_ids.tolist()) == set(expected.tolist())
    assert len(kept) == len(expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_long_mappings_are_moved_in_pieces(monkeypatch: pytest.MonkeyPatch, dtype: type) -> None:
    """Joined rows beyond one chunk, and base rows beyond one, give what a plain take and bincount give."""
    random = np.random.default_rng(1)
    rows, joined = 3000, 100_003
    index = random.integers(0, rows, joined)
    index[:rows] = np.arange(rows)
    monkeypatch.setattr(table_mapping, "SCATTER_CHUNK", 4096)
    mapping = mapping_of(index.tolist(), [rows])
    values: Floats = random.normal(size=(rows, 2)).astype(dtype)
    weights: Floats = random.normal(size=joined).astype(dtype)
    assert mapping.gather("t", values).dtype == dtype
    np.testing.assert_array_equal(mapping.gather("t", values), values[index])
    np.testing.assert_allclose(mapping.scatter_sum("t", weights), np.bincount(index, weights), atol=1e-9)
    np.testing.assert_array_equal(mapping.counts("t"), np.bincount(index))


def test_runs_of_a_base_row_are_added_up_at_once() -> None:
    """Joined rows in the order of long runs give the same sums; rows out of order are no runs."""
    random = np.random.default_rng(2)
    index = np.repeat(np.arange(50), random.integers(20, 60, 50))
    weights = random.normal(size=(len(index), 2))
    mapping = mapping_of(index.tolist(), [20, 30])
    assert mapping.tables["t"].runs is not None
    expected = np.stack([np.bincount(index, column) for column in weights.T], axis=1)
    np.testing.assert_allclose(mapping.scatter_sum("t", weights), expected, atol=1e-12)
    np.testing.assert_allclose(mapping.scatter_sum("t", weights[:, 0]), expected[:, 0], atol=1e-12)
    assert mapping_of(index[::-1].tolist(), [50]).tables["t"].runs is None


def test_scatter_sum_adds_in_double_precision() -> None:
    """Sums of float32 values are float64: a million small values do not stop at 2^24."""
    mapping = mapping_of([0] * 100_000 + [1], [2])
    values = np.full(100_001, 16777216.0, np.float32)
    values[1::2] = 1.0
    sums = mapping.scatter_sum("t", values)
    assert sums.dtype == np.float64
    assert sums[0] == 50_000 * 16777216.0 + 50_000


@settings(deadline=None, derandomize=True)
@given(st.lists(st.lists(st.integers(0, 20), unique=True), min_size=1, max_size=4))
def test_equal_digests_get_equal_numbers(lists: list[list[int]]) -> None:
    """Digests of several lists are numbered 0, 1, ... alike where they are equal, and only there."""
    digests = [np.array([[value] * 16 for value in part], np.uint8).reshape(-1, 16) for part in lists]
    numbers, size = number_digests(digests)
    meaning = {}
    for part, numbered in zip(lists, numbers, strict=True):
        assert len(part) == len(numbered)
        meaning.update(dict(zip(numbered.tolist(), part, strict=True)))
    assert size == len({value for part in lists for value in part}) == len(meaning)
    assert all(
        meaning[number] == value
        for part, numbered in zip(lists, numbers, strict=True)
        for number, value in zip(numbered.tolist(), part, strict=True)
    )
