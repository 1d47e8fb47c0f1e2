"""The lowest point of the objective over a few directions and the intercept, found without traffic.

The coordinator holds what every direction does to the joined rows. Newton's method needs one pass over these images to
know the slope at a point, and a second one for the second derivative if it goes on from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tablepuppet.learn.linear.images import Images
from tablepuppet.learn.loss.losses import Hessian, Look, Loss
from tablepuppet.learn.noise.predictions import DirectionNoise
from tablepuppet.pieces import on_all_cores, over_pieces, pieces

Array = NDArray[np.float64]
NEWTON_STEPS = 12
NONE = slice(0)
FEWEST_PIECES = 16  # of the joined rows that tell how the loss bends
RISE = 1e-12  # what rounding may add to the objective: losses of joined rows begin near 1, however small they end
ENOUGH = 0.01  # of what the first step promised to gain: the next round corrects what is left


@dataclass(frozen=True)
class Place:
    """The objective at one point of the plane: weights of the directions, then changes of the intercept."""

    point: Array
    loss: float
    objective: float  # loss and penalty
    slope: Array
    bend: Array  # the second derivative; empty if it was not asked for
    looks: Mapping[int, Look]  # at the loss of every piece of the joined rows, by its first row
    mixed: bool = False  # whether the images' step is the one to here

    @property
    def noise(self) -> float:
        """What rounding does to the objective."""
        return 1e-16 * abs(self.objective)

    def gain(self, bend: Array) -> float:
        """Twice what a step of Newton's method would gain with this second derivative."""
        return float(self.slope @ _solve(bend, self.slope))


@dataclass(frozen=True)
class Bend:
    """Which products of images are to be found: those of some slots with all others, from every so many pieces."""

    of: slice
    every: int = 1


class Plane:
    """Scores z + sum_k c_k X d_k + b, with the penalty l2 / 2 |theta + sum_k c_k d_k|^2.

    ``products`` are the inner products of all d_k, and of theta as the last. ``noise`` is that in the newest image.
    """

    def __init__(
        self,
        loss: Loss,
        scores: Array,
        images: Images,
        l2: float,
        products: Array,
        noise: DirectionNoise | None = None,
    ):
        self.loss, self.scores, self.images, self.l2, self.noise = loss, scores, images, l2, noise
        self.inner, self.linear, self.own = products[:-1, :-1], products[:-1, -1], float(products[-1, -1])

    def lowest(self, looks: Mapping[int, Look], least: float = 0.0) -> tuple[Place, Place]:
        """(where the search began, where it ended): the same where no step gains ``least`` of the objective.

        ``looks`` are those that the search before ended with, or none. How the loss bends at first is found from some
        of the rows if there are many, and from all if the first step did not lead far enough.
        """
        images = self.images
        along = images.fresh if looks else images.all
        bend = self._first_bend()
        begin = here = self.at(np.zeros(len(images) + self.loss.outputs), looks, along, bend)
        whole = bend.every == 1
        least = max(here.noise, least * abs(here.objective))
        if not whole and here.gain(here.bend) <= least:
            begin = here = self.at(here.point, here.looks, NONE, Bend(images.all))
            whole = True
        enough = max(least, ENOUGH * here.gain(here.bend))
        for _ in range(NEWTON_STEPS):
            if here.gain(here.bend) <= least:
                break
            step = _noisy_step(here) if self.noise else -_solve(here.bend, here.slope)
            if self.loss.quadratic or self.noise:  # a loss at scores with noise would say that no step is right
                here = self._after(here, step)
                break
            there = self._downhill(here, step)
            if there.gain(here.bend) <= enough or (whole and np.array_equal(there.point, here.point)):
                here = there
                break
            here, whole = self.at(there.point, there.looks, NONE, Bend(images.all)), True
        return begin, here

    def _first_bend(self) -> Bend:
        if self.loss.quadratic:  # earlier images keep the products that they have
            return Bend(self.images.fresh)
        return Bend(self.images.all, max(1, len(pieces(len(self.scores), self.loss.outputs)) // FEWEST_PIECES))

    def _downhill(self, here: Place, step: Array) -> Place:
        """Where the step leads, or a part of it: the objective must not rise, nor the slope along the step have turned
        uphill much. If no part will do, where it began.
        """
        length, there, allowed = 1.0, self.at(here.point + step), -0.5 * float(here.slope @ step)
        highest = here.objective + RISE * max(1.0, abs(here.objective))
        while not (float(there.slope @ step) <= allowed and there.objective <= highest):  # nor is it NaN
            if length < 1e-6:
                return self.at(here.point)
            length /= 2
            there = self.at(here.point + length * step)
        return there

    def at(
        self,
        point: Array,
        looks: Mapping[int, Look] | None = None,
        along: slice | None = None,
        bend: Bend | None = None,
    ) -> Place:
        """Value and slope at a point in one pass, with ``looks`` at the loss if known.

        ``along`` are the images whose slopes are not known yet, all by default.
        """
        images, weights, along = self.images, point[: len(self.images)], self.images.all if along is None else along
        found = over_pieces(partial(self._at, point, looks or {}, along), len(self.scores), self.loss.outputs)
        seen = {part.start: look for part, (look, *_) in found}
        value = sum(look.value for look in seen.values()) / len(self.scores)
        images.slopes[along] = sum(slopes for _, (_, slopes, _) in found) / len(self.scores)
        constants = sum(constants for _, (*_, constants) in found) / len(self.scores)
        slope = np.concatenate(
            [images.slopes[images.order] + self.l2 * (self.linear + self.inner @ weights), constants]
        )
        bent = np.empty((0, 0)) if bend is None else self._bend(bend, seen)
        return Place(point, value, value + self._penalty(weights), slope, bent, seen, bool(point.any()))

    def _at(self, point: Array, known: Mapping[int, Look], along: slice, part: slice) -> tuple[Look, Array, Array]:
        """The look at some joined rows, with its slopes along images and constants."""
        look = known.get(part.start) or self.loss.at(part).look(self._scores(point, part))
        gradients = look.gradient.reshape(part.stop - part.start, -1).T  # (outputs, rows of the part)
        return look, _products(self.images.at(part)[along], gradients), gradients.sum(axis=1)

    def _bend(self, bend: Bend, looks: Mapping[int, Look]) -> Array:
        """The second derivative of the objective."""
        parts = pieces(len(self.scores), self.loss.outputs)[:: bend.every]
        found = on_all_cores(lambda part: self._form(part, bend.of, looks[part.start].hessian), parts)
        rows = sum(part.stop - part.start for part in parts)
        self.images.set_products(bend.of, *(sum(each) / rows for each in zip(*found, strict=True)))
        total, directions = self.images.ordered_products(), len(self.images)
        total[:directions, :directions] += self.l2 * self.inner
        if self.noise:
            total[0, 0] = self.noise.bend(total[0, 0], float(np.trace(total[directions:, directions:])))
            total[0, directions:] *= self.noise.kept_mean
            total[directions:, 0] *= self.noise.kept_mean
        return total

    def _form(self, part: slice, of: slice, hessian: Hessian) -> tuple[Array, Array, Array]:
        """The second derivative over some joined rows: of some images with all and with constants, and of constants."""
        images = self.images.at(part)
        turned = hessian.times(images[of])
        pairs = sum(np.dot(a, b.T) for a, b in zip(turned.swapaxes(0, 1), images.swapaxes(0, 1), strict=True))
        return np.asarray(pairs), turned.sum(axis=2), hessian.on_constants()

    def _scores(self, point: Array, part: slice) -> Array:
        if not point.any():
            return self.scores[part]
        self.images.mix(part, point[: len(self.images)])
        scores = self.images.step(part) + self.scores[part]
        scores += point[len(self.images) :]
        return scores

    def _after(self, here: Place, step: Array) -> Place:
        """Where a step leads if the second derivative is the same everywhere: no pass is needed to know."""
        point, slope = here.point + step, here.slope + here.bend @ step
        objective = here.objective + 0.5 * float((here.slope + slope) @ step)
        return Place(point, objective - self._penalty(point[: len(self.images)]), objective, slope, here.bend, {})

    def _penalty(self, weights: Array) -> float:
        return 0.5 * self.l2 * (self.own + 2 * float(weights @ self.linear) + float(weights @ self.inner @ weights))


def _noisy_step(here: Place) -> Array:
    """The best step with a share of the newest direction between 0 and 1: back, or beyond the tables' own solves, only
    noise would lead. All else, the intercept above all, follows that share.
    """
    share = float(np.clip(-_solve(here.bend, here.slope)[0], 0.0, 1.0))
    rest = -_solve(here.bend[1:, 1:], here.slope[1:] + share * here.bend[1:, 0])
    return np.concatenate([[share], rest])


def _products(images: Array, values: Array) -> Array:
    """Of each image with values, (outputs, rows). Unlike @, dot lets other threads work meanwhile."""
    found: Array = sum(np.dot(image, value) for image, value in zip(images.swapaxes(0, 1), values, strict=True))
    return found


def _solve(matrix: Array, right: Array) -> Array:
    """A symmetric solve that leaves directions without curvature alone; scaled, since steps shrink by rounds."""
    scale = np.sqrt(np.maximum(np.diag(matrix), 1e-300))
    values, vectors = np.linalg.eigh(matrix / np.outer(scale, scale))
    kept = values > 1e-12 * values.max()
    solved = vectors[:, kept] @ ((vectors[:, kept].T @ (right / scale)) / values[kept])
    return np.asarray(solved / scale)
