"""Fully connected networks with a bound on what each row adds to a gradient: the form of `Mlp` that noise needs.

As in `learn.tables.network.NetworkRows`, no gradient of a single row is stored. By the weights of a layer it is the
outer product of the layer's input a and the derivative d by the layer's output, so that its norm follows from theirs:

    |J_r^T Y_r|^2 = sum over layers of (|a_r|^2 + 1) |d_r|^2                    (the 1 is the bias)
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tablepuppet.learn.split.layers import Dense, Parts
from tablepuppet.prep.encoded_table import EncodedTable
from tablepuppet.privacy.clip import clipped_layers, lengths_of

Array = NDArray[np.float64]


class MlpRows(Dense):
    """Fully connected layers over encoded rows."""

    @property
    def width(self) -> int:
        """The total width of all layers."""
        return sum(self.sizes)

    def predict(self, theta: Array, table: EncodedTable) -> Array:
        """The output of the last layer, (rows, outputs)."""
        return self._values(self.layers(theta), table)[-1]

    def clipped_sums(self, theta: Array, table: EncodedTable, row_gradients: Array, clip: float) -> Array:
        """The sum over rows of J_r^T Y_r, each clipped to norm ``clip``; null records and odd numbers add nothing."""
        layers = self.layers(theta)
        inputs = self._values(layers, table)[:-1]
        slopes = self.slopes(layers, inputs, row_gradients)
        norms = [table.norms(), *map(lengths_of, inputs)]
        sizes = [np.hypot(norm, 1.0) for norm in norms]
        inputs, cut = clipped_layers(inputs, slopes, sizes, norms[0] > 0, clip)
        weights = [table.transposed_times(cut[0]), *(a.T @ d for a, d in zip(inputs, cut[1:], strict=True))]
        both = zip(weights, cut, strict=True)
        return np.concatenate([part for weight, d in both for part in (weight.T.ravel(), d.sum(axis=0))])

    def _values(self, layers: Parts, table: EncodedTable) -> list[Array]:
        """By row: the input of each layer after the first, then the output of the last."""
        weights, bias = layers[0]
        return self.beyond_first(layers, table.times(np.ascontiguousarray(weights.T)) + bias)
