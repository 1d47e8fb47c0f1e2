"""The network of one table, f_i(theta_i; x) of Eq. 2: tanh layers, then a linear output without bias.

Parameters are one flat array. Only what goes forward and back needs torch, the extra ``deep``, which is imported when
first used.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.errors import LearnError
from tablepuppet.learn.threads import one_thread
from tablepuppet.prep.encoded_table import EncodedTable

if TYPE_CHECKING:
    from torch import Tensor

Array = NDArray[np.float64]
MOST_PARAMETERS = 1 << 26  # half a GiB
CHUNK = 1 << 16  # rows at a time: what the way back needs of them is kept


def need_torch() -> Any:
    """The module torch; LearnError if it is not installed."""
    try:
        import torch
    except ImportError as error:
        raise LearnError("neural networks need torch: pip install 'tablepuppet[deep]'") from error
    return torch


@dataclass(frozen=True)
class TableNetwork:
    """A network from the encoded columns of a table to scores; layer k is (sizes[k], sizes[k + 1])."""

    sizes: tuple[int, ...]

    @classmethod
    def over(cls, width: int, hidden: Sequence[int], outputs: int) -> TableNetwork:
        """The network of a table with ``width`` encoded columns; LearnError if it is too large."""
        network = cls((width, *hidden, outputs))
        parameters = sum((into + 1) * out for into, out in pairwise(network.sizes))
        if parameters > MOST_PARAMETERS:
            raise LearnError(
                f"a table's network has {parameters:,} parameters; at most {MOST_PARAMETERS:,} are allowed"
            )
        return network

    @property
    def outputs(self) -> int:
        """Scores per row."""
        return self.sizes[-1]

    def layers(self, theta: Any) -> list[tuple[Any, Any]]:
        """(weights, bias) of each layer, cut from flat parameters; the last has no bias."""
        cut, start = [], 0
        for into, out in pairwise(self.sizes):
            weights = theta[start : start + into * out].reshape(into, out)
            start += into * out
            last = start == len(theta)
            cut.append((weights, None if last else theta[start : start + out]))
            start += 0 if last else out
        return cut

    def start(self, seed: int, alias: str, numbers: int) -> Array:
        """First parameters, from the seed and the name of the table: its shards all begin alike.

        Weights of categories begin at zero: the order of categories of one frequency is not the same in every run.
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
        scores = np.empty((rows,) if self.outputs == 1 else (rows, self.outputs))
        with one_thread(torch), torch.no_grad():
            for part in _chunks(rows):
                scores[part] = self._forward(torch.tensor(theta), table, part).numpy()
        return scores

    def pull_back(self, theta: Array, table: EncodedTable, wanted: Callable[[slice, Array], Array]) -> Array:
        """h^T Y: the gradient of a function of the predictions (Eq. 12).

        ``wanted`` gives Y, the derivative by the predictions of some rows, from these rows and their predictions.
        """
        torch = need_torch()
        with one_thread(torch):
            point = torch.tensor(theta, requires_grad=True)
            point.grad = torch.zeros_like(point)
            for part in _chunks(len(table.dense)):
                scores = self._forward(point, table, part)
                pulled = torch.from_numpy(wanted(part, scores.detach().numpy()))
                scores.backward(pulled)  # type: ignore[no-untyped-call]
            return np.asarray(point.grad.numpy())

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


def _chunks(rows: int) -> Iterator[slice]:
    for start in range(0, rows, CHUNK):
        yield slice(start, min(start + CHUNK, rows))
