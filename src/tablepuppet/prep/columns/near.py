"""Which columns are equal, up to scale and shift, in all rows but a few.

Input: columns of numbers, and the policy's ``min_group``. Output: pairs of such columns. Sums of products with a third
column, one of each, differ by a sum over these few rows. So do those of a column that has one number in all rows but a
few, and of a column of ones. Columns are compared in some rows first: most differ in enough of these. Only what is
left is compared over all rows.

A relation a = a0 + slope (b - b0) follows from two rows in which b has two numbers. Of enough pairs of rows, no row in
two of them, one has no row that differs, if fewer than ``least`` do: so none is missed. One row of each pair is at an
end of b and the other in its middle: where most rows of b have the same number, the ends are those that have others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array, Mask
from tablepuppet.party.allowance import check_memory, check_time

SOME = 256  # rows that are compared first, beside those at the ends of columns
EQUAL, ROUNDING = 1e-9, 1e-14  # of distances, and of numbers: nearer ones are equal

Places = NDArray[np.intp]
Read = Callable[[int, Places], tuple[Array, Mask]]  # the numbers of a column at places of rows, and which are present


@dataclass(frozen=True)
class Near:
    """Columns that differ in some rows, but in fewer than ``least``: from each other, or from one number."""

    pairs: Mask  # (columns, columns)
    constant: Mask  # (columns,)

    @classmethod
    def of(cls, read: Read, columns: int, places: Places, least: int) -> Near:
        """Those of columns over the rows at ``places``; two columns over the rows that have both."""
        pairs, constant = np.zeros((columns, columns), bool), np.zeros(columns, bool)
        some = [places[:: len(places) // SOME + 1]]
        for column in range(columns):
            check_time()
            values, present = read(column, places)
            inside, values = places[present], values[present]
            ends = np.unique(np.clip([*range(least), *range(-least, 0)], -len(values), len(values) - 1))
            if len(values):
                order = np.argpartition(values, [*ends, len(values) // 2])
                some.append(inside[order[ends]])
                constant[column] = 0 < np.count_nonzero(values != values[order[len(values) // 2]]) < least
        chosen = np.unique(np.concatenate(some))
        check_memory(8 * 9 * len(chosen) * columns)
        sample = [read(column, chosen) for column in range(columns)]
        values, present = (np.array(each).reshape(columns, -1) for each in zip(*sample, strict=True))
        same = np.arange(columns)  # the first column that has the same numbers, up to scale and shift
        for b in range(1, columns):
            check_time()
            for a in np.flatnonzero(_may_be_near(values[:b], present[:b], values[b], present[b], least)).tolist():
                if same[a] == a and same[b] == b:
                    (x, has_x), (y, has_y) = read(a, places), read(b, places)
                    differing = int(_fewest_that_differ(x[None], has_x[None], y, has_y, least)[0])
                    pairs[a, b] = pairs[b, a] = 0 < differing < least
                    same[b] = b if differing else a
        return cls(pairs[np.ix_(same, same)], constant)


def _may_be_near(values: Array, present: Mask, b: Array, has: Mask, least: int) -> Mask:
    return _fewest_that_differ(values, present, b, has, least) < least


def _fewest_that_differ(values: Array, present: Mask, b: Array, has: Mask, least: int) -> NDArray[np.int64]:
    """Of each line of ``values``, how many rows differ from the relation to ``b`` that most follow."""
    rows = np.flatnonzero(has)
    fewest = np.full(len(values), len(b))
    if len(rows) < 2:
        return fewest
    size, middle = len(rows), least - 1 - np.arange(2 * least) + len(rows) // 2
    ranks = np.clip(np.concatenate([np.arange(least), size - 1 - np.arange(least), middle]), 0, size - 1)
    order = rows[np.argpartition(b[rows], np.unique(ranks))[ranks]]
    for end, mid in zip(order[: 2 * least], order[2 * least :], strict=True):
        if b[end] == b[mid]:
            continue
        check_time()
        with np.errstate(all="ignore"):
            slope = ((values[:, end] - values[:, mid]) / (b[end] - b[mid]))[:, None]
            moved, from_mid = slope * (b - b[mid]), values - values[:, mid, None]
            allowed = EQUAL * (np.abs(from_mid) + np.abs(moved)) + ROUNDING * (np.abs(values) + np.abs(slope * b))
            far = ~(np.abs(from_mid - moved) <= allowed) & present & has
        is_known = present[:, end] & present[:, mid] & np.isfinite(slope[:, 0]) & (slope[:, 0] != 0)
        fewest = np.where(is_known, np.minimum(fewest, np.count_nonzero(far, axis=1)), fewest)
    return fewest
