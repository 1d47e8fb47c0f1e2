"""Linear models over a relation: h_i = T_i theta_i, one block of parameters per table.

The coordinator asks every table for a preconditioned direction, in one trip (ops.py). If a table has one shard, its
party holds the parameters. If it has several, the coordinator adds their sums and holds the parameters (LoU), which
costs a second trip. With feature privacy, `FeatureNoise` defines which values have noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.algebra.ops import gram_noise
from tablepuppet.learn.linear.consensus import Consensus, Inner
from tablepuppet.learn.linear.lost_parties import LostParties
from tablepuppet.learn.linear.ops import advance_parameters
from tablepuppet.learn.linear.ridge import LARGE, Curvature, Ridge, noisy_ridge_parameters, ridge_of, ridge_parameters
from tablepuppet.learn.loss.joined_loss import GRADIENT, JoinedLoss
from tablepuppet.learn.noise.plan import FeatureNoise
from tablepuppet.learn.noise.predictions import DirectionNoise
from tablepuppet.learn.tables.federated import FederatedModel
from tablepuppet.learn.tables.parameters import TableParameters
from tablepuppet.mapping.table_mapping import Floats, ShardRows
from tablepuppet.operators.client import Client, Pending
from tablepuppet.operators.joined_rows import Column, JoinedRows
from tablepuppet.operators.lou import LearningOverUnion
from tablepuppet.party.spec import Linear
from tablepuppet.prep.encode.encode import Encoding

Array = NDArray[np.float64]


class Sums:
    """Tables with several shards, whose Gram matrices and gradients add up: one inner round is exact (LoU)."""

    def __init__(
        self, lou: LearningOverUnion, encoding: Encoding, aliases: list[str], spec: Linear, l2: float,
        noise: FeatureNoise | None = None,
    ):  # fmt: skip
        self.lou, self.encoding, self.aliases, self.spec, self.l2, self.noise = lou, encoding, aliases, spec, l2, noise
        self.parts: dict[str, TableParameters] = {}  # by table, from `start` on
        arguments = {
            alias: {"centres": self._centres(alias)} if noise is None else {"noise": noise.of_gram(self._rows(alias))}
            for alias in aliases
        }
        self._grams = lou.ask(
            "matrix.gram", aliases, by_alias=arguments, encoding=encoding.id, joined_rows=len(lou.client.mapping),
            bounds=lambda alias: {"gram": self._largest(alias)},
        )  # fmt: skip

    def _centres(self, alias: str) -> Array:
        """The means of numbers; 0 for columns of 0 and 1, whose Gram matrix then has their means as its diagonal."""
        centres, numbers = self.encoding.means(alias), len(self.encoding.numbers[alias])
        centres[numbers:] = 0.0
        return centres

    def _rows(self, alias: str) -> int:
        return self.lou.client.mapping.tables[alias].rows

    def _largest(self, alias: str) -> float:
        """Bound of the entries of a Gram matrix, almost surely if it has noise: without, they are at most 1."""
        if self.noise is None:
            return self.encoding.largest_square(alias)
        return self.encoding.columns(alias) * self._with_noise(alias, self.noise.gram)

    def _with_noise(self, alias: str, multiplier: float) -> float:
        """Bound of a noisy sum over a table's rows: the number of rows times the bound of one row; almost surely."""
        return 1.0 + 10 * multiplier * self.lou.shards(alias) / self._rows(alias)

    def start(self) -> None:
        """Begin with zero parameters once the Gram matrices are there: a trip, unless one has brought them already."""
        if self.parts or not self.aliases:
            return
        grams = self._grams.read()
        for alias in self.aliases:
            gram = self.lou.add(grams[alias], "gram")
            if self.noise is None:
                numbers = len(self.encoding.numbers[alias])  # then 0 and 1, whose counts leave out what min_group hides
                shares = np.append(np.zeros(numbers), gram.diagonal()[numbers:])
                means = np.append(self.encoding.means(alias)[:numbers], shares[numbers:])
                self.parts[alias] = ridge_parameters(gram, shares, means, self.spec.outputs, self.l2)
            else:
                noise = gram_noise(self.encoding.columns(alias), self.noise.of_gram(self._rows(alias)))
                self.parts[alias] = noisy_ridge_parameters(
                    gram, noise * math.sqrt(self.lou.shards(alias)), self.spec.outputs
                )

    def turn(self, rows: Mapping[str, Floats], curvature: Curvature) -> float:
        """Set the direction of every table; return 0, since exact sums leave no disagreement."""
        noise = self.noise
        arguments = {a: {} if noise is None else {"noise": noise.of_sums(self._rows(a))} for a in self.aliases}
        asked = self.lou.ask(
            "model.gradient", self.aliases, rows, arguments, self._left_out if noise is None else None,
            lambda alias: {"sums": self._bound(alias, rows[alias])}, encoding=self.encoding.id, spec=self.spec,
        )  # fmt: skip
        sums = asked.read()
        self.start()
        for alias, part in self.parts.items():
            total, ridge = self.lou.add(sums[alias], "sums"), ridge_of(part)
            if noise is None:
                total = ridge.centred(total, self._sum_sent(alias, rows[alias], asked.missed(alias)))
            ridge.turn(part.theta, total, self.l2, curvature)
        return 0.0

    def _sum_sent(self, alias: str, rows: Floats, missed: list[bool]) -> Array:
        """The sum of what shards were sent, as it is rounded; those that are lost are left out."""
        shards = zip(self.lou.client.shards(alias), missed, strict=True)
        parts = [self.lou.sent(rows, shard).sum(axis=0, dtype=np.float64) for shard, is_lost in shards if not is_lost]
        return np.asarray(np.sum([np.zeros(rows.shape[1:]), *parts], axis=0))

    def _bound(self, alias: str, rows: Floats) -> float:
        if self.noise is None:
            return self.lou.bound(rows) * self.encoding.largest(alias)
        return self.noise.clip * self._with_noise(alias, self.noise.step)

    def _left_out(self, alias: str, _: ShardRows) -> dict[str, Array]:
        """The reply used for a lost shard: zero sums, so its rows are left out."""
        return {"sums": np.zeros(self.spec.theta_shape(len(self.encoding.names(alias))))}


class LinearModel(FederatedModel):
    """Asks for directions, sends steps, holds the parameters of tables with several shards."""

    noise: FeatureNoise | None
    spec: Linear

    def __init__(
        self, client: Client, rows: JoinedRows, encoding: Encoding, wire: str, l2: float, inner: Inner | None = None,
        noise: FeatureNoise | None = None,
    ):  # fmt: skip
        super().__init__(client, rows, encoding, wire, Linear(rows.outputs), l2, noise=noise)
        self.disagreement = 0.0  # how much shards could still gain by more inner rounds of consensus
        self.left = 0.0  # decrease that the gradient promises where tables' ridge solves leave it out
        self.centre = np.zeros(rows.outputs)  # mean over joined rows that was subtracted from X p
        self.rounding = 0.0  # of X p: the root mean square of its rounding error, about
        self.lost, self._steps = LostParties(self, self._sent_centred), 0
        self._bounds: dict[str, float] = {}  # by table with one shard: what its last noisy X p was cut to
        arguments = {a: {} if noise is None else {"noise": noise.of_gram(self.rows(a))} for a in self.alone}
        self.lou.ask(
            "ridge.start", self.alone, by_alias=arguments, spec=self.spec, joined_rows=len(client.mapping), l2=l2,
            **self.at_party,
        )  # fmt: skip
        self._union: Sums | Consensus
        if inner is None:
            self._union = Sums(self.lou, encoding, self.together, self.spec, l2, noise)
        else:
            self._union = Consensus(self.lou, encoding, self.together, self.spec, l2, self.name, inner)

    def penalise(self, l2: float) -> None:
        """Go on with another L2 penalty: parameters, Gram matrices and steps stay."""
        self.l2 = self._union.l2 = l2

    @property
    def is_exact(self) -> bool:
        """Whether values are sent in double precision now."""
        return self.lou.wire == "float64"

    def send_as(self, wire: str) -> None:
        """Send values in this precision from now on, and ask for such."""
        self.lou = self._union.lou = replace(self.lou, wire=wire)

    @property
    def precision(self) -> dict[str, Any]:
        """The argument that asks for predictions in another precision than the relation's."""
        return {} if self.lou.wire == self.wire else {"exact": self.is_exact}

    @property
    def shared(self) -> Mapping[str, TableParameters]:
        """Parameters held by the coordinator, from sums of shards or from consensus; those of sums from `start` on."""
        return self._union.parts

    def start(self) -> None:
        """Begin at tables with several shards: a trip, unless one has brought their Gram matrices already."""
        self._union.start()

    def direction(self, rows: Mapping[str, Floats], curvature: Curvature, into: Column) -> Array:
        """Write X p of the new direction p into a column; return the inner products summed over tables.

        Columns are centred, unless there is noise: ``centre`` is what the intercept absorbs.
        """
        turned = self._ask_directions(rows, curvature)
        self.disagreement = self._union.turn(rows, curvature)
        moved, missed = self._ask_shared(), self.lost.ask_missed()
        predictions, replies = self.joined(moved.read(), self.together), turned.read()
        predictions |= self.joined(replies, self.alone)
        self.lost.learn(turned, moved, missed, self._steps)
        ridges = [ridge_of(part) for part in self.shared.values()]
        self.left = sum(float(replies[a][0]["left"]) for a in self.alone) + sum(ridge.left for ridge in ridges)
        centres = [replies[alias][0]["centre"] for alias in self.alone]
        centres += [ridge.centre(ridge.direction) for ridge in ridges if self.noise is None]
        self.centre = np.zeros(self.outputs) + sum(centres)
        if self.noise is None:
            magnitudes = [float(replies[alias][0]["magnitude"]) for alias in self.alone]
            magnitudes += [ridge.magnitude(ridge.direction) for ridge in ridges]
            sent = sum(float(np.sqrt(np.mean(np.square(each)))) for each in predictions.values())
            self.rounding = rounding_of(self.lou.wire) * sent + rounding_of("float64") * sum(magnitudes)
        if self.noise is not None:  # and nobody is lost, as nothing stands in for noisy directions
            self._bounds = {alias: float(replies[alias][0]["bound"]) for alias in self.alone}
        shared = [ridge_of(part).products(part.theta) for part in self.shared.values()]
        self.loj.gather(predictions, into)
        return self.lost.total(shared, self._steps)

    def _ask_directions(self, rows: Mapping[str, Floats], curvature: Curvature) -> Pending:
        """Ask tables with one shard."""
        noise, arguments = self.noise, dict[str, dict[str, Any]]()
        if noise is not None:
            noise.steps += 1
            noise.images += 1
            images = {} if noise.image is None else {"prediction_noise": noise.of_predictions(None)}
            arguments = {a: {"noise": noise.of_sums(self.rows(a)), **images} for a in self.alone}
        return self.lou.ask(
            "ridge.direction", self.alone, rows, arguments, self.lost.instead if noise is None else None,
            l2=self.l2, curvature=curvature, known=max(self._steps - 1, 0), **self.at_party, **self.precision,
        )  # fmt: skip

    def _ask_shared(self) -> Pending:
        """Ask tables with several shards for their part of X p."""
        directions = {alias: ridge_of(part).direction for alias, part in self.shared.items()}
        if self.noise is not None:
            return self.ask_applied(self.lou, directions, self.lost.instead)
        arguments = {alias: self._sent_centred(alias, each) for alias, each in directions.items()}
        return self.lou.ask(self.sent_op, arguments, by_alias=arguments, instead=self.lost.instead)

    def _sent_centred(self, alias: str, theta: Array) -> dict[str, Any]:
        """The arguments of an op that returns centred predictions of a table with several shards."""
        centre = ridge_of(self.shared[alias]).centre(theta)
        return {**self.sent({alias: theta})[alias], "centre": centre, **self.precision}

    def advance(self, mix: Array, memory: int) -> None:
        """Take the step ``mix``, a combination of the new direction and earlier steps; keep ``memory`` steps."""
        moving = [alias for alias in self.alone if alias not in self.lost.still]
        self.lou.ask("ridge.advance", moving, model=self.name, mix=mix, memory=memory)
        for part in self.shared.values():
            advance_parameters(part, mix, memory)
        self.lost.advance(mix)
        self._steps = min(len(mix), memory)

    # With noise.

    def direction_noise(self, loss: JoinedLoss) -> DirectionNoise | None:
        """The privacy noise in X p of the last direction.

        The likely size of X p without noise follows from the noisy Gram matrices.
        """
        if self.noise is None or self.noise.image is None:
            return None
        multiplier = self.noise.image
        found = {alias: multiplier * bound for alias, bound in self._bounds.items()}
        for alias, part in self.shared.items():
            found[alias] = multiplier * LARGE * ridge_of(part).size(ridge_of(part).direction)
        size = sum(deviation**2 for deviation in found.values()) / self.noise_ratio
        loss.evaluate()
        loss.write_gradient()
        return DirectionNoise.of(self.loj, found, size, GRADIENT)

    def prediction_bound(self, alias: str, theta: Array | None) -> float | None:
        """The bound from the noisy Gram matrix; None if the party holds the parameters and knows it."""
        if theta is None:
            return None
        part = self.shared.get(alias)
        return LARGE * (part.remembered(Ridge).size(theta) if part else float(np.linalg.norm(theta)) or 1e-12)

    @property
    def noise_ratio(self) -> float:
        """The mean square of noise relative to predictions: these are clipped to `LARGE` times their usual size."""
        multiplier = None if self.noise is None else self.noise.image
        assert multiplier is not None, "asked with noise only"
        return (LARGE * multiplier) ** 2

    def kept_bounds(self) -> dict[str, float]:
        """The bounds from the noisy Gram matrices."""
        sizes = self.lou.ask("ridge.size", self.alone, model=self.name).read()
        bounds = {alias: LARGE * float(sizes[alias][0]["size"]) for alias in self.alone}
        return bounds | {alias: LARGE * ridge_of(part).size(part.theta) for alias, part in self.shared.items()}


def rounding_of(wire: str) -> float:
    """The root mean square of relative rounding errors of numbers in a precision, about."""
    return float(np.finfo(wire).eps) / 4


def by_column(encoding: Encoding, thetas: Mapping[str, Array]) -> dict[str, Array]:
    """Parameters of tables by the names of their encoded columns, in the order of ``relation.matrix().columns``."""
    found: dict[str, Array] = {}
    for alias in encoding.numbers:
        if alias in thetas:
            found |= dict(zip(encoding.names(alias), thetas[alias], strict=True))
    return found
