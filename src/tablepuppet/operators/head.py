"""How predictions of tables are combined: a head computes the score of a joined row from those of its base rows.

Forward takes, block by block, the predictions of every table gathered to the block's joined rows; backward gives the
gradient by one table's predictions, which `LearningOverJoin` sums at base rows. A head that needs predictions side by
side stores them in columns; one that adds them up needs no memory for them. Both are functions of a block, and a head
holds no rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tablepuppet.mapping.joined_rows import Block, Column

Array = NDArray[np.float64]


class Head(Protocol):
    """Scores from the predictions of tables, and gradients by them."""

    def forward(self, predictions: Iterable[tuple[str, Array]], out: Array) -> None:
        """Write the scores of a block of joined rows, from every table's predictions for them, by alias."""
        ...

    def backward(self, block: Block, alias: str, column: Column) -> Array:
        """The gradient by one table's predictions at the rows of a block, from that by scores, which is a column."""
        ...


class SumHead:
    """A score is the sum over tables of their predictions (Eq. 2); the solver adds the intercept."""

    def forward(self, predictions: Iterable[tuple[str, Array]], out: Array) -> None:
        """Add the predictions up, table by table."""
        number = -1
        for number, (_, values) in enumerate(predictions):
            if number:
                out += values
            else:
                out[:] = values
        if number < 0:
            out[:] = 0.0

    def backward(self, block: Block, alias: str, column: Column) -> Array:
        """The gradient by scores."""
        return block[column]
