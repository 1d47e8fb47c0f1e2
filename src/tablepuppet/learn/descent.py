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

Array = NDArray[np.float64]
LEAST_MEMORY, MOST_MEMORY = 3, 30  # earlier steps in the plane
PLANE_SIZE = 2_000_000  # numbers that the images of these steps may take before there are fewer of them
PLANE_STEPS = 12


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
    mix, converged = np.zeros(0), False
    if not model.tables:  # no column to learn from: the intercept is all there is
        value = loss.value(scores)
        report(Round(1, value, value, scores, converged=True))
        return intercept, True
    for number in range(1, rounds + 1):
        wanted, curvature = rule.wanted(scores)
        # the mean is the intercept's to answer, which moves in the plane
        image, products = model.direction(wanted - wanted.mean(axis=0), mix, curvature)
        gap = promised_decrease(loss, scores, image, curvature, model.l2 * float(products[0, -1]))
        directions = [image, *images]
        mix, shift = search_plane(loss, scores, directions, model.l2, products)
        step = np.zeros_like(scores)
        for weight, direction in zip(mix, directions, strict=True):
            step += weight * direction
        scores = scores + step + shift
        intercept = intercept + shift
        images = [step, *images][: model.memory]
        rule.moved(scores)
        inner, linear, own = products[:-1, :-1], products[:-1, -1], products[-1, -1]
        penalty = 0.5 * model.l2 * float(own + 2 * mix @ linear + mix @ inner @ mix)
        value = loss.value(scores)
        converged = gap <= tol * max(abs(value + penalty), 1e-12)
        if report(Round(number, value + penalty, value, scores, converged)) or converged:
            break
    model.finish(mix)
    return intercept, converged


def promised_decrease(loss: Loss, scores: Array, image: Array, curvature: Curvature, penalty_slope: float) -> float:
    """<g, p> / 2 at the true curvature: what the step would gain if the tables did not overlap."""
    slope = float(np.vdot(loss.gradient(scores), image)) + penalty_slope
    mean = np.trace(curvature) / loss.outputs if isinstance(curvature, np.ndarray) else curvature
    return abs(slope) / 2 * float(mean) / max(loss.hessian(scores).mean(), 1e-12)


def search_plane(loss: Loss, scores: Array, directions: list[Array], l2: float, products: Array) -> tuple[Array, Array]:
    """(weights of the directions, change of the intercept) with the least objective: Newton's method, no traffic."""
    count, outputs = len(directions), loss.outputs
    inner, linear = products[:count, :count], products[:count, -1]
    point = np.zeros(count + outputs)
    slope = _slope(loss, scores, directions, l2, inner, linear, point)
    first = np.abs(slope).max()
    for _ in range(PLANE_STEPS):
        step = -_solve(_bend(loss, scores, directions, l2, inner, point), slope)
        descent = float(slope @ step)
        if descent >= 0:
            break
        length = 1.0
        while True:  # the objective is convex: it is enough that the slope along the step has not turned uphill much
            moved = _slope(loss, scores, directions, l2, inner, linear, point + length * step)
            if float(moved @ step) <= -0.5 * descent or length < 1e-6:
                break
            length /= 2
        point, slope = point + length * step, moved
        if np.abs(slope).max() <= 1e-9 * first:
            break
    return point[:count], point[count:]


def _at(scores: Array, directions: list[Array], point: Array) -> Array:
    moved = scores + point[len(directions) :] if scores.ndim > 1 else scores + point[-1]
    for weight, direction in zip(point, directions, strict=False):
        if weight:
            moved += weight * direction
    return moved


def _slope(
    loss: Loss, scores: Array, directions: list[Array], l2: float, inner: Array, linear: Array, point: Array
) -> Array:
    gradient = loss.gradient(_at(scores, directions, point))
    count = len(directions)
    along = [float(np.vdot(gradient, direction)) for direction in directions]
    return np.concatenate([along + l2 * (linear + inner @ point[:count]), np.atleast_1d(gradient.sum(axis=0))])


def _bend(loss: Loss, scores: Array, directions: list[Array], l2: float, inner: Array, point: Array) -> Array:
    hessian = loss.hessian(_at(scores, directions, point))
    count, outputs = len(directions), loss.outputs
    bend = np.zeros((count + outputs, count + outputs))
    bend[count:, count:] = hessian.on_constants()
    for i, direction in enumerate(directions):
        product = hessian.times(direction)
        bend[i, count:] = bend[count:, i] = product.sum(axis=0)
        for j in range(i + 1):
            bend[i, j] = bend[j, i] = float(np.vdot(product, directions[j]))
    bend[:count, :count] += l2 * inner
    return bend


def _solve(matrix: Array, right: Array) -> Array:
    """A symmetric solve that leaves directions without curvature alone; scaled, since steps shrink by rounds."""
    scale = np.sqrt(np.maximum(np.diag(matrix), 1e-300))
    values, vectors = np.linalg.eigh(matrix / np.outer(scale, scale))
    kept = values > 1e-12 * values.max()
    solved = vectors[:, kept] @ ((vectors[:, kept].T @ (right / scale)) / values[kept])
    return np.asarray(solved / scale)
