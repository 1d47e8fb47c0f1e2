"""Minimises the objective over a few directions and the intercept, without traffic.

X d of the newest direction and of the last steps is stored with the joined rows (mapping/joined_rows.py), in a column
of several slots, used as a ring. Newton's method needs one pass over them for the slope at a
point, and a second pass for the Hessian if it continues from there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tablepuppet.arrays import Array
from tablepuppet.learn.loss.joined_loss import JoinedLoss, evaluate_at, evaluation
from tablepuppet.learn.loss.losses import Loss
from tablepuppet.learn.noise.plan import DirectionNoise
from tablepuppet.mapping.joined_rows import SCORES, Block, Column, JoinedRows

DIRECTIONS = "directions"  # a column: (slots, outputs, rows)
PRODUCT_DRIFT = 1e-12  # relative rounding error of products above which they are computed again


class Directions:
    """Which slot holds which direction, newest first, with cached slopes and Hessian products of the mean loss."""

    def __init__(self, rows: JoinedRows, most: int):
        """Reserve slots for ``most`` directions, and a spare one for the trial step."""
        self.slots = most + 1
        rows.reserve(DIRECTIONS, self.slots, rows.outputs)
        size = self.slots + rows.outputs
        self.order: list[int] = []  # slots in use, that of the newest direction first
        self.spare = 0  # the slot of the last trial step
        self.unknown = 1  # how many of the newest directions still need slopes and products
        self.slopes = np.zeros(self.slots)  # of the mean loss along each direction, at its last evaluation
        self.products = np.zeros((size, size))  # by the Hessian of the mean loss; constants are the last
        self.drift = np.zeros(self.slots)  # bounds of the rounding errors in the products of each

    def __len__(self) -> int:
        return len(self.order)

    def new(self) -> Column:
        """The slot for a new direction; it replaces the oldest if all slots are used.

        Slots in use are contiguous, except for those of dropped directions.
        """
        del self.order[self.slots - 2 :]
        slot, self.spare = sorted(set(range(self.slots)) - set(self.order))[:2]
        self.drift[slot] = 0.0
        self.order.insert(0, slot)
        return DIRECTIONS, slot

    def forget_earlier(self) -> None:
        """Drop all directions except the newest."""
        del self.order[1:]

    @property
    def all(self) -> slice:
        """The slots in use, and those between them."""
        return slice(max(self.order) + 1)

    @property
    def in_blocks(self) -> InBlocks:
        """What a function of a block needs of them now."""
        return InBlocks(tuple(self.order), self.spare)

    @property
    def fresh(self) -> slice:
        """The slots whose slopes and products are unknown: the newest direction's, and perhaps the last step's."""
        slots = self.order[: self.unknown]
        return slice(min(slots), max(slots) + 1, max(max(slots) - min(slots), 1))

    def keep_step(self, weights: Array) -> None:
        """Replace the newest direction by the step, the weighted sum of all directions.

        Its slopes and products are the same weighted sums, unless these are small differences of large numbers.
        """
        row, self.slopes[self.spare] = weights @ self.products[self.order], weights @ self.slopes[self.order]
        row[self.spare] = weights @ row[self.order]
        self.products[self.spare] = self.products[:, self.spare] = row
        lengths = np.sqrt(np.maximum(np.diag(self.products), 0.0))
        worse = min(float(np.abs(weights) @ lengths[self.order]) / max(lengths[self.spare], 1e-300), 1e100)
        drift = worse * (worse * np.finfo(np.float64).eps + self.drift[self.order].max())
        self.order[0], self.unknown = self.spare, 1 if drift <= PRODUCT_DRIFT else 2
        self.drift[self.spare] = drift if drift <= PRODUCT_DRIFT else 0.0

    def set_products(self, of: slice, with_directions: Array, with_constants: Array, constants: Array) -> None:
        """Set the Hessian products of some directions with all others and with constants, and of constants."""
        self.products[of, self.all], self.products[self.all, of] = with_directions, with_directions.T
        self.products[of, -len(constants) :], self.products[-len(constants) :, of] = with_constants, with_constants.T
        self.products[-len(constants) :, -len(constants) :] = constants

    def ordered_products(self) -> Array:
        """Hessian products of all directions, newest first, then of constants."""
        places = [*self.order, *range(self.slots, len(self.products))]
        return self.products[np.ix_(places, places)]


@dataclass(frozen=True)
class InBlocks:
    """Where X d of the directions is in a block of the joined rows: their slots, newest first, and the spare one."""

    order: tuple[int, ...]
    spare: int

    def __len__(self) -> int:
        return len(self.order)

    def at(self, block: Block) -> Array:
        """X d of all directions, in the order of slots: (slots, outputs, rows of the block)."""
        return block.stored[DIRECTIONS][: max(self.order) + 1]

    def mix(self, block: Block, weights: Array) -> None:
        """Write X d of the step, the weighted sum of all directions (newest first), into the spare slot."""
        directions, by_slot = self.at(block), np.zeros(max(self.order) + 1)
        by_slot[list(self.order)] = weights
        for each, mixed in zip(directions.swapaxes(0, 1), block.stored[DIRECTIONS, self.spare], strict=True):
            np.matmul(by_slot, each, out=mixed)

    def step(self, block: Block) -> Array:
        """X d of the last trial step, in the shape of scores."""
        return block[DIRECTIONS, self.spare]


NOTHING = 1e-60  # curvature of a direction that is ignored, as a share of the largest
NEWTON_STEPS = 12
FEWEST_BLOCKS = 16  # of joined rows from which the Hessian is estimated
LEAST = 1e-30  # share of the objective that a step gains at least: slopes are known to about the root of it
RISE = 1e-12  # rounding error of the objective; losses of joined rows start near 1
ENOUGH = 0.01  # share of the first step's expected gain: the next round corrects what is left


@dataclass(frozen=True)
class Point:
    """The objective at one point of the plane: weights of the directions, then changes of the intercept."""

    weights: Array
    loss: float
    objective: float  # loss and penalty
    slope: Array
    hessian: Array  # empty if it was not asked for
    evaluated: bool  # whether the evaluation of the loss at this point is stored with the rows
    mixed: bool = False  # whether the spare slot of the directions holds the step to this point

    def gain(self, hessian: Array) -> float:
        """Twice the expected gain of a Newton step with this Hessian."""
        return float(self.slope @ _solve(hessian, self.slope))


@dataclass(frozen=True)
class HessianPairs:
    """Which Hessian products to compute: those of some slots with all others, from one in ``every`` blocks."""

    of: slice
    every: int = 1


class Plane:
    """Scores z + sum_k c_k X d_k + b, with the penalty l2 / 2 |theta + sum_k c_k d_k|^2.

    z are the scores, d_k the directions, c_k their coefficients, b the change of the intercept. ``products`` are the
    inner products of all d_k and, as the last, theta. ``noise`` is the noise in X d of the newest direction,
    ``rounding`` are the root mean squares of rounding errors in X d_k.
    """

    def __init__(
        self,
        loss: JoinedLoss,
        directions: Directions,
        l2: float,
        products: Array,
        noise: DirectionNoise | None = None,
        rounding: Array | None = None,
    ):
        self.loss, self.rows, self.directions, self.noise = loss, loss.rows, directions, noise
        self.inner, self.linear, self.own = (
            l2 * products[:-1, :-1],
            l2 * products[:-1, -1],
            l2 * float(products[-1, -1]),
        )
        if rounding is not None:  # it moves no true score: what it adds to the loss is a penalty of coefficients
            self.inner = self.inner + np.diag(loss.most_curvature * rounding**2)
        loss.reserve()

    def lowest(self, known: float | None = None, least: float = 0.0, *, slopes: bool = False) -> tuple[Point, Point]:
        """(start point, end point); both are the same if no step gains at least ``least`` times the objective.

        ``known`` is the mean loss at the scores if its evaluation is stored; with ``slopes``, the slopes along earlier
        steps are known too. If there are many rows, the Hessian is first estimated from some of them, and computed from
        all rows only if the first step did not gain enough.
        """
        directions = self.directions
        along = directions.fresh if slopes else directions.all
        pairs = self._first_pairs()
        begin = here = self.at(np.zeros(len(directions) + self.loss.outputs), known, along, pairs)
        whole = pairs.every == 1
        least = max(least, LEAST) * abs(here.objective)
        if not whole and here.gain(here.hessian) <= least:
            begin = here = self._with_hessian(here)
            whole = True
        enough = max(least, ENOUGH * here.gain(here.hessian))
        for _ in range(NEWTON_STEPS):
            if here.gain(here.hessian) <= least:
                break
            step = _noisy_step(here) if self.noise else -_solve(here.hessian, here.slope)
            if self.loss.quadratic or self.noise:  # at noisy scores, the loss would reject every step
                here = self._after(here, step)
                break
            there = self._downhill(here, step)
            if there.gain(here.hessian) <= enough or (whole and np.array_equal(there.weights, here.weights)):
                here = there
                break
            here, whole = self._with_hessian(there), True
        return begin, here

    def _first_pairs(self) -> HessianPairs:
        if self.loss.quadratic:  # earlier directions keep the products that they have
            return HessianPairs(self.directions.fresh)
        return HessianPairs(self.directions.all, max(1, self.rows.blocks // FEWEST_BLOCKS))

    def _with_hessian(self, here: Point) -> Point:
        """The same point with the Hessian from all rows; the loss must have been evaluated last at this point."""
        return replace(here, hessian=self._hessian(HessianPairs(self.directions.all)))

    def _downhill(self, here: Point, step: Array) -> Point:
        """The point after the step or a fraction of it (line search); the start point if no fraction is acceptable.

        The objective must not rise, and the slope along the step must not become clearly positive.
        """
        length, there, allowed = 1.0, self.at(here.weights + step), -0.5 * float(here.slope @ step)
        highest = here.objective + RISE * max(1.0, abs(here.objective))
        while not (float(there.slope @ step) <= allowed and there.objective <= highest):  # nor is it NaN
            if length < 1e-6:
                return self.at(here.weights)
            length /= 2
            there = self.at(here.weights + length * step)
        return there

    def at(
        self, weights: Array, known: float | None = None, along: slice | None = None, pairs: HessianPairs | None = None
    ) -> Point:
        """Value and slope at a point in one pass; ``known`` is the mean loss there if its evaluation is stored.

        ``along`` are the directions whose slopes are unknown, by default all.
        """
        directions, along = self.directions, self.directions.all if along is None else along
        count, joined_rows = len(directions), self.rows.joined
        found = self.rows.each(
            _slopes, self.loss.pointwise, directions.in_blocks, weights, along, is_known=known is not None
        )
        values, slopes, constants = (sum(each) / joined_rows for each in zip(*found, strict=True))
        value = float(values) if known is None else known
        directions.slopes[along] = slopes
        penalty_slope = self.linear + self.inner @ weights[:count]
        slope = np.concatenate([directions.slopes[directions.order] + penalty_slope, constants])
        hessian = np.empty((0, 0)) if pairs is None else self._hessian(pairs)
        return Point(weights, value, value + self._penalty(weights[:count]), slope, hessian, True, bool(weights.any()))

    def _hessian(self, pairs: HessianPairs) -> Array:
        """The Hessian of the objective at the last evaluation of the loss."""
        found = self.rows.some(pairs.every, _hessian_products, self.loss.pointwise, self.directions.in_blocks, pairs.of)
        joined_rows = sum(count for count, *_ in found)
        self.directions.set_products(
            pairs.of, *(sum(each) / joined_rows for each in list(zip(*found, strict=True))[1:])
        )
        total, count = self.directions.ordered_products(), len(self.directions)
        total[:count, :count] += self.inner
        if self.noise:
            total[0, 0] = self.noise.curvature(total[0, 0], float(np.trace(total[count:, count:])))
            total[0, count:] *= self.noise.kept_mean
            total[count:, 0] *= self.noise.kept_mean
        return total

    def _after(self, here: Point, step: Array) -> Point:
        """The point after a step if the Hessian is constant: no pass over the rows is needed."""
        weights, slope = here.weights + step, here.slope + here.hessian @ step
        objective = here.objective + 0.5 * float((here.slope + slope) @ step)
        loss = objective - self._penalty(weights[: len(self.directions)])
        return Point(weights, loss, objective, slope, here.hessian, evaluated=False)

    def _penalty(self, weights: Array) -> float:
        return 0.5 * (self.own + 2 * float(weights @ self.linear) + float(weights @ self.inner @ weights))


# What is computed in a block of the joined rows.


def _slopes(
    block: Block, loss: Loss, directions: InBlocks, weights: Array, along: slice, *, is_known: bool
) -> tuple[float, Array, Array]:
    """The loss, and its slopes along some directions and along constants."""
    here = evaluation(block, loss) if is_known else evaluate_at(block, loss, _scores(block, directions, weights))
    gradients = here.gradient.reshape(block.rows, -1).T  # (outputs, rows of the block)
    value = 0.0 if is_known else here.value
    return value, _products(directions.at(block)[along], gradients), gradients.sum(axis=1)


def _scores(block: Block, directions: InBlocks, weights: Array) -> Array:
    """Scores at a point of the plane."""
    if not weights.any():
        return block[SCORES]
    directions.mix(block, weights[: len(directions)])
    scores: Array = directions.step(block) + block[SCORES]
    scores += weights[len(directions) :]
    return scores


def _hessian_products(block: Block, loss: Loss, directions: InBlocks, of: slice) -> tuple[float, Array, Array, Array]:
    """(joined rows, Hessian products of some directions with all and with constants, and of constants)."""
    hessian, all_directions = evaluation(block, loss).hessian, directions.at(block)
    turned = hessian.times(all_directions[of])
    pairs = sum(np.dot(a, b.T) for a, b in zip(turned.swapaxes(0, 1), all_directions.swapaxes(0, 1), strict=True))
    return block.joined, np.asarray(pairs), turned.sum(axis=2), hessian.on_constants()


def _products(directions: Array, values: Array) -> Array:
    """Products of each X d with values, (outputs, rows). Unlike @, dot releases the GIL."""
    found: Array = sum(np.dot(each, value) for each, value in zip(directions.swapaxes(0, 1), values, strict=True))
    return found


# Steps.


def _noisy_step(here: Point) -> Array:
    """The best step whose coefficient of the newest direction is between 0 and 1.

    A negative coefficient, or one above the tables' own solves, could only come from noise. The other coefficients and
    the intercept are optimal for that coefficient.
    """
    share = float(np.clip(-_solve(here.hessian, here.slope)[0], 0.0, 1.0))
    rest = -_solve(here.hessian[1:, 1:], here.slope[1:] + share * here.hessian[1:, 0])
    return np.concatenate([[share], rest])


def _solve(matrix: Array, right: Array) -> Array:
    """A symmetric solve that ignores directions without curvature; scaled, since steps get smaller with every round.

    A step that is next to nothing, as the last of a descent that goes on with another penalty, gets no coefficient.
    """
    lengths = np.maximum(np.diag(matrix), 1e-300)
    scale = np.where(lengths > NOTHING * lengths.max(), np.sqrt(lengths), np.inf)
    values, vectors = np.linalg.eigh(matrix / np.outer(scale, scale))
    kept = values > 1e-12 * values.max()
    solved = vectors[:, kept] @ ((vectors[:, kept].T @ (right / scale)) / values[kept])
    return np.asarray(solved / scale)
