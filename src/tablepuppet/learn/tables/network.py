"""The network of one table, f_i(theta_i; x) of Eq. 2: tanh layers, then a linear output without bias.

Parameters are one flat array. Only the forward and backward passes need torch (the extra ``deep``); it is imported on
first use.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.errors import LearnError
from tablepuppet.learn.threads import one_thread
from tablepuppet.party.allowance import check_memory, check_reply, check_time
from tablepuppet.party.spec import Network
from tablepuppet.prep.encoded_table import EncodedTable, check_length
from tablepuppet.privacy.clip import clipped_layers, lengths_of

if TYPE_CHECKING:
    from torch import Tensor

Array = NDArray[np.float64]
MOST_PARAMETERS = 1 << 26  # half a GiB
CHUNK = 1 << 16  # rows at a time, at most
CELLS = 1 << 22  # numbers of one layer at a time, at most


def need_torch() -> Any:
    """The module torch; LearnError if it is not installed."""
    try:
        import torch
    except ImportError as error:
        raise LearnError("neural networks need torch: pip install 'tablepuppet[deep]'") from error
    return torch


@dataclass(frozen=True)
class NetworkTable:
    """A network from the encoded columns of a table to scores; layer k is (sizes[k], sizes[k + 1])."""

    sizes: tuple[int, ...]

    @classmethod
    def over(cls, width: int, hidden: Sequence[int], outputs: int) -> NetworkTable:
        """The network of a table with ``width`` encoded columns; LearnError if it is too large."""
        network = cls((width, *hidden, outputs))
        parameters = network.parameters
        if parameters > MOST_PARAMETERS:
            raise LearnError(
                f"a table's network has {parameters:,} parameters; at most {MOST_PARAMETERS:,} are allowed"
            )
        check_memory(2 * 8 * parameters)  # with a gradient
        return network

    @property
    def parameters(self) -> int:
        """The number of parameters."""
        return self.spec.theta_shape(self.sizes[0])[0]

    @property
    def outputs(self) -> int:
        """Scores per row."""
        return self.sizes[-1]

    @property
    def spec(self) -> Network:
        """Its hidden layers and outputs."""
        return Network(self.sizes[1:-1], self.outputs)

    @property
    def by_row(self) -> NetworkRows:
        """The same network with a bound on each row's gradient."""
        return NetworkRows(self)

    def gradient_bound(self, theta: Array) -> float:
        """The product of the layers' norms: tanh and its slope are at most 1."""
        return math.prod(max(1.0, float(np.linalg.norm(weights))) for weights, _ in self.layers(theta)[1:])

    def layers(self, theta: Any) -> list[tuple[Any, Any]]:
        """(weights, bias) of each layer, as slices of the flat parameters; the last layer has no bias."""
        if tuple(theta.shape) != (self.parameters,):
            raise LearnError(f"parameters of shape {tuple(theta.shape)} do not fit: {self.parameters:,} are needed")
        cut, start = [], 0
        for into, out in pairwise(self.sizes):
            weights = theta[start : start + into * out].reshape(into, out)
            start += into * out
            last = start == len(theta)
            cut.append((weights, None if last else theta[start : start + out]))
            start += 0 if last else out
        return cut

    def start(self, seed: int, alias: str, numbers: int) -> Array:
        """First parameters, from the seed and the name of the table: the same for all its shards.

        Weights of categories start at zero, since the order of categories with equal frequency differs between runs.
        """
        rng = np.random.default_rng([seed, zlib.crc32(alias.encode())])
        parts: list[Array] = []
        for layer, (into, out) in enumerate(pairwise(self.sizes)):
            rows = into if layer else numbers
            bound = np.sqrt(6 / (rows + out))
            parts.append(rng.uniform(-bound, bound, rows * out))
            parts.append(np.zeros((into - rows) * out))
            if layer < len(self.sizes) - 2:
                parts.append(rng.uniform(-bound, bound, out))
        return np.concatenate(parts)

    def rescaled(self, theta: Array, unit: float) -> Array:
        """Parameters whose scores are ``unit`` times as large."""
        scaled = theta.copy()
        scaled[len(theta) - self.sizes[-2] * self.outputs :] *= unit
        return scaled

    def predict(self, theta: Array, table: EncodedTable) -> Array:
        """h: (rows,) for one output, else (rows, outputs)."""
        torch = need_torch()
        rows = len(table.dense)
        check_reply(8 * rows * self.outputs)
        scores = np.empty((rows,) if self.outputs == 1 else (rows, self.outputs))
        with one_thread(torch), torch.no_grad():
            for part in self._chunks(rows):
                scores[part] = self._forward(torch.tensor(theta), table, part).numpy()
        return scores

    def pull_back(self, theta: Array, table: EncodedTable, row_gradients: Array) -> Array:
        """The sum over rows of J_r^T Y_r (Eq. 12)."""
        check_length("values", row_gradients, len(table.dense))
        return self.gradient_of(theta, table, lambda part, _: row_gradients[part])

    def gradient_of(self, theta: Array, table: EncodedTable, row_gradients: Callable[[slice, Array], Array]) -> Array:
        """The gradient by theta of a function of the predictions.

        ``row_gradients(rows, predictions)`` returns Y, the derivative of that function by the predictions of the rows.
        """
        torch = need_torch()
        with one_thread(torch):
            point = torch.tensor(theta, requires_grad=True)
            point.grad = torch.zeros_like(point)
            for part in self._chunks(len(table.dense)):
                scores = self._forward(point, table, part)
                pulled = torch.from_numpy(row_gradients(part, scores.detach().numpy()))
                scores.backward(pulled)  # type: ignore[no-untyped-call]
            return np.asarray(point.grad.numpy())

    def _chunks(self, rows: int) -> Iterator[slice]:
        """Chunks of rows: smaller if a layer is wide, since the backward pass needs its activations in memory."""
        size = max(1, min(CHUNK, rows, CELLS // max(self.sizes)))
        check_memory(2 * 8 * size * sum(self.sizes))
        for start in range(0, rows, size):
            check_time()
            yield slice(start, min(start + size, rows))

    def _forward(self, theta: Tensor, table: EncodedTable, part: slice) -> Tensor:
        torch = need_torch()
        (first, bias), *others = self.layers(theta)
        numbers = table.dense.shape[1]
        values: Tensor = torch.from_numpy(table.dense[part]) @ first[:numbers]
        start, nothing = numbers, torch.zeros(1, first.shape[1], dtype=theta.dtype)
        for codes, size in zip(table.codes, table.sizes, strict=True):
            weights = torch.cat([first[start : start + size], nothing])
            # the code -1, for none, finds the last row, all zeros
            values = values + torch.nn.functional.embedding(torch.from_numpy(codes[part] % (size + 1)), weights)
            start += size
        for weights, following in others:
            values = torch.tanh(values + bias) @ weights
            bias = following
        return values[:, 0] if self.outputs == 1 else values


@dataclass(frozen=True)
class NetworkRows:
    """Sums of a network's gradients with a bound on each row's contribution.

    No gradient of a single row is stored: by the weights of a layer, it is the outer product of the layer's input a and
    the derivative d by its output. So its norm follows from the norms of both, and rows are clipped before they are
    added:

        |J_r^T Y_r|^2 = sum over layers of (|a_r|^2 + 1) |d_r|^2        (the 1 is the bias; the last layer has none)
    """

    network: NetworkTable

    @property
    def width(self) -> int:
        """The total width of all layers."""
        return sum(self.network.sizes)

    def predict(self, theta: Array, table: EncodedTable) -> Array:
        """The output of the last layer."""
        found = self._forward(theta, table)[-1]
        return found[:, 0] if self.network.outputs == 1 else found

    def clipped_sums(self, theta: Array, table: EncodedTable, row_gradients: Array, clip: float) -> Array:
        """The sum of clipped gradients: each row's derivatives are scaled by the same factor in every layer."""
        inputs, slopes = self._backward(theta, table, row_gradients.reshape(len(row_gradients), self.network.outputs))
        norms, biases = [table.norms(), *map(lengths_of, inputs)], [1.0] * len(inputs) + [0.0]
        sizes = [np.hypot(norm, bias) for norm, bias in zip(norms, biases, strict=True)]
        inputs, cut = clipped_layers(inputs, slopes, sizes, norms[0] > 0, clip)
        parts = [table.transposed_times(cut[0]), *(into.T @ slope for into, slope in zip(inputs, cut[1:], strict=True))]
        flat = [parts[0].ravel()]
        for slope, part in zip(cut, parts[1:], strict=False):
            flat += [slope.sum(axis=0), part.ravel()]
        return np.concatenate(flat)

    def _forward(self, theta: Array, table: EncodedTable) -> list[Array]:
        """By row: the input of each layer after the first, then the output of the last."""
        (weights, bias), *others = self.network.layers(theta)
        found, values = [], table.times(weights)
        for weights, following in others:
            found.append(np.tanh(values + bias))
            values, bias = found[-1] @ weights, following
        return [*found, values]

    def _backward(self, theta: Array, table: EncodedTable, row_gradients: Array) -> tuple[list[Array], list[Array]]:
        """By row: (the input of each layer after the first, the derivative by the output of each layer)."""
        layers, inputs = self.network.layers(theta), self._forward(theta, table)[:-1]
        slopes = [row_gradients]
        for (weights, _), into in zip(layers[:0:-1], inputs[::-1], strict=True):
            slopes.append(slopes[-1] @ weights.T * (1 - into**2))
        return inputs, slopes[::-1]
