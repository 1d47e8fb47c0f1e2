"""The coordinator's rounds of noisy steps (steps.py): the values it sends to tables, and their learning rates.

With "sgd", tables descend along the gradient of the loss. A proximal term, c M / 2N times the squared change of
predictions, prevents overshooting: c bounds the curvature of the loss, M counts the tables, N the joined rows, and the
sum of what the tables minimise is then an upper bound of the loss. With "admm", they use the residual of the sharing
problem (admm.py), whose proximal weight is rho / N. ``proximal`` is the weight of the proximal term.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import numpy as np

from tablepuppet.arrays import Array
from tablepuppet.learn.loss.joined_loss import GRADIENT, JoinedLoss, in_units, out_of_units
from tablepuppet.learn.noise.plan import StepNoise, believed, left_in_mean
from tablepuppet.learn.private.feature_promise import StepPromise
from tablepuppet.learn.private.steps import NoisyRound, NoisySums
from tablepuppet.learn.rounds import Round
from tablepuppet.learn.settings import Auto
from tablepuppet.learn.solve.admm import RESIDUAL, SharingResidual, auto_rho
from tablepuppet.learn.solve.solvers import ADMM, Stepping
from tablepuppet.learn.tables.federated import FederatedModel
from tablepuppet.learn.tables.linear import Linear
from tablepuppet.learn.tables.model import Spec
from tablepuppet.learn.tables.steps import RowGradients
from tablepuppet.mapping.joined_rows import SCORES, Block, JoinedRows
from tablepuppet.relation import Relation

PRIVATE_SOLVER: Literal["sgd", "admm"] = "sgd"  # of networks
FASTEST = 0.5  # the learning rate of networks with momentum 0.9
WALK, LINEAR_WALK = 8.0, 0.4  # how far noise alone may move parameters: with more noise, steps are shorter
Rates = Mapping[str, Array]
"""By table, the learning rate of each step of a round."""
Watch = Callable[[FederatedModel], Callable[[Round], bool]]  # from a model to the function that gets its rounds
PREDICTIONS = "predictions"  # a column: the sum over tables, without the intercept
AUTO_RHO = 1.5  # times the mean curvature of the loss at the start


class Gradient:
    """What the coordinator sends in each round: the gradient of the loss.

    ``proximal`` is the weight of the proximal term per joined row. ``column`` is the column of values whose sums are
    sent to tables; the loss has been evaluated at the scores.
    """

    def __init__(self, loss: JoinedLoss, tables: int):
        self.loss, self.tables = loss, tables

    def column(self) -> str:
        """The gradient of the mean loss by scores."""
        self.loss.write_gradient()
        return GRADIENT

    @property
    def proximal(self) -> float:
        """c M / N."""
        return self.loss.most_curvature * self.tables / len(self.loss.rows)


class Residual:
    """What tables are asked for by ADMM: the residual of the sharing problem."""

    def __init__(self, loss: JoinedLoss, tables: int, rho: float | str):
        self.rule, self._begun = SharingResidual(loss, tables, auto_rho(loss, rho, AUTO_RHO)), False
        self.rule.begin()

    def column(self) -> str:
        """The residual after the z-update and the dual update; in the first round, the initial one."""
        if self._begun:
            self.rule.update()
        self._begun = True
        return RESIDUAL

    @property
    def proximal(self) -> float:
        """rho / N."""
        return self.rule.rho / len(self.rule.loss.rows)


def solve_by_steps(
    learner: Any, relation: Relation, loss: JoinedLoss, watch: Watch, promise: StepPromise, spec: Spec
) -> tuple[FederatedModel, Array]:
    """Train a learner with these settings: (the model, its intercept)."""
    loss, unit = in_units(loss)
    model = _new_model(learner, relation, loss.rows, unit, promise, spec)
    report, tables = watch(model), len(model.tables)
    loss.set_constant(loss.best_constant())
    loss.evaluate()
    solver: Stepping = learner.solving
    wish = Residual(loss, tables, solver.rho) if isinstance(solver, ADMM) else Gradient(loss, tables)
    momentum = learner.plain_momentum
    rates = _rates(solver.lr, momentum, model, promise, loss.most_curvature * tables)
    intercept = descend_noisily(model, loss, wish, rates, momentum, lambda done: report(out_of_units(done, unit)))
    return model, unit * intercept


def _rates(
    lr: float | Auto, momentum: float, model: FederatedModel, promise: StepPromise, curvature: float
) -> list[Rates]:
    """By round, falling linearly to zero; ``curvature`` bounds that of the tables' objectives.

    "auto" depends on noise and counts only, not on row values.
    """
    total = promise.steps
    falling = (1 - np.arange(total) / total).reshape(promise.rounds, -1)
    rates = {
        alias: _rate(model, alias, total, momentum, curvature) if isinstance(lr, str) else lr for alias in model.tables
    }
    return [{alias: rate * of_round for alias, rate in rates.items()} for of_round in falling]


def _rate(model: FederatedModel, alias: str, steps: int, momentum: float, curvature: float) -> float:
    """The usual learning rate of a table, or a smaller one so that noise moves its parameters at most by `WALK`."""
    rest = 1 - momentum  # with momentum a step adds up to 1 / rest times its length
    usual, walk = min(1.0, FASTEST * rest / 0.1), WALK
    if isinstance(model.spec, Linear):
        usual, walk = 2 * rest / (curvature * max(model.encoding.columns(alias), 1)), LINEAR_WALK
    numbers = math.prod(model.spec.theta_shape(model.width(alias))) * model.lou.shards(alias)
    length = _noise_of(model).length(alias, numbers, model.rows(alias))
    return min(usual, rest * walk / (length * math.sqrt(steps)))


def _new_model(
    learner: Any, relation: Relation, rows: JoinedRows, unit: float, promise: StepPromise, spec: Spec
) -> FederatedModel:
    client, encoding = relation.client, learner.encoding_
    widths = {alias: len(encoding.names(alias)) for alias in promise.tables}
    sizes = {alias: math.prod(spec.theta_shape(width)) for alias, width in widths.items() if width}
    relation.events.emit("info", "privacy.noise", "choosing the noise of steps, which may take some seconds")
    noise = promise.choose(sizes)
    model = FederatedModel(client, rows, encoding, relation.wire, spec, learner.l2, unit, noise)
    model.begin(learner.seed, zero=model.tables)
    model.over = NoisySums(model, dict(model.shared))
    return model


def _noise_of(model: FederatedModel) -> StepNoise:
    assert isinstance(model.noise, StepNoise), "a model of noisy steps has it"
    return model.noise


def descend_noisily(
    model: FederatedModel,
    loss: JoinedLoss,
    wish: Gradient | Residual,
    rates: Iterable[Rates],
    momentum: float,
    report: Callable[[Round], bool],
) -> Array:
    """Run one round of steps for each of the ``rates``; return the intercept. ``report`` may ask to stop.

    Scores are constant at first, and the loss has been evaluated there.
    """
    rows, first = loss.rows, loss.best_constant()
    intercept = first
    for number, of_round in enumerate(rates, start=1):
        _take_round(
            model, RowGradients(model.loj.scatter(wish.column(), model.tables)), wish.proximal, of_round, momentum
        )
        rows.each(_add, intercept)
        loss.evaluate()
        intercept = intercept - _believed_mean(model) * loss.gradient_sum() / loss.most_curvature
        rows.each(_add, intercept)
        value = loss.evaluate()
        if report(Round(number, value + 0.5 * model.l2 * model.square, value, intercept, converged=False)):
            break
    model.mean = first - intercept
    return intercept


def _take_round(model: FederatedModel, rows: RowGradients, proximal: float, rates: Rates, momentum: float) -> None:
    """Let tables take steps; write the new predictions into their column."""
    noise = _noise_of(model)
    rounds = {
        alias: NoisyRound(
            rates=each, noise=noise.of_sums(alias, model.rows(alias)), proximal=proximal, momentum=momentum,
            l2=model.l2, prediction_noise=noise.of_predictions(noise.clip),
        )
        for alias, each in rates.items()
    }  # fmt: skip
    found = model.step(rounds, rows)
    noise.steps += len(next(iter(rates.values()), ()))
    noise.predicted += 1
    model.set_scores(found.predictions, into=PREDICTIONS)
    model.square = sum(float(square) for square in found.listed("square"))


def _believed_mean(model: FederatedModel) -> float:
    """The share of the mean prediction that the intercept absorbs: the noisier it is, the smaller."""
    left = max((left_in_mean(model.loj.rows, alias) for alias in model.tables), default=0.0)
    return believed(1.0, model.noise_ratio * left)


def _add(block: Block, intercept: Array) -> None:
    """Set scores to predictions plus intercept."""
    np.add(block[PREDICTIONS], intercept, out=block[SCORES])
