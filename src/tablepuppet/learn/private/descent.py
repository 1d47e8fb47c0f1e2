"""The coordinator's rounds of noisy steps (steps.py): what it wants of the tables, and how far they may go.

With "sgd" tables answer the gradient of the loss. c M / 2N times the squares of what M tables change at the joined
rows, for a loss that curves by at most c, keeps them all together from overshooting: the sum of what they minimise is
never below the loss. With "admm" they answer the residual of the sharing problem (admm.py), with its pull rho / N.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from tablepuppet.learn.loss.losses import Loss
from tablepuppet.learn.loss.units import in_units, out_of_units
from tablepuppet.learn.private.sampled_model import Pace, SampledModel
from tablepuppet.learn.private.step_promise import StepPromise
from tablepuppet.learn.rounds import Round
from tablepuppet.learn.settings import Auto
from tablepuppet.learn.solve.admm import SharingResidual
from tablepuppet.learn.solve.solvers import ADMM, Stepping
from tablepuppet.learn.threads import one_thread
from tablepuppet.party.spec import Linear, Spec
from tablepuppet.relation import Relation

Array = NDArray[np.float64]
PRIVATE_SOLVER: Literal["sgd", "admm"] = "sgd"  # of networks
FASTEST = 0.5  # the learning rate of networks with momentum 0.9
WALK, LINEAR_WALK = 8.0, 0.4  # how far noise alone may carry parameters: with more of it steps are shorter
Watch = Callable[[SampledModel], Callable[[Round], bool]]  # of a model: whom to tell its rounds
AUTO_RHO = 1.5  # times the mean curvature of the loss at the start


class Wish(Protocol):
    """What the coordinator wants in each round."""

    @property
    def pull(self) -> float:
        """Of predictions back to where the round began, by joined row."""
        ...

    def at(self, scores: Array) -> Array:
        """A value per joined row that tables shall answer."""
        ...


class Gradient:
    """The gradient of the loss."""

    def __init__(self, loss: Loss, tables: int):
        self.loss, self.tables = loss, tables

    def at(self, scores: Array) -> Array:
        """Of the mean loss, by scores."""
        return self.loss.gradient(scores)

    @property
    def pull(self) -> float:
        """c M / N."""
        return self.loss.most_curvature * self.tables / len(self.loss.labels)


class Residual:
    """The residual of the sharing problem."""

    def __init__(self, loss: Loss, tables: int, rho: float | str, scores: Array):
        if isinstance(rho, str):
            rho = AUTO_RHO * max(loss.look(scores).hessian.mean(), 1e-12)
        self.rule, self._begun = SharingResidual(loss, tables, rho, scores), False

    def at(self, scores: Array) -> Array:
        """After the z-update and the dual update, but before the first round."""
        if self._begun:
            self.rule.update(scores)
        self._begun = True
        return self.rule.residual

    @property
    def pull(self) -> float:
        """rho / N."""
        return self.rule.rho / len(self.rule.residual)


def solve_by_steps(
    learner: Any, relation: Relation, loss: Loss, watch: Watch, promise: StepPromise, spec: Spec
) -> tuple[SampledModel, Array]:
    """Train a learner with these settings: (the model, its intercept)."""
    loss, unit = in_units(loss)
    model = _new_model(learner, relation, unit, promise, spec)
    report, tables = watch(model), len(model.tables)
    solver: Stepping = learner.solving
    wish: Wish = Gradient(loss, tables)
    if isinstance(solver, ADMM):
        wish = Residual(loss, tables, solver.rho, constant_scores(loss))
    paces = _paces(solver.lr, learner.plain_momentum, model, promise, loss.most_curvature * tables)
    with one_thread():
        intercept = descend_noisily(model, loss, wish, paces, lambda done: report(out_of_units(done, unit)))
    return model, unit * intercept


def _paces(
    lr: float | Auto, momentum: float, model: SampledModel, promise: StepPromise, curvature: float
) -> list[Pace]:
    """Learning rates, which fall to nothing on a line, by round; ``curvature`` is at most that of what tables minimise.

    "auto" is a function of the noise and of counts, not of the rows.
    """
    rounds, steps, total = promise.rounds, promise.steps_of_round, promise.rounds * promise.steps_of_round
    falling = (1 - np.arange(total) / total).reshape(rounds, steps)
    rates = {
        alias: _rate(model, alias, total, momentum, curvature) if isinstance(lr, str) else lr for alias in model.tables
    }
    return [Pace({alias: rate * of_round for alias, rate in rates.items()}, momentum) for of_round in falling]


def _rate(model: SampledModel, alias: str, steps: int, momentum: float, curvature: float) -> float:
    """The usual learning rate of a table, or that at which noise carries its parameters no further than `WALK`."""
    rest = 1 - momentum  # a step goes on for 1 / rest steps
    usual, walk = min(1.0, FASTEST * rest / 0.1), WALK
    if isinstance(model.spec, Linear):
        usual, walk = 2 * rest / (curvature * max(model.encoding.columns(alias), 1)), LINEAR_WALK
    return min(usual, rest * walk / (model.noise_length(alias) * math.sqrt(steps)))


def _new_model(learner: Any, relation: Relation, unit: float, promise: StepPromise, spec: Spec) -> SampledModel:
    client, encoding = relation.client, learner.encoding_
    widths = {alias: len(encoding.names(alias)) for alias in promise.tables}
    sizes = {alias: math.prod(spec.theta_shape(width)) for alias, width in widths.items() if width}
    relation.events.emit("info", "privacy.noise", "choosing the noise of steps, which may take some seconds")
    noise = promise.choose(sizes)
    return SampledModel(client, encoding, relation.wire, spec, learner.l2, learner.seed, unit, noise)


def descend_noisily(
    model: SampledModel, loss: Loss, wish: Wish, paces: Iterable[Pace], report: Callable[[Round], bool]
) -> Array:
    """A round of steps for each pace; the intercept. ``report`` may ask to stop."""
    intercept = loss.best_constant()
    scores = constant_scores(loss)
    for number, pace in enumerate(paces, start=1):
        predictions = model.step(wish.at(scores), wish.pull, pace)
        slope = np.atleast_1d(loss.gradient(predictions + intercept).sum(axis=0))
        intercept = intercept - model.believed_mean * slope / loss.most_curvature
        scores = predictions + intercept
        value = loss.value(scores)
        if report(Round(number, value + 0.5 * model.l2 * model.square, value, scores, intercept, converged=False)):
            break
    model.mean = loss.best_constant() - intercept
    return intercept


def constant_scores(loss: Loss) -> Array:
    """Scores where no row differs from another."""
    rows = len(loss.labels)
    return np.zeros(rows if loss.outputs == 1 else (rows, loss.outputs), order="F") + loss.best_constant()
