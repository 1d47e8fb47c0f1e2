"""TabNet's part of one table (papers: TabVFL, Fig. 3), which sees a batch as a whole, and hides some of its cells.

Each base row is computed once in a batch, however often it is joined: batch norm weights it by that. Which cells are
hidden in pretraining (TabNet's RandomObfuscator) is computed from the seed, the table and the number of the batch, so
no mask is sent. A party that missed some batches still draws the right one, the shards of a table draw parts of one
mask, and the coordinator draws the same.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from tablepuppet.arrays import Array, Floats
from tablepuppet.errors import LearnError, PartyError
from tablepuppet.learn.split.bottoms import need_tabnet
from tablepuppet.learn.tables.model import BatchSums, Bottom, Forward, Hiding
from tablepuppet.learn.tables.torch_table import TorchTable
from tablepuppet.learn.threads import need_torch, one_thread
from tablepuppet.party.arguments import Some, SomeOrNone
from tablepuppet.prep.encode.encoded_table import EncodedTable

if TYPE_CHECKING:
    from torch import Tensor, nn

CategoryCounts = Annotated[Sequence[Some], Meta(max_length=10_000)]
"""How many categories each categorical column has."""


class TabNet(Bottom, frozen=True, tag_field="kind", tag="tabnet"):
    """Batch norm over the columns, then a linear layer: the guest's part of TabVFL.

    With ``part`` above 0, another layer reconstructs the columns from ``part`` numbers, in pretraining. ``categories``
    are the last encoded columns: cells of one categorical column are hidden together.
    """

    outputs: Some
    part: SomeOrNone
    categories: CategoryCounts
    double: bool

    def theta_shape(self, width: int) -> tuple[int, ...]:
        """One vector: scale, shift, both layers; then the running mean and variance of each column."""
        return (2 * width + (width + 1) * self.outputs + self.part * width + 2 * width,)

    def over(self, width: int, alias: str = "") -> TabNetTable:
        """The part of a table with ``width`` encoded columns."""
        if sum(self.categories) > width:
            raise LearnError(f"table {alias!r} has {width:,} encoded columns, fewer than the categories of its network")

        def build() -> nn.Module:
            need_tabnet()
            from tablepuppet.learn.split.tabnet import Guest

            return Guest(width, self.outputs, self.part)

        return TabNetTable(self, width, alias, 16 * (width + self.outputs), build)

    def mask(self, hiding: Hiding, alias: str, rows: int, width: int) -> NDArray[np.float32]:
        """(rows, encoded columns): 1 at cells that are hidden.

        The encoded columns of one categorical column are hidden together: one of them is known from the others, and
        their order may differ between runs.
        """
        numbers, categories = width - sum(self.categories), list(self.categories)
        columns = numbers + len(categories)
        bits = np.random.PCG64(np.random.SeedSequence([hiding.seed, zlib.crc32(alias.encode()), hiding.batch]))
        bits.advance(hiding.offset * columns)
        drawn = np.random.Generator(bits).random((rows, columns)) < hiding.share
        return np.repeat(drawn, [1] * numbers + categories, axis=1).astype(np.float32)


@dataclass
class BatchRows:
    """Rows of a batch: encoded columns, how often each row is joined, and hidden cells."""

    values: Tensor
    counts: Tensor | None
    mask: Tensor | None


class TabNetTable(TorchTable):
    """The part of one table."""

    spec: TabNet

    def start(self, seed: int, alias: str, numbers: int) -> Array:
        """First parameters; the categories of a column have the same weights, together as large as those of a number.

        For their order, where frequencies are equal, may differ between runs.
        """
        theta = super().start(seed, alias, numbers)
        named = {name: part.copy() for name, part in self.flat.named(theta).items()}
        start = numbers
        for size in self.spec.categories or [self.width - numbers]:
            columns = slice(start, start + size)
            for weights in (named["mix.weight"].T, named.get("rebuild.weight", np.zeros((self.width, 0)))):
                weights[columns] = weights[start : start + 1] / np.sqrt(max(size, 1))
            start += size
        return self.flat.flat(named)

    def rows(
        self, table: EncodedTable, counts: NDArray[Any] | None = None, hiding: Hiding | None = None
    ) -> BatchRows:  # fmt: skip
        """Rows of a batch; ``counts``: how often each is joined in it, ``hiding``: which cells are hidden."""
        torch = need_torch()
        weights = None if counts is None else torch.from_numpy(counts.astype(self.number))
        mask = None
        if hiding is not None:
            drawn = self.spec.mask(hiding, self.alias, len(table.dense), self.width)
            mask = torch.from_numpy(drawn.astype(self.number))
        return BatchRows(super().rows(table), weights, mask)

    def forward(self, theta: Array, rows: BatchRows, sums: BatchSums | None = None) -> Forward:
        """The embeddings of rows in training; ``sums``: those of the columns over all shards, as they are shown."""
        return self._forward(theta, rows, rows.values, **_beside(rows, sums))

    def error(
        self, theta: Array, batch: BatchRows, decoded: Floats, sums: BatchSums | None = None
    ) -> tuple[float, Floats, Array]:
        """(Reconstruction error of rows, its gradient by ``decoded``, that by all parameters).

        ``sums``: those of the table's whole columns over all its shards.
        """
        torch = need_torch()
        if not self.spec.part:
            raise PartyError("this network reconstructs nothing")
        if decoded.shape != (len(batch.values), self.spec.part):
            raise PartyError(
                f"decoded values of shape {decoded.shape} do not fit {(len(batch.values), self.spec.part)}"
            )
        with one_thread(torch):
            flat = self.flat.tensor(theta, training=True)
            point = torch.tensor(decoded, dtype=self.flat.dtype, requires_grad=True)
            error = self.flat(flat, batch.values, **_beside(batch, sums), decoded=point, training=True)
            error.backward()
            assert flat.grad is not None, "the last layer has parameters"
            return float(error.detach()), point.grad.numpy(), flat.grad.numpy().astype(np.float64)


def _beside(rows: BatchRows, sums: BatchSums | None) -> dict[str, Any]:
    """What the module takes beside values."""
    shown = {"counts": rows.counts, "mask": rows.mask}
    if sums is None:
        return shown
    from tablepuppet.learn.split.tabnet import BatchMoments

    torch = need_torch()
    values, squares = (torch.from_numpy(each) for each in np.ascontiguousarray(sums.values))
    return {**shown, "moments": BatchMoments(float(sums.joined), values, squares)}
