"""Linear models over a relation: h_i = T_i theta_i, one block of parameters per table.

Both halves of what the solvers ask for: a preconditioned direction for every table, in one trip. A table with one
shard keeps its parameters at the party; for a table with several the shards' sums are added and the block is held
by the coordinator (LoU), which costs a second trip.

    g_i = T_i^T Y_i + l2 theta_i              the gradient, Y_i = S_i^T (dloss / dz)                    (Eq. 12)
    p_i = (C x K_i + l2)^-1 g_i               the direction: a ridge solve of the table alone           (Eq. 16)
    K_i = T_i^T diag(G_i) T_i / N - m_i m_i^T    with m_i = T_i^T G_i / N, the means over joined rows

C is the curvature of the loss, (outputs, outputs). The Gram matrix K_i is centred: the intercept, which the coordinator
moves with every step, already takes what the means could answer. So 0/1 columns that add up to one do no harm.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tablepuppet.learn.absence import Absence
from tablepuppet.learn.block import Block, Curvature, RidgeBlock, new_ridge_block
from tablepuppet.learn.consensus import Consensus, Inner
from tablepuppet.learn.part import encoded, keep_part, part_for_predictions, part_of
from tablepuppet.learn.placed import PlacedModel
from tablepuppet.mapping.table_mapping import Floats, ShardRows
from tablepuppet.operators.client import Client, Replies
from tablepuppet.operators.lou import LearningOverUnion
from tablepuppet.party.arguments import Positive, Some, SomeOrNone
from tablepuppet.party.ops import LocalTable, Values, op
from tablepuppet.party.release import Release
from tablepuppet.prep.encode import Encoding

if TYPE_CHECKING:
    from tablepuppet.learn.image_noise import ImageNoise
    from tablepuppet.learn.losses import Loss

Array = NDArray[np.float64]


def gram_and_means(table: LocalTable, view: str, encoding: str, joined_rows: int) -> tuple[Array, Array]:
    """T^T diag(G) T / N and T^T G / N over the rows of one shard."""
    rows, counts = encoded(table, view, encoding), table.view(view).counts.astype(np.float64)
    return rows.gram(counts) / joined_rows, rows.transposed_times(counts) / joined_rows


@op("linear.start", releases=Release.STATISTICS)
def start(table: LocalTable, view: str, encoding: str, model: str, joined_rows: Positive, outputs: Some) -> Values:
    """Begin a model at a table with one shard: everything but a bound of its eigenvalues stays here."""
    block = new_ridge_block(*gram_and_means(table, view, encoding, joined_rows), outputs)
    keep_part(table, model, block)
    return {"largest": block.largest}


@op("linear.gram", releases=Release.GRAM, summed=("gram", "means"))
def gram(table: LocalTable, view: str, encoding: str, joined_rows: Positive) -> Values:
    """A shard's part of the Gram matrix and the means of its table."""
    gram, means = gram_and_means(table, view, encoding, joined_rows)
    return {"gram": gram, "means": means}


@op("linear.direction", releases=Release.PREDICTIONS)
def direction(
    table: LocalTable, view: str, encoding: str, model: str, rows: Array, l2: float, curvature: Curvature
) -> Values:
    """T p for a new direction, and its inner products with what is remembered."""
    block: RidgeBlock = part_of(table, model)
    data = encoded(table, view, encoding)
    turned = block.turn(data.transposed_times(rows.astype(np.float64)), l2, curvature)
    return {"image": data.times(turned).astype(table.wire), "products": block.products()}


@op("linear.advance", releases=Release.COUNTS)
def advance(table: LocalTable, view: str, model: str, mix: Array, memory: SomeOrNone) -> Values:
    """Take the step that the coordinator decided on."""
    block: Block = part_of(table, model)
    block.advance(mix, memory)
    return {}


@op("linear.gradient", releases=Release.GRADIENT_SUMS, summed=("sums",))
def gradient(table: LocalTable, view: str, encoding: str, rows: Array) -> Values:
    """A shard's part of T^T Y (Eq. 18)."""
    return {"sums": encoded(table, view, encoding).transposed_times(rows.astype(np.float64))}


@op("linear.image", releases=Release.PREDICTIONS)
def image(table: LocalTable, view: str, encoding: str, theta: Array) -> Values:
    """T theta for parameters that the coordinator holds."""
    return {"image": encoded(table, view, encoding).times(theta).astype(table.wire)}


@op("linear.predict", releases=Release.PREDICTIONS)
def predict(table: LocalTable, view: str, encoding: str, model: str) -> Values:
    """T theta for parameters that the party holds."""
    theta: Array = part_for_predictions(table, model).theta
    return {"image": encoded(table, view, encoding).times(theta).astype(table.wire)}


@op("linear.parameters", releases=Release.PARAMETERS)
def parameters(table: LocalTable, view: str, model: str) -> Values:
    """The parameters of a table."""
    block: Block = part_of(table, model)
    return {"theta": block.theta}


class Sums:
    """Tables with several shards, whose Gram matrices and gradients add up: one inner round is exact (LoU)."""

    def __init__(self, lou: LearningOverUnion, encoding: Encoding, aliases: list[str], outputs: int, l2: float):
        self.lou, self.encoding, self.aliases, self.outputs, self.l2 = lou, encoding, aliases, outputs, l2
        rows = len(lou.client.mapping)
        self._grams = lou.ask(
            "linear.gram", aliases, bounds=lambda _: {"gram": 1.0, "means": 1.0}, encoding=encoding.id, joined_rows=rows
        )  # columns are standardised

    @cached_property
    def blocks(self) -> dict[str, RidgeBlock]:
        """By table."""
        found = {}
        for alias in self.aliases:
            gram, means = (self.lou.add(self._grams[alias], name) for name in ("gram", "means"))
            found[alias] = new_ridge_block(gram, means, self.outputs)
        return found

    @property
    def largest(self) -> float:
        """The sum over tables of a bound of their Gram matrices' eigenvalues."""
        return sum(block.largest for block in self.blocks.values())

    def turn(self, rows: Mapping[str, Floats], curvature: Curvature) -> float:
        """Set the direction of every block; nothing is left to agree on."""
        sums = self._ask_sums(rows)
        for alias, block in self.blocks.items():
            block.turn(self.lou.add(sums[alias], "sums"), self.l2, curvature)
        return 0.0

    def _ask_sums(self, rows: Mapping[str, Floats]) -> Replies:
        return self.lou.ask(
            "linear.gradient", self.aliases, rows, instead=self._left_out, encoding=self.encoding.id,
            bounds=lambda alias: {"sums": self.lou.bound(rows[alias])},
        )  # fmt: skip

    def _left_out(self, alias: str, _: ShardRows) -> dict[str, Array]:
        """The sums of a shard that is lost: its rows are left out."""
        return {"sums": np.zeros_like(self.blocks[alias].theta)}


class LinearModel(PlacedModel[Block]):
    """The coordinator's side of a linear model: asks for directions, tells steps, holds blocks of sharded tables."""

    family = "linear"

    def image_noise(self, loss: Loss, scores: Array) -> ImageNoise | None:
        """What privacy added to the last direction's image; ``scores`` are those that the direction begins at."""
        return None

    def __init__(
        self, client: Client, encoding: Encoding, wire: str, outputs: int, l2: float, model: str,
        inner: Inner | None = None,
    ):  # fmt: skip
        super().__init__(client, encoding, wire, outputs, l2, model)
        self.unsettled = 0.0  # what shards would gain by leaving what they agreed on
        self.absence, self._steps = Absence(self), 0
        self._started, self._union = self._start(), self._new_union(inner)

    def _start(self) -> Replies:
        """Begin at tables with one shard."""
        return self.lou.ask(
            "linear.start", self.alone, encoding=self.encoding.id, joined_rows=len(self.lou.client.mapping),
            model=self.model, outputs=self.outputs,
        )  # fmt: skip

    def _new_union(self, inner: Inner | None) -> Consensus | Sums:
        """Begin at tables with several."""
        parts = (self.lou, self.encoding, self.together, self.outputs, self.l2)
        return Sums(*parts) if inner is None else Consensus(*parts, self.model, inner)

    @property
    def shared(self) -> Mapping[str, Block]:
        """Blocks of the tables in `together`."""
        return self._union.blocks

    @property
    def largest(self) -> float:
        """No direction of the joined table is longer than this, since its tables' blocks are not."""
        alone = sum(self._started[alias][0]["largest"] for alias in self.alone)
        return float(1.0 + alone + self._union.largest)

    def direction(
        self, rows: Mapping[str, Floats], curvature: Curvature, out: Array | None = None
    ) -> tuple[Array, Array]:
        """(X p for every joined row, inner products over all tables), where tables answer a value per base row.

        X p is written to ``out`` if that is given.
        """
        replies = self._ask_directions(rows, curvature)
        self.unsettled = self._union.turn(rows, curvature)
        directions = {alias: block.direction for alias, block in self.shared.items()}
        moved, missed = self.ask_images(directions, self.absence.instead), self.absence.ask_missed()
        images = self.joined(moved, self.together) | self.joined(replies, self.alone)
        self.absence.look(replies, moved, missed)
        products = [replies[alias][0]["products"] for alias in self.alone if alias not in self.absence.still]
        products += [block.products() for block in self.shared.values()]
        return self.loj.gather(images, self.outputs, out), self.absence.total(products, self._steps)

    def _ask_directions(self, rows: Mapping[str, Floats], curvature: Curvature) -> Replies:
        """Ask tables with one shard."""
        return self.lou.ask(
            "linear.direction", self.alone, rows, instead=self.absence.instead,
            encoding=self.encoding.id, model=self.model, l2=self.l2, curvature=curvature,
        )  # fmt: skip

    def advance(self, mix: Array, memory: int) -> None:
        """Take the step that is this mix of the new direction and earlier steps; remember ``memory`` steps."""
        moving = [alias for alias in self.alone if alias not in self.absence.still]
        self.lou.ask("linear.advance", moving, model=self.model, mix=mix, memory=memory)
        for block in self.shared.values():
            block.advance(mix, memory)
        self.absence.advance(mix)
        self._steps = min(len(mix), memory)


def by_column(encoding: Encoding, thetas: Mapping[str, Array]) -> dict[str, Array]:
    """Parameters of tables by the names of their encoded columns."""
    found: dict[str, Array] = {}
    for alias, theta in thetas.items():
        found |= dict(zip(encoding.names(alias), theta, strict=True))
    return found
