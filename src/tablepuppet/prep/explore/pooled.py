"""Pools rare categories, so that every cell of a table of counts has either enough base rows or none.

Parties pool the categories of one table. The coordinator puts together what shards have kept and pooled, and pools the
categories of two tables.

Leaving out single cells would not be enough: sums over rows and columns are known, so a missing cell could be computed.
So whole categories are pooled, at least two of a column at a time. Rows without a value are not a category and are not
pooled, but their cells are checked too, since they can be computed from the others. If small cells are left that no
pooling can hide, nothing is published at all (`are_enough`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from tablepuppet.arrays import Counts, Digests
from tablepuppet.errors import LearnError
from tablepuppet.mapping.join import number_digests
from tablepuppet.mapping.joined_rows import Meetings
from tablepuppet.operators.client import Client
from tablepuppet.party.allowance import check_time
from tablepuppet.party.arguments import Within
from tablepuppet.prep.columns.category_names import Coded, ask_public_names
from tablepuppet.prep.columns.statistics import NO_DIGESTS
from tablepuppet.sql.query import OutputColumn

MOST = 1000  # categories of a column
OTHER = "(other)"
NUMBERED = "category "  # a category without a name, before its number; 0 is the most frequent
Most = Annotated[int, Meta(ge=1, le=MOST)]
Known = Annotated[NDArray[np.uint8], Within(dimensions=(2,))]
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

    def computed(self, pools: Sequence[NDArray[np.bool_]]) -> Counts:
        """The rows of all cells that are published once categories are pooled, or that follow from these.

        Cells of missing values follow from the others. How many rows have neither value, or of all rows no value of a
        column, is known from that column alone. So if there is a single line, its cells are the other column's own.
        """
        found = self.pooled(pools)
        if min(np.count_nonzero(found.any(axis=1)), np.count_nonzero(found.any(axis=0))) <= 1:
            return found[:-1, :-1]
        found[-1, -1] = 0
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
    column, its cells stay as they are, and `are_enough` decides about them.
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


def are_enough(grids: Sequence[Grid], pools: Sequence[NDArray[np.bool_]], least: int) -> bool:
    """Whether the pooled cells may be published, all or none: each has no rows or ``least`` of them in every grid.

    >>> alone = [np.zeros(1, bool)] * 2
    >>> [are_enough([Grid(np.array(rows))], alone, 5) for rows in ([[3, 40], [50, 7]], [[40, 3], [0, 0]])]
    [False, True]
    """
    computed = [grid.computed(pools) for grid in grids]
    return not any(((found > 0) & (found < least)).any() for found in computed)


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


@dataclass(frozen=True)
class Lines:
    """The lines of a result: the kept categories of a column in the order of digests, then one for those pooled."""

    column: OutputColumn
    digests: Digests
    is_pooled: bool  # whether a category is
    blinding: str  # the name that digests are made under


def label_lines(
    client: Client, lines: Sequence[Lines], counts: Sequence[NDArray[Any]]
) -> list[tuple[list[str], list[int]]]:
    """For each column (labels, places of lines): the most frequent categories first, the pooled ones last.

    ``counts`` are the joined rows by line. A category has its name if the column is public.
    """
    asked = ask_public_names(client, [Coded(each.column, each.blinding, each.digests) for each in lines])
    # Digests of one column may be under several secrets, and some of them pooled.
    names = {id(each.digests): texts for each, texts in zip(asked.coded, asked.read(), strict=True)}
    found = []
    for each, weights in zip(lines, counts, strict=True):
        size = len(each.digests)
        order = np.argsort(-weights[:size], kind="stable").tolist()
        texts = names.get(id(each.digests), [None] * size)
        labels = label_categories([texts[place] for place in order])
        found.append(([*labels, OTHER], [*order, size]) if each.is_pooled else (labels, order))
    return found


def label_categories(names: Sequence[str | None]) -> list[str]:
    """Categories by name, or where that is not known by number: not as a value, which `late=1` would be read as."""
    return [f"{NUMBERED}{number}" if name is None else name for number, name in enumerate(names)]


def check_number(column: OutputColumn, found: int, most: int, step: str) -> None:
    """LearnError if a column has too many categories."""
    if found > most:
        raise LearnError(
            f"{step}: column {column.name!r} has {found:,} categories or more, and {most:,} may be counted "
            "(max_categories of fed.sql); group them in SELECT"
        )


def distinct(lists: Sequence[Digests]) -> Digests:
    """Digests that are in some list, each once."""
    digests = np.concatenate([NO_DIGESTS, *lists])
    [codes], _ = number_digests([digests])
    return digests[np.unique(codes, return_index=True)[1]]


def among(digests: Digests, given: Digests) -> NDArray[np.bool_]:
    """Which digests are among those given."""
    first, second = (np.ascontiguousarray(each).view("V16").ravel() for each in (digests, given))
    return np.isin(first, second)


def places_of(digests: Digests, known: Digests) -> NDArray[np.int64]:
    """The positions of digests among all known ones, and as the last, for pooled ones, that after the last."""
    [numbers], _ = number_digests([np.concatenate([known, digests])])
    return np.append(numbers[len(known) :], len(known)).astype(np.int64)


def different_rows(met: Meetings, groups: NDArray[np.int64], shape: tuple[int, int]) -> Counts:
    """How many different base rows of a table are in each cell: by their own group, and by the one that they meet."""
    pairs = np.unique(met.rows.astype(np.int64) * shape[1] + met.groups)
    cells = groups[pairs // shape[1]] * shape[1] + pairs % shape[1]
    return np.bincount(cells, minlength=math.prod(shape)).reshape(shape)
