"""The nearest of some centres for every joined row, from images of base rows; what is as long as the joined rows times
the centres is not built.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tablepuppet.mapping.table_mapping import Floats, Index
from tablepuppet.pieces import over_pieces

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Image:
    """A_i: numbers of a table's rows, (n_i, k), and the place among them of each joined row; None: its own."""

    index: Index | None
    values: Floats

    def of(self, part: slice) -> Floats:
        """Those of some joined rows, (rows, k)."""
        return self.values[part] if self.index is None else self.values.take(self.index[part], 0, mode="clip")


class Nearest:
    """The column in which S_1 A_1 + ... + S_M A_M + constants is largest, of every joined row: a piece at a time.

    It is computed in the precision of the images A_i, which is that of the wire. With ``weights`` a row counts as so
    many.
    """

    def __init__(self, rows: int, images: Callable[[], list[Image]], constants: Array, weights: Array | None = None):
        self._rows, self._asked, self._constants, self._weights = rows, images, constants, weights  # (k,), (rows,)

    @cached_property
    def _images(self) -> list[Image]:
        """By table; constants are a part of the smallest."""
        found = sorted(self._asked(), key=lambda each: len(each.values))
        if not found:
            return []
        first = found[0]
        return [Image(first.index, (first.values + self._constants).astype(first.values.dtype)), *found[1:]]

    def _scores(self, part: slice) -> Floats:
        """Those of some joined rows, (rows, k)."""
        total: Floats = np.zeros((part.stop - part.start, len(self._constants)), np.float32)
        for place, image in enumerate(self._images):
            total = image.of(part) if not place else total + image.of(part)
        return total

    def labels(self) -> NDArray[np.integer]:
        """The number of the column, (N,); the first `labels` or `gain` makes the trip."""
        width = len(self._constants)
        labels = np.empty(self._rows, np.min_scalar_type(width))
        _ = self._images

        def assign(part: slice) -> None:
            columns = np.ascontiguousarray(self._scores(part).T)  # (k, rows): a column at a time is quick
            largest, found = columns.max(axis=0), labels[part]
            found[:] = 0
            for place, column in enumerate(columns):  # the first of several counts from the end
                np.maximum(found, (column == largest) * found.dtype.type(width - place), out=found)
            np.subtract(width, found, out=found, casting="unsafe")

        over_pieces(assign, len(labels), width)
        return labels

    def gain(self, labels: NDArray[np.integer]) -> float:
        """The sum of these columns over the joined rows."""
        _ = self._images

        def add(part: slice) -> float:
            scores = self._scores(part)
            places = labels[part] + scores.shape[1] * np.arange(len(scores))
            found = scores.ravel().take(places)
            return float(found.sum(dtype=np.float64) if self._weights is None else found @ self._weights[part])

        return sum(found for _, found in over_pieces(add, len(labels), len(self._constants)))
