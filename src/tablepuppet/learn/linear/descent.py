"""Full-batch descent over a relation, one trip per round, whatever proposes the direction.

Each round every table answers with the direction of its own ridge solve. The coordinator then minimises the objective
exactly over the plane that this direction, the last few steps and the intercept span: the joined rows hold X d of each,
so the search needs no traffic, and the objective falls in every round. What the tables are asked to answer is the rule
of the algorithm: the gradient of the loss (gradient_rule.py), or the residual of the sharing problem (solve/admm.py).

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
from tablepuppet.learn.linear.plane import Plane
from tablepuppet.learn.linear.ridge import Curvature
from tablepuppet.learn.loss.joined_loss import JoinedLoss
from tablepuppet.learn.rounds import Round
from tablepuppet.operators.joined_rows import SCORES, Block, Column

Array = NDArray[np.float64]
DRIFT = 1e-8  # of a step that rounding may have added to its X d before all are forgotten
LEAST_GAIN = 1e-13  # of the objective: a step of less is not taken while shards still agree
LEAST_MEMORY, MOST_MEMORY = 5, 200  # earlier steps in the plane
PLANE_SIZE = 32_000_000  # numbers that X d of these steps may take before there are fewer of them


class Rule(Protocol):
    """What an algorithm asks of the tables in each round."""

    def begin(self) -> None:
        """Prepare columns, at the first scores; the loss was evaluated there."""
        ...

    def values(self, room: Column, before: Array | None) -> tuple[Column, Curvature]:
        """(the column of values that tables are sent sums of, the curvature of their ridge solve).

        The loss was evaluated at the scores. ``room`` is a column that may be written to; ``before`` is the mean
        curvature, (outputs, outputs), where the last step began.
        """
        ...

    def right_hand_side(self, sums: Mapping[str, Array]) -> Mapping[str, Array]:
        """What the base rows of tables shall answer, from the values, summed and centred."""
        ...

    def moved(self, block: Block, is_evaluated: bool) -> None:
        """The step is taken in a block of the joined rows; the loss may be evaluated there already."""
        ...


def memory_for(joined_rows: int, outputs: int) -> int:
    """How many earlier steps to keep: hard relations need fewer rounds with more of them, long ones pay for each."""
    return min(max(PLANE_SIZE // (joined_rows * outputs), LEAST_MEMORY), MOST_MEMORY)


def descend(
    model: LinearModel, loss: JoinedLoss, rule: Rule, gradient: Rule, rounds: int, tol: float,
    report: Callable[[Round], bool],
) -> tuple[Array, bool]:  # fmt: skip
    """Run to tolerance: (intercept, whether it converged). ``report`` may ask to stop.

    Stops when the decrease that a round promised, the tables' ridge solves taken together, is below ``tol`` times
    the objective. A direction other than that of the ``gradient`` may promise little far from the optimum: from there
    on the gradient's is asked for, and decides. While a party is lost it has not converged; when there is nothing to
    gain without it, the party has one more timeout to come back.
    """
    rows, first = loss.rows, loss.best_constant()
    intercept = first
    loss.set_constant(first)
    value = loss.evaluate()
    if not model.tables:  # no column to learn from: the intercept is all there is
        report(Round(1, value, value, intercept, converged=True))
        return intercept, True
    known: float | None = value  # the mean loss at the scores, while rows keep its evaluation
    rule.begin()
    memory = memory_for(len(rows), loss.outputs)
    directions = Directions(rows, memory + 1)
    errors: list[float] = []  # what rounding may have done to X d of each step
    before: Array | None = None
    slopes = converged = False  # slopes: whether those along earlier steps are the ones at the scores
    for number in range(1, rounds + 1):
        if known is None:
            known = loss.evaluate()
        room = directions.new()
        column, curvature = rule.values(room, before)
        # a constant is the intercept's to answer
        products = model.direction(
            rule.right_hand_side(model.loj.scatter_centred(column, model.tables)), curvature, room
        )
        changed = model.lost.changed
        if changed:
            directions.forget_earlier()
            model.lost.correct(intercept)
            errors, known, slopes = [], None, False
        least = LEAST_GAIN if model.disagreement else 0.0
        noise = model.direction_noise(loss)
        plane = Plane(loss, directions, model.l2, products, noise)
        begin, end = plane.lowest(known, least, slopes=slopes)
        mix, shift = end.weights[: -loss.outputs], end.weights[-loss.outputs :]
        errors, sound = _rounding(begin.hessian, errors, mix)
        slope = 0.0 if end is begin else float(begin.slope[0])
        gap = promised_decrease(slope, begin.hessian, curvature, loss.outputs, model.disagreement)
        small = gap <= tol * max(abs(end.objective), 1e-12)
        kept = memory if sound or not model.disagreement else 0  # directions of consensus are much like each other
        if small and rule is not gradient:
            kept = 0  # nor is it any use to remember steps that gained nothing
        kept = min(kept, 1) if changed else kept
        model.advance(mix, kept)
        known, slopes = (end.loss, True) if end.evaluated else (None, False)
        intercept, before = intercept + shift, begin.hessian[-loss.outputs :, -loss.outputs :]
        settled = model.was_steady() and small and rule is gradient
        rule = gradient if small else rule
        rows.each(_take_step, directions, None if end.mixed else mix, shift, rule, is_evaluated=end.evaluated)
        directions.keep_step(mix)
        if not kept:
            directions.order.clear()
        del errors[kept:]
        converged = settled and model.is_whole
        if report(Round(number, end.objective, end.loss, intercept, converged)) or converged:
            break
        if settled and not model.all_return():
            break
    model.mean = first - intercept
    return intercept, converged


def _rounding(hessian: Array, errors: list[float], mix: Array) -> tuple[list[float], bool]:
    """(bounds of the rounding errors in X d of the new step and earlier ones, whether the new one is small).

    A step that is a small difference of large ones has their errors, and so would every step made from it.
    """
    hessian = hessian[: len(mix), : len(mix)]
    fresh = np.finfo(np.float64).eps * np.sqrt(np.diag(hessian))
    error = float(np.abs(mix) @ (fresh + np.array([0.0, *errors])))
    return [error, *errors], error <= DRIFT * max(float(mix @ hessian @ mix), 0.0) ** 0.5


def _take_step(
    block: Block, directions: Directions, mix: Array | None, shift: Array, rule: Rule, *, is_evaluated: bool
) -> None:
    """Move scores by the step, which is mixed if need be, and the change of the intercept."""
    if mix is not None:
        directions.mix(block, mix)
    scores = block[SCORES]
    scores += directions.step(block)
    scores += shift
    rule.moved(block, is_evaluated)


def promised_decrease(slope: float, hessian: Array, curvature: Curvature, outputs: int, disagreement: float) -> float:
    """<g, p> / 2 at the true curvature: what the step would gain if the tables did not overlap.

    With consensus (consensus.py), p is not yet the ridge solve: ``disagreement`` is what the shards could still gain.
    """
    asked = np.trace(curvature) if isinstance(curvature, np.ndarray) else curvature * outputs
    true = np.trace(hessian[-outputs:, -outputs:])
    return (abs(slope) / 2 + disagreement) * float(asked / max(true, 1e-12))
