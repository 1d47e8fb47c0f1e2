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
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.learn.placed import PlacedModel, encoded, keep_part, part_of
from tablepuppet.operators.client import Client
from tablepuppet.party.ops import LocalTable, Values, op
from tablepuppet.party.release import Release
from tablepuppet.prep.encode import Encoding

Array = NDArray[np.float64]
FLOOR = 1e-10  # directions with less than this share of the largest eigenvalue are never inverted
LEAST_CURVATURE = 1e-3  # of a combination of classes, as a share of the largest: softmax has none along (1, .., 1)
Curvature = float | Array  # the same for every output, or (outputs, outputs)


@dataclass
class Block:
    """The parameters of one table, with its last steps and the eigenvectors of its Gram matrix."""

    theta: Array  # (width,) or (width, outputs)
    memory: int
    values: Array  # eigenvalues of the centred Gram matrix
    vectors: Array
    largest: float  # no eigenvalue of the Gram matrix, not centred, is larger
    direction: Array = field(init=False)
    steps: list[Array] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.direction = np.zeros_like(self.theta)

    def advance(self, mix: Array) -> None:
        """theta += mix[0] * direction + sum_k mix[k] * (k-th last step); the sum is the newest step."""
        if not len(mix):
            return
        step = mix[0] * self.direction
        for weight, earlier in zip(mix[1:], self.steps, strict=False):
            step = step + weight * earlier
        self.theta = self.theta + step
        self.steps = [step, *self.steps][: self.memory]

    def turn(self, sums: Array, l2: float, curvature: Curvature) -> Array:
        """The new direction -p from T^T Y, where both the columns and the outputs are turned to their eigenvectors."""
        gradient = (sums + l2 * self.theta).reshape(len(self.theta), -1)  # (width, outputs)
        square = curvature if isinstance(curvature, np.ndarray) else curvature * np.eye(gradient.shape[1])
        curvatures, classes = np.linalg.eigh(square)
        curvatures = np.maximum(curvatures, max(LEAST_CURVATURE * curvatures.max(), 1e-12))
        kept = self.values > FLOOR * max(self.values.max(initial=0.0), 1e-300)
        scale = np.where(kept[:, None], np.outer(self.values, curvatures) + l2, np.inf)
        turned = self.vectors @ ((self.vectors.T @ gradient @ classes) / scale) @ classes.T
        self.direction = -turned.reshape(self.theta.shape)
        return self.direction

    def descend(self, sums: Array, lr: float, momentum: float, l2: float) -> None:
        """One step of stochastic gradient descent (Eq. 13); the direction is the velocity."""
        self.direction = momentum * self.direction + sums + l2 * self.theta
        self.theta = self.theta - lr * self.direction

    def products(self) -> Array:
        """Inner products of direction, steps and parameters: all that the L2 penalty needs."""
        vectors = np.stack([v.ravel() for v in (self.direction, *self.steps, self.theta)])
        return vectors @ vectors.T


def new_block(gram: Array, means: Array, outputs: int, memory: int) -> Block:
    """A block of zeros with the eigendecomposition of its centred Gram matrix."""
    values, vectors = np.linalg.eigh(gram - np.outer(means, means))
    values = np.maximum(values, 0.0)
    largest = float(values.max(initial=0.0) + means @ means)
    width = len(gram)
    return Block(np.zeros(width if outputs == 1 else (width, outputs)), memory, values, vectors, largest)


def gram_and_means(table: LocalTable, view: str, encoding: str, joined_rows: int) -> tuple[Array, Array]:
    """T^T diag(G) T / N and T^T G / N over the rows of one shard."""
    rows, counts = encoded(table, view, encoding), table.view(view).counts.astype(np.float64)
    return rows.gram(counts) / joined_rows, rows.transposed_times(counts) / joined_rows


@op("linear.start", releases=Release.STATISTICS)
def start(
    table: LocalTable, view: str, encoding: str, model: str, joined_rows: int, outputs: int, memory: int
) -> Values:
    """Begin a model at a table with one shard: everything but a bound of its eigenvalues stays here."""
    block = new_block(*gram_and_means(table, view, encoding, joined_rows), outputs, memory)
    keep_part(table, model, block)
    return {"largest": block.largest}


@op("linear.gram", releases=Release.GRAM)
def gram(table: LocalTable, view: str, encoding: str, joined_rows: int) -> Values:
    """A shard's part of the Gram matrix and the means of its table."""
    gram, means = gram_and_means(table, view, encoding, joined_rows)
    return {"gram": gram, "means": means}


@op("linear.direction", releases=Release.PREDICTIONS)
def direction(
    table: LocalTable, view: str, encoding: str, model: str, rows: Array, l2: float, curvature: Curvature
) -> Values:
    """T p for a new direction, and its inner products with what is remembered."""
    block: Block = part_of(table, model)
    data = encoded(table, view, encoding)
    turned = block.turn(data.transposed_times(rows.astype(np.float64)), l2, curvature)
    return {"image": data.times(turned).astype(table.wire), "products": block.products()}


@op("linear.advance", releases=Release.COUNTS)
def advance(table: LocalTable, view: str, model: str, mix: Array) -> Values:
    """Take the step that the coordinator decided on."""
    block: Block = part_of(table, model)
    block.advance(mix)
    return {}


@op("linear.gradient", releases=Release.GRADIENT_SUMS)
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
    block: Block = part_of(table, model)
    return {"image": encoded(table, view, encoding).times(block.theta).astype(table.wire)}


@op("linear.parameters", releases=Release.PARAMETERS)
def parameters(table: LocalTable, view: str, model: str) -> Values:
    """The parameters of a table."""
    block: Block = part_of(table, model)
    return {"theta": block.theta}


class LinearModel(PlacedModel[Block]):
    """The coordinator's side of a linear model: asks for directions, tells steps, holds blocks of sharded tables."""

    family = "linear"

    def __init__(self, client: Client, encoding: Encoding, wire: str, outputs: int, l2: float, memory: int, model: str):
        super().__init__(client, encoding, wire, outputs, l2, model)
        self.memory = memory
        common: dict[str, Any] = {"encoding": encoding.id, "joined_rows": len(client.mapping)}
        self._started = self.lou.ask("linear.start", self.alone, **common, model=model, outputs=outputs, memory=memory)
        self._grams = self.lou.ask("linear.gram", self.together, **common)

    @cached_property
    def shared(self) -> dict[str, Block]:
        """Blocks of the tables in `together`."""
        found = {}
        for alias in self.together:
            gram, means = (self.lou.add(self._grams[alias], name) for name in ("gram", "means"))
            found[alias] = new_block(gram, means, self.outputs, self.memory)
        return found

    @property
    def largest(self) -> float:
        """No direction of the joined table is longer than this, since its tables' blocks are not."""
        alone = sum(self._started[alias][0]["largest"] for alias in self.alone)
        return float(1.0 + alone + sum(block.largest for block in self.shared.values()))

    def direction(self, wanted: Array, curvature: Curvature, out: Array | None = None) -> tuple[Array, Array]:
        """(X p for every joined row, inner products over all tables); X p is written to ``out`` if that is given."""
        rows = self.loj.scatter_centred(wanted, self.tables)  # what is left is the intercept's to answer
        replies = self.lou.ask(
            "linear.direction", self.alone, rows,
            encoding=self.encoding.id, model=self.model, l2=self.l2, curvature=curvature,
        )  # fmt: skip
        sums = self.lou.ask("linear.gradient", self.together, rows, encoding=self.encoding.id)
        turned = {
            alias: block.turn(self.lou.add(sums[alias], "sums"), self.l2, curvature)
            for alias, block in self.shared.items()
        }
        images = self.images(turned) | self.joined(replies, self.alone)
        products = [reply["products"] for alias in self.alone for reply in replies[alias]]
        products += [block.products() for block in self.shared.values()]
        return self.loj.gather(images, self.outputs, out), np.sum(products, axis=0)

    def advance(self, mix: Array) -> None:
        """Take the step that is this mix of the new direction and earlier steps."""
        self.lou.ask("linear.advance", self.alone, model=self.model, mix=mix)
        for block in self.shared.values():
            block.advance(mix)


def by_column(encoding: Encoding, thetas: Mapping[str, Array]) -> dict[str, Array]:
    """Parameters of tables by the names of their encoded columns."""
    found: dict[str, Array] = {}
    for alias, theta in thetas.items():
        found |= dict(zip(encoding.names(alias), theta, strict=True))
    return found
