"""Ring buffer of X d: for the newest direction and the last steps, with cached slopes and Hessian products.

The products X d are as long as the joined rows and live there (operators/joined_rows.py), in a column of several slots.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tablepuppet.operators.joined_rows import Block, Column, JoinedRows

Array = NDArray[np.float64]
DIRECTIONS = "directions"  # a column: (slots, outputs, rows)
PRODUCT_DRIFT = 1e-12  # of products, by rounding, before they are computed anew


class Directions:
    """Which slot holds which direction, and what is known of the mean loss along each."""

    def __init__(self, rows: JoinedRows, most: int):
        """Room for ``most`` directions, and a spare slot for the step that is tried."""
        self.slots = most + 1
        rows.reserve(DIRECTIONS, self.slots, rows.outputs)
        size = self.slots + rows.outputs
        self.order: list[int] = []  # slots in use, that of the newest direction first
        self.spare = 0  # the slot of the step that was tried last
        self.unknown = 1  # how many of the newest have slopes and products that are still to be computed
        self.slopes = np.zeros(self.slots)  # of the mean loss along each, where it was last evaluated
        self.products = np.zeros((size, size))  # by the Hessian of the mean loss; constants are the last
        self.drift = np.zeros(self.slots)  # what rounding may have done to the products of each

    def __len__(self) -> int:
        return len(self.order)

    def new(self) -> Column:
        """Room for a new direction: the oldest is forgotten if all slots are used.

        Slots in use are next to each other, but for those of directions that were forgotten.
        """
        del self.order[self.slots - 2 :]
        slot, self.spare = sorted(set(range(self.slots)) - set(self.order))[:2]
        self.drift[slot] = 0.0
        self.order.insert(0, slot)
        return DIRECTIONS, slot

    def forget_earlier(self) -> None:
        """Keep the newest direction only."""
        del self.order[1:]

    @property
    def all(self) -> slice:
        """The slots in use, and those between them."""
        return slice(max(self.order) + 1)

    @property
    def fresh(self) -> slice:
        """The slots whose slopes and products are unknown: of the newest, and of the last step if need be."""
        slots = self.order[: self.unknown]
        return slice(min(slots), max(slots) + 1, max(max(slots) - min(slots), 1))

    def keep_step(self, weights: Array) -> None:
        """The step, the sum of all by weights, takes the place of the newest direction.

        So does the sum of their slopes and products, unless it is a small difference of large ones.
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
        """Those of some directions with all others and with constants, and of constants."""
        self.products[of, self.all], self.products[self.all, of] = with_directions, with_directions.T
        self.products[of, -len(constants) :], self.products[-len(constants) :, of] = with_constants, with_constants.T
        self.products[-len(constants) :, -len(constants) :] = constants

    def ordered_products(self) -> Array:
        """Products of directions, the newest first, and of constants."""
        places = [*self.order, *range(self.slots, len(self.products))]
        return self.products[np.ix_(places, places)]

    # In a block of the joined rows.

    def at(self, block: Block) -> Array:
        """X d of all directions, in the order of slots: (slots, outputs, rows of the block)."""
        return block.stored(DIRECTIONS)[self.all]

    def mix(self, block: Block, weights: Array) -> None:
        """Let the step be their sum by weights, the newest's first."""
        directions, by_slot = self.at(block), np.zeros(self.all.stop)
        by_slot[self.order] = weights
        for each, mixed in zip(directions.swapaxes(0, 1), block.stored((DIRECTIONS, self.spare)), strict=True):
            np.matmul(by_slot, each, out=mixed)

    def step(self, block: Block) -> Array:
        """The step that was mixed last, in the shape of scores."""
        return block[DIRECTIONS, self.spare]
