"""Ring buffer of X @ d for the newest direction and the last steps, with cached slopes and Hessian products.

The products X d are as long as the joined rows and live there (mapping/joined_rows.py), in a column of several slots.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tablepuppet.arrays import Array
from tablepuppet.mapping.joined_rows import Block, Column, JoinedRows

DIRECTIONS = "directions"  # a column: (slots, outputs, rows)
PRODUCT_DRIFT = 1e-12  # relative rounding error of products above which they are computed again


class Directions:
    """Which slot holds which direction, with slopes and Hessian products of the mean loss along each."""

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
