"""The interface of every table's model, which a spec is `over` the columns of a table (learn/specs.py).

h are the predictions for base rows, Y (``row_gradients``) the gradient of the loss by them, per row and output, and J_r
the derivative of row r's prediction by the parameters.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array
from tablepuppet.learn.specs import TableSpec
from tablepuppet.prep.encode.encoded_table import EncodedTable


class RowModel(Protocol):
    """The same model with a bound on each row's contribution: it works on blocks of rows, in plain NumPy."""

    @property
    def width(self) -> int:
        """How many numbers per row are needed in memory, in addition to the row itself."""
        ...

    def predict(self, theta: Array, table: EncodedTable) -> Array:
        """h: (rows,) for one output, else (rows, outputs)."""
        ...

    def clipped_sums(self, theta: Array, table: EncodedTable, row_gradients: Array, clip: float) -> Array:
        """The sum over rows of J_r^T Y_r, each clipped to norm ``clip``."""
        ...


class TableModel(Protocol):
    """The model of a table with a certain number of encoded columns."""

    @property
    def spec(self) -> TableSpec:
        """The spec that describes it."""
        ...

    @property
    def by_row(self) -> RowModel:
        """The same model with a bound on each row's contribution."""
        ...

    def start(self, seed: int, alias: str, numbers: int) -> Array:
        """First parameters, the same for all shards of a table; its first ``numbers`` columns are numeric."""
        ...

    def rescaled(self, theta: Array, unit: float) -> Array:
        """Parameters whose predictions are ``unit`` times as large."""
        ...

    def predict(self, theta: Array, table: EncodedTable) -> NDArray[np.floating[Any]]:
        """h: (rows,) for one output, else (rows, outputs)."""
        ...

    def gradient(self, theta: Array, table: EncodedTable, row_gradients: Array) -> Array:
        """The sum over rows of J_r^T Y_r (Eq. 12)."""
        ...

    def gradient_bound(self, theta: Array) -> float:
        """c such that |J_r^T Y_r| <= c |t_r| |Y_r| for every row t_r."""
        ...
