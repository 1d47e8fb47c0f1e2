"""The bottom network of one table: embeddings of its rows, and the gradient of its parameters from that by embeddings.

Each base row is computed once in a batch, however often it is joined. While a batch is under way the graph of its
forward pass is kept, so that the backward pass need not compute it again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.errors import PartyError, PrivacyError
from tablepuppet.learn.split.bottoms import build
from tablepuppet.learn.split.flat import FlatModule, seeded
from tablepuppet.learn.split.row_gradients import MlpRows
from tablepuppet.learn.tables.network import need_torch
from tablepuppet.learn.threads import one_thread
from tablepuppet.party.allowance import check_memory, check_reply, check_time
from tablepuppet.party.spec import Bottom, Cnn, Mlp
from tablepuppet.prep.encoded_table import EncodedTable

if TYPE_CHECKING:
    from torch import Tensor

Array = NDArray[np.float64]
Floats = NDArray[np.floating[Any]]
CHUNK = 1 << 13  # rows at a time, where no gradient is wanted


@dataclass
class Forward:
    """A forward pass whose gradient is still to come."""

    flat: Tensor  # the parameters it was computed with
    outputs: Tensor

    @property
    def embeddings(self) -> Floats:
        """(rows, outputs)."""
        return np.asarray(self.outputs.detach().numpy())

    def backward(self, row_gradients: Floats) -> Array:
        """The gradient by all parameters, from that by embeddings."""
        torch = need_torch()
        if row_gradients.shape != tuple(self.outputs.shape):
            raise PartyError(f"gradients of shape {row_gradients.shape} do not fit {tuple(self.outputs.shape)}")
        with one_thread(torch):
            given = torch.from_numpy(np.ascontiguousarray(row_gradients)).to(self.outputs.dtype)
            self.outputs.backward(given)  # type: ignore[no-untyped-call]
            gradient = self.flat.grad
        return np.zeros(len(self.flat)) if gradient is None else gradient.numpy().astype(np.float64)


class TorchTable:
    """The bottom network of a table with ``width`` encoded columns."""

    def __init__(self, spec: Bottom, width: int, alias: str):
        self.spec, self.width = spec, width
        self.flat = self._built(0, alias)
        self._number = np.float64 if spec.double else np.float32

    def _built(self, seed: int, alias: str) -> FlatModule:
        return FlatModule(seeded(seed, alias, lambda: build(self.spec, self.width, alias)), double=self.spec.double)

    def start(self, seed: int, alias: str, numbers: int) -> Array:
        """First parameters, from the seed and the alias; the first ``numbers`` columns are numeric.

        Weights of categories start at zero, since the order of categories with equal frequency may differ between runs.
        """
        theta = self._built(seed, alias).first()
        if isinstance(self.spec, Mlp):
            first = (*self.spec.hidden, self.spec.outputs)[0]
            theta[: self.width * first].reshape(first, self.width)[:, numbers:] = 0.0
        return theta

    def rescaled(self, theta: Array, unit: float) -> Array:
        """The same: embeddings have no unit, the top network's scores do."""
        return theta

    @property
    def by_row(self) -> MlpRows:
        """The same network with a bound on each row's gradient; PrivacyError if it has no such form."""
        spec = self.spec
        if not isinstance(spec, Mlp):
            raise PrivacyError("only tp.bottom.mlp networks have a form with noise", rule="require_dp")
        return MlpRows((self.width, *spec.hidden, spec.outputs), spec.activation)

    def _cells(self) -> int:
        """Numbers per row that a forward pass holds in memory."""
        spec = self.spec
        if isinstance(spec, Mlp):
            return 2 * (self.width + sum(spec.hidden) + spec.outputs)
        if isinstance(spec, Cnn):
            return 3 * self.width * max([1, *spec.channels])
        return 16 * (self.width + spec.outputs)

    def rows(self, table: EncodedTable) -> Tensor:
        """Encoded rows as a tensor, categories as 0 and 1."""
        numbers = table.dense.shape[1]
        found = np.zeros((len(table.dense), table.width), self._number)
        found[:, :numbers] = table.dense
        start = numbers
        for codes, size in zip(table.codes, table.sizes, strict=True):
            known = np.flatnonzero(codes >= 0)
            found[known, start + codes[known]] = 1
            start += size
        tensor: Tensor = need_torch().from_numpy(found)
        return tensor

    def forward(self, theta: Array, table: EncodedTable, counts: NDArray[Any] | None = None) -> Forward:
        """The embeddings of rows in training; ``counts``: how often each is joined in the batch."""
        torch = need_torch()
        check_memory(8 * len(table.dense) * self._cells())
        with one_thread(torch):
            flat = self.flat.tensor(theta, training=True)
            weights = None if counts is None else torch.from_numpy(counts.astype(self._number))
            return Forward(flat, self.flat(flat, self.rows(table), weights, training=True))

    def predict(self, theta: Array, table: EncodedTable) -> Floats:
        """The embeddings of rows after training: (rows, outputs)."""
        torch = need_torch()
        rows, outputs = len(table.dense), self.spec.outputs
        check_reply(8 * rows * outputs)
        found = np.empty((rows, outputs), self._number)
        with one_thread(torch), torch.no_grad():
            flat = self.flat.tensor(theta)
            for part in _chunks(rows):
                found[part] = self.flat(flat, self.rows(table.repeated(part))).numpy()
        return found

    def pull_back(self, theta: Array, table: EncodedTable, row_gradients: Array) -> Array:
        """The gradient by parameters, of rows that are joined once."""
        return self.forward(theta, table).backward(row_gradients)

    def gradient_bound(self, theta: Array) -> float:
        """There is no bound."""
        raise PrivacyError("gradients of bottom networks have no bound, which secure sums need", rule="secure_sum")


def _chunks(rows: int) -> Iterator[slice]:
    for start in range(0, rows, CHUNK):
        check_time()
        yield slice(start, min(start + CHUNK, rows))
