"""Neural networks over a relation: the sum over tables of one small network each (Eq. 2).

A table with one shard keeps its parameters at the party. For a table with several the shards' gradients are added, and
the coordinator holds the parameters and tells them (LoU). Every shard begins with the same ones, from the seed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.learn.part import StoredPart, encoded, keep_part, part_for_predictions, part_of
from tablepuppet.learn.placed import PlacedModel
from tablepuppet.learn.table_network import TableNetwork
from tablepuppet.mapping.table_mapping import Floats
from tablepuppet.operators.client import Client
from tablepuppet.party.arguments import Seed, Some
from tablepuppet.party.ops import LocalTable, Values, op
from tablepuppet.party.release import Release
from tablepuppet.prep.encode import Encoding

Array = NDArray[np.float64]
Places = NDArray[np.int32]


class Weights:
    """The parameters of one table, or the intercept, and what descent remembers of them.

    L-BFGS: ``theta`` is where a step led to, ``base`` where it began; ``steps`` s_k and ``changes`` y_k of the
    gradient, the newest first. SGD: ``velocity``.
    """

    def __init__(self, theta: Array, network: TableNetwork | None = None, *, noisy: bool = False):
        self.theta, self.network = theta, network
        self.noisy = noisy  # whether all that they are made of had noise: then they may be told
        self.velocity = np.zeros_like(theta)
        self.base, self.gradient = theta, np.zeros(0)
        self.steps: list[Array] = []
        self.changes: list[Array] = []

    def descend(self, sums: Array, lr: float, momentum: float, l2: float) -> None:
        """One step of stochastic gradient descent (Eq. 13)."""
        self.velocity = momentum * self.velocity + sums + l2 * self.theta
        self.theta = self.theta - lr * self.velocity

    def to_store(self, unit: float) -> tuple[Array, tuple[int, ...]]:
        """The parameters for scores ``unit`` times as large, and the sizes of layers."""
        assert self.network is not None, "the intercept is the coordinator's"
        return self.network.rescaled(self.theta, unit), self.network.sizes

    def turn(self, gradient: Array, memory: int) -> Array:
        """Learn the gradient at theta, which is the base from now on.

        The inner products of (steps, changes, gradient, theta): all that the coordinator needs to find a direction.
        """
        if len(self.gradient):
            self.steps = [self.theta - self.base, *self.steps][:memory]
            self.changes = [gradient - self.gradient, *self.changes][:memory]
        self.base, self.gradient = self.theta, gradient
        vectors = np.stack([*self.steps, *self.changes, gradient, self.theta])
        return np.asarray(vectors @ vectors.T)

    def move(self, mix: Array) -> None:
        """theta = base + a combination of (steps, changes, gradient), or of the last of them."""
        self.theta = self.base + mix @ np.stack([*self.steps, *self.changes, self.gradient])[-len(mix) :]


def new_weights(seed: int, alias: str, numbers: int, width: int, hidden: Sequence[int], outputs: int) -> Weights:
    """The first parameters of a table."""
    network = TableNetwork.over(width, hidden, outputs)
    return Weights(network.start(seed, alias, numbers), network)


@op("network.start", releases=Release.COUNTS)
def start(
    table: LocalTable, view: str, encoding: str, model: str, seed: Seed, hidden: Sequence[Some], outputs: Some
) -> Values:
    """Begin a model at a table with one shard."""
    rows = encoded(table, view, encoding)
    numbers = rows.dense.shape[1]
    keep_part(table, model, new_weights(seed, table.snapshot.scan.alias, numbers, rows.width, hidden, outputs))
    return {}


@op("network.predict", releases=Release.PREDICTIONS)
def predict(table: LocalTable, view: str, encoding: str, model: str) -> Values:
    """h for parameters that the party holds."""
    part: Weights | StoredPart = part_for_predictions(table, model)
    return {"image": network_of(part).predict(part.theta, encoded(table, view, encoding)).astype(table.wire)}


@op("network.image", releases=Release.PREDICTIONS)
def image(table: LocalTable, view: str, encoding: str, theta: Array, hidden: Sequence[Some], outputs: Some) -> Values:
    """h for parameters that the coordinator holds."""
    rows = encoded(table, view, encoding)
    return {"image": TableNetwork.over(rows.width, hidden, outputs).predict(theta, rows).astype(table.wire)}


@op("network.parameters", releases=Release.PARAMETERS)
def parameters(table: LocalTable, view: str, model: str) -> Values:
    """The parameters of a table."""
    part: Weights = part_of(table, model)
    return {"theta": part.theta}


# Stochastic gradient descent; the coordinator's half stands in sgd.py.


@op("network.sgd", releases=Release.PREDICTIONS)
def sgd(
    table: LocalTable, view: str, encoding: str, model: str,
    places: Places, rows: Array, next_places: Places, lr: float, momentum: float, l2: float,
) -> Values:  # fmt: skip
    """One step from a batch (Eq. 12, 13), then predictions for the rows of the next."""
    part: Weights = part_of(table, model)
    data, network = encoded(table, view, encoding), network_of(part)
    if len(places):
        gradient = network.pull_back(part.theta, data.rows(places), given(rows))
        part.descend(gradient, lr, momentum, l2)
    image = network.predict(part.theta, data.rows(next_places)).astype(table.wire)
    return {"image": image, "square": float(np.vdot(part.theta, part.theta))}


@op("network.sgd_gradient", releases=Release.GRADIENT_SUMS, summed=("sums",))
def sgd_gradient(
    table: LocalTable, view: str, encoding: str,
    places: Places, rows: Array, theta: Array, hidden: Sequence[Some], outputs: Some,
) -> Values:  # fmt: skip
    """A shard's part of a batch's gradient (Eq. 18)."""
    data = encoded(table, view, encoding)
    network = TableNetwork.over(data.width, hidden, outputs)
    return {"sums": network.pull_back(theta, data.rows(places), given(rows))}


@op("network.sgd_image", releases=Release.PREDICTIONS)
def sgd_image(
    table: LocalTable,
    view: str,
    encoding: str,
    next_places: Places,
    theta: Array,
    hidden: Sequence[Some],
    outputs: Some,
) -> Values:
    """Predictions of a shard's rows of the next batch, with the parameters that all shards share (Eq. 19)."""
    data = encoded(table, view, encoding)
    network = TableNetwork.over(data.width, hidden, outputs)
    return {"image": network.predict(theta, data.rows(next_places)).astype(table.wire)}


def network_of(part: Weights | StoredPart) -> TableNetwork:
    """The network of a table's parameters."""
    assert part.network is not None, "the intercept has no network"
    return part.network


def given(rows: Array) -> Any:
    """Y as it came over the wire, for `pull_back`."""
    wide = rows.astype(np.float64)
    return lambda part, _: wide[part]


class NetworkModel(PlacedModel[Weights]):
    """The coordinator's side. Scores are learned in units of the label; ``unit`` takes them back."""

    family = "network"

    def __init__(
        self, client: Client, encoding: Encoding, wire: str, outputs: int, hidden: Sequence[int], l2: float,
        seed: int, unit: float, model: str,
    ):  # fmt: skip
        super().__init__(client, encoding, wire, outputs, l2, model)
        self.hidden, self._unit = [int(size) for size in hidden], unit
        self.lou.ask("network.start", self.alone, encoding=encoding.id, model=model, seed=seed, **self.shape)
        self._shared = {
            alias: new_weights(
                seed, alias, len(encoding.numbers[alias]), len(encoding.names(alias)), self.hidden, outputs
            )
            for alias in self.together
        }

    @property
    def shared(self) -> dict[str, Weights]:
        """Parameters of the tables in `together`."""
        return self._shared

    @property
    def shape(self) -> dict[str, Any]:
        """Hidden layers and outputs."""
        return {"hidden": self.hidden, "outputs": self.outputs}

    def for_gradient(self, alias: str) -> dict[str, Any]:
        """The parameters: unlike that of a linear model, the gradient depends on them."""
        return {"theta": self.shared[alias].theta, **self.shape}

    def gradient_bound(self, alias: str, rows: Floats) -> dict[str, float]:
        """Layers pass on at most their norm: tanh and its slope are at most 1."""
        layers = self.network(alias).layers(self.shared[alias].theta)[1:]
        return {
            "sums": self.lou.bound(rows) * math.prod(max(1.0, float(np.linalg.norm(weights))) for weights, _ in layers)
        }

    def scores(self, client: Client, *, learning: bool = False) -> Array:
        """The sum over tables for the rows of a relation, in the label's own units."""
        return super().scores(client, learning=learning) * self.unit

    @property
    def unit(self) -> float:
        """The label's unit."""
        return self._unit

    def parameters(self, aliases: Iterable[str] | None = None) -> dict[str, Array]:
        """Parameters by table, in the label's own units."""
        found = super().parameters(aliases)
        return {alias: self.network(alias).rescaled(theta, self.unit) for alias, theta in found.items()}

    def network(self, alias: str) -> TableNetwork:
        """The network of a table."""
        return TableNetwork.over(len(self.encoding.names(alias)), self.hidden, self.outputs)
