"""The largest number of every row of a matrix: computed by a shard, or here for cells that were collected.

    matrix.row_largest    max_j (scale_j T[:, place_j] + shift_j)      one number per row

The smallest number is minus the largest one of -X. Category columns are 0 or 1, and at most one of a group is 1, so the
values of a group's columns are looked up by the row's code.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from tablepuppet.errors import PartyError
from tablepuppet.party.arguments import List, Within
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.ops import Values, op
from tablepuppet.party.release import Release
from tablepuppet.party.returns import ROWS, Numbers
from tablepuppet.prep.encoded_rows import encoded
from tablepuppet.prep.encoded_table import EncodedTable

Array = NDArray[np.float64]
Places = Annotated[NDArray[np.int64], Within(dimensions=(1,), size=10_000)]


@op(
    "matrix.row_largest",
    asked="the relation as a matrix, extremes of rows",
    releases=Release.PREDICTIONS,
    directions="scale",
    returns={"image": Numbers((ROWS,))},
)
def row_largest(table: LocalTable, view: str, encoding: str, places: Places, scale: List, shift: List) -> Values:
    """The largest number of every row among some encoded columns, each scaled and shifted."""
    data = encoded(table, view, encoding)
    if not 0 < len(places) == len(scale) == len(shift) or places.min() < 0 or places.max() >= data.width:
        raise PartyError(
            f"places of columns must be at least 0 and below {data.width:,}, with a scale and a shift each"
        )
    return {"image": largest_of_rows(data, places, scale, shift).astype(table.wire)}


def largest_of_rows(data: EncodedTable, places: NDArray[np.integer], scale: Array, shift: Array) -> Array:
    """The largest of ``scale * T[:, places] + shift`` in every row, (rows,)."""
    found = np.full(len(data.dense), -np.inf)
    numbers = data.dense.shape[1]
    for place, factor, more in zip(places, scale, shift, strict=True):
        if place < numbers:
            np.maximum(found, data.dense[:, place] * factor + more, out=found)
    start = numbers
    for codes, size in zip(data.codes, data.sizes, strict=True):
        here = (places >= start) & (places < start + size)
        if here.any():
            known = _by_code(places[here] - start, scale[here], shift[here], size)
            np.maximum(found, known[codes], out=found)  # the code -1, for none, finds the last
        start += size
    return found


def _by_code(columns: NDArray[np.integer], scale: Array, shift: Array, size: int) -> Array:
    """The largest number of a group in a row, by the row's code; the last is for rows without a code."""
    zero, one = np.full(size, -np.inf), np.full(size + 1, -np.inf)  # by column: where it is 0, and where it is 1
    np.maximum.at(zero, columns, shift)
    np.maximum.at(one, columns, scale + shift)
    first = int(np.argmax(zero))
    others = np.full(size + 1, zero[first])  # the largest of the columns that are 0
    others[first] = np.max(np.delete(zero, first), initial=-np.inf)
    return np.asarray(np.maximum(others, one))
