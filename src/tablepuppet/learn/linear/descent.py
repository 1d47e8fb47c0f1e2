"""Full-batch descent over a relation, one trip per round, for any rule that proposes directions.

In each round every table returns the direction of its own ridge solve. The coordinator then minimises the objective
exactly over the plane spanned by this direction, the last few steps and the intercept. X d of each is stored with the
joined rows, so the search needs no traffic, and the objective falls in every round. The right-hand side of the ridge
solves is the rule of the algorithm: the gradient of the loss (`GradientRule`), or the residual of the sharing problem
(solve/admm.py). z are the scores, X the joined matrix, d_k the directions, c_k their coefficients, b the change of the
intercept:

    z' = z + sum_k c_k X d_k + b            scores move with the chosen coefficients
    min over c, b of  loss(z') + l2 / 2 |theta + sum_k c_k d_k|^2

On a wire of single precision X d is rounded, relative to its own length. This does little harm while steps are long,
and none to what is left to do. When it could hide what is left, scores are computed anew from the parameters, and from
there on values are sent in double precision.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from tablepuppet.arrays import Array
from tablepuppet.learn.linear.model import LinearModel, rounding_of
from tablepuppet.learn.linear.plane import Directions, InBlocks, Plane, Point
from tablepuppet.learn.linear.ridge import Curvature
from tablepuppet.learn.loss.joined_loss import JoinedLoss, evaluation
from tablepuppet.learn.loss.losses import Loss
from tablepuppet.learn.rounds import Round
from tablepuppet.mapping.joined_rows import SCORES, Block, Column

ACCURACY = 1e-12  # share of the objective that may be left: about the square of what may be wrong with coefficients
PERFECT = 1e-10  # share of the first objective below which an objective counts as zero
FLATTEST = 1e9  # directions that are flatter are not identified by the data
DEPENDENT = 1e-9  # eigenvalue of the scaled Hessian below which directions of the plane depend on each other
APART = 1e-6  # of the squares that are added up to <d, M d>: directions that depend on each other leave about 1e-12
CLOSE, NEAR = 2e-3, 5e-4  # what sgd may leave of the objective, and of any log loss, to end near the optimum


@dataclass(frozen=True)
class Distance:
    """How far the optimum may be, in units of the objective: one test for all solvers, in every direction.

    g is the gradient of the objective by all parameters, M the preconditioner (tables' ridge solves, p = -M^-1 g), H
    the Hessian. A step that is left could still lower the objective by about <g, H^-1 g> / 2:

        promised = <g, M^-1 g> / 2             what tables promise: the decrease if they were uncorrelated
                 + left                        what their ridge solves leave out, below the floor (ridge.py)
        distance = promised * max <d, M d> / <d, H d>   over directions d of the plane: correlated tables are flatter

    Scores are those of the parameters up to rounding, of the wire above all: ``noise`` is what this may hide. A solver
    has converged if both distance and noise are next to nothing, relative to the objective.
    """

    promised: float
    flatness: float  # of the flattest direction: <d, M d> / <d, H d>, at least 1
    noise: float  # what rounding may hide
    scale: float  # the objective, or what counts as zero

    def is_small(self, tol: float) -> bool:
        """Whether tables promise next to nothing."""
        return self.promised <= tol * self.scale

    def is_sound(self, tol: float) -> bool:
        """Whether rounding hides next to nothing: a tenth of what may be left, ten times that far from the optimum.

        More would show in the objective: its error is of the order of the root.
        """
        far = min(ACCURACY * self.scale, 0.1 * self.promised)
        return self.noise <= max(0.1 * max(ACCURACY, tol) * self.scale, far)

    def has_converged(self, tol: float) -> bool:
        """Whether the optimum is as near as can be asked for: the test of all full-batch solvers."""
        left = self.promised * self.flatness
        return self.is_small(tol) and self.is_sound(tol) and left <= max(ACCURACY, tol) * self.scale


def promised_decrease(slope: float, hessian: Array, curvature: Curvature, outputs: int, disagreement: float) -> float:
    """<g, p> / 2 at the true curvature: the decrease by the step if the tables were uncorrelated.

    With consensus (consensus.py), p is not yet the ridge solve: ``disagreement`` is what the shards could still gain.
    """
    asked = np.trace(curvature) if isinstance(curvature, np.ndarray) else curvature * outputs
    true = np.trace(hessian[-outputs:, -outputs:])
    return (abs(slope) / 2 + disagreement) * float(asked / max(true, 1e-12))


def flatness(hessian: Array, metric: Array, outputs: int, *, is_bounded: bool = True) -> float:
    """The largest <d, M d> / <d, H d> over the plane, from both forms' products of its directions.

    ``hessian`` has constants as its last rows: the intercept follows every direction. Unless flatness ``is_bounded``
    by a penalty, a direction that H does not tell from zero, and M does, is as flat as can be.
    """
    count = len(metric)
    across = hessian[:count, -outputs:]
    own = hessian[:count, :count] - across @ np.linalg.pinv(hessian[-outputs:, -outputs:]) @ across.T
    lengths = np.sqrt(np.maximum(np.diag(own), 1e-300))
    values, vectors = np.linalg.eigh(own / np.outer(lengths, lengths))
    kept = values > DEPENDENT * max(values.max(), 1e-300)
    scaled, lost = metric / np.outer(lengths, lengths), vectors[:, ~kept]
    left, squares = np.einsum("ij,ik,kj->j", lost, scaled, lost), np.diag(scaled) @ lost**2
    if not is_bounded and np.any(left > APART * squares):
        return FLATTEST
    whitened = vectors[:, kept] / np.sqrt(values[kept]) / lengths[:, None]
    found = np.linalg.eigvalsh(whitened.T @ metric @ whitened)
    return float(np.clip(np.nan_to_num(found.max(initial=1.0), nan=FLATTEST), 1.0, FLATTEST))


DRIFT = 1e-8  # relative rounding error of X d above which all stored directions are dropped
LEAST_GAIN = 1e-13  # share of the objective: a step that gains less is not taken while consensus goes on
SINGLE_TOL = 1e-13  # tolerance while values are of single precision: enough for `ACCURACY`
HANDOVER = 1e-8  # share of the objective: where another rule promises less, the gradient's needs fewer rounds
LEAST_MEMORY, MOST_MEMORY = 5, 200  # earlier steps in the plane
CHECKS = 100  # full-batch rounds that may be needed to show how far from the optimum sgd has ended
PLANE_SIZE = 32_000_000  # numbers that X d of these steps may take; beyond it, fewer steps are kept


AfterStep = Callable[[Block, bool], None]
"""Updates a block after the step; the second argument says whether the loss has been evaluated at its new scores."""


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

    def after_step(self) -> AfterStep | None:
        """What follows a step in every block; None: nothing."""
        ...


def memory_for(joined_rows: int, outputs: int) -> int:
    """How many earlier steps to keep: more of them save rounds, but each costs a pass over the joined rows."""
    return min(max(PLANE_SIZE // (joined_rows * outputs), LEAST_MEMORY), MOST_MEMORY)


class Descent:
    """A descent that can go on: with another ``model.l2`` it starts where it has arrived, and searches the plane of the
    steps before too, as X d of a step and inner products of parameters do not depend on the penalty.
    """

    def __init__(
        self, model: LinearModel, loss: JoinedLoss, rule: Rule, gradient: Rule, intercept: Array | None = None
    ):
        """Begin with the best constant; with an ``intercept``, at the parameters and scores that there are."""
        self.model, self.loss, self._rule, self._gradient = model, loss, rule, gradient
        self._first = self.intercept = loss.best_constant() if intercept is None else intercept
        if intercept is None:
            loss.set_constant(self._first)
        self._known: float | None = loss.evaluate()  # the mean loss at the scores, while it is stored with the rows
        if not model.tables:
            return
        rule.begin()
        self._memory = memory_for(len(loss.rows), loss.outputs)
        self._directions = Directions(loss.rows, self._memory + 1)
        self._errors: list[float] = []  # bounds of the rounding error in X d of each step
        self._drift = 0.0  # bound of the rounding error of the scores
        self._stale = False  # whether this error could hide what is left to do
        self._centres = np.zeros((0, loss.outputs))  # of each step: the mean of X d, which the intercept absorbs
        self._metric = np.zeros((0, 0))  # products of steps by the preconditioner, without the penalty
        self._zero = PERFECT * abs(self._known)
        self._before: Array | None = None
        self._slopes = False  # whether cached slopes are those at the scores
        self.began: float | None = None  # the objective before the first step

    def run(self, rounds: int, tol: float, report: Callable[[Round], bool]) -> tuple[Array, bool]:
        """Run to tolerance: (intercept, whether it converged). ``report`` may ask to stop.

        Stops when `Distance` says that the optimum is near: tables promise less than ``tol`` times the objective. A
        rule other than the gradient's may promise little far from the optimum: then the gradient's is used from there
        on, and decides. It also stops where no step gains anything, without having converged. While a party is lost,
        the solver has not converged; if it can gain no more without that party, it waits one more timeout for it.
        """
        if not self.model.tables:  # no feature column: only the intercept is learned
            value = self.loss.evaluate()
            report(Round(1, value, value, self.intercept, converged=True))
            return self.intercept, True
        converged, number, last = False, 0, rounds
        while number < last:
            number += 1
            end, near, ended = self._round(tol)
            if self._stale and number < last and self.model.is_whole:
                end, last = self._made_exact(end), last - 1  # parties send as much as in a round
            converged = near and self.model.is_whole
            is_stuck = ended and self.model.is_whole and not converged
            if report(Round(number, end.objective, end.loss, self.intercept, converged, is_stuck)) or converged:
                break
            if ended and (self.model.is_whole or not self.model.all_return()):
                break
        self.model.mean = self._first - self.intercept
        self.model.send_as(self.model.wire)
        return self.intercept, converged

    def _round(self, tol: float) -> tuple[Point, bool, bool]:
        """One step: (the point that it ends at, whether the optimum is near, whether no further step would gain)."""
        model, loss, directions, rule = self.model, self.loss, self._directions, self._rule
        tol = tol if model.is_exact else max(tol, SINGLE_TOL)
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
            self._known, self._slopes = None, False
            self._forget_steps(0)
        errors, centres = np.array([model.rounding, *self._errors]), np.vstack([model.centre, self._centres])
        least = LEAST_GAIN if model.disagreement else 0.0
        plane = Plane(loss, directions, model.l2, products, model.direction_noise(loss), errors)
        begin, end = plane.lowest(self._known, least, slopes=self._slopes)
        self.began = begin.objective if self.began is None else self.began
        mix, shift = end.weights[: -loss.outputs], end.weights[-loss.outputs :]
        error = float(np.abs(mix) @ errors)
        self._drift += error
        metric = self._metric_of(begin.slope, model.l2 * products[:-1, :-1])
        distance = self._distance(begin, end, curvature, metric, tol)
        stuck = not end.weights.any()
        is_last = rule is self._gradient
        small = distance.is_small(tol) if is_last else stuck or distance.is_small(max(tol, HANDOVER))
        near = is_last and (small if model.noise else distance.has_converged(tol))
        too_rough = small and not near and is_last and not model.is_exact
        self._stale = model.noise is None and (too_rough or not distance.is_sound(tol))
        # directions of consensus are nearly parallel
        kept = self._memory if not model.disagreement or _is_exact(error, mix, begin.hessian, model.lou.wire) else 0
        if self._stale or (small and not is_last):
            kept = 0  # X d of these steps is rounded too; nor are steps without gain worth keeping
        kept = min(kept, 1) if changed else kept
        model.advance(mix, kept)
        self._known, self._slopes = (end.loss, True) if end.evaluated else (None, False)
        self.intercept = self.intercept + shift - mix @ centres
        self._before = begin.hessian[-loss.outputs :, -loss.outputs :]
        steady = model.was_steady()
        ended = stuck and is_last and not self._stale and not model.disagreement
        # nearly parallel directions amplify rounding: where it could hide what is left, the gradient goes on
        self._rule = rule = self._gradient if small or self._stale else rule
        loss.rows.each(
            _take_step,
            directions.in_blocks,
            None if end.mixed else mix,
            shift,
            rule.after_step(),
            is_evaluated=end.evaluated,
        )
        directions.keep_step(mix)
        if not kept:
            directions.order.clear()
        steps = np.vstack([mix, np.eye(len(mix))[1:]])
        self._errors, self._centres = [error, *self._errors], np.vstack([mix @ centres, self._centres])
        self._metric = steps @ (metric - model.l2 * products[:-1, :-1]) @ steps.T
        self._forget_steps(kept)
        return end, steady and near, steady and (near or ended)

    def _forget_steps(self, kept: int) -> None:
        """Forget what is known of all but the newest steps."""
        self._errors, self._centres = self._errors[:kept], self._centres[:kept]
        self._metric = self._metric[:kept, :kept]

    def _metric_of(self, slope: Array, penalty: Array) -> Array:
        """Products of the plane's directions by the preconditioner M, since M p = -g for the newest."""
        found = penalty.copy()
        found[1:, 1:] += self._metric
        found[0, :] = found[:, 0] = -slope[: len(found)]
        return found

    def _distance(self, begin: Point, end: Point, curvature: Curvature, metric: Array, tol: float) -> Distance:
        """How far the optimum may be."""
        model, outputs = self.model, self.loss.outputs
        # directions of consensus are no ridge solves yet, and noisy ones never: only what a step gains is known
        rough = model.disagreement > 0 or model.noise is not None
        slope = 0.0 if rough and not end.weights.any() else float(begin.slope[0])
        promised = promised_decrease(slope, begin.hessian, curvature, outputs, model.disagreement)
        scale, promised = max(abs(end.objective), self._zero), promised + model.left
        is_asked = promised <= tol * scale and not rough
        is_bounded = model.l2 > 0 or self.loss.quadratic
        flat = flatness(begin.hessian, metric, outputs, is_bounded=is_bounded) if is_asked else 1.0
        weight = float(np.trace(begin.hessian[-outputs:, -outputs:])) / outputs
        sent = flat * rounding_of(model.lou.wire) ** 2 * abs(end.loss)  # of gradients
        return Distance(promised, flat, weight * self._drift**2 + sent, scale)

    def _made_exact(self, end: Point) -> Point:
        """The same point, its scores computed anew from the parameters; values are of double precision from now on.

        If a party is lost, scores stay as they are: what would stand in for its predictions is not what they contain.
        """
        room = self._directions.new()
        self._directions.order.clear()
        self.model.send_as("float64")
        self.model.predict(self.intercept, room)
        if not self.model.is_whole:
            self.model.send_as(self.model.wire)
            return end
        self.loss.rows.each(_set_scores, room)
        self._drift, self._stale, self._known, self._slopes = 0.0, False, self.loss.evaluate(), False
        return replace(end, loss=self._known, objective=end.objective - end.loss + self._known)


def where_sgd_ended(
    model: LinearModel, loss: JoinedLoss, intercept: Array, rounds: int, tol: float, *, keeps: bool
) -> tuple[bool, bool]:
    """(whether the optimum is here, whether it is near), as full-batch rounds from here find by their own test.

    It is here if they gain no more than they may leave themselves, near if next to nothing. Small steps do not show
    this, nor does a small gradient: along what correlated tables differ in, it still means a long way. The rounds end
    once they have gained more, or a party is lost. With ``keeps``, parameters are then what they were; else the caller
    returns to others that tables have stored.
    """
    if not model.tables:
        return True, True
    model.predict(intercept)
    if keeps:
        model.keep()
    gradient, gained, is_far = GradientRule(loss), 0.0, False
    descent = Descent(model, loss, gradient, gradient, intercept)

    def measure(done: Round) -> bool:
        nonlocal gained, is_far
        assert descent.began is not None, "a round is done"
        gained = descent.began - done.objective
        is_far = gained > max(CLOSE * abs(descent.began), 0.0 if loss.quadratic else NEAR) or not model.is_whole
        return is_far

    least = max(tol, ACCURACY)
    _, is_there = descent.run(rounds, least, measure)
    if keeps:
        model.restore()
    is_near = is_there and not is_far
    return is_near and gained <= least * abs(descent.began or 0.0), is_near


def _is_exact(error: float, mix: Array, hessian: Array, wire: str) -> bool:
    """Whether the rounding error of a step is small: if it is a small difference of large steps, it inherits theirs."""
    length = max(float(mix @ hessian[: len(mix), : len(mix)] @ mix), 0.0) ** 0.5
    return bool(error <= max(DRIFT, 40 * rounding_of(wire)) * length)


def _set_scores(block: Block, column: Column) -> None:
    block[SCORES][:] = block[column]


def _take_step(
    block: Block, directions: InBlocks, mix: Array | None, shift: Array, then: AfterStep | None, *, is_evaluated: bool
) -> None:
    """Add the step and the change of the intercept to the scores; X d of the step is computed if it is not known."""
    if mix is not None:
        directions.mix(block, mix)
    scores = block[SCORES]
    scores += directions.step(block)
    scores += shift
    if then is not None:
        then(block, is_evaluated)


@dataclass(frozen=True)
class GradientRule:
    """The rule of solver="lbfgs": the right-hand side is the gradient of the loss, the curvature its mean curvature.

    Each table applies its own ridge solve to the gradient: a block preconditioner. L-BFGS would choose one point of the
    plane of direction and earlier steps by its two-loop formula. `Descent` minimises over the whole plane instead: this
    needed as many rounds or fewer on every relation tried, and no inner products of gradients need to be sent. For
    squared loss it is the preconditioned conjugate gradient method.
    """

    loss: JoinedLoss

    def begin(self) -> None:
        """Nothing to prepare."""

    def values(self, room: Column, before: Array | None) -> tuple[Column, Curvature]:
        """The gradient of the mean loss by scores, and the mean curvature by pairs of outputs."""
        rows = self.loss.rows
        parts = rows.each(_write_gradient, self.loss.pointwise, room, 1 / rows.joined)
        return room, np.sum(parts, axis=0) / rows.joined

    def right_hand_side(self, sums: Mapping[str, Array]) -> Mapping[str, Array]:
        """The sums of the gradient."""
        return sums

    def after_step(self) -> None:
        """Nothing to update in the blocks."""


def _write_gradient(block: Block, loss: Loss, room: Column, scale: float) -> Array:
    here = evaluation(block, loss)
    np.multiply(here.gradient, scale, out=block[room])
    return here.hessian.on_constants()
