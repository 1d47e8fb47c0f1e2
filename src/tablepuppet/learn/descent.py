"""Full-batch descent over a relation, one trip per round, whatever proposes the direction.

Each round every table answers with the direction of its own ridge solve. The coordinator then minimises the objective
exactly over the plane that this direction, the last few steps and the intercept span: it holds their images on the
joined rows, so the search needs no traffic, and the objective falls in every round. What the tables are asked to answer
is the rule of the algorithm: the gradient of the loss (lbfgs.py), or the residual of the sharing problem (admm.py).

    z' = z + sum_k c_k X d_k + b            scores move with the chosen coefficients
    min over c, b of  loss(z') + l2 / 2 |theta + sum_k c_k d_k|^2
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tablepuppet.learn.linear import Curvature, LinearModel
from tablepuppet.learn.losses import Loss
from tablepuppet.learn.pieces import change_pieces
from tablepuppet.learn.plane import Place, Plane

Array = NDArray[np.float64]
LEAST_MEMORY, MOST_MEMORY = 3, 30  # earlier steps in the plane
PLANE_SIZE = 2_000_000  # numbers that the images of these steps may take before there are fewer of them


class Rule(Protocol):
    """What an algorithm asks of the tables in each round."""

    def wanted(self, scores: Array) -> tuple[Array, Curvature]:
        """(a value per joined row that tables shall answer, the curvature of their ridge solve)."""
        ...

    def moved(self, scores: Array) -> None:
        """The step is taken: scores are now these."""
        ...


@dataclass(frozen=True)
class Round:
    """What one round of a solver ends with."""

    number: int
    objective: float  # loss and penalty
    loss: float
    scores: Array
    intercept: Array
    converged: bool


def memory_for(loss: Loss, joined_rows: int) -> int:
    """How many earlier steps to keep: hard relations need fewer rounds with more of them, long ones pay for each."""
    return min(max(PLANE_SIZE // (joined_rows * loss.outputs), LEAST_MEMORY), MOST_MEMORY)


def descend(
    model: LinearModel, loss: Loss, rule: Rule, rounds: int, tol: float, report: Callable[[Round], bool]
) -> tuple[Array, bool]:
    """Run to tolerance: (intercept, whether it converged). ``report`` may ask to stop.

    Stops when the decrease that a round promised, the tables' ridge solves taken together, is below ``tol`` times
    the objective.
    """
    intercept = loss.best_constant()
    shape = (len(model.loj.mapping),) if loss.outputs == 1 else (len(model.loj.mapping), loss.outputs)
    scores = np.zeros(shape, order="F") + intercept
    images: list[Array] = []  # X s_k, the newest step first
    spare: Array | None = None  # memory of an image that is no longer needed
    converged = False
    if not model.tables:  # no column to learn from: the intercept is all there is
        value = loss.value(scores)
        report(Round(1, value, value, scores, intercept, converged=True))
        return intercept, True
    for number in range(1, rounds + 1):
        wanted, curvature = rule.wanted(scores)
        image, products = model.direction(wanted, curvature, out=spare)
        begin, end = Plane(loss, scores, [image, *images], model.l2, products).lowest()
        mix, shift = end.point[: -loss.outputs], end.point[-loss.outputs :]
        model.advance(mix)
        _take_step(scores, [image, *images], mix, shift)
        intercept = intercept + shift
        images = [image, *images]
        spare = images.pop() if len(images) > model.memory else None
        gap = promised_decrease(begin, curvature, loss.outputs)
        converged = gap <= tol * max(abs(end.objective), 1e-12)
        if report(Round(number, end.objective, end.loss, scores, intercept, converged)) or converged:
            break
        rule.moved(scores)
    return intercept, converged


def _take_step(scores: Array, images: list[Array], mix: Array, shift: Array) -> None:
    """Move scores by the weighted images and the change of the intercept; the first image becomes that of the step."""

    def move(part: slice) -> None:
        step = images[0][part]
        step *= mix[0]
        for weight, image in zip(mix[1:], images[1:], strict=True):
            step += weight * image[part]
        scores[part] += step
        scores[part] += shift

    change_pieces(move, len(scores), shift.size)


def promised_decrease(begin: Place, curvature: Curvature, outputs: int) -> float:
    """<g, p> / 2 at the true curvature: what the step would gain if the tables did not overlap."""
    asked = np.trace(curvature) if isinstance(curvature, np.ndarray) else curvature * outputs
    true = np.trace(begin.bend[-outputs:, -outputs:])
    return abs(float(begin.slope[0])) / 2 * float(asked / max(true, 1e-12))
