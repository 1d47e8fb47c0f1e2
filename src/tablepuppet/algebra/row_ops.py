"""The largest number of every row of a matrix, and its place: computed by a shard, or here for cells collected before.

    matrix.row_largest    max_j (scale_j T[:, place_j] + shift_j)      one number per row
    matrix.row_places     the first j of that number                   one whole number per row

The smallest number is minus the largest one of -X. Category columns are 0 or 1, and at most one of a group is 1, so the
values of a group's columns are looked up by the row's code.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from tablepuppet.errors import PartyError
from tablepuppet.party.allowance import check_time
from tablepuppet.party.arguments import List, Within
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.ops import Values, op
from tablepuppet.party.release import Release
from tablepuppet.party.returns import ROWS, Numbers
from tablepuppet.prep.encode.encode import encoded
from tablepuppet.prep.encode.encoded_table import EncodedTable

Array = NDArray[np.float64]
Whole = NDArray[np.int64]
Places = Annotated[NDArray[np.int64], Within(dimensions=(1,), size=10_000)]


@op(
    "matrix.row_largest",
    asked="the relation as a matrix, extremes of rows",
    releases=Release.PREDICTIONS,
    directions="scale",
    returns={"outputs": Numbers((ROWS,))},
)
def row_largest(table: LocalTable, view: str, encoding: str, places: Places, scale: List, shift: List) -> Values:
    """The largest number of every row among some encoded columns, each scaled and shifted."""
    data = _encoded(table, view, encoding, places, scale, shift)
    return {"outputs": largest_of_rows(data, places, scale, shift)[0].astype(table.wire)}


@op(
    "matrix.row_places",
    asked="the relation as a matrix, extremes of rows",
    releases=Release.PREDICTIONS,
    directions="scale",
    returns={"places": Numbers((ROWS,), "u", places_in="places")},
)
def row_places(table: LocalTable, view: str, encoding: str, places: Places, scale: List, shift: List) -> Values:
    """Which of these columns has the largest number of every row: the first, if several have."""
    data = _encoded(table, view, encoding, places, scale, shift)
    return {"places": largest_of_rows(data, places, scale, shift)[1].astype(np.min_scalar_type(len(places)))}


def _encoded(table: LocalTable, view: str, encoding: str, places: Places, scale: List, shift: List) -> EncodedTable:
    """The encoded rows; PartyError unless they have these columns."""
    data = encoded(table, view, encoding)
    if not 0 < len(places) == len(scale) == len(shift) or places.min() < 0 or places.max() >= data.width:
        raise PartyError(
            f"places of columns must be at least 0 and below {data.width:,}, with a scale and a shift each"
        )
    return data


class Largest:
    """The largest of the numbers that each row was offered, and the first place of it."""

    def __init__(self, rows: int):
        self.values: Array = np.full(rows, -np.inf)
        self.places: Whole = np.zeros(rows, np.int64)

    def offer(self, values: Array, places: Whole | int) -> None:
        """Take the numbers that are larger, or as large and at a place before."""
        better = (values > self.values) | ((values == self.values) & (places < self.places))
        np.copyto(self.values, values, where=better)
        np.copyto(self.places, places, where=better)


def largest_of_rows(data: EncodedTable, places: NDArray[np.integer], scale: Array, shift: Array) -> tuple[Array, Whole]:
    """(the largest of ``scale * T[:, places] + shift`` in every row, which of ``places`` it is of), (rows,) each."""
    found, numbers = Largest(len(data.dense)), data.dense.shape[1]
    for number, place in enumerate(places):
        check_time()
        if place < numbers:
            found.offer(data.dense[:, place] * scale[number] + shift[number], number)
    start = numbers
    for codes, size in zip(data.codes, data.sizes, strict=True):
        here = np.flatnonzero((places >= start) & (places < start + size))
        if len(here):
            known = _by_code(places[here] - start, scale[here], shift[here], size)
            found.offer(known.values[codes], here[known.places[codes]])  # the code -1, for none, finds the last
        start += size
    return found.values, found.places


def _by_code(columns: NDArray[np.integer], scale: Array, shift: Array, size: int) -> Largest:
    """The largest number of a group in a row, by the row's code; the last is for rows without a code."""
    found = Largest(size + 1)
    order = np.argsort(-shift, kind="stable")  # where columns are 0
    first = order[0]
    found.offer(np.full(size + 1, shift[first]), int(first))
    others = order[columns[order] != columns[first]]
    here = columns[first]  # where the first is 1, the largest of the others
    found.values[here], found.places[here] = (shift[others[0]], others[0]) if len(others) else (-np.inf, 0)
    ones = np.lexsort((np.arange(len(columns)), -(scale + shift), columns))  # by column: where it is 1
    own, starts = np.unique(columns[ones], return_index=True)
    best = ones[starts]
    values, places = np.full(size + 1, -np.inf), np.zeros(size + 1, np.int64)
    values[own], places[own] = (scale + shift)[best], best
    found.offer(values, places)
    return found
