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

from tablepuppet.algebra.ops import gram_noise
from tablepuppet.arrays import Array, Floats
from tablepuppet.learn.linear.consensus import Consensus, Inner
from tablepuppet.learn.linear.ops import Advance, Turn
from tablepuppet.learn.linear.ridge import LARGE, Curvature, Ridge, noisy_ridge_parameters, ridge_of, ridge_parameters
from tablepuppet.learn.loss.joined_loss import GRADIENT, JoinedLoss
from tablepuppet.learn.noise.plan import DirectionNoise, FeatureNoise
from tablepuppet.learn.tables.federated import FederatedModel
from tablepuppet.learn.tables.linear import Linear
from tablepuppet.learn.tables.parameters import TableParameters
from tablepuppet.learn.tables.steps import RowGradients, ShardSums, Stepped
from tablepuppet.mapping.joined_rows import Column, JoinedRows
from tablepuppet.mapping.table_mapping import ShardRows
from tablepuppet.operators.client import Client, Pending
from tablepuppet.operators.lou import Instead, LearningOverUnion
from tablepuppet.prep.encode.encode import Encoding

ShardKey = tuple[str, str]  # alias, party


class LostParties:
    """Which tables and shards are lost, and what the scores lack because of it (on_party_lost = "cache" or "zeros").

    For a lost table a zero direction is used: its parameters do not change. Earlier steps did change them, so all steps
    are dropped whenever a party is lost or returns. What the scores contain of a lost table:

    - "cache": its last predictions. They are still correct when the party returns, except for one of several shards:
      the coordinator holds their parameters and updates them with the other shards, so the shard is asked for the
      difference, T_q (theta - theta when it was lost).
    - "zeros": nothing. Scores are computed again from the predictions of the available parties, in one more trip.
    """

    def __init__(self, model: FederatedModel):
        self.model = model
        self.still: frozenset[str] = frozenset()  # lost tables with one shard: their parameters do not change
        self.changed = False  # whether a party was lost or returned in this round
        self._since: dict[ShardKey, Array] = {}  # shards that are lost: the parameters that their predictions are of
        self._late: Pending | None = None  # the replies to what was missed
        self._missed: dict[str, Array] = {}  # what the scores of returned shards lack, by base rows
        self._products: dict[str, Array] = {}  # by table, of the last round in which it was there
        self._squares: dict[str, float] = {}

    def instead(self, alias: str, shard: ShardRows) -> dict[str, Any]:
        """The reply used in place of a lost table's direction."""
        nothing = {"products": None, "left": 0.0, "magnitude": 0.0, "centre": np.zeros(self.model.outputs)}
        return {"outputs": self.model.nothing(alias, shard), **nothing}

    def ask_missed(self) -> None:
        """Ask lost shards for what the scores lack, in the trip of this round's predictions."""
        model = self.model

        def arguments(alias: str, shard: ShardRows) -> dict[str, Any] | None:
            since = self._since.get((alias, shard.party))
            if since is None:
                return None
            change = model.shared[alias].theta - since
            centre = ridge_of(model.shared[alias]).centre(change)
            return {**model.sent({alias: change})[alias], "centre": centre, **model.precision}

        lost = {alias for alias, _ in self._since}
        self._late = model.lou.client.ask("model.apply", arguments, self.instead, only=lost)

    def learn(self, found: Stepped, steps: int) -> None:
        """Find out from the replies of a round which parties are lost; tables store ``steps`` steps."""
        model, before = self.model, (self.still, set(self._since))
        self.still, self._missed, late_replies = found.still, {}, self._late.read() if self._late else {}
        for alias, are_lost in found.missed.items():
            late = iter(late_replies[alias])
            for shard, is_lost in zip(model.lou.client.shards(alias), are_lost, strict=True):
                place = (alias, shard.party)
                late_prediction = next(late)["outputs"] if place in self._since else None
                if is_lost:
                    self._since.setdefault(place, model.shared[alias].theta)
                elif late_prediction is not None:
                    del self._since[place]
                    self._add(alias, shard, late_prediction)
        self.changed = before != (self.still, set(self._since))
        products = {alias: facts["products"] for alias, facts in found.facts.items()}
        if self.changed:  # tables no longer store the same steps
            self._products |= {alias: each[np.ix_([0, -1], [0, -1])] for alias, each in products.items()}
        else:
            model.check_products(products, steps + 2)
            self._products |= {a: _with_earlier(each, self._products.get(a)) for a, each in products.items()}

    def _add(self, alias: str, shard: ShardRows, prediction: Array) -> None:
        if alias not in self._missed:
            rows = self.model.loj.rows.tables[alias].rows
            self._missed[alias] = np.zeros((rows, *prediction.shape[1:]))
        self._missed[alias][shard.slice] = prediction

    def correct(self, intercept: Array) -> None:
        """Correct the scores for the parties that were lost or returned."""
        model = self.model
        if model.lou.client.outbox.when_lost.stand_in == "zeros":
            model.predict(intercept)
        elif self._missed:
            model.loj.add(self._missed)

    def total(self, steps: int) -> Array:
        """Inner products over all tables; of lost tables only those of the parameters count."""
        steps = 0 if self.changed else steps
        products = [each for alias, each in self._products.items() if alias not in self.still]
        found = np.sum([np.zeros((steps + 2, steps + 2)), *products], axis=0)
        found[-1, -1] += sum(self._squares.get(alias, 0.0) for alias in self.still)
        return np.asarray(found)

    def advance(self, mix: Array) -> None:
        """Store |theta|^2 of every table that took this step, in case it is lost later."""
        for alias in set(self._products) - self.still:
            whole = np.zeros(len(self._products[alias]))
            whole[: len(mix)], whole[-1] = mix, 1.0
            self._squares[alias] = float(whole @ self._products[alias] @ whole)


def _with_earlier(products: Array, before: Array | None) -> Array:
    """All inner products of direction, steps and parameters.

    Those of the oldest steps with each other were returned one round before, when each was one place earlier.
    """
    rows, size = products.shape
    if rows == size:
        return products
    assert before is not None, "steps are known from a round before"
    found = np.empty((size, size))
    own, old = np.append(np.arange(rows - 1), size - 1), np.s_[rows - 1 : size - 1]
    found[own], found[:, own] = products, products.T
    found[old, old] = before[rows - 2 : size - 2, rows - 2 : size - 2]
    return found


class GramSums(ShardSums):
    """Tables with several shards, whose Gram matrices and gradients add up: one inner round is exact (LoU)."""

    disagreement = 0.0

    def __init__(
        self, lou: LearningOverUnion, encoding: Encoding, aliases: list[str], spec: Linear, l2: float,
        noise: FeatureNoise | None = None,
    ):  # fmt: skip
        super().__init__(
            lou, aliases, self._sent, lambda alias: spec.theta_shape(len(encoding.names(alias))), self._bound,
            noisy=noise is not None, begin=self.start,
        )  # fmt: skip
        self.encoding, self.spec, self.l2, self.noise = encoding, spec, l2, noise
        arguments = {
            alias: {"centres": self._centres(alias)} if noise is None else {"noise": noise.of_gram(self._rows(alias))}
            for alias in aliases
        }
        self._grams = lou.ask(
            "matrix.gram", aliases, by_alias=arguments, encoding=encoding.id, joined_rows=len(lou.client.rows),
            bounds=lambda alias: {"gram": self._largest(alias)},
        )  # fmt: skip

    def _centres(self, alias: str) -> Array:
        """The means of numbers; 0 for columns of 0 and 1, whose Gram matrix then has their means as its diagonal."""
        centres, numbers = self.encoding.means(alias), len(self.encoding.numbers[alias])
        centres[numbers:] = 0.0
        return centres

    def _rows(self, alias: str) -> int:
        return self.lou.client.tables[alias].rows

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

    def _sent(self, alias: str) -> dict[str, Any]:
        """A linear model needs no parameters for its gradient."""
        noise = {} if self.noise is None else {"noise": self.noise.of_sums(self._rows(alias))}
        return {"encoding": self.encoding.id, "spec": self.spec, **noise}

    def _bound(self, alias: str, rows: Floats) -> float:
        if self.noise is None:
            return self.lou.bound(rows) * self.encoding.largest(alias)
        return self.noise.clip * self._with_noise(alias, self.noise.step)


class LinearModel(FederatedModel):
    """Asks for directions, sends steps, holds the parameters of tables with several shards."""

    noise: FeatureNoise | None
    spec: Linear

    def __init__(
        self, client: Client, rows: JoinedRows, encoding: Encoding, wire: str, l2: float, inner: Inner | None = None,
        noise: FeatureNoise | None = None,
    ):  # fmt: skip
        super().__init__(client, rows, encoding, wire, Linear(rows.outputs), l2, noise=noise)
        self.left = 0.0  # decrease that the gradient promises where tables' ridge solves leave it out
        self.centre = np.zeros(rows.outputs)  # mean over joined rows that was subtracted from X p
        self.rounding = 0.0  # of X p: the root mean square of its rounding error, about
        self.lost, self._steps = LostParties(self), 0
        self._bounds: dict[str, float] = {}  # by table: what its last noisy X p was cut to
        arguments = {a: {} if noise is None else {"noise": noise.of_gram(self.rows(a))} for a in self.alone}
        self.lou.ask(
            "ridge.start", self.alone, by_alias=arguments, spec=self.spec, joined_rows=len(client.rows), l2=l2,
            **self.at_party,
        )  # fmt: skip
        self.over: GramSums | Consensus
        if inner is None:
            self.over = GramSums(self.lou, encoding, self.together, self.spec, l2, noise)
        else:
            self.over = Consensus(self.lou, encoding, self.together, self.spec, l2, self.name, inner)

    def penalise(self, l2: float) -> None:
        """Go on with another L2 penalty: parameters, Gram matrices and steps stay."""
        self.l2 = self.over.l2 = l2

    @property
    def is_exact(self) -> bool:
        """Whether values are sent in double precision now."""
        return self.lou.wire == "float64"

    def send_as(self, wire: str) -> None:
        """Send values in this precision from now on, and ask for such."""
        self.lou = self.over.lou = replace(self.lou, wire=wire)

    @property
    def precision(self) -> dict[str, Any]:
        """The argument that asks for predictions in another precision than the relation's."""
        return {} if self.lou.wire == self.wire else {"exact": self.is_exact}

    @property
    def shared(self) -> Mapping[str, TableParameters]:
        """Parameters held by the coordinator, from sums of shards or from consensus; those of sums from `start` on."""
        return self.over.parts

    def start(self) -> None:
        """Begin at tables with several shards: a trip, unless one has brought their Gram matrices already."""
        self.over.start()

    @property
    def disagreement(self) -> float:
        """How much shards could still gain by more inner rounds of consensus."""
        return self.over.disagreement

    def direction(self, rows: Mapping[str, Floats], curvature: Curvature, into: Column) -> Array:
        """Write X p of the new direction p into a column; return the inner products summed over tables.

        Columns are centred, unless there is noise: ``centre`` is what the intercept absorbs.
        """
        noise = self.noise
        if noise is not None:
            noise.steps += 1
            noise.predicted += 1
        instead = self.lost.instead if noise is None else None
        known = max(self._steps - 1, 0)
        turns = {alias: Turn(self.l2, curvature, known, **self._noise_of_steps(alias)) for alias in self.tables}
        found = self.step(turns, RowGradients(rows), instead)
        self.lost.learn(found, self._steps)
        self.left, self.centre, magnitude = 0.0, np.zeros(self.outputs), 0.0
        for facts in found.facts.values():
            self.left += float(facts["left"])
            self.centre += facts["centre"]
            magnitude += float(facts["magnitude"])
        if noise is None:
            sent = sum(float(np.sqrt(np.mean(np.square(each)))) for each in found.predictions.values())
            self.rounding = rounding_of(self.lou.wire) * sent + rounding_of("float64") * magnitude
        else:  # and nobody is lost, as nothing stands in for noisy directions
            self._bounds = {alias: float(facts["bound"]) for alias, facts in found.facts.items()}
        self.loj.gather(found.predictions, into)
        return self.lost.total(self._steps)

    def ask_shown(
        self, wanted: Mapping[str, Mapping[str, Any]], rows: RowGradients | None, instead: Instead | None
    ) -> Pending:
        """Ask shards for predictions; in the same trip, those that were lost for what the scores lack of them."""
        asked = super().ask_shown(wanted, rows, instead)
        self.lost.ask_missed()
        return asked

    def _noise_of_steps(self, alias: str) -> dict[str, Any]:
        """The noise of a table's update."""
        noise = self.noise
        if noise is None:
            return {}
        return {"noise": noise.of_sums(self.rows(alias)), "prediction_noise": noise.of_predictions(None)}

    def advance(self, mix: Array, memory: int) -> None:
        """Take the step ``mix``, a combination of the new direction and earlier steps; keep ``memory`` steps."""
        self.tell({alias: Advance(mix, memory) for alias in self.tables if alias not in self.lost.still})
        self.lost.advance(mix)
        self._steps = min(len(mix), memory)

    # With noise.

    def direction_noise(self, loss: JoinedLoss) -> DirectionNoise | None:
        """The privacy noise in X p of the last direction.

        The likely size of X p without noise follows from the noisy Gram matrices.
        """
        if self.noise is None or self.noise.prediction is None:
            return None
        multiplier = self.noise.prediction
        found = {alias: multiplier * bound for alias, bound in self._bounds.items()}
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
        multiplier = None if self.noise is None else self.noise.prediction
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
