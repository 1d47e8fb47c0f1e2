"""The lowest point of the objective over a few directions and the intercept, found without traffic.

The coordinator holds what every direction does to the joined rows. Newton's method needs one pass over these images to
know the slope at a point, and a second one for the second derivative if it goes on from there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tablepuppet.pieces import over_pieces

if TYPE_CHECKING:
    from tablepuppet.learn.image_noise import ImageNoise
    from tablepuppet.learn.losses import Look, Loss

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
    bend: Array  # the second derivative; empty if it was not asked for
    looks: Mapping[int, Look]  # at the loss of every piece of the joined rows, by its first row

    @property
    def noise(self) -> float:
        """What rounding does to the objective."""
        return 1e-16 * abs(self.objective)

    def gain(self, bend: Array) -> float:
        """Twice what a step of Newton's method would gain with this second derivative."""
        return float(self.slope @ _solve(bend, self.slope))


@dataclass
class Images:
    """What the newest direction and the steps before it do to the joined rows, in memory that is used again."""

    slots: Array  # (directions, outputs, joined_rows)
    products: Array  # mean products of images and, as the last, of ones; only kept for a loss that weighs rows alike
    order: list[int] = field(default_factory=list)  # slots in use, that of the newest first

    @classmethod
    def of(cls, directions: int, outputs: int, joined_rows: int) -> Images:
        """Room for so many."""
        return cls(np.empty((directions, outputs, joined_rows)), np.eye(directions + 1))

    def __len__(self) -> int:
        return len(self.order)

    def new(self) -> Array:
        """Room for a new direction's image, in the shape of scores: that of the oldest if all is used."""
        slot = len(self.order) if len(self.order) < len(self.slots) else self.order.pop()
        self.order.insert(0, slot)
        return self.newest

    def forget_earlier(self) -> None:
        """Keep the newest direction's image only."""
        self.slots[0], self.order = self.slots[self.order[0]], [0]

    def newest_is_mixed(self, weights: Array, sound: bool) -> None:
        """The newest image has become the sum of all by weights: so have its products, if rounding is ``sound``."""
        if sound:
            mixed = np.zeros(len(self.products))
            mixed[self.order] = weights
            row = mixed @ self.products
            row[self.order[0]] = row @ mixed
            self._set_products(row)
        else:
            found = over_pieces(lambda part: (self.products_of(part),), self.slots.shape[2])
            self._set_products(*means_of(found))

    def products_of(self, part: slice) -> Array:
        """Mean products of the newest with all images and with ones, over some joined rows."""
        found, newest = np.zeros(len(self.products)), self.slots[self.order[0], 0, part]
        found[: len(self.order)], found[-1] = self.at(part)[:, 0] @ newest, newest.sum()
        found /= len(newest)
        return found

    def with_newest(self, row: Array) -> tuple[Array, Array, Array]:
        """Products of pairs of images, of images and ones, and of ones, as the newest's ``row`` completes them."""
        self._set_products(row)
        return self.products[:-1, :-1], self.products[:-1, -1:], self.products[-1:, -1:]

    def _set_products(self, row: Array) -> None:
        slot = self.order[0]
        self.products[slot] = self.products[:, slot] = row

    @property
    def newest(self) -> Array:
        """The newest direction's image, in the shape of scores."""
        image: Array = self.slots[self.order[0]]
        return image[0] if len(image) == 1 else image.T

    def at(self, part: slice) -> Array:
        """All images of some joined rows, in the order of slots: (directions, outputs, rows of the part)."""
        return self.slots[: len(self.order), :, part]

    def mixed(self, part: slice, weights: Array) -> Array:
        """Their sum by weights, the newest's first, in the shape of scores."""
        by_slot = np.empty(len(weights))
        by_slot[self.order] = weights
        outputs = [by_slot @ images for images in self.at(part).swapaxes(0, 1)]
        return outputs[0] if len(outputs) == 1 else np.stack(outputs).T


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
        noise: ImageNoise | None = None,
    ):
        self.loss, self.scores, self.images, self.l2, self.noise = loss, scores, images, l2, noise
        self.inner, self.linear, self.own = products[:-1, :-1], products[:-1, -1], float(products[-1, -1])

    def lowest(self, looks: Mapping[int, Look], least: float = 0.0) -> tuple[Place, Place]:
        """(where the search began, where it ended): the same where no step gains ``least`` of the objective.

        ``looks`` are those of the beginning, or none.
        """
        begin = here = self.at(np.zeros(len(self.images) + self.loss.outputs), looks, bend=True)
        least = max(here.noise, least * abs(here.objective))
        enough = max(least, ENOUGH * here.gain(here.bend))
        for _ in range(NEWTON_STEPS):
            if here.gain(here.bend) <= least:
                break
            step = _noisy_step(here) if self.noise else -_solve(here.bend, here.slope)
            if self.loss.quadratic or self.noise:  # a loss at scores with noise would say that no step is right
                here = self._after(here, step)
                break
            there = self._downhill(here, step)
            if there.gain(here.bend) <= enough:
                here = there
                break
            here = self.at(there.point, there.looks, bend=True)
        return begin, here

    def _downhill(self, here: Place, step: Array) -> Place:
        """Where the step leads, or a part of it. The objective is convex: it is enough that the slope along the step
        has not turned uphill much.
        """
        length, there, allowed = 1.0, self.at(here.point + step), -0.5 * float(here.slope @ step)
        while float(there.slope @ step) > allowed and length > 1e-6:
            length /= 2
            there = self.at(here.point + length * step)
        return there

    def at(self, point: Array, looks: Mapping[int, Look] | None = None, bend: bool = False) -> Place:
        """Value, slope and, if asked, second derivative at a point, in one pass; ``looks`` at the loss if known."""
        weights, order, known = point[: len(self.images)], self.images.order, looks or {}
        found = over_pieces(lambda part: self._at(point, part, known, bend), len(self.scores), self.loss.outputs)
        value, slopes, constants, *form = means_of([(part, means) for part, (_, means) in found])
        slope = np.concatenate([slopes[order] + self.l2 * (self.linear + self.inner @ weights), constants])
        total = np.empty((0, 0))
        if bend:
            pairs, mixed, on_constants = self.images.with_newest(*form) if self.loss.quadratic else form
            pairs = pairs[np.ix_(order, order)] + self.l2 * self.inner
            mixed = mixed[order]
            if self.noise:
                pairs[0, 0] = self.noise.bend(pairs[0, 0], float(np.trace(on_constants)))
                mixed[0] *= self.noise.kept_mean
            total = np.block([[pairs, mixed], [mixed.T, on_constants]])
        seen = {part.start: look for part, (look, _) in found}
        return Place(point, float(value), float(value + self._penalty(weights)), slope, total, seen)

    def _at(self, point: Array, part: slice, known: Mapping[int, Look], bend: bool) -> tuple[Look, tuple[Array, ...]]:
        """The loss of some joined rows, and its value, slopes and second derivatives, in the order of slots."""
        images = self.images.at(part)
        look = known.get(part.start) or self.loss.at(part).look(self._scores(point, part))
        gradients = look.gradient.reshape(part.stop - part.start, -1).T  # (outputs, rows of the part)
        slopes = sum(image @ gradient for image, gradient in zip(images.swapaxes(0, 1), gradients, strict=True))
        form: tuple[Array, ...] = ()
        if bend and self.loss.quadratic:  # earlier images have the products that they had
            form = (self.images.products_of(part),)
        elif bend:
            form = (*look.hessian.form(images), look.hessian.on_constants())
        return look, (np.asarray(look.value), slopes, gradients.sum(axis=1), *form)

    def _scores(self, point: Array, part: slice) -> Array:
        if not point.any():
            return self.scores[part]
        scores = self.images.mixed(part, point[: len(self.images)])
        scores += self.scores[part]
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


def means_of(found: Sequence[tuple[slice, tuple[Array, ...]]]) -> list[Array]:
    """Over all joined rows, from those over pieces."""
    sizes = np.array([part.stop - part.start for part, _ in found])
    return [np.tensordot(sizes / sizes.sum(), np.stack(each), 1) for each in zip(*(m for _, m in found), strict=True)]


def _solve(matrix: Array, right: Array) -> Array:
    """A symmetric solve that leaves directions without curvature alone; scaled, since steps shrink by rounds."""
    scale = np.sqrt(np.maximum(np.diag(matrix), 1e-300))
    values, vectors = np.linalg.eigh(matrix / np.outer(scale, scale))
    kept = values > 1e-12 * values.max()
    solved = vectors[:, kept] @ ((vectors[:, kept].T @ (right / scale)) / values[kept])
    return np.asarray(solved / scale)
