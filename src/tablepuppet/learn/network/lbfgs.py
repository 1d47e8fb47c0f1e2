"""RFL-LBFGS for networks: full-batch descent with two trips per round, for the gradient and for predictions.

The parameters are distributed over parties. Each party stores its own components of the steps s_k, of the changes y_k
of the gradient and of the gradient g, and returns inner products. Their sums over parties are all that the two-loop
recursion of L-BFGS needs: the direction is a combination of these vectors, and only its coefficients are sent. A
network's predictions are not linear in its parameters, so each trial of the line search is a trip; the first is nearly
always accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from tablepuppet.arrays import Array
from tablepuppet.errors import PrivacyError
from tablepuppet.learn.loss.joined_loss import GRADIENT, JoinedLoss
from tablepuppet.learn.rounds import Round
from tablepuppet.learn.solve.plateau import Plateau
from tablepuppet.learn.solve.schedule import MOST_OF_A_ROUND, RULE
from tablepuppet.learn.tables.federated import FederatedModel
from tablepuppet.learn.tables.parameters import TableParameters
from tablepuppet.learn.tables.steps import Facts, RowGradients, Update, by_rows, for_predictions, step
from tablepuppet.party.approval import add_work
from tablepuppet.party.arguments import List, SomeOrNone
from tablepuppet.party.release import Release
from tablepuppet.party.returns import PRODUCTS, ROW_OUTPUTS

add_work(("MLPRegressor", "MLPClassifier"), "proximal", "lbfgs", "sgd", "steps")

MEMORY = 30
TRIALS = 10  # step lengths that a line search tries
ENOUGH = 1e-4  # required share of the decrease that the slope predicts (Armijo)


class Pairs:
    """What L-BFGS stores for a table: ``base``, the parameters before the step; ``steps`` s_k and gradient ``changes``
    y_k, newest first.
    """

    def __init__(self, theta: Array):
        self.base, self.gradient = theta, np.zeros(0)
        self.steps: list[Array] = []
        self.changes: list[Array] = []

    def turn(self, theta: Array, gradient: Array, memory: int) -> Array:
        """Store the gradient at theta, which becomes the new base.

        Return the inner products of (steps, changes, gradient, theta), from which the coordinator finds a direction.
        """
        if len(self.gradient):
            self.steps = [theta - self.base, *self.steps][:memory]
            self.changes = [gradient - self.gradient, *self.changes][:memory]
        self.base, self.gradient = theta, gradient
        vectors = np.stack([*self.steps, *self.changes, gradient, theta])
        return np.asarray(vectors @ vectors.T)

    def moved(self, mix: Array) -> Array:
        """base plus a combination of (steps, changes, gradient), or of the last of these vectors."""
        return np.asarray(self.base + mix @ np.stack([*self.steps, *self.changes, self.gradient])[-len(mix) :])


@step(
    "lbfgs.turn", by_rows, asked="networks by `lbfgs`", releases=Release.GRADIENT_SUMS, returns={"products": PRODUCTS}
)
@dataclass(frozen=True)
class Turn(Update):
    """Store the gradient at the parameters; return only its inner products with the stored vectors."""

    l2: float
    memory: SomeOrNone

    def take(self, part: TableParameters, sums: Array, total: Array) -> Facts:
        """At a table's parameters, with the gradient of the loss by them."""
        if part.memory is None:
            part.memory = Pairs(part.theta)
        return {"products": part.remembered(Pairs).turn(part.theta, sums + self.l2 * part.theta, self.memory)}


@step(
    "lbfgs.move",
    for_predictions,
    asked="networks by `lbfgs`",
    releases=Release.PREDICTIONS,
    returns={"outputs": ROW_OUTPUTS},
)
@dataclass(frozen=True)
class Move(Update):
    """Set theta to the base plus a combination of stored vectors; return the predictions there."""

    mix: List

    def take(self, part: TableParameters, sums: Array, total: Array) -> Facts:
        """At a table's parameters."""
        part.theta = part.remembered(Pairs).moved(self.mix)
        return {}

    def shown(self, part: TableParameters) -> dict[str, Any]:
        """Predictions with the new parameters."""
        return {"theta": part.theta}


class FullBatch:
    """The coordinator's side: the gradient over all joined rows, and steps along combinations of stored vectors.

    The parameters of a lost table do not change. Whenever a party is lost or returns (``changed``), the vectors stored
    by the tables no longer belong to the same rounds, and are dropped.
    """

    def __init__(self, model: FederatedModel, intercept: Array):
        self.model, self.intercept, self._pairs = model, intercept, Pairs(intercept)
        self.changed, self._changes = False, model.lou.client.outbox.changes
        self._still: Collection[str] = ()
        self._products: dict[str, Array] = {}  # by table that took the last step
        self._squares: dict[str, float] = {}  # |theta|^2 by table
        self.asked = 0  # replies so far, of every table

    def turn(self, loss: JoinedLoss) -> tuple[Array, Array]:
        """Inner products (over tables, over tables and intercept), with the gradient at the last evaluation."""
        model = self.model
        total = loss.write_gradient()
        rows = RowGradients(model.loj.scatter(GRADIENT, model.tables))
        self.asked += 1
        memory = 1 if self.changed else MEMORY
        found = model.step(dict.fromkeys(model.tables, Turn(model.l2, memory)), rows, lambda *_: {})
        own = self._pairs.turn(self.intercept, total, memory)
        self._still = found.still
        self.changed, self._changes = self._changes != model.lou.client.outbox.changes, model.lou.client.outbox.changes
        self._products = {alias: facts["products"] for alias, facts in found.facts.items()}
        if self.changed:
            self._products = {alias: each[-2:, -2:] for alias, each in self._products.items()}
            own = own[-2:, -2:]
        else:
            model.check_products(self._products, len(own))
        tables = np.sum([np.zeros_like(own), *self._products.values()], axis=0)
        tables[-1, -1] += sum(self._squares.get(alias, 0.0) for alias in self._still)
        return tables, tables + own

    def move(self, mix: Array, loss: JoinedLoss) -> float:
        """Take a step from the base; return the mean loss there."""
        model = self.model
        self.asked += 1
        self.intercept = self._pairs.moved(mix)
        moves = {alias: Move(mix) for alias in model.tables if alias not in self._still}
        found = model.step(moves, None, model.instead(model.lou.client))
        self._squares |= {alias: _square(each, mix) for alias, each in self._products.items()}
        model.set_scores(found.predictions, self.intercept)
        return loss.evaluate()


def descend_full_batch(
    model: FederatedModel, loss: JoinedLoss, rounds: int, tol: float, report: Callable[[Round], bool],
    replies: int | None = None,
) -> tuple[Array, bool]:  # fmt: skip
    """Run to tolerance: (intercept, whether it converged). ``report`` may ask to stop.

    Stops when the objective is flat (plateau.py), when the expected decrease is negligible, when no step length lowers
    the objective, or before a table would have to give more than ``replies`` replies. PrivacyError if these allow no
    round.
    """
    batch = FullBatch(model, loss.best_constant())
    model.predict(batch.intercept)
    value, converged, plateau = loss.evaluate(), False, Plateau(tol, loss.constant_value() / loss.rows.joined)
    for number in range(1, rounds + 1):
        trials = TRIALS if replies is None else min(TRIALS, replies - batch.asked - MOST_OF_A_ROUND + 1)
        if trials < 1 and number == 1:
            raise PrivacyError(
                f"a round of lbfgs may need {MOST_OF_A_ROUND} replies beside the first predictions, and a party gives "
                f"fewer to this session; use solver='admm', or ask the party's operator (policy rule {RULE})",
                rule=RULE,
            )
        if trials < 1:
            break
        tables, products = batch.turn(loss)
        mix = two_loop(products[:-1, :-1])
        slope = float(mix @ products[:-1, -2])
        if batch.changed:
            value = batch.move(0.0 * mix, loss)
        objective = value + 0.5 * model.l2 * float(tables[-1, -1])
        length = 1.0
        for _ in range(trials):
            value = batch.move(length * mix, loss)
            reached = value + 0.5 * model.l2 * _square(tables, length * mix)
            if reached <= objective + ENOUGH * length * slope:
                break
            length = _shorter(length, slope, reached - objective)
        else:
            value, reached = batch.move(0.0 * mix, loss), objective
        gained = objective - reached
        small = max(gained, -slope / 2) <= plateau.strict * max(abs(reached), 1e-12)
        ended = (gained <= 0 and trials == TRIALS) or small or plateau.is_flat(reached)
        ended = model.was_steady() and ended
        converged = ended and model.is_whole
        if report(Round(number, reached, value, batch.intercept, converged)) or converged:
            break
        if ended and not model.all_return():
            break
    return batch.intercept, converged


def two_loop(products: Array) -> Array:
    """The direction of L-BFGS as a combination of (steps, changes, gradient), from their inner products.

    Pairs with negative curvature, which a network's loss may have, are skipped. Without any pair, the direction is the
    negative gradient, of length 1 at most.
    """
    pairs = (len(products) - 1) // 2
    mix = np.zeros(len(products))
    mix[-1] = -1.0
    steps, changes = range(pairs), range(pairs, 2 * pairs)
    usable = [(s, y) for s, y in zip(steps, changes, strict=True) if _is_curved_up(products, s, y)]
    if not usable:
        return mix / max(1.0, float(np.sqrt(products[-1, -1])))
    shares = {}
    for s, y in usable:
        shares[s] = float(products[s] @ mix) / products[s, y]
        mix[y] -= shares[s]
    newest, change = usable[0]
    mix *= products[newest, change] / products[change, change]
    for s, y in reversed(usable):
        mix[s] += shares[s] - float(products[y] @ mix) / products[s, y]
    return mix


def _is_curved_up(products: Array, step: int, change: int) -> bool:
    return bool(products[step, change] > 1e-8 * np.sqrt(products[step, step] * products[change, change]))


def _square(tables: Array, mix: Array) -> float:
    """|theta + step|^2 from inner products whose last is theta."""
    whole = np.append(mix, 1.0)
    return float(whole @ tables @ whole)


def _shorter(length: float, slope: float, gained: float) -> float:
    """The minimum of the parabola through slope and value, within safe limits."""
    lowest = -slope * length**2 / (2 * (gained - slope * length))
    return float(np.clip(lowest, 0.1 * length, 0.5 * length))
