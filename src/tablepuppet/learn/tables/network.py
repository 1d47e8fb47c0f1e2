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

from tablepuppet.arrays import Array
from tablepuppet.errors import LearnError
from tablepuppet.learn.specs import Spec
from tablepuppet.learn.tables.layers import Dense, DenseRows
from tablepuppet.learn.threads import one_thread
from tablepuppet.party.allowance import check_memory, check_reply, check_time
from tablepuppet.party.arguments import Layers, Some
from tablepuppet.prep.encode.encoded_table import EncodedTable, check_length

if TYPE_CHECKING:
    from torch import Tensor

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


class Network(Spec, frozen=True, tag_field="kind", tag="network"):
    """Tanh layers of the widths ``hidden``, then a linear output without bias."""

    hidden: Layers
    outputs: Some

    def theta_shape(self, width: int) -> tuple[int, ...]:
        """The same; the parameters of all layers are one vector."""
        sizes = (width, *self.hidden, self.outputs)
        return (sum((into + 1) * out for into, out in pairwise(sizes)) - self.outputs,)

    def over(self, width: int) -> NetworkTable:
        """The network of a table with ``width`` encoded columns; LearnError if it is too large."""
        return NetworkTable.over(width, self.hidden, self.outputs)


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
    def dense(self) -> Dense:
        """Its layers."""
        return Dense(self.sizes, "tanh", by_output=False, last_bias=False)

    @property
    def by_row(self) -> DenseRows:
        """The same network with a bound on each row's gradient."""
        return DenseRows(self.dense, flat_scores=True)

    def gradient_bound(self, theta: Array) -> float:
        """The product of the layers' norms: tanh and its slope are at most 1."""
        return math.prod(max(1.0, float(np.linalg.norm(weights))) for weights, _ in self.layers(theta)[1:])

    def layers(self, theta: Any) -> list[tuple[Any, Any]]:
        """(weights (in, out), bias) of each layer, as slices of the flat parameters; the last layer has no bias."""
        return self.dense.layers(theta)

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

    def gradient(self, theta: Array, table: EncodedTable, row_gradients: Array) -> Array:
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
                slopes = torch.from_numpy(row_gradients(part, scores.detach().numpy()))
                scores.backward(slopes)  # type: ignore[no-untyped-call]
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
