"""The lowest point of the objective over a few directions and the intercept, found without traffic.

The coordinator holds what every direction does to the joined rows. Newton's method needs one pass over these images per
step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tablepuppet.learn.losses import Loss
from tablepuppet.learn.pieces import over_pieces

Array = NDArray[np.float64]
NEWTON_STEPS = 12
ENOUGH = 0.01  # of what the first step promised to gain: the next round corrects what is left


@dataclass(frozen=True)
class Place:
    """The objective at one point of the plane: weights of the directions, then changes of the intercept."""

    point: Array
    loss: float
    objective: float  # loss and penalty
    slope: Array
    bend: Array

    @property
    def noise(self) -> float:
        """What rounding does to the objective."""
        return 1e-16 * abs(self.objective)


class Plane:
    """Scores z + sum_k c_k X d_k + b, with the penalty l2 / 2 |theta + sum_k c_k d_k|^2.

    ``products`` are the inner products of all d_k, and of theta as the last.
    """

    def __init__(self, loss: Loss, scores: Array, images: list[Array], l2: float, products: Array):
        self.loss, self.scores, self.images, self.l2 = loss, scores, images, l2
        self.inner, self.linear, self.own = products[:-1, :-1], products[:-1, -1], float(products[-1, -1])

    def lowest(self, least: float = 0.0) -> tuple[Place, Place]:
        """(where the search began, where it ended): the same where no step gains ``least`` of the objective."""
        begin = here = self.at(np.zeros(len(self.images) + self.loss.outputs))
        enough = max(here.noise, least * abs(here.objective))
        for number in range(NEWTON_STEPS):
            step = -_solve(here.bend, here.slope)
            descent = float(here.slope @ step)
            if -descent <= enough:
                break
            if number == 0:
                enough = max(enough, -ENOUGH * descent)
            if self.loss.quadratic:
                here = self._after(here, step)
                break
            length, there = 1.0, self.at(here.point + step)
            # the objective is convex: it is enough that the slope along the step has not turned uphill much
            while float(there.slope @ step) > -0.5 * descent and length > 1e-6:
                length /= 2
                there = self.at(here.point + length * step)
            here = there
        return begin, here

    def at(self, point: Array) -> Place:
        """Value, slope and second derivative at a point, in one pass over the joined rows."""
        count, outputs, rows = len(self.images), self.loss.outputs, len(self.scores)
        value, slope = 0.0, np.zeros(count + outputs)
        bend = np.zeros((count + outputs, count + outputs))
        for part, found in over_pieces(lambda part: self._at(point, part), rows, outputs):
            share = (part.stop - part.start) / rows
            value += share * found[0]
            slope += share * found[1]
            bend += share * found[2]
        weights = point[:count]
        slope[:count] += self.l2 * (self.linear + self.inner @ weights)
        bend[:count, :count] += self.l2 * self.inner
        return Place(point, value, value + self._penalty(weights), slope, bend)

    def _at(self, point: Array, part: slice) -> tuple[float, Array, Array]:
        """(value, slope, second derivative) of the loss of some joined rows."""
        count, outputs = len(self.images), self.loss.outputs
        images = np.stack([_flat(image[part]) for image in self.images])  # (directions, outputs * rows of the part)
        scores = self.scores[part] + point[count:]
        if point[:count].any():
            scores += _columns(point[:count] @ images, outputs)
        look = self.loss.at(part).look(scores)
        turned = np.stack([_flat(look.hessian.times(_columns(image, outputs))) for image in images])
        slope = np.concatenate([images @ _flat(look.gradient), np.atleast_1d(look.gradient.sum(axis=0))])
        mixed = turned.reshape(count, outputs, -1).sum(axis=2)
        return look.value, slope, np.block([[turned @ images.T, mixed], [mixed.T, look.hessian.on_constants()]])

    def _after(self, here: Place, step: Array) -> Place:
        """Where a step leads if the second derivative is the same everywhere: no pass is needed to know."""
        point, slope = here.point + step, here.slope + here.bend @ step
        objective = here.objective + 0.5 * float((here.slope + slope) @ step)
        return Place(point, objective - self._penalty(point[: len(self.images)]), objective, slope, here.bend)

    def _penalty(self, weights: Array) -> float:
        return 0.5 * self.l2 * (self.own + 2 * float(weights @ self.linear) + float(weights @ self.inner @ weights))


def _flat(values: Array) -> Array:
    """(rows,) or (rows, outputs) as one row, output by output."""
    return np.ravel(values.T)


def _columns(flat: Array, outputs: int) -> Array:
    """What `_flat` made flat."""
    return flat if outputs == 1 else flat.reshape(outputs, -1).T


def _solve(matrix: Array, right: Array) -> Array:
    """A symmetric solve that leaves directions without curvature alone; scaled, since steps shrink by rounds."""
    scale = np.sqrt(np.maximum(np.diag(matrix), 1e-300))
    values, vectors = np.linalg.eigh(matrix / np.outer(scale, scale))
    kept = values > 1e-12 * values.max()
    solved = vectors[:, kept] @ ((vectors[:, kept].T @ (right / scale)) / values[kept])
    return np.asarray(solved / scale)
