"""Merged joined rows: every loss, gradient and sum at base rows is that of the rows they stand for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tablepuppet.learn.loss.joined_loss import GRADIENT, JoinedLoss
from tablepuppet.learn.loss.losses import Logistic, Loss, Squared
from tablepuppet.learn.loss.softmax import Softmax
from tablepuppet.mapping.joined_rows import JoinedRows
from tablepuppet.mapping.merged import merged
from tablepuppet.mapping.table_mapping import MappedTable, ShardRows, TableMapping
from tablepuppet.operators.loj import LearningOverJoin
from tablepuppet.prep.encode.alike import first_of_each
from tablepuppet.prep.encode.encoded_table import EncodedTable

LOSSES: dict[str, Loss] = {"logistic": Logistic(), "softmax": Softmax(3), "squared": Squared()}


def table(rng: np.random.Generator, rows: int) -> EncodedTable:
    """Rows of few different values: one number, one category that may be missing."""
    return EncodedTable(
        rng.integers(0, 3, (rows, 1)).astype(float), (rng.integers(-1, 2, rows).astype(np.int32),), (2,)
    )


def mapping_of(rng: np.random.Generator, sizes: dict[str, int], joined: int) -> TableMapping:
    indexes = {alias: rng.integers(0, rows, joined).astype(np.int32) for alias, rows in sizes.items()}
    shards = {alias: (ShardRows("p", np.arange(rows, dtype=np.int32), 0),) for alias, rows in sizes.items()}
    return TableMapping({alias: MappedTable(indexes[alias], shards[alias]) for alias in sizes}, joined)


@pytest.mark.parametrize("name", LOSSES)
@settings(deadline=None, max_examples=30, derandomize=True)
@given(st.integers(0, 999), st.integers(1, 400))
def test_losses_and_sums_stay(name: str, seed: int, joined: int) -> None:
    """Mean loss, gradient, curvature, best constant, and T^T Y of the centred gradient, to 1e-10."""
    rng, loss = np.random.default_rng(seed), LOSSES[name]
    tables = {"a": table(rng, 9), "b": table(rng, 14)}
    mapping = mapping_of(rng, {"a": 9, "b": 14}, joined)
    kind = np.float64 if name == "squared" else np.uint8
    labels: NDArray[Any] = rng.integers(0, 3 if name == "softmax" else 2, joined).astype(kind)
    alike = {alias: np.asarray(first_of_each(data), np.int32) for alias, data in tables.items()}
    outputs = () if loss.outputs == 1 else (loss.outputs,)
    thetas = {alias: rng.normal(size=(data.width, *outputs)) for alias, data in tables.items()}
    found = []
    whole = JoinedRows(mapping, loss.outputs, labels)
    for rows in (whole, merged(whole, alike)):
        assert rows.joined == joined
        over, learned = LearningOverJoin(rows), JoinedLoss(loss, rows)
        over.gather({alias: data.times(thetas[alias]) for alias, data in tables.items()})
        value = learned.evaluate()
        total = learned.write_gradient()
        sums = over.scatter_centred(GRADIENT, tables)
        told = [tables[alias].transposed_times(each).ravel() for alias, each in sums.items()]
        constant = learned.best_constant() if len(np.unique(labels)) > 1 else np.zeros(1)
        curved = [learned.curvature_matrix().ravel(), [learned.mean_curvature()]]
        found.append(np.concatenate([[value], total, *told, constant, *curved]))
    np.testing.assert_allclose(found[1], found[0], rtol=0, atol=1e-10)
    if joined == 400:
        assert len(merged(whole, alike)) <= 200


def test_what_is_not_merged() -> None:
    """Rows that are all different, labels that are all different, and tables whose alike rows are not known."""
    rng = np.random.default_rng(0)
    mapping = mapping_of(rng, {"a": 50, "b": 50}, 500)
    none = {alias: np.arange(50, dtype=np.int32) for alias in "ab"}
    some = {alias: np.arange(50, dtype=np.int32) // 25 for alias in "ab"}
    rows = JoinedRows(mapping, 1, rng.integers(0, 2, 500))
    assert merged(rows, none) is rows
    assert merged(rows, {}) is rows
    assert len(merged(rows, some)) == 8
    several = JoinedRows(mapping, 1, rng.normal(size=500))
    assert merged(several, some) is several


def test_alike_rows() -> None:
    """The first row with equal numbers and categories; nothing where groups are too many; no rows, no columns."""
    codes = (np.array([0, -1, 0, 0, 1], np.int32),)
    data = EncodedTable(np.array([[1.0], [1.0], [1.0], [2.0], [1.0]]), codes, (2,))
    assert np.asarray(first_of_each(data)).tolist() == [0, 1, 0, 3, 4]
    assert np.asarray(first_of_each(EncodedTable(np.zeros((3, 0)), (), ()))).tolist() == [0, 0, 0]
    assert np.asarray(first_of_each(EncodedTable(np.zeros((0, 2)), (), ()))).tolist() == []
    assert first_of_each(EncodedTable(np.arange(70_000.0)[:, None], (), ())) is None
    assert first_of_each(EncodedTable(np.random.default_rng(0).normal(size=(9000, 2)), (), ())) is None


@settings(deadline=None, max_examples=30, derandomize=True)
@given(st.integers(0, 999), st.sampled_from([0, 1, 7, 300, 20_000]))
def test_alike_rows_are_equal_rows(seed: int, rows: int) -> None:
    """However they are ordered: the first of the rows with the same numbers and codes, by NumPy's own comparison."""
    rng = np.random.default_rng(seed)
    numbers = rng.integers(0, 4, (rows, 2)) / 3
    if seed % 2:
        numbers = np.sort(numbers, axis=0)
    codes = rng.integers(-1, 3, rows).astype(np.int32)
    _, firsts, groups = np.unique(np.column_stack([numbers, codes]), axis=0, return_index=True, return_inverse=True)
    found = first_of_each(EncodedTable(numbers, (codes,), (3,)))
    np.testing.assert_array_equal(found, firsts[groups.ravel()])
