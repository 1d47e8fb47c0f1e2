"""What every table's model can do with rows; `model_of` makes the one that a spec describes.

h is what a model predicts for base rows, Y a value per row and output that is wanted of them, J_r the derivative of a
row's prediction by the parameters.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tablepuppet.learn.tables.linear import LinearTable
from tablepuppet.learn.tables.network import NetworkTable
from tablepuppet.party.spec import Linear, Spec
from tablepuppet.prep.encoded_table import EncodedTable

Array = NDArray[np.float64]


class RowModel(Protocol):
    """The same model where no row may add more than a bound to what leaves: blocks of rows, in plain NumPy."""

    @property
    def width(self) -> int:
        """How many numbers a row needs at a time, beside its own."""
        ...

    def predict(self, theta: Array, table: EncodedTable) -> Array:
        """h: (rows,) for one output, else (rows, outputs)."""
        ...

    def clipped_sums(self, theta: Array, table: EncodedTable, row_gradients: Array, clip: float) -> Array:
        """The sum over rows of J_r^T Y_r, each cut to length ``clip``."""
        ...


class TableModel(Protocol):
    """The model of a table with a certain number of encoded columns."""

    @property
    def spec(self) -> Spec:
        """What it is."""
        ...

    @property
    def by_row(self) -> RowModel:
        """The same, row by row."""
        ...

    def start(self, seed: int, alias: str, numbers: int) -> Array:
        """First parameters, the same for all shards of a table; its first ``numbers`` columns are no categories."""
        ...

    def rescaled(self, theta: Array, unit: float) -> Array:
        """Parameters whose predictions are ``unit`` times as large."""
        ...

    def predict(self, theta: Array, table: EncodedTable) -> Array:
        """h: (rows,) for one output, else (rows, outputs)."""
        ...

    def pull_back(self, theta: Array, table: EncodedTable, row_gradients: Array) -> Array:
        """The sum over rows of J_r^T Y_r (Eq. 12)."""
        ...

    def gradient_bound(self, theta: Array) -> float:
        """J_r^T Y_r is at most so many times as long as the row times Y_r."""
        ...


def model_of(spec: Spec, width: int) -> TableModel:
    """The model of a table with ``width`` encoded columns; LearnError if it is too large."""
    if isinstance(spec, Linear):
        return LinearTable(width, spec.outputs)
    return NetworkTable.over(width, spec.hidden, spec.outputs)
