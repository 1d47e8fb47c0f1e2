"""What directions do to the joined rows, with what is known of the loss along them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
PRODUCT_DRIFT = 1e-12  # of products, by rounding, before they are found anew


@dataclass
class Images:
    """What the newest direction and the steps before it do to the joined rows, in memory that is used again."""

    slots: Array  # (directions and a spare one, outputs, joined_rows)
    drift: Array  # what rounding may have done to the products of each
    slopes: Array  # of the mean loss along each, where it was looked at last
    products: Array  # by the second derivative of the mean loss: of slots, and of constants as the last
    order: list[int] = field(default_factory=list)  # slots in use, that of the newest first
    spare: int = 0  # the slot of the step that was tried last
    unknown: int = 1  # how many of the newest have slopes and products that are still to be found

    @classmethod
    def of(cls, directions: int, outputs: int, joined_rows: int) -> Images:
        """Room for so many."""
        slots, size = np.empty((directions + 1, outputs, joined_rows)), directions + 1 + outputs
        return cls(slots, np.zeros(directions + 1), np.zeros(directions + 1), np.zeros((size, size)))

    def __len__(self) -> int:
        return len(self.order)

    def new(self) -> Array:
        """Room for a new direction's image, in the shape of scores: the oldest is forgotten if all is used.

        Slots in use are next to each other, but for those of images that were forgotten.
        """
        del self.order[len(self.slots) - 2 :]
        slot, self.spare = sorted(set(range(len(self.slots))) - set(self.order))[:2]
        self.drift[slot] = 0.0
        self.order.insert(0, slot)
        return self._shaped(slice(None), slot)

    def forget_earlier(self) -> None:
        """Keep the newest direction's image only."""
        del self.order[1:]

    @property
    def all(self) -> slice:
        """The slots in use, and those between them."""
        return slice(max(self.order) + 1)

    @property
    def fresh(self) -> slice:
        """The slots whose slopes and products are to be found: of the newest, and of the last step if need be."""
        slots = self.order[: self.unknown]
        return slice(min(slots), max(slots) + 1, max(max(slots) - min(slots), 1))

    def keep_step(self, weights: Array) -> None:
        """The step, the sum of all by weights, takes the place of the newest.

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

    def set_products(self, of: slice, with_images: Array, with_constants: Array, constants: Array) -> None:
        """Those of some images with all others and with constants, and of constants."""
        self.products[of, self.all], self.products[self.all, of] = with_images, with_images.T
        self.products[of, -len(constants) :], self.products[-len(constants) :, of] = with_constants, with_constants.T
        self.products[-len(constants) :, -len(constants) :] = constants

    def ordered_products(self) -> Array:
        """Products of images, the newest first, and of constants."""
        places = [*self.order, *range(len(self.slots), len(self.products))]
        return self.products[np.ix_(places, places)]

    def at(self, part: slice) -> Array:
        """All images of some joined rows, in the order of slots: (slots, outputs, rows of the part)."""
        return self.slots[self.all, :, part]

    def mix(self, part: slice, weights: Array) -> None:
        """Let the step be their sum by weights, the newest's first."""
        images, by_slot = self.at(part), np.zeros(self.all.stop)
        by_slot[self.order] = weights
        for each, mixed in zip(images.swapaxes(0, 1), self.slots[self.spare, :, part], strict=True):
            np.matmul(by_slot, each, out=mixed)

    def step(self, part: slice) -> Array:
        """The step that was mixed last, in the shape of scores."""
        return self._shaped(part, self.spare)

    def _shaped(self, part: slice, slot: int) -> Array:
        image: Array = self.slots[slot, :, part]
        return image[0] if len(image) == 1 else image.T
