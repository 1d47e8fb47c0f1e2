"""Fully connected layers on flat parameters, in plain NumPy: outputs of rows, and gradients by parameters and rows.

The networks of tables are small: through torch's autograd, a batch of 100 rows takes ten times as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Floats = NDArray[Any]
"""Of single or double precision."""
Activation = Literal["relu", "tanh"]
Parts = list[tuple[Floats, Floats]]
"""(weights (out, in), bias) of each layer."""


@dataclass(frozen=True)
class Dense:
    """Layers of the given sizes, from columns to outputs. Parameters are flat: by layer weights (out, in) and bias."""

    sizes: Sequence[int]
    activation: Activation = "relu"

    def layers(self, theta: Floats) -> Parts:
        """The layers, as slices of the flat parameters."""
        found, start = [], 0
        for into, out in pairwise(self.sizes):
            middle = start + into * out
            found.append((theta[start:middle].reshape(out, into), theta[middle : middle + out]))
            start = middle + out
        if theta.shape != (start,):
            raise ValueError(f"parameters of shape {theta.shape} do not fit: {start:,} are needed")
        return found

    def forward(self, theta: Floats, rows: Floats) -> Passed:
        """The outputs of rows, (rows, outputs), with what their gradient needs."""
        layers = self.layers(theta)
        *inputs, outputs = self.beyond_first(layers, rows @ layers[0][0].T + layers[0][1])
        return Passed(self, layers, [rows, *inputs], outputs)

    def beyond_first(self, layers: Parts, values: Floats) -> list[Floats]:
        """From the output of the first layer: the input of each layer after it, then the output of the last."""
        found = []
        for weights, bias in layers[1:]:
            found.append(np.maximum(values, 0) if self.activation == "relu" else np.tanh(values))
            values = found[-1] @ weights.T + bias
        return [*found, values]

    def slopes(self, layers: Parts, inputs: Sequence[Floats], row_gradients: Floats) -> list[Floats]:
        """By row: the derivative by the output of each layer, before its activation.

        ``inputs`` are those of the layers after the first.
        """
        found = [row_gradients]
        for (weights, _), into in zip(layers[:0:-1], inputs[::-1], strict=True):
            found.append(found[-1] @ weights * ((into > 0) if self.activation == "relu" else 1 - into**2))
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
        parts = [part for into, slope in both for part in ((slope.T @ into).ravel(), slope.sum(axis=0))]
        return np.concatenate(parts).astype(np.float64), slopes[0]
