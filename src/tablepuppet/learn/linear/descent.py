"""Full-batch descent over a relation, one trip per round, for any rule that proposes directions.

In each round every table returns the direction of its own ridge solve. The coordinator then minimises the objective
exactly over the plane spanned by this direction, the last few steps and the intercept. X d of each is stored with the
joined rows, so the search needs no traffic, and the objective falls in every round. The right-hand side of the ridge
solves is the rule of the algorithm: the gradient of the loss (gradient_rule.py), or the residual of the sharing problem
(solve/admm.py). z are the scores, X the joined matrix, d_k the directions, c_k their coefficients, b the change of the
intercept:

    z' = z + sum_k c_k X d_k + b            scores move with the chosen coefficients
    min over c, b of  loss(z') + l2 / 2 |theta + sum_k c_k d_k|^2
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tablepuppet.learn.linear.directions import Directions
from tablepuppet.learn.linear.model import LinearModel
from tablepuppet.learn.linear.plane import Plane, Point
from tablepuppet.learn.linear.ridge import Curvature
from tablepuppet.learn.loss.joined_loss import JoinedLoss
from tablepuppet.learn.rounds import Round
from tablepuppet.operators.joined_rows import SCORES, Block, Column

Array = NDArray[np.float64]
DRIFT = 1e-8  # relative rounding error of X d above which all stored directions are dropped
LEAST_GAIN = 1e-13  # share of the objective: a step that gains less is not taken while consensus goes on
LEAST_MEMORY, MOST_MEMORY = 5, 200  # earlier steps in the plane
PLANE_SIZE = 32_000_000  # numbers that X d of these steps may take; beyond it, fewer steps are kept


class Rule(Protocol):
    """What an algorithm asks of the tables in each round."""

    def begin(self) -> None:
        """Prepare columns at the first scores, where the loss has been evaluated."""
        ...

    def values(self, room: Column, before: Array | None) -> tuple[Column, Curvature]:
        """(column of values whose sums are sent to tables, curvature of their ridge solve).

        The loss has been evaluated at the scores. ``room`` is a column that may be overwritten; ``before`` is the mean
        curvature, (outputs, outputs), at the start of the last step.
        """
        ...

    def right_hand_side(self, sums: Mapping[str, Array]) -> Mapping[str, Array]:
        """The right-hand side sent to tables, from centred sums of the values at base rows."""
        ...

    def moved(self, block: Block, is_evaluated: bool) -> None:
        """Update a block after the step; ``is_evaluated``: the loss has been evaluated at its new scores."""
        ...


def memory_for(joined_rows: int, outputs: int) -> int:
    """How many earlier steps to keep: more of them save rounds, but each costs a pass over the joined rows."""
    return min(max(PLANE_SIZE // (joined_rows * outputs), LEAST_MEMORY), MOST_MEMORY)


class Descent:
    """A descent that can go on: with another ``model.l2`` it starts where it has arrived, and searches the plane of the
    steps before too, as X d of a step and inner products of parameters do not depend on the penalty.
    """

    def __init__(self, model: LinearModel, loss: JoinedLoss, rule: Rule, gradient: Rule):
        self.model, self.loss, self._rule, self._gradient = model, loss, rule, gradient
        self._first = self.intercept = loss.best_constant()
        loss.set_constant(self._first)
        self._known: float | None = loss.evaluate()  # the mean loss at the scores, while it is stored with the rows
        if not model.tables:
            return
        rule.begin()
        self._memory = memory_for(len(loss.rows), loss.outputs)
        self._directions = Directions(loss.rows, self._memory + 1)
        self._errors: list[float] = []  # bounds of the rounding error in X d of each step
        self._before: Array | None = None
        self._slopes = False  # whether cached slopes are those at the scores

    def run(self, rounds: int, tol: float, report: Callable[[Round], bool]) -> tuple[Array, bool]:
        """Run to tolerance: (intercept, whether it converged). ``report`` may ask to stop.

        Stops when the expected decrease of a round, from all tables' ridge solves, is below ``tol`` times the
        objective. A rule other than the gradient's may predict a small decrease far from the optimum: then the
        gradient's is used from there on, and decides. While a party is lost, the solver has not converged; if it can
        gain no more without that party, it waits one more timeout for it.
        """
        if not self.model.tables:  # no feature column: only the intercept is learned
            value = self.loss.evaluate()
            report(Round(1, value, value, self.intercept, converged=True))
            return self.intercept, True
        converged = False
        for number in range(1, rounds + 1):
            end, settled = self._round(tol)
            converged = settled and self.model.is_whole
            if report(Round(number, end.objective, end.loss, self.intercept, converged)) or converged:
                break
            if settled and not self.model.all_return():
                break
        self.model.mean = self._first - self.intercept
        return self.intercept, converged

    def _round(self, tol: float) -> tuple[Point, bool]:
        """One step: (the point that it ends at, whether a further one would gain less than ``tol``)."""
        model, loss, directions, rule = self.model, self.loss, self._directions, self._rule
        if self._known is None:
            self._known = loss.evaluate()
        room = directions.new()
        column, curvature = rule.values(room, self._before)
        # centred: the intercept absorbs a constant
        products = model.direction(
            rule.right_hand_side(model.loj.scatter_centred(column, model.tables)), curvature, room
        )
        changed = model.lost.changed
        if changed:
            directions.forget_earlier()
            model.lost.correct(self.intercept)
            self._errors, self._known, self._slopes = [], None, False
        least = LEAST_GAIN if model.disagreement else 0.0
        noise = model.direction_noise(loss)
        plane = Plane(loss, directions, model.l2, products, noise)
        begin, end = plane.lowest(self._known, least, slopes=self._slopes)
        mix, shift = end.weights[: -loss.outputs], end.weights[-loss.outputs :]
        self._errors, sound = _rounding(begin.hessian, self._errors, mix)
        slope = 0.0 if end is begin else float(begin.slope[0])
        gap = promised_decrease(slope, begin.hessian, curvature, loss.outputs, model.disagreement)
        small = gap <= tol * max(abs(end.objective), 1e-12)
        kept = self._memory if sound or not model.disagreement else 0  # directions of consensus are nearly parallel
        if small and rule is not self._gradient:
            kept = 0  # steps without gain are not worth keeping either
        kept = min(kept, 1) if changed else kept
        model.advance(mix, kept)
        self._known, self._slopes = (end.loss, True) if end.evaluated else (None, False)
        self.intercept, self._before = self.intercept + shift, begin.hessian[-loss.outputs :, -loss.outputs :]
        settled = model.was_steady() and small and rule is self._gradient
        self._rule = rule = self._gradient if small else rule
        loss.rows.each(_take_step, directions, None if end.mixed else mix, shift, rule, is_evaluated=end.evaluated)
        directions.keep_step(mix)
        if not kept:
            directions.order.clear()
        del self._errors[kept:]
        return end, settled


def _rounding(hessian: Array, errors: list[float], mix: Array) -> tuple[list[float], bool]:
    """(bounds of the rounding errors in X d of the new and earlier steps, whether the error of the new one is small).

    If a step is a small difference of large steps, it inherits their errors, and so do all later combinations of it.
    """
    hessian = hessian[: len(mix), : len(mix)]
    fresh = np.finfo(np.float64).eps * np.sqrt(np.diag(hessian))
    error = float(np.abs(mix) @ (fresh + np.array([0.0, *errors])))
    return [error, *errors], error <= DRIFT * max(float(mix @ hessian @ mix), 0.0) ** 0.5


def _take_step(
    block: Block, directions: Directions, mix: Array | None, shift: Array, rule: Rule, *, is_evaluated: bool
) -> None:
    """Add the step and the change of the intercept to the scores; X d of the step is computed if it is not known."""
    if mix is not None:
        directions.mix(block, mix)
    scores = block[SCORES]
    scores += directions.step(block)
    scores += shift
    rule.moved(block, is_evaluated)


def promised_decrease(slope: float, hessian: Array, curvature: Curvature, outputs: int, disagreement: float) -> float:
    """<g, p> / 2 at the true curvature: the decrease by the step if the tables were uncorrelated.

    With consensus (consensus.py), p is not yet the ridge solve: ``disagreement`` is what the shards could still gain.
    """
    asked = np.trace(curvature) if isinstance(curvature, np.ndarray) else curvature * outputs
    true = np.trace(hessian[-outputs:, -outputs:])
    return (abs(slope) / 2 + disagreement) * float(asked / max(true, 1e-12))
