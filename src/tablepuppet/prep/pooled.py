"""Pools rare categories, so that every cell of a table of counts has either enough base rows or none.

Leaving out single cells would not be enough: sums over rows and columns are known, so a missing cell could be computed.
So whole categories are pooled, at least two of a column at a time. Rows without a value are not a category and are not
pooled, but their cells are checked too, since they can be computed from the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.party.allowance import check_time

Counts = NDArray[np.int64]
Merge = Callable[..., Any]  # np.add.reduce where rows of pooled cells differ, np.maximum.reduce where they may not


@dataclass(frozen=True)
class Grid:
    """Different base rows of one table by cell: (first categories and missing, second categories and missing).

    ``merges`` is, for both columns, the least number of rows of pooled cells.
    """

    rows: Counts
    merges: tuple[Merge, Merge] = (np.add.reduce, np.add.reduce)

    def pooled(self, pools: Sequence[NDArray[np.bool_]]) -> Counts:
        """The grid with pooled categories as one line, after kept categories and before missing ones."""
        found = self.rows
        for axis, (pool, merge) in enumerate(zip(pools, self.merges, strict=True)):
            found = pool_lines(found, pool, axis, merge)
        return found


def pool_lines(cells: NDArray[Any], pool: NDArray[np.bool_], axis: int, merge: Merge = np.add.reduce) -> NDArray[Any]:
    """Lines of a table: kept lines, one line for all pooled ones, and the last, which is never pooled.

    >>> pool_lines(np.array([1, 2, 3, 9]), np.array([True, False, True]), 0).tolist()
    [2, 4, 9]
    """
    lines = np.moveaxis(cells, axis, 0)
    rest = merge(lines[:-1][pool], axis=0)[None] if pool.any() else np.zeros_like(lines[:1])
    return np.moveaxis(np.concatenate([lines[:-1][~pool], rest, lines[-1:]]), 0, axis)


def rare(grids: Sequence[Grid], least: int) -> list[NDArray[np.bool_]]:
    """Which categories of both columns to pool, so that no cell of any grid has some but fewer than ``least`` rows.

    It follows from the rows alone: the same whoever asks, and whatever else was asked. Where one category is left of a
    column, its cells stay as they are: they are the other column's own counts.
    """
    sizes = [length - 1 for length in grids[0].rows.shape]
    pools = [np.zeros(size, bool) for size in sizes]
    totals = [grids[0].rows[:-1].sum(axis=1), grids[0].rows[:, :-1].sum(axis=0)]
    while True:
        check_time()  # many categories of few rows take many turns
        small = np.zeros([int(np.count_nonzero(~pool)) + 2 for pool in pools], bool)
        for grid in grids:
            found = grid.pooled(pools)
            small |= (found > 0) & (found < least)
        small[-1, -1] = False  # rows without either value are in no cell
        found_ = ([c for axis in (0, 1) for c in _choices(pools, totals, axis, cell)] for cell in np.argwhere(small))
        choices = next(filter(None, found_), None)
        if choices is None:
            return pools
        _, axis, line = min(choices)
        _pool(pools[axis], totals[axis], line)


def _choices(
    pools: Sequence[NDArray[np.bool_]], totals: Sequence[Counts], axis: int, cell: NDArray[np.intp]
) -> list[tuple[int, int, int]]:
    """(rows, axis, category) to pool so that a cell grows: its own, or if that is pooled the smallest other."""
    kept, place = np.flatnonzero(~pools[axis]), int(cell[axis])
    some = kept[totals[axis][kept] > 0]  # a category without rows adds nothing
    if place > len(kept) or not len(some) or (len(some) == 1 and not pools[axis].any()):
        return []  # those missing, or the only category
    line = int(kept[place]) if place < len(kept) else int(some[np.argmin(totals[axis][some])])
    return [(int(totals[axis][line]), axis, line)]


def _pool(pool: NDArray[np.bool_], totals: Counts, line: int) -> None:
    """Pool a category, with the smallest other one if it would be alone."""
    pool[line] = True
    if np.count_nonzero(pool) == 1:
        others = np.flatnonzero(~pool & (totals > 0))
        pool[others[np.argmin(totals[others])]] = True
