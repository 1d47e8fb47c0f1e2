"""Moments of pairs of columns of two tables, at the coordinator: it has both, one number per base row.

Input: the columns of each table over its base rows, and the joined rows. Output: moments as in pair_moments.py. With Z
the values about the means of their columns, 0 where there is none, M whether there is one, and C how often rows of both
tables are joined with each other, they follow from M'CM, Z'CM, Z^2'CM and Z'CZ. C times a column is a gather and a
scatter over the joined rows, and columns with values in the same rows share those of M. Pairs that lose digits by that
are computed over joined rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array, Mask
from tablepuppet.mapping.joined_rows import Block, JoinedRows
from tablepuppet.pieces import PIECE
from tablepuppet.prep.columns.statistics import NumberSummary
from tablepuppet.prep.explore.pair_moments import lost_digits, merged, pair_moments


@dataclass(frozen=True)
class TableColumns:
    """Columns of one table over its base rows, and the different sets of rows that have a value."""

    columns: Sequence[Array]  # NaN where there is no value
    means: Array
    centred: Array  # (columns, rows), 0 where there is no value
    masks: Mask  # (masks, rows)
    mask_of: NDArray[np.intp]  # (columns,)
    squares: Array  # sums of squares over joined rows, (columns,); the sums of centred values are zero
    least: int  # base rows of a group

    @classmethod
    def of(cls, columns: Sequence[Array], known: Sequence[NumberSummary], least: int) -> TableColumns:
        """From values with NaN for none, and the statistics of the columns."""
        means, squares = (np.nan_to_num([getattr(each, name) for each in known]) for name in ("mean", "squares"))
        centred = np.empty((len(columns), len(columns[0])))
        numbers: dict[bytes, int] = {}
        masks, mask_of = list[Mask](), list[int]()
        for line, values, summary, mean in zip(centred, columns, known, means, strict=True):
            np.subtract(values, mean, out=line)
            missing = np.isnan(line) if summary.missing else np.zeros(len(line), bool)
            if summary.missing:
                line[missing] = 0.0
            mask_of.append(numbers.setdefault(np.packbits(missing).tobytes(), len(numbers)))
            if len(masks) < len(numbers):
                masks.append(~missing)
        return cls(columns, means, centred, np.stack(masks), np.array(mask_of), squares, least)

    @cached_property
    def is_complete(self) -> bool:
        """Whether no value is missing."""
        return bool(self.masks.all())


def fill_across(
    rows: JoinedRows, tables: Mapping[str, TableColumns], places: Mapping[str, list[int]], moments: Array
) -> None:
    """Put in the moments of all pairs of columns of two tables; ``places`` are those of each table's columns."""
    for one, other in combinations(tables, 2):
        near, far = sorted((one, other), key=lambda alias: len(places[alias]))
        found, mirrored = _across(rows, near, far, tables[near], tables[far])
        moments[:, np.array(places[near])[:, None], places[far]] = found
        moments[:, np.array(places[far])[:, None], places[near]] = mirrored.swapaxes(1, 2)


def _across(rows: JoinedRows, near: str, far: str, ours: TableColumns, theirs: TableColumns) -> tuple[Array, Array]:
    """Moments of each near column with each far one, and those of the far one: (4, near, far) twice."""
    at_far, at_near, shape = theirs.mask_of, ours.mask_of[:, None], (len(ours.centred), len(theirs.centred))
    moved = _through(rows, near, far, ours.centred)  # (near columns, far rows)
    if ours.is_complete:  # then sums over rows with both are those over all joined rows
        there = rows.tables[far].counts[None].astype(np.float64)
        second, far_squares = np.zeros(shape), np.broadcast_to(theirs.squares, shape)
    else:
        there = _through(rows, near, far, ours.masks.astype(np.float64))
        second, far_squares = ((there @ each.T)[ours.mask_of] for each in (theirs.centred, theirs.centred**2))
    if theirs.is_complete:
        count = np.broadcast_to(there.sum(axis=1)[at_near], shape)
        first, squares = np.zeros(shape), np.broadcast_to(ours.squares[:, None], shape)
    else:
        over = theirs.masks.T.astype(np.float64)
        count = (there @ over)[at_near, at_far]
        each_square = _through(rows, near, far, ours.centred**2)
        first, squares = ((each @ over)[:, at_far] for each in (moved, each_square))
    with np.errstate(all="ignore"):
        own, their = (np.where(count > 0, each / count, 0.0) for each in (first, second))
    left, far_left = squares - first * own, far_squares - second * their
    products = moved @ theirs.centred.T - first * their
    found = np.stack([count, ours.means[:, None] + own, left, products])
    mirrored = np.stack([count, theirs.means + their, far_left, products])
    lost = lost_digits(left, squares) | lost_digits(far_left, far_squares)
    _compute_again(rows, (near, far), (ours, theirs), lost, (found, mirrored))
    hidden = _too_few(rows, near, far, ours, theirs)[at_near, at_far]
    for each in (found, mirrored):
        each[:, hidden] = np.nan
    return found, mirrored


def _through(rows: JoinedRows, near: str, far: str, values: Array) -> Array:
    """Columns of one table's rows, (columns, rows), summed at the rows of another, over joined rows."""
    return rows.sums(far, rows.taken(near, values.T)).T


def _compute_again(
    rows: JoinedRows, aliases: tuple[str, str], tables: tuple[TableColumns, TableColumns], lost: Mask,
    results: tuple[Array, Array],
) -> None:  # fmt: skip
    """Put in the moments of pairs that have lost digits, from the joined rows."""
    for place in np.flatnonzero(lost.any(axis=1)).tolist():
        others = np.flatnonzero(lost[place])
        listed = [(0, place), *((1, other) for other in others.tolist())]
        moments = np.zeros((4, len(listed), len(listed)))
        columns = [(aliases[side], tables[side].columns[each]) for side, each in listed]
        moments = reduce(merged, rows.one_by_one(PIECE // len(listed), _pair_moments, columns), moments)
        results[0][:, place, others], results[1][:, place, others] = moments[:, 0, 1:], moments[:, 1:, 0]


def _pair_moments(block: Block, columns: Sequence[tuple[str, Array]]) -> Array:
    """Moments of columns, each with the alias of its table, over the joined rows of a block."""
    values = np.stack([block.taken(alias, column) for alias, column in columns])
    return pair_moments(values, ~np.isnan(values), np.ones(block.rows))


def _too_few(rows: JoinedRows, near: str, far: str, ours: TableColumns, theirs: TableColumns) -> Mask:
    """For each mask of both tables, whether the rows of either table that have both values, or one of them, are some
    but fewer than a group has.
    """
    least = max(ours.least, theirs.least)
    hidden = np.zeros((len(ours.masks), len(theirs.masks)), bool)
    if least <= 1:
        return hidden
    for place, there in enumerate(ours.masks):
        for other, column in enumerate(theirs.masks):
            for here, over in ((there, column), (there, ~column), (~there, column)):
                if here.any() and over.any():
                    for one, two, at_one, at_two in ((near, far, here, over), (far, near, over, here)):
                        met = _through(rows, one, two, at_one[None].astype(np.float64))[0] > 0
                        hidden[place, other] |= 0 < np.count_nonzero(at_two & met) < least
    return hidden
