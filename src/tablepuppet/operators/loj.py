"""The LoJ operator: learning over a join is learning on its tables (Table 4).

Gather: predictions of base rows become scores of joined rows. Scatter: the gradient at joined rows is summed at base
rows (Eq. 10, 14), so that one value per base row is sent, however often it is joined.

A head says how the predictions of tables are combined. Forward gathers, block by block, the predictions of every table
to the block's joined rows; backward gives the gradient by one table's predictions. A head that needs
predictions side by side stores them in columns; one that adds them up needs no memory for them. Both are functions of a
block, and a head holds no rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from tablepuppet.arrays import Array, Floats
from tablepuppet.mapping.joined_rows import SCORES, Block, Column, JoinedRows


class Head(Protocol):
    """Scores from the predictions of tables, and gradients by them."""

    def forward(self, block: Block, predictions: Mapping[str, Array], out: Array) -> None:
        """Write the scores of a block, from the predictions of every table's base rows, (outputs, base rows)."""
        ...

    def backward(self, block: Block, alias: str, column: Column) -> Array:
        """The gradient by one table's predictions at the rows of a block, from that by scores, which is a column."""
        ...


class SumHead:
    """A score is the sum over tables of their predictions (Eq. 2); the solver adds the intercept."""

    def forward(self, block: Block, predictions: Mapping[str, Array], out: Array) -> None:
        """Add the predictions up, table by table."""
        is_first = True
        for alias, values in predictions.items():
            if is_first:
                out[:], is_first = block.gathered(alias, values), False
            else:
                out += block.gathered(alias, values)
        if is_first:
            out[:] = 0.0

    def backward(self, block: Block, alias: str, column: Column) -> Array:
        """The gradient by scores."""
        return block[column]


@dataclass(frozen=True)
class LearningOverJoin:
    """Moves values between the joined rows and the tables of a relation."""

    rows: JoinedRows
    head: Head = field(default_factory=SumHead)

    def gather(self, predictions: Mapping[str, Floats], into: Column = SCORES, constant: Array | None = None) -> None:
        """Scores of all joined rows from the predictions of tables' base rows, written into a column.

        A ``constant``, (outputs,), is added to the scores.
        """
        by_output = {alias: _by_output(values) for alias, values in predictions.items()}
        if isinstance(into, str):
            self.rows.reserve(into)
        self.rows.each(_gather, self.head, by_output, into, constant)

    def add(self, predictions: Mapping[str, Floats]) -> None:
        """Move scores by changes of the predictions of tables' base rows."""
        self.rows.each(_add, self.head, {alias: _by_output(values) for alias, values in predictions.items()})

    def scatter(self, column: Column, aliases: Iterable[str]) -> dict[str, Array]:
        """A gradient by scores as the gradient by predictions of each table, summed at its base rows."""
        return {alias: self.rows.sums_at(alias, self.head.backward, alias, column) for alias in aliases}

    def scatter_centred(self, column: Column, aliases: Iterable[str]) -> dict[str, Array]:
        """`scatter` of the gradient minus its mean over joined rows: the intercept absorbs a constant."""
        sums = self.scatter(column, aliases)
        total = next(iter(sums.values())).sum(axis=0) if sums else 0.0
        for alias, found in sums.items():
            counts = self.rows.counts(alias)
            mean = total / self.rows.joined
            found -= mean if counts is None else np.multiply.outer(counts, mean)
        return sums


def _by_output(values: Floats) -> Array:
    """Predictions as (outputs, base rows), each output by itself in memory."""
    return np.ascontiguousarray(values[None] if values.ndim == 1 else values.T, np.float64)


def _gather(block: Block, head: Head, predictions: Mapping[str, Array], into: Column, constant: Array | None) -> None:
    scores = block.stored[into]
    head.forward(block, predictions, scores)
    if constant is not None:
        scores += constant[:, None]


def _add(block: Block, head: Head, changes: Mapping[str, Array]) -> None:
    scores = block.stored[SCORES]
    change = np.empty_like(scores)
    head.forward(block, changes, change)
    scores += change
