"""Fully connected networks with a bound on what each row adds to a gradient: the form of `Mlp` that noise needs.

As in `learn.tables.network.NetworkRows`, no gradient of a single row is stored. By the weights of a layer it is the
outer product of the layer's input a and the derivative d by the layer's output, so that its norm follows from theirs:

    |J_r^T Y_r|^2 = sum over layers of (|a_r|^2 + 1) |d_r|^2                    (the 1 is the bias)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tablepuppet.prep.encoded_table import EncodedTable
from tablepuppet.privacy.clip import ROUNDING, by_row, kept_shares, lengths_of, zeroed

Array = NDArray[np.float64]
Activation = Literal["relu", "tanh"]


@dataclass(frozen=True)
class MlpRows:
    """Layers of the given sizes, from columns to outputs. Parameters are flat: by layer weights (out, in) and bias."""

    sizes: Sequence[int]
    activation: Activation = "relu"

    @property
    def width(self) -> int:
        """The total width of all layers."""
        return sum(self.sizes)

    def layers(self, theta: Array) -> list[tuple[Array, Array]]:
        """(weights, bias) of each layer, as slices of the flat parameters."""
        found, start = [], 0
        for into, out in pairwise(self.sizes):
            middle = start + into * out
            found.append((theta[start:middle].reshape(out, into), theta[middle : middle + out]))
            start = middle + out
        if theta.shape != (start,):
            raise ValueError(f"parameters of shape {theta.shape} do not fit: {start:,} are needed")
        return found

    def predict(self, theta: Array, table: EncodedTable) -> Array:
        """The output of the last layer, (rows, outputs)."""
        return self._forward(self.layers(theta), table)[-1]

    def clipped_sums(self, theta: Array, table: EncodedTable, row_gradients: Array, clip: float) -> Array:
        """The sum over rows of J_r^T Y_r, each clipped to norm ``clip``; null records and odd numbers add nothing."""
        layers = self.layers(theta)
        inputs = self._forward(layers, table)[:-1]
        slopes = self._slopes(layers, inputs, row_gradients)
        norms = [table.norms(), *map(lengths_of, inputs)]
        sizes = [np.hypot(norm, 1.0) for norm in norms]
        cut = [by_row(slope, kept_shares(_whole(sizes, slopes), clip)) for slope in slopes]
        out = ~((_whole(sizes, cut) <= clip * (1 + ROUNDING)) & (norms[0] > 0))  # NaN fails too
        cut, inputs = [zeroed(each, out) for each in cut], [zeroed(each, out) for each in inputs]
        weights = [table.transposed_times(cut[0]), *(a.T @ d for a, d in zip(inputs, cut[1:], strict=True))]
        both = zip(weights, cut, strict=True)
        return np.concatenate([part for weight, d in both for part in (weight.T.ravel(), d.sum(axis=0))])

    def _forward(self, layers: list[tuple[Array, Array]], table: EncodedTable) -> list[Array]:
        """By row: the input of each layer after the first, then the output of the last."""
        (weights, bias), *others = layers
        found, values = [], table.times(np.ascontiguousarray(weights.T)) + bias
        for weights, bias in others:
            found.append(np.maximum(values, 0.0) if self.activation == "relu" else np.tanh(values))
            values = found[-1] @ weights.T + bias
        return [*found, values]

    def _slopes(self, layers: list[tuple[Array, Array]], inputs: list[Array], row_gradients: Array) -> list[Array]:
        """By row: the derivative by the output of each layer, before its activation."""
        slopes = [row_gradients]
        for (weights, _), into in zip(layers[:0:-1], inputs[::-1], strict=True):
            slopes.append(slopes[-1] @ weights * ((into > 0) if self.activation == "relu" else 1 - into**2))
        return slopes[::-1]


def _whole(sizes: list[Array], slopes: list[Array]) -> Array:
    """The norm of every row's gradient over all layers."""
    found = np.zeros(len(slopes[0]))
    for size, slope in zip(sizes, slopes, strict=True):
        found = np.hypot(found, size * lengths_of(slope))
    return found
