"""Moments of pairs of columns over the rows that have both values, centred at the means over these very rows.

Input: columns as numbers, with a weight for each row. Output: four numbers for each pair, as an array (4, columns,
columns): how many rows have both, the mean of the first column over them, the sum of its squares and that of the
products of both, about the means. Parties compute them over their rows; the coordinator does so for columns of two
tables, of which it has one number for each base row, summed at the rows of one of the two.

The means of a pair may be far from those of its columns: a price of about 1e9 where the other value is missing, and of
about 1 where it is not. So sums about the column's mean, which are quick products of matrices, are used only for pairs
that lose no digits by that. Others are computed again, each about its own means.
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
from tablepuppet.party.allowance import check_time
from tablepuppet.pieces import PIECE
from tablepuppet.prep.columns.statistics import NumberSummary

COUNT, MEAN, SQUARES, PRODUCT = range(4)
CANCELLED = 1e-3  # share of a sum of squares: if less is left about the mean of a pair, too many digits are lost


def pair_moments(values: Array, present: Mask, weights: Array) -> Array:
    """The moments of all pairs of columns; ``values`` and whether they are ``present`` are (columns, rows).

    >>> x, both = np.array([[1.0, 2.0, 1e9], [3.0, 7.0, 0.0]]), np.array([[True] * 3, [True, True, False]])
    >>> pair_moments(x, both, np.ones(3))[:, 0, 1].tolist()
    [2.0, 1.5, 0.5, 2.0]
    """
    with np.errstate(all="ignore"):  # numbers that are not finite, or too large to be squared, become NaN
        shifts, centred = _centred(values, present, weights)
        if present.all():
            count = np.full((len(values), len(values)), weights.sum())
            first, squares = (np.broadcast_to((each @ weights)[:, None], count.shape) for each in (centred, centred**2))
        else:
            weighted = present * weights
            count = weighted @ present.T.astype(np.float64)
            first, squares = centred @ weighted.T, centred**2 @ weighted.T
        products = (centred * weights) @ centred.T
        means = np.where(count > 0, first / count, 0.0)
        left = squares - first * means
        found = np.stack([count, shifts[:, None] + means, left, products - first * means.T])
        found[MEAN][count == 0] = 0.0
        _compute_again(found, values, present, weights, lost_digits(left, squares))
    np.maximum(found[SQUARES], 0.0, out=found[SQUARES])
    return found


def lost_digits(left: Array, squares: Array) -> Mask:
    """Whether sums of squares are mostly those of the distance between two means: ``left`` is the rest."""
    return np.asarray(left < CANCELLED * squares)


def _centred(values: Array, present: Mask, weights: Array) -> tuple[Array, Array]:
    """(the mean of each line, its values about it, zero where there is none); exactly zero where all are equal."""
    begin = np.take_along_axis(values, present.argmax(axis=1)[:, None], axis=1) if values.shape[1] else values.sum(1)
    begin = begin.reshape(len(values))
    totals = np.full(len(values), weights.sum()) if present.all() else present @ weights
    moves = np.where(totals > 0, (_about(begin, values, present) @ weights) / totals, 0.0)
    return begin + moves, _about(begin + moves, values, present)


def _about(shifts: Array, values: Array, present: Mask) -> Array:
    """Each line less its shift, zero where there is no value."""
    found = values - shifts[:, None]
    if not present.all():
        found[~present] = 0.0
    return found


def _compute_again(found: Array, values: Array, present: Mask, weights: Array, lost: Mask) -> None:
    """Put in the moments of pairs that have lost digits, in one of the two columns, about the means of each pair."""
    pairs = np.triu(lost | lost.T)
    for place in np.flatnonzero(pairs.any(axis=1)).tolist():
        check_time()
        others = np.flatnonzero(pairs[place])
        both = present[others] & present[place]
        count = both @ weights
        (one, x), (other, y) = (
            _twice_centred(np.broadcast_to(each, both.shape), both, weights, count)
            for each in (values[place], values[others])
        )
        products = (x * y) @ weights
        found[:, place, others] = count, one, x**2 @ weights, products
        found[:, others, place] = count, other, y**2 @ weights, products


def _twice_centred(values: Array, present: Mask, weights: Array, count: Array) -> tuple[Array, Array]:
    """The means and centred values, without the rounding error of the mean."""
    shifts, centred = _centred(values, present, weights)
    rest = np.where(count > 0, (centred @ weights) / count, 0.0)
    return np.where(count > 0, shifts + rest, 0.0), np.where(present, centred - rest[:, None], 0.0)


def merged(one: Array, other: Array) -> Array:
    """The moments of all rows from those of two parts of them (Chan, Golub and LeVeque 1983); NaN if one is."""
    with np.errstate(all="ignore"):
        count = one[COUNT] + other[COUNT]
        share = np.where(count == 0, 0.0, other[COUNT] / count)
        apart, between = other[MEAN] - one[MEAN], one[COUNT] * share
        return np.stack(
            [
                count,
                np.where(one[COUNT] == 0, other[MEAN], one[MEAN] + apart * share),
                one[SQUARES] + other[SQUARES] + apart**2 * between,
                one[PRODUCT] + other[PRODUCT] + apart * apart.T * between,
            ]
        )


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
    _again_across(rows, (near, far), (ours, theirs), lost, (found, mirrored))
    hidden = _too_few(rows, near, far, ours, theirs)[at_near, at_far]
    for each in (found, mirrored):
        each[:, hidden] = np.nan
    return found, mirrored


def _through(rows: JoinedRows, near: str, far: str, values: Array) -> Array:
    """Columns of one table's rows, (columns, rows), summed at the rows of another, over joined rows."""
    return rows.sums(far, rows.taken(near, values.T)).T


def _again_across(
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
