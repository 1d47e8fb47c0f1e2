"""Fully connected layers on flat parameters, in plain NumPy: outputs of rows, and gradients by parameters and rows.

The networks of tables are small: through torch's autograd, a batch of 100 rows takes ten times as long.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array
from tablepuppet.errors import LearnError
from tablepuppet.prep.encode.encoded_table import EncodedTable
from tablepuppet.privacy.clip import clipped_layers, lengths_of

Floats = NDArray[Any]
"""Of single or double precision."""
Activation = Literal["relu", "tanh"]
Parts = list[tuple[Any, Any]]
"""(weights (in, out), bias or None) of each layer: arrays, or tensors."""


@dataclass(frozen=True)
class Dense:
    """Layers of the given sizes, from columns to outputs. Parameters are flat: by layer weights and bias."""

    sizes: Sequence[int]
    activation: Activation = "relu"
    by_output: bool = True  # the weights of a layer are stored as (out, in), as torch does; else as (in, out)
    last_bias: bool = True  # whether the last layer has a bias

    @property
    def parameters(self) -> int:
        """How many numbers there are in the flat parameters."""
        biases = sum(self.sizes[1:]) if self.last_bias else sum(self.sizes[1:-1])
        return sum(into * out for into, out in pairwise(self.sizes)) + biases

    def layers(self, theta: Any) -> Parts:
        """The layers, as slices of the flat parameters; LearnError if these are of another shape."""
        if tuple(theta.shape) != (self.parameters,):
            raise LearnError(f"parameters of shape {tuple(theta.shape)} do not fit: {self.parameters:,} are needed")
        found, start, ends = [], 0, len(self.sizes) - 2
        for number, (into, out) in enumerate(pairwise(self.sizes)):
            middle = start + into * out
            weights = theta[start:middle]
            weights = weights.reshape(out, into).T if self.by_output else weights.reshape(into, out)
            start = middle + (out if self.last_bias or number < ends else 0)
            found.append((weights, theta[middle:start] if start > middle else None))
        return found

    def flat(self, parts: Iterable[tuple[Floats, Floats]]) -> Floats:
        """The flat array of what belongs to the weights (in, out) and to the bias of each layer."""
        found = [each for weights, bias in parts for each in ((weights.T if self.by_output else weights).ravel(), bias)]
        return np.concatenate(found if self.last_bias else found[:-1])

    def forward(self, theta: Floats, rows: Floats) -> Passed:
        """The outputs of rows, (rows, outputs), with what their gradient needs."""
        layers = self.layers(theta)
        *inputs, outputs = self.beyond_first(layers, rows @ layers[0][0] + layers[0][1])
        return Passed(self, layers, [rows, *inputs], outputs)

    def beyond_first(self, layers: Parts, values: Floats) -> list[Floats]:
        """From the output of the first layer: the input of each layer after it, then the output of the last."""
        found = []
        for weights, bias in layers[1:]:
            found.append(np.maximum(values, 0) if self.activation == "relu" else np.tanh(values))
            values = found[-1] @ weights
            values = values if bias is None else values + bias
        return [*found, values]

    def slopes(self, layers: Parts, inputs: Sequence[Floats], row_gradients: Floats) -> list[Floats]:
        """By row: the derivative by the output of each layer, before its activation.

        ``inputs`` are those of the layers after the first.
        """
        found = [row_gradients]
        for (weights, _), into in zip(layers[:0:-1], inputs[::-1], strict=True):
            found.append(found[-1] @ weights.T * ((into > 0) if self.activation == "relu" else 1 - into**2))
        return found[::-1]


@dataclass(frozen=True)
class Passed:
    """A forward pass: the input of each layer, and the output of the last."""

    dense: Dense
    layers: Parts
    inputs: Sequence[Floats]
    outputs: Floats

    def backward(self, row_gradients: Floats) -> tuple[Array, Floats]:
        """From the gradient by outputs: (that by all parameters, that by the first layer's outputs)."""
        slopes = self.dense.slopes(self.layers, self.inputs[1:], row_gradients)
        both = zip(self.inputs, slopes, strict=True)
        parts = [((slope.T @ into).T, slope.sum(axis=0)) for into, slope in both]
        return self.dense.flat(parts).astype(np.float64), slopes[0]


@dataclass(frozen=True)
class DenseRows:
    """The same layers with a bound on what each row adds to a gradient: the form that noise needs.

    No gradient of a single row is stored: by the weights of a layer, it is the outer product of the layer's input a and
    the derivative d by its output. So its norm follows from the norms of both, and rows are clipped before they are
    added:

        |J_r^T Y_r|^2 = sum over layers of (|a_r|^2 + 1) |d_r|^2        (the 1 is the bias, if the layer has one)
    """

    dense: Dense
    flat_scores: bool = False  # whether predictions of one output are (rows,) instead of (rows, 1)

    @property
    def width(self) -> int:
        """The total width of all layers."""
        return sum(self.dense.sizes)

    def predict(self, theta: Array, table: EncodedTable) -> Array:
        """The output of the last layer."""
        found = self._values(self.dense.layers(theta), table)[-1]
        return found[:, 0] if self.flat_scores and found.shape[1] == 1 else found

    def clipped_sums(self, theta: Array, table: EncodedTable, row_gradients: Array, clip: float) -> Array:
        """The sum over rows of J_r^T Y_r, each clipped to norm ``clip``; null records and odd numbers add nothing.

        The derivatives of a row are scaled by the same factor in every layer.
        """
        layers = self.dense.layers(theta)
        inputs = self._values(layers, table)[:-1]
        slopes = self.dense.slopes(layers, inputs, row_gradients.reshape(len(row_gradients), self.dense.sizes[-1]))
        norms = [table.norms(), *map(lengths_of, inputs)]
        sizes = [np.hypot(norm, float(bias is not None)) for norm, (_, bias) in zip(norms, layers, strict=True)]
        inputs, cut = clipped_layers(inputs, slopes, sizes, norms[0] > 0, clip)
        weights = [table.transposed_times(cut[0]), *(a.T @ d for a, d in zip(inputs, cut[1:], strict=True))]
        return self.dense.flat((weight, d.sum(axis=0)) for weight, d in zip(weights, cut, strict=True))

    def _values(self, layers: Parts, table: EncodedTable) -> list[Array]:
        """By row: the input of each layer after the first, then the output of the last."""
        weights, bias = layers[0]
        values = table.times(np.ascontiguousarray(weights))
        return self.dense.beyond_first(layers, values if bias is None else values + bias)
