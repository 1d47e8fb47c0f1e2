"""The nearest of some centres for every joined row, from outputs of base rows; what is as long as the joined rows times
the centres is not built.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array, Floats
from tablepuppet.mapping.joined_rows import Block, JoinedRows


class Nearest:
    """The column in which S_1 A_1 + ... + S_M A_M + constants is largest, of every joined row: a block at a time.

    It is computed in the precision of the outputs A_i, (n_i, k), which is that of the wire. With ``weights`` a row
    counts as so many.
    """

    def __init__(
        self, rows: JoinedRows, outputs: Callable[[], Mapping[str, Floats]], constants: Array,
        weights: Array | None = None,
    ):  # fmt: skip
        self._rows, self._asked, self._constants, self._weights = rows, outputs, constants, weights  # (k,), (rows,)

    @cached_property
    def _outputs(self) -> dict[str, Floats]:
        """By table; constants are a part of the smallest."""
        found = dict(sorted(self._asked().items(), key=lambda each: len(each[1])))
        for alias in list(found)[:1]:
            found[alias] = (found[alias] + self._constants).astype(found[alias].dtype)
        return found

    def labels(self) -> NDArray[np.integer]:
        """The number of the column, (N,); the first `labels` or `gain` makes the trip."""
        width = len(self._constants)
        found = self._rows.of_scores(width).each(_largest, self._outputs, width)
        return np.concatenate([np.zeros(0, np.min_scalar_type(width)), *found])

    def gain(self, labels: NDArray[np.integer]) -> float:
        """The sum of these columns over the joined rows."""
        rows = self._rows.of_scores(len(self._constants), labels, self._weights)
        return float(rows.total(_sum_of_labels, self._outputs, len(self._constants)))


def _scores(block: Block, outputs: Mapping[str, Floats], width: int) -> Floats:
    """The columns at the rows of a block, (rows, width)."""
    total: Floats = np.zeros((block.rows, width), np.float32)
    for place, (alias, values) in enumerate(outputs.items()):
        total = block.taken(alias, values) if not place else total + block.taken(alias, values)
    return total


def _largest(block: Block, outputs: Mapping[str, Floats], width: int) -> NDArray[np.integer[Any]]:
    columns = np.ascontiguousarray(_scores(block, outputs, width).T)  # (k, rows): a column at a time is quick
    largest, found = columns.max(axis=0), np.zeros(block.rows, np.min_scalar_type(width))
    for place, column in enumerate(columns):  # the first of several counts from the end
        np.maximum(found, (column == largest) * found.dtype.type(width - place), out=found)
    np.subtract(width, found, out=found, casting="unsafe")
    return found


def _sum_of_labels(block: Block, outputs: Mapping[str, Floats], width: int) -> float:
    scores = _scores(block, outputs, width)
    found = scores.ravel().take(block.labels + width * np.arange(block.rows))
    return float(found.sum(dtype=np.float64) if block.weights is None else found @ block.weights)
