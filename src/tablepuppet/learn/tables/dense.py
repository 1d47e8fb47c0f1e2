"""Fully connected networks, of tables and over embeddings, in plain NumPy: forward, backward, and bounded row by row.

Parameters are one flat array. The networks are small: through torch's autograd they take two to ten times as long.
There are two specs. `Network` is f_i(theta_i; x) of Eq. 2, whose outputs are scores: tanh layers in double precision,
then a linear output without bias. `Mlp` is a bottom network, whose outputs are embeddings: parameters lie as torch has
them, every layer has a bias, and they are computed in the precision of the wire.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array, Floats
from tablepuppet.errors import LearnError
from tablepuppet.learn.tables.model import BatchSums, Bottom, Forward, Hiding, Spec, TableModel, check_size
from tablepuppet.learn.threads import need_torch, seeded
from tablepuppet.party.arguments import Layers, Some
from tablepuppet.prep.encode.encoded_table import EncodedTable
from tablepuppet.privacy.clip import clipped_layers, lengths_of

if TYPE_CHECKING:
    from torch import nn

Activation = Literal["relu", "tanh"]
Parts = list[tuple[Any, Any]]
"""(weights (in, out), bias or None) of each layer."""


class Network(Spec, frozen=True, tag_field="kind", tag="network"):
    """Tanh layers of the widths ``hidden``, then a linear output without bias."""

    hidden: Layers
    outputs: Some

    def theta_shape(self, width: int) -> tuple[int, ...]:
        """The parameters of all layers are one vector."""
        return (self._dense(width).parameters,)

    def over(self, width: int, alias: str = "") -> NetworkTable:
        """The network of a table with ``width`` encoded columns; LearnError if it is too large."""
        check_size(self.theta_shape(width))
        return NetworkTable(self, self._dense(width))

    def _dense(self, width: int) -> Dense:
        return Dense((width, *self.hidden, self.outputs), "tanh", by_output=False, last_bias=False)


class Mlp(Bottom, frozen=True, tag_field="kind", tag="mlp"):
    """Layers of the widths ``hidden``, each followed by the activation, then a linear layer to the embedding."""

    hidden: Layers
    outputs: Some
    activation: Activation
    double: bool  # computed in double precision

    def theta_shape(self, width: int) -> tuple[int, ...]:
        """The parameters of all layers are one vector; every layer has a bias."""
        return (self._dense(width).parameters,)

    def over(self, width: int, alias: str = "") -> MlpTable:
        """The network of a table with ``width`` encoded columns; LearnError if it is too large."""
        check_size(self.theta_shape(width))
        return MlpTable(self, self._dense(width))

    def _dense(self, width: int) -> Dense:
        return Dense((width, *self.hidden, self.outputs), self.activation)


@dataclass(frozen=True)
class Matrix:
    """Rows as one matrix, with the products that `EncodedTable` has."""

    values: Floats

    def __getitem__(self, places: Any) -> Matrix:
        """Some of the rows."""
        return Matrix(self.values[places])

    def times(self, weights: Floats) -> Floats:
        """(rows, outputs)."""
        return self.values @ weights

    def transposed_times(self, slopes: Floats) -> Floats:
        """(columns, outputs)."""
        return (slopes.T @ self.values).T


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

    @property
    def of_last(self) -> int:
        """How many of them, at their end, are those of the last layer."""
        return (self.sizes[-2] + self.last_bias) * self.sizes[-1]

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

    def flat(self, parts: Iterable[tuple[Floats, Floats]]) -> Array:
        """The flat array of what belongs to the weights (in, out) and to the bias of each layer."""
        found = [each for weights, bias in parts for each in ((weights.T if self.by_output else weights).ravel(), bias)]
        return np.concatenate(found if self.last_bias else found[:-1]).astype(np.float64, copy=False)

    def forward(self, theta: Floats, rows: Matrix | EncodedTable) -> Passed:
        """The outputs of rows, (rows, outputs), with what their gradient needs."""
        layers = self.layers(theta)
        *inputs, outputs = self.values(layers, rows)
        return Passed(self, layers, rows, inputs, outputs)

    @np.errstate(over="ignore", invalid="ignore")  # what overflows is found by its loss
    def values(self, layers: Parts, rows: Matrix | EncodedTable) -> list[Any]:
        """By row: the input of each layer after the first, then the output of the last."""
        (weights, bias), found = layers[0], []
        values: Floats = rows.times(weights)
        values = values if bias is None else values + bias
        for weights, bias in layers[1:]:
            found.append(np.maximum(values, 0) if self.activation == "relu" else np.tanh(values))
            values = found[-1] @ weights
            values = values if bias is None else values + bias
        return [*found, values]

    @np.errstate(over="ignore", invalid="ignore")
    def slopes(self, layers: Parts, inputs: Sequence[Floats], row_gradients: Floats) -> list[Any]:
        """By row: the derivative by the output of each layer, before its activation.

        ``inputs`` are those of the layers after the first.
        """
        found: list[Any] = [row_gradients]
        for (weights, _), into in zip(layers[:0:-1], inputs[::-1], strict=True):
            found.append(found[-1] @ weights.T * ((into > 0) if self.activation == "relu" else 1 - into**2))
        return found[::-1]


@dataclass(frozen=True)
class Passed:
    """A forward pass: the input of each layer, and the output of the last."""

    dense: Dense
    layers: Parts
    rows: Matrix | EncodedTable  # the input of the first layer
    inputs: Sequence[Floats]  # those of the others
    outputs: Floats

    @np.errstate(over="ignore", invalid="ignore")
    def backward(self, row_gradients: Floats) -> tuple[Array, Floats]:
        """From the gradient by outputs: (that by all parameters, that by the first layer's outputs)."""
        slopes = self.dense.slopes(self.layers, self.inputs, row_gradients)
        others = ((slope.T @ into).T for into, slope in zip(self.inputs, slopes[1:], strict=True))
        weights = (self.rows.transposed_times(slopes[0]), *others)
        parts = [(each, slope.sum(axis=0)) for each, slope in zip(weights, slopes, strict=True)]
        return self.dense.flat(parts), slopes[0]


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
        found: Array = self.dense.values(self.dense.layers(theta), table)[-1]
        return found[:, 0] if self.flat_scores and found.shape[1] == 1 else found

    def clipped_sums(self, theta: Array, table: EncodedTable, row_gradients: Array, clip: float) -> Array:
        """The sum over rows of J_r^T Y_r, each clipped to norm ``clip``; null records and odd numbers add nothing.

        The derivatives of a row are scaled by the same factor in every layer.
        """
        layers = self.dense.layers(theta)
        inputs = self.dense.values(layers, table)[:-1]
        slopes = self.dense.slopes(layers, inputs, row_gradients.reshape(len(row_gradients), self.dense.sizes[-1]))
        norms = [table.norms(), *map(lengths_of, inputs)]
        sizes = [np.hypot(norm, float(bias is not None)) for norm, (_, bias) in zip(norms, layers, strict=True)]
        inputs, cut = clipped_layers(inputs, slopes, sizes, norms[0] > 0, clip)
        weights = [table.transposed_times(cut[0]), *(a.T @ d for a, d in zip(inputs, cut[1:], strict=True))]
        return self.dense.flat((weight, d.sum(axis=0)) for weight, d in zip(weights, cut, strict=True))


@dataclass
class DenseTable(TableModel):
    """A fully connected network from the encoded columns of a table."""

    spec: Any
    dense: Dense
    cells: int = field(init=False)

    def __post_init__(self) -> None:
        self.cells = 2 * sum(self.dense.sizes)

    @property
    def shape(self) -> tuple[int, ...]:
        """One vector."""
        return (self.dense.parameters,)

    def layers(self, theta: Array) -> Parts:
        """(weights (in, out), bias or None) of each layer, as slices of the flat parameters."""
        return self.dense.layers(theta)

    def rescaled(self, theta: Array, unit: float) -> Array:
        """Parameters whose outputs are ``unit`` times as large: those of the last layer are."""
        scaled = theta.copy()
        scaled[len(theta) - self.dense.of_last :] *= unit
        return scaled


class NetworkTable(DenseTable):
    """A network whose outputs are scores. It takes rows as the table stores them: categories are looked up."""

    @property
    def by_row(self) -> DenseRows:
        """The same network with a bound on each row's gradient."""
        return DenseRows(self.dense, flat_scores=True)

    def start(self, seed: int, alias: str, numbers: int) -> Array:
        """First parameters, from the seed and the name of the table: the same for all its shards.

        Weights of categories start at zero, since the order of categories with equal frequency differs between runs.
        """
        rng = np.random.default_rng([seed, zlib.crc32(alias.encode())])
        parts: list[Array] = []
        for layer, (into, out) in enumerate(pairwise(self.dense.sizes)):
            rows = into if layer else numbers
            bound = np.sqrt(6 / (rows + out))
            parts.append(rng.uniform(-bound, bound, rows * out))
            parts.append(np.zeros((into - rows) * out))
            if layer < len(self.dense.sizes) - 2:
                parts.append(rng.uniform(-bound, bound, out))
        return np.concatenate(parts)

    def forward(self, theta: Array, rows: EncodedTable, sums: BatchSums | None = None) -> Forward:
        """The scores of rows."""
        passed, outputs = self.dense.forward(theta, rows), self.dense.sizes[-1]
        scores = passed.outputs[:, 0] if outputs == 1 else passed.outputs
        return Forward(scores, rows, lambda given: passed.backward(given.reshape(-1, outputs))[0])

    def gradient_bound(self, theta: Array) -> float:
        """The product of the layers' norms: tanh and its slope are at most 1."""
        return math.prod(max(1.0, float(np.linalg.norm(weights))) for weights, _ in self.layers(theta)[1:])


class MlpTable(DenseTable):
    """A network whose outputs are embeddings. It takes rows as one matrix of its own precision."""

    @property
    def by_row(self) -> DenseRows:
        """The same network with a bound on each row's gradient."""
        return DenseRows(self.dense)

    @property
    def number(self) -> type[np.floating[Any]]:
        """The precision that it is computed in."""
        return np.float64 if self.spec.double else np.float32

    def start(self, seed: int, alias: str, numbers: int) -> Array:
        """First parameters, from the seed and the alias, as torch draws them.

        Weights of categories start at zero, since the order of categories with equal frequency differs between runs.
        """
        theta = torch_start(self.dense, seed, alias)
        width, first = self.dense.sizes[:2]
        theta[: width * first].reshape(first, width)[:, numbers:] = 0.0
        return theta

    def rows(self, table: EncodedTable, counts: NDArray[Any] | None = None, hiding: Hiding | None = None) -> Matrix:
        """Encoded rows as one matrix, categories as 0 and 1."""
        return Matrix(rows_as_matrix(super().rows(table), self.number))

    def forward(self, theta: Array, rows: Matrix, sums: BatchSums | None = None) -> Forward:
        """The embeddings of rows."""
        passed = self.dense.forward(theta.astype(self.number), rows)
        return Forward(passed.outputs, rows, lambda given: passed.backward(given.astype(self.number, copy=False))[0])

    def empty(self, rows: int) -> Floats:
        """Room for the embeddings of rows, in their precision."""
        return super().empty(rows).astype(self.number, copy=False)


def rows_as_matrix(table: EncodedTable, number: type[np.floating[Any]]) -> Floats:
    """Encoded rows as one matrix, categories as 0 and 1."""
    start = table.dense.shape[1]
    found = np.zeros((len(table.dense), table.width), number)
    found[:, :start] = table.dense
    for codes, size in zip(table.codes, table.sizes, strict=True):
        known = np.flatnonzero(codes >= 0)
        found[known, start + codes[known]] = 1
        start += size
    return found


def torch_start(dense: Dense, seed: int, name: str) -> Array:
    """The flat parameters with which torch begins such layers; needs the extra ``deep``."""
    module = seeded(seed, name, lambda: need_torch().nn.Sequential(*linear_layers(dense.sizes)))
    return np.concatenate([each.detach().numpy().ravel() for each in module.parameters()]).astype(np.float64)


def linear_layers(sizes: Sequence[int], activation: Activation = "relu") -> list[nn.Module]:
    """Fully connected layers of these sizes in torch, with the activation between them."""
    torch = need_torch()
    layers: list[Any] = []
    for into, out in pairwise(sizes):
        layers += [torch.nn.Linear(into, out), torch.nn.ReLU() if activation == "relu" else torch.nn.Tanh()]
    return layers[:-1]
