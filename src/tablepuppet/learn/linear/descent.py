"""Full-batch descent over a relation, one trip per round, whatever proposes the direction.

Each round every table answers with the direction of its own ridge solve. The coordinator then minimises the objective
exactly over the plane that this direction, the last few steps and the intercept span: it holds their images on the
joined rows, so the search needs no traffic, and the objective falls in every round. What the tables are asked to answer
is the rule of the algorithm: the gradient of the loss (lbfgs.py), or the residual of the sharing problem (admm.py).

    z' = z + sum_k c_k X d_k + b            scores move with the chosen coefficients
    min over c, b of  loss(z') + l2 / 2 |theta + sum_k c_k d_k|^2
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tablepuppet.learn.linear.images import Images
from tablepuppet.learn.linear.model import LinearModel
from tablepuppet.learn.linear.plane import Plane
from tablepuppet.learn.linear.ridge import Curvature
from tablepuppet.learn.loss.losses import Look, Loss
from tablepuppet.learn.rounds import Round
from tablepuppet.pieces import over_pieces

Array = NDArray[np.float64]
DRIFT = 1e-8  # of a step that rounding may have added to its image before all are forgotten
LEAST_GAIN = 1e-13  # of the objective: a step of less is not taken while shards still agree
LEAST_MEMORY, MOST_MEMORY = 5, 200  # earlier steps in the plane
PLANE_SIZE = 32_000_000  # numbers that the images of these steps may take before there are fewer of them


class Rule(Protocol):
    """What an algorithm asks of the tables in each round."""

    def wanted(self, scores: Array, looks: Mapping[int, Look], before: Array | None) -> tuple[Array, Curvature]:
        """(a value per joined row, of which tables are told sums, the curvature of their ridge solve).

        ``looks`` are those at the loss of these scores, by the first row of a piece, where they are known; ``before``
        is the mean curvature, (outputs, outputs), where the last step began.
        """
        ...

    def asked(self, sums: Mapping[str, Array]) -> Mapping[str, Array]:
        """What the base rows of tables shall answer, from what is wanted, summed and centred."""
        ...

    def moved(self, part: slice, now: Array, look: Look | None) -> None:
        """The step is taken: the scores of some joined rows are now these; ``look`` is that at their loss if known."""
        ...


def memory_for(loss: Loss, joined_rows: int) -> int:
    """How many earlier steps to keep: hard relations need fewer rounds with more of them, long ones pay for each."""
    return min(max(PLANE_SIZE // (joined_rows * loss.outputs), LEAST_MEMORY), MOST_MEMORY)


def descend(
    model: LinearModel, loss: Loss, rule: Rule, gradient: Rule, rounds: int, tol: float, report: Callable[[Round], bool]
) -> tuple[Array, bool]:
    """Run to tolerance: (intercept, whether it converged). ``report`` may ask to stop.

    Stops when the decrease that a round promised, the tables' ridge solves taken together, is below ``tol`` times
    the objective. A direction other than that of the ``gradient`` may promise little far from the optimum: from there
    on the gradient's is asked for, and decides. While a party is lost it has not converged; when there is nothing to
    gain without it, the party has one more timeout to come back.
    """
    first = intercept = loss.best_constant()
    shape = (len(model.loj.mapping),) if loss.outputs == 1 else (len(model.loj.mapping), loss.outputs)
    scores = np.zeros(shape, order="F") + intercept
    memory = memory_for(loss, len(scores))
    images = Images.of(memory + 1, loss.outputs, len(scores))  # X s_k
    errors: list[float] = []  # what rounding may have done to each
    looks: Mapping[int, Look] = {}
    before: Array | None = None
    converged = False
    if not model.tables:  # no column to learn from: the intercept is all there is
        value = loss.value(scores)
        report(Round(1, value, value, scores, intercept, converged=True))
        return intercept, True
    for number in range(1, rounds + 1):
        wanted, curvature = rule.wanted(scores, looks, before)
        asked = rule.asked(model.loj.scatter_centred(wanted, model.tables))  # a constant is the intercept's to answer
        _, products = model.direction(asked, curvature, out=images.new())
        changed = model.lost.changed
        if changed:
            images.forget_earlier()
            errors, looks, scores = [], {}, model.lost.corrected(scores, intercept)
        least = LEAST_GAIN if model.unsettled else 0.0
        noise = model.direction_noise(loss, scores)
        begin, end = Plane(loss, scores, images, model.l2, products, noise).lowest(looks, least)
        mix, shift = end.point[: -loss.outputs], end.point[-loss.outputs :]
        errors, sound = _rounding(begin.bend, errors, mix)
        slope = 0.0 if end is begin else float(begin.slope[0])
        gap = promised_decrease(slope, begin.bend, curvature, loss.outputs, model.unsettled)
        small = gap <= tol * max(abs(end.objective), 1e-12)
        kept = memory if sound or not model.unsettled else 0  # directions of consensus are much like each other
        if small and rule is not gradient:
            kept = 0  # nor is it any use to remember steps that gained nothing
        kept = min(kept, 1) if changed else kept
        model.advance(mix, kept)
        looks, intercept, before = end.looks, intercept + shift, begin.bend[-loss.outputs :, -loss.outputs :]
        settled = model.was_steady() and small and rule is gradient
        rule = gradient if small else rule
        _take_step(scores, images, None if end.mixed else mix, shift, looks, rule)
        images.keep_step(mix)
        if not kept:
            images.order.clear()
        del errors[kept:]
        converged = settled and model.is_whole
        if report(Round(number, end.objective, end.loss, scores, intercept, converged)) or converged:
            break
        if settled and not model.all_return():
            break
    model.mean = first - intercept
    return intercept, converged


def _rounding(bend: Array, errors: list[float], mix: Array) -> tuple[list[float], bool]:
    """(bounds of the rounding errors in the images of the new step and earlier ones, whether the new one is small).

    A step that is a small difference of large ones has their errors, and so would every step made from it.
    """
    bend = bend[: len(mix), : len(mix)]
    fresh = np.finfo(np.float64).eps * np.sqrt(np.diag(bend))
    error = float(np.abs(mix) @ (fresh + np.array([0.0, *errors])))
    return [error, *errors], error <= DRIFT * max(float(mix @ bend @ mix), 0.0) ** 0.5


def _take_step(
    scores: Array, images: Images, mix: Array | None, shift: Array, looks: Mapping[int, Look], rule: Rule
) -> None:
    """Move scores by the mixed images and the change of the intercept."""

    def move(part: slice) -> None:
        if mix is not None:
            images.mix(part, mix)
        now = scores[part]
        now += images.step(part)
        now += shift
        rule.moved(part, now, looks.get(part.start))

    over_pieces(move, len(scores), shift.size)


def promised_decrease(slope: float, bend: Array, curvature: Curvature, outputs: int, unsettled: float) -> float:
    """<g, p> / 2 at the true curvature: what the step would gain if the tables did not overlap.

    Where shards agree step by step (consensus.py), p is not yet the ridge solve; ``unsettled`` is what they would gain.
    """
    asked = np.trace(curvature) if isinstance(curvature, np.ndarray) else curvature * outputs
    true = np.trace(bend[-outputs:, -outputs:])
    return (abs(slope) / 2 + unsettled) * float(asked / max(true, 1e-12))
