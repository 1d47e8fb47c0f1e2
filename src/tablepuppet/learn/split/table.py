"""The bottom network of one table: embeddings of its rows, and the gradient of its parameters from that by embeddings.

Each base row is computed once in a batch, however often it is joined. While a batch is under way the graph of its
forward pass is kept, so that the backward pass need not compute it again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array, Floats
from tablepuppet.errors import PartyError, PrivacyError
from tablepuppet.learn.specs import Bottom, Cnn, Hiding, Mlp, TabNet
from tablepuppet.learn.split.bottoms import build
from tablepuppet.learn.split.flat import FlatModule, check_size, seeded
from tablepuppet.learn.split.hiding import draw_mask
from tablepuppet.learn.tables.layers import Dense, DenseRows
from tablepuppet.learn.tables.network import need_torch
from tablepuppet.learn.threads import one_thread
from tablepuppet.party.allowance import check_memory, check_reply, check_time
from tablepuppet.prep.encode.encoded_table import EncodedTable

if TYPE_CHECKING:
    from torch import Tensor

CHUNK = 1 << 13  # rows at a time, where no gradient is wanted
CHUNK_BYTES = 1 << 24  # of a chunk's forward pass, unless a single row takes more


@dataclass(frozen=True)
class BatchSums:
    """Sums over all joined rows of a batch by encoded column: of its values and of their squares, (2, width)."""

    joined: int
    values: Array


@dataclass
class Batched:
    """Rows of a batch as a network takes them: encoded columns, how often each row is joined, and hidden cells."""

    rows: Tensor
    counts: Tensor | None
    mask: Tensor | None


@dataclass
class Forward:
    """A forward pass whose gradient is still to come."""

    embeddings: Floats  # (rows, outputs)
    seen: Batched
    gradient: Callable[[Floats], Array]  # by all parameters, from that by embeddings

    def backward(self, row_gradients: Floats) -> Array:
        """The gradient by all parameters, from that by embeddings."""
        if row_gradients.shape != self.embeddings.shape:
            raise PartyError(f"gradients of shape {row_gradients.shape} do not fit {self.embeddings.shape}")
        with one_thread(need_torch()):
            return self.gradient(row_gradients)


class TorchTable:
    """The bottom network of a table with ``width`` encoded columns."""

    def __init__(self, spec: Bottom, width: int, alias: str):
        self.spec, self.width, self.alias = spec, width, alias
        shape = spec.theta_shape(width)
        if shape is not None:
            check_size(math.prod(shape))
        self.flat = self._built(0, alias)
        self._number = np.float64 if spec.double else np.float32
        mlp = spec if isinstance(spec, Mlp) else None
        self._dense = None if mlp is None else Dense((width, *mlp.hidden, mlp.outputs), mlp.activation)

    def _built(self, seed: int, alias: str) -> FlatModule:
        return FlatModule(seeded(seed, alias, lambda: build(self.spec, self.width, alias)), double=self.spec.double)

    def start(self, seed: int, alias: str, numbers: int) -> Array:
        """First parameters, from the seed and the alias; the first ``numbers`` columns are numeric.

        Weights of categories start at zero, since the order of categories with equal frequency may differ between runs;
        in TabNet's part, the categories of a column start with the same weights.
        """
        theta = self._built(seed, alias).first()
        if isinstance(self.spec, TabNet):
            return self._alike(theta, numbers)
        if isinstance(self.spec, Mlp):
            first = (*self.spec.hidden, self.spec.outputs)[0]
            theta[: self.width * first].reshape(first, self.width)[:, numbers:] = 0.0
        return theta

    def _alike(self, theta: Array, numbers: int) -> Array:
        """Parameters with the same weights for all categories of a column, together as large as those of a number."""
        assert isinstance(self.spec, TabNet)
        named = {name: part.copy() for name, part in self.flat.named(theta).items()}
        start = numbers
        for size in self.spec.categories or [self.width - numbers]:
            columns = slice(start, start + size)
            for weights in (named["mix.weight"].T, named.get("rebuild.weight", np.zeros((self.width, 0)))):
                weights[columns] = weights[start : start + 1] / np.sqrt(max(size, 1))
            start += size
        return self.flat.flat(named)

    def rescaled(self, theta: Array, unit: float) -> Array:
        """The same: embeddings have no unit, the top network's scores do."""
        return theta

    @property
    def by_row(self) -> DenseRows:
        """The same network with a bound on each row's gradient; PrivacyError if it has no such form."""
        if self._dense is None:
            raise PrivacyError("only tp.bottom.mlp networks have a form with noise", rule="require_dp")
        return DenseRows(self._dense)

    def _cells(self) -> int:
        """Numbers per row that a forward pass holds in memory."""
        spec = self.spec
        if isinstance(spec, Mlp):
            return 2 * (self.width + sum(spec.hidden) + spec.outputs)
        if isinstance(spec, Cnn):
            return 3 * (math.prod(spec.shape[1:]) * max([spec.shape[0], *spec.channels]) + sum(spec.hidden))
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

    def batched(self, table: EncodedTable, counts: NDArray[Any] | None = None, hiding: Hiding | None = None) -> Batched:
        """Rows of a batch; ``counts``: how often each is joined in it, ``hiding``: which cells are hidden."""
        torch = need_torch()
        check_memory(8 * len(table.dense) * self._cells())
        weights = None if counts is None else torch.from_numpy(counts.astype(self._number))
        mask = None
        if hiding is not None:
            sizes = self.spec.categories if isinstance(self.spec, TabNet) else ()
            drawn = draw_mask(hiding, self.alias, len(table.dense), self.width - sum(sizes), sizes)
            mask = torch.from_numpy(drawn.astype(self._number))
        return Batched(self.rows(table), weights, mask)

    def forward(self, theta: Array, batch: Batched, sums: BatchSums | None = None) -> Forward:
        """The embeddings of rows in training; ``sums``: those of the table's columns over all its shards, as shown."""
        torch = need_torch()
        with one_thread(torch):
            if self._dense is not None:
                passed = self._dense.forward(theta.astype(self._number), batch.rows.numpy())
                return Forward(
                    passed.outputs, batch, lambda given: passed.backward(given.astype(self._number, copy=False))[0]
                )
            flat = self.flat.tensor(theta, training=True)
            outputs = self.flat(flat, batch.rows, **self._shown(batch, sums), training=True)

        def gradient(given: Floats) -> Array:
            outputs.backward(torch.from_numpy(np.ascontiguousarray(given)).to(outputs.dtype))
            return np.zeros(len(flat)) if flat.grad is None else flat.grad.numpy().astype(np.float64)

        return Forward(outputs.detach().numpy(), batch, gradient)

    def error(
        self, theta: Array, batch: Batched, decoded: Floats, sums: BatchSums | None = None
    ) -> tuple[float, Floats, Array]:
        """(Reconstruction error of rows, its gradient by ``decoded``, that by all parameters); for TabNet's part only.

        ``sums``: those of the table's whole columns over all its shards.
        """
        torch = need_torch()
        part = self.spec.part if isinstance(self.spec, TabNet) else 0
        if not part:
            raise PartyError("this network reconstructs nothing")
        if decoded.shape != (len(batch.rows), part):
            raise PartyError(f"decoded values of shape {decoded.shape} do not fit {(len(batch.rows), part)}")
        with one_thread(torch):
            flat = self.flat.tensor(theta, training=True)
            point = torch.tensor(decoded, dtype=self.flat.dtype, requires_grad=True)
            error = self.flat(flat, batch.rows, **self._shown(batch, sums), decoded=point, training=True)
            error.backward()
            assert flat.grad is not None, "the last layer has parameters"
            return float(error.detach()), point.grad.numpy(), flat.grad.numpy().astype(np.float64)

    def _shown(self, batch: Batched, sums: BatchSums | None) -> dict[str, Any]:
        """What TabNet's part takes beside rows; other networks see each row by itself."""
        if not isinstance(self.spec, TabNet):
            return {}
        shown = {"counts": batch.counts, "mask": batch.mask}
        if sums is None:
            return shown
        from tablepuppet.learn.split.tabnet import BatchMoments

        torch = need_torch()
        values, squares = (torch.from_numpy(each) for each in np.ascontiguousarray(sums.values))
        return {**shown, "moments": BatchMoments(float(sums.joined), values, squares)}

    def predict(self, theta: Array, table: EncodedTable) -> Floats:
        """The embeddings of rows after training: (rows, outputs)."""
        torch = need_torch()
        rows, outputs = len(table.dense), self.spec.outputs
        check_reply(8 * rows * outputs)
        size = max(1, min(CHUNK, rows, CHUNK_BYTES // (8 * self._cells())))
        check_memory(8 * size * self._cells())
        found = np.empty((rows, outputs), self._number)
        with one_thread(torch), torch.no_grad():
            flat = self.flat.tensor(theta)
            for part in _chunks(rows, size):
                chosen = self.rows(table.repeated(part))
                if self._dense is not None:
                    found[part] = self._dense.forward(flat.numpy(), chosen.numpy()).outputs
                else:
                    found[part] = self.flat(flat, chosen).numpy()
        return found

    def gradient(self, theta: Array, table: EncodedTable, row_gradients: Array) -> Array:
        """The gradient by parameters, of rows that are joined once."""
        return self.forward(theta, self.batched(table)).backward(row_gradients)

    def gradient_bound(self, theta: Array) -> float:
        """There is no bound."""
        raise PrivacyError("gradients of bottom networks have no bound, which secure sums need", rule="secure_sum")


def _chunks(rows: int, size: int) -> Iterator[slice]:
    for start in range(0, rows, size):
        check_time()
        yield slice(start, min(start + size, rows))
