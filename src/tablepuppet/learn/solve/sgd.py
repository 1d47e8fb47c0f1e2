"""RFL-SGD: mini-batches of joined rows, with duplicates reduced inside each batch (solver="sgd"; Eq. 10-13, 17-19).

A batch contains some base rows of every table, perhaps several times. One value per distinct base row is sent, so
traffic grows with the distinct rows of a batch. The step for one batch and the predictions for the next share a trip; a
table with several shards needs one more, to add its shards' gradients (Eq. 17).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tablepuppet.arrays import Array, Floats
from tablepuppet.learn.linear.ridge import ridge_of
from tablepuppet.learn.loss.joined_loss import JoinedLoss
from tablepuppet.learn.rounds import Round
from tablepuppet.learn.solve.batches import Divergence, Exchange, run_batches
from tablepuppet.learn.tables.federated import FederatedModel
from tablepuppet.learn.tables.parameters import TableParameters
from tablepuppet.learn.tables.steps import NOTHING, BatchGradients, Facts, Stepped, Update, by_batch, step
from tablepuppet.mapping.batches import Batch, no_rows
from tablepuppet.mapping.joined_rows import SCORES, JoinedRows
from tablepuppet.mapping.table_mapping import ShardRows
from tablepuppet.party.release import Release
from tablepuppet.party.returns import NEXT_OUTPUTS, PER_OUTPUT, SQUARE, Numbers


@step(
    "sgd.step",
    by_batch,
    asked="`sgd`",
    releases=Release.PREDICTIONS,
    returns={"outputs": NEXT_OUTPUTS, "square": SQUARE, "centre": Numbers((PER_OUTPUT,))},
)
@dataclass(frozen=True)
class Descend(Update):
    """A step with one batch (Eq. 12, 13), preconditioned if there is a curvature; then predictions for the next batch.

    With a curvature, the mean prediction over joined rows is returned too: the intercept absorbs it.
    """

    lr: float
    momentum: float
    l2: float
    curvature: float | None = None
    damping: float = 0.0

    def take(self, part: TableParameters, sums: Array, total: Array) -> Facts:
        """At a table's parameters, with the gradient by them; return |theta|^2 and the mean prediction."""
        how = self.lr, self.momentum, self.l2
        if self.curvature is None:
            if sums is not NOTHING:
                part.descend(sums, *how)
            return {"square": part.square, "centre": np.zeros(1)}
        ridge = ridge_of(part)
        if sums is not NOTHING:
            part.theta = ridge.descended(part.theta, sums, total, *how, self.curvature, self.damping)
        return {"square": part.square, "centre": ridge.centre(part.theta)}

    def shown(self, part: TableParameters) -> dict[str, Any]:
        """Predictions with the new parameters."""
        return {"theta": part.theta}


@dataclass(frozen=True)
class Conditioned:
    """How steps are preconditioned (`Ridge.descended`): one learning rate then fits all columns."""

    curvature: float  # a bound of the loss's second derivative by one score
    damping: float

    def intercept_rate(self, lr: float) -> float:
        """The learning rate of the intercept: that of a column of ones."""
        return lr / (self.curvature * (1 + lr * self.damping))


class Steps(Exchange, Protocol):
    """Takes the steps of tables whose predictions add up."""

    rows: JoinedRows
    secured: list[str]  # tables whose shards mask their sums
    momentum: float
    conditioned: Conditioned | None
    penalty: float  # l2 / 2 times the squared norm of the parameters of the last predictions
    centre: Array  # (outputs,): mean prediction that the intercept must absorb


class Stochastic:
    """The coordinator's side: asks for predictions of a batch, sends the gradient of the loss by them."""

    def __init__(self, model: FederatedModel, momentum: float, conditioned: Conditioned | None = None):
        self.model, self.momentum, self.conditioned = model, momentum, conditioned
        self.rows, self.tables = model.loj.rows, model.tables
        self.secured = [alias for alias in model.tables if alias in model.lou.client.secured.parties]
        self.penalty, self.centre = 0.0, np.zeros(model.outputs)
        shape = () if model.outputs == 1 else (model.outputs,)
        self._last = model.lou.last_values(dict.fromkeys(self.tables, shape))
        self._facts: dict[str, Facts] = {}  # by table: its squared norm and its mean prediction

    def __call__(
        self, done: Batch | None, gradients: Mapping[str, Floats], following: Batch | None, lr: float
    ) -> dict[str, Floats]:
        """Take the steps of the batch that is ``done``; return the predictions for the ``following`` one.

        The parameters of a lost table do not change, and the gradient of a lost shard is left out. Their last
        predictions are used again, or zeros.
        """
        model, nothing, how = self.model, no_rows(self.tables), self.conditioned
        upcoming = following or nothing
        values = gradients or dict.fromkeys(self.tables, np.zeros(0))
        rows = BatchGradients(values, done or nothing, upcoming)
        rest = () if how is None else (how.curvature, how.damping)
        update = Descend(lr, self.momentum, model.l2, *rest)

        def as_before(alias: str, shard: ShardRows) -> dict[str, Any]:
            return {**self._facts.get(alias, {}), "outputs": self._last.at(upcoming, alias, shard)}

        found = model.step(dict.fromkeys(self.tables, update), rows, as_before)
        self._learn_facts(found)
        if following is not None:
            self._last.keep(following, found.predictions)
        return found.predictions

    def _learn_facts(self, found: Stepped) -> None:
        """Update the penalty and the mean prediction from the replies."""
        self._facts |= found.facts
        if self.model.lou.client.outbox.when_lost.stand_in == "zeros":  # the mean of zeros is zero too
            self._facts |= {
                alias: {**self._facts[alias], "centre": 0.0} for alias in found.still if alias in self._facts
            }
        self.penalty = 0.5 * self.model.l2 * sum(float(facts["square"]) for facts in self._facts.values())
        if self.conditioned is not None:
            centres = [facts["centre"] + np.zeros(self.model.outputs) for facts in self._facts.values()]
            self.centre = np.sum([np.zeros(self.model.outputs), *centres], axis=0)


def falling(lr: float, epochs: int) -> list[float]:
    """Learning rates by epoch: they fall to zero along half a cosine."""
    return [0.5 * lr * (1 + math.cos(math.pi * (epoch + 0.5) / epochs)) for epoch in range(epochs)]


class BatchSums:
    """Scores of a batch are sums of predictions, and an intercept, which is learned with momentum as the tables are.

    The loss of a round is the mean over its batches, each measured before its step; so is the penalty.
    """

    def __init__(self, steps: Steps, loss: JoinedLoss):
        self.steps, self.loss, self._divergence = steps, loss, Divergence(loss)
        self._free, self._velocity = loss.best_constant(), np.zeros(loss.outputs)
        self._total = self._penalty = 0.0
        loss.rows.reserve(SCORES)

    @property
    def intercept(self) -> Array:
        """What is learned, without the mean prediction that it absorbs."""
        return np.asarray(self._free - self.steps.centre)

    def learn(self, batch: Batch, outputs: Mapping[str, Floats], lr: float) -> dict[str, Floats]:
        """The step of the intercept; the gradient by predictions."""
        rows, steps = self.loss.rows, self.steps
        scores = batch.gather(outputs, self.intercept)
        rows.put(SCORES, batch.rows, scores)
        here = self.loss.pointwise.evaluate(scores, rows.labels_of(batch.rows))
        self._total += here.value
        self._divergence.check(batch.epoch, self._total)
        self._penalty += steps.penalty * len(batch.rows)
        row_gradients = here.gradient / len(batch.rows)
        inside, outside = (1.0, lr) if steps.conditioned is None else (steps.conditioned.intercept_rate(lr), 1.0)
        self._velocity = steps.momentum * self._velocity + inside * row_gradients.sum(axis=0)
        self._free = self._free - outside * self._velocity
        return {alias: batch.scatter(alias, row_gradients) for alias in steps.tables}

    def round(self, epoch: int) -> Round:
        """The epoch that has ended."""
        total, penalty, rows = self._total, self._penalty, len(self.loss.rows)
        self._total = self._penalty = 0.0
        return Round(epoch, (total + penalty) / rows, total / rows, self.intercept, converged=False)


def descend_by_batches(
    steps: Steps, loss: JoinedLoss, rates: Sequence[float], size: int, seed: int, report: Callable[[Round], bool]
) -> Array:
    """Mini-batch SGD with one epoch for each learning rate; return the intercept."""
    head = BatchSums(steps, loss)
    run_batches(
        steps, head, steps.rows, rates, size, seed, lambda epoch: report(head.round(epoch)), secured=steps.secured
    )
    return head.intercept
