"""The nearest of some centres for every joined row, from images of base rows; what is as long as the joined rows times
the centres is not built.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.mapping.table_mapping import Floats, MappedTable, TableMapping
from tablepuppet.pieces import over_pieces

Array = NDArray[np.float64]


class Nearest:
    """The column in which S_1 A_1 + ... + S_M A_M + constants is largest, of every joined row: a piece at a time.

    It is computed in the precision of the images A_i, which is that of the wire.
    """

    def __init__(self, mapping: TableMapping, replies: Callable[[], dict[str, Any]], constants: Array):
        self._mapping, self._replies, self._constants = mapping, replies, constants  # (k,)

    @cached_property
    def _images(self) -> list[tuple[MappedTable, Floats]]:
        """Images by table; constants are a part of the smallest."""
        found = [(self._mapping.tables[alias], image) for alias, image in self._replies().items()]
        found.sort(key=lambda each: each[0].rows)
        if not found:
            return []
        table, image = found[0]
        return [(table, (image + self._constants).astype(image.dtype)), *found[1:]]

    def _scores(self, part: slice) -> Floats:
        """Those of some joined rows, (rows, k)."""
        total: Floats = np.zeros((part.stop - part.start, len(self._constants)), np.float32)
        for place, (table, image) in enumerate(self._images):
            here = image[part] if table.is_identity else image.take(table.index[part], 0, mode="clip")
            total = here if not place else total + here
        return total

    def labels(self) -> NDArray[np.integer]:
        """The number of the column, (N,); the first `labels` or `gain` makes the trip."""
        width = len(self._constants)
        labels = np.empty(len(self._mapping), np.min_scalar_type(width))
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
            return float(scores.ravel().take(places).sum(dtype=np.float64))

        return sum(found for _, found in over_pieces(add, len(labels), len(self._constants)))
