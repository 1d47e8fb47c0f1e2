"""The linear model of one table: h = T theta."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tablepuppet.arrays import Array, Floats
from tablepuppet.learn.tables.model import BatchSums, Forward, Spec, TableModel
from tablepuppet.party.allowance import check_memory
from tablepuppet.party.arguments import Some
from tablepuppet.prep.encode.encoded_table import EncodedTable
from tablepuppet.privacy.clip import clipped


class Linear(Spec, frozen=True, tag_field="kind", tag="linear"):
    """Predictions T theta, of a table's encoded rows T; no intercept."""

    outputs: Some

    def theta_shape(self, width: int) -> tuple[int, ...]:
        """The shape of the parameters of a table with ``width`` encoded columns."""
        return (width,) if self.outputs == 1 else (width, self.outputs)

    def over(self, width: int, alias: str = "") -> LinearTable:
        """The model of a table with ``width`` encoded columns."""
        return LinearTable(width, self)


@dataclass(frozen=True)
class LinearRows:
    """Products with T in which each row's contribution is bounded; for row t_r of T, |J_r^T Y_r| = |t_r| |Y_r|."""

    width = 1

    def predict(self, theta: Array, table: EncodedTable) -> Array:
        """T theta."""
        return table.times(theta)

    def clipped_sums(self, theta: Array, table: EncodedTable, row_gradients: Array, clip: float) -> Array:
        """T^T Y, with each Y_r clipped so that |t_r| |Y_r| <= clip; null records add zero."""
        return table.transposed_times(clipped(row_gradients, clip, table.norms()))


@dataclass(frozen=True)
class LinearTable(TableModel):
    """A linear model from the encoded columns of a table to scores."""

    columns: int
    spec: Linear

    by_row = LinearRows()

    @property
    def shape(self) -> tuple[int, ...]:
        """(width,), or (width, outputs)."""
        return self.spec.theta_shape(self.columns)

    def start(self, seed: int, alias: str, numbers: int) -> Array:
        """Zeros."""
        check_memory(2 * 8 * self.size)  # with a direction
        return np.zeros(self.shape)

    def rescaled(self, theta: Array, unit: float) -> Array:
        """unit theta."""
        return theta * unit

    def forward(self, theta: Array, rows: EncodedTable, sums: BatchSums | None = None) -> Forward:
        """T theta, and T^T Y."""
        return Forward(rows.times(theta), rows, rows.transposed_times)

    def predict(self, theta: Array, table: EncodedTable) -> Array:
        """T theta."""
        return table.times(theta)

    def gradient(self, theta: Array, table: EncodedTable, row_gradients: Floats) -> Array:
        """T^T Y."""
        return table.transposed_times(row_gradients)

    def gradient_bound(self, theta: Array) -> float:
        """1: |J_r^T Y_r| = |t_r| |Y_r|."""
        return 1.0
