"""`JoinedRows`: columns belong to the rows, functions of blocks change them, and small results come back in order."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from numpy.typing import NDArray

from tablepuppet import pieces
from tablepuppet.mapping.joined_rows import SCORES, Block, Column, JoinedRows
from tablepuppet.mapping.table_mapping import MappedTable, ShardRows, TableMapping
from tablepuppet.operators.loj import LearningOverJoin, SumHead

Array = NDArray[np.float64]
ROWS = 50


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of eight numbers, so that there are several."""
    monkeypatch.setattr(pieces.pieces, "__defaults__", (1, 8))


def mapping_of(sizes: dict[str, int]) -> TableMapping:
    """Joined rows of tables of these sizes; one that is as long as the join is joined row by row."""
    rng, tables = np.random.default_rng(0), {}
    for alias, size in sizes.items():
        index = np.arange(ROWS) if size == ROWS else np.append(np.arange(size), rng.integers(0, size, ROWS - size))
        tables[alias] = MappedTable(index.astype(np.int32), (ShardRows("p", np.arange(size, dtype=np.int32), 0),))
    return TableMapping(tables, ROWS)


def column(rows: JoinedRows, name: str) -> Array:
    return np.concatenate(rows.each(lambda block: block[name].copy()))


@pytest.mark.parametrize("outputs", [1, 3])
def test_gather_and_scatter_are_each_others_transposes(outputs: int) -> None:
    """Scores are S h summed over tables and a constant; sums at base rows are S^T of a column, centred if asked."""
    mapping, rng = mapping_of({"f": ROWS, "a": 7, "b": 20}), np.random.default_rng(1)
    rows = JoinedRows(mapping, outputs)
    selections = {alias: np.eye(table.rows)[table.index] for alias, table in mapping.tables.items()}
    shape = () if outputs == 1 else (outputs,)
    values = {alias: rng.normal(size=(table.rows, *shape)) for alias, table in mapping.tables.items()}
    constant, loj = rng.normal(size=outputs), LearningOverJoin(rows)
    loj.gather(values, constant=constant)
    expected = sum(selections[alias] @ values[alias] for alias in values) + constant
    np.testing.assert_allclose(column(rows, SCORES), expected, atol=1e-14)
    for alias, sums in loj.scatter(SCORES, values).items():
        np.testing.assert_allclose(sums, selections[alias].T @ expected, atol=1e-12)
    centred = expected - expected.mean(axis=0)
    for alias, sums in loj.scatter_centred(SCORES, values).items():
        np.testing.assert_allclose(sums, selections[alias].T @ centred, atol=1e-12)
    np.testing.assert_allclose(column(rows, SCORES), expected, atol=1e-14)  # what was scattered is a copy
    loj.add({"a": values["a"]})
    np.testing.assert_allclose(column(rows, SCORES), expected + selections["a"] @ values["a"], atol=1e-14)


def test_no_predictions_are_zeros() -> None:
    """Without a table, scores are the constant."""
    rows = JoinedRows(mapping_of({"a": 7}))
    LearningOverJoin(rows).gather({}, constant=np.array([2.0]))
    np.testing.assert_array_equal(column(rows, SCORES), np.full(ROWS, 2.0))


class SideBySide:
    """A head of another kind: the product of two tables' predictions, which it needs both at once."""

    def forward(self, block: Block, predictions: Mapping[str, Array], out: Array) -> None:
        first, second = (block.gathered(alias, values) for alias, values in predictions.items())
        np.multiply(first, second, out=out)

    def backward(self, block: Block, alias: str, column: Column) -> Array:
        other = {"a": "of b", "b": "of a"}[alias]
        return np.asarray(block[column] * block[other])


def test_a_head_that_wants_predictions_side_by_side_fits() -> None:
    """Gather gives a head all tables' predictions of a block; scatter takes its gradient by each of them."""
    mapping, rng = mapping_of({"a": 7, "b": 20}), np.random.default_rng(2)
    rows = JoinedRows(mapping)
    values = {alias: rng.normal(size=table.rows) for alias, table in mapping.tables.items()}
    for alias in values:
        LearningOverJoin(rows, SumHead()).gather({alias: values[alias]}, f"of {alias}")
    loj = LearningOverJoin(rows, SideBySide())
    loj.gather(values)
    at_rows = {alias: values[alias][table.index] for alias, table in mapping.tables.items()}
    np.testing.assert_array_equal(column(rows, SCORES), at_rows["a"] * at_rows["b"])
    sums = loj.scatter(SCORES, ["a"])["a"]
    expected = np.bincount(mapping.tables["a"].index, at_rows["a"] * at_rows["b"] ** 2)
    np.testing.assert_allclose(sums, expected, atol=1e-12)


def test_columns_are_kept_until_they_are_dropped() -> None:
    """Memory that is reserved again is the same; other shapes are new; what is handed over is gone."""
    rows = JoinedRows(mapping_of({"a": 7}), labels=np.arange(float(ROWS)))
    rows.reserve("kept", 2)
    rows.each(lambda block: block.stored["kept"].fill(3.0))
    rows.reserve("kept", 2)
    assert rows.total(lambda block: block.stored["kept"].sum()) == 3.0 * 2 * ROWS
    rows.set_scores(np.arange(float(ROWS)))
    np.testing.assert_array_equal(rows.hand_over(SCORES), np.arange(ROWS))
    halves = rows.with_labels(lambda block: block.labels / 2)
    assert halves.total(lambda block: block.labels.sum()) == np.arange(ROWS).sum() / 2
    rows.drop()
    for each in (rows, halves):
        with pytest.raises(KeyError):
            each.total(lambda block: block.labels.sum())


def test_blocks_hold_every_row_once() -> None:
    """Results come in the order of rows; some of the blocks are those at equal distances."""
    rows = JoinedRows(mapping_of({"a": 7}), 2, labels=np.arange(ROWS))
    assert np.concatenate(rows.each(lambda block: block.labels)).tolist() == list(range(ROWS))
    firsts: list[int] = rows.some(3, lambda block: block.part.start)
    assert firsts == list(range(0, ROWS, 12))
    assert rows.blocks == 13


def test_single_rows_are_read_and_written() -> None:
    """Labels and scores of a batch, whatever its order."""
    rows = JoinedRows(mapping_of({"a": 7}), 2, labels=np.arange(ROWS))
    rows.reserve(SCORES)
    places = np.array([40, 3, 17])
    rows.put(SCORES, places, np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
    assert rows.labels_of(places).tolist() == [40, 3, 17]

    np.testing.assert_array_equal(column(rows, SCORES)[places], [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
