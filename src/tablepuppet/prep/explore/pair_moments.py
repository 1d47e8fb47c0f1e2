"""Moments of pairs of columns over the rows that have both values, centred at the means over these very rows.

Input: columns as numbers, with a weight for each row. Output: four numbers for each pair, as an array (4, columns,
columns): how many rows have both, the mean of the first column over them, the sum of its squares and that of the
products of both, about the means. Parties compute them over their rows, and the coordinator where it has columns.

The means of a pair may be far from those of its columns: a price of about 1e9 where the other value is missing, and of
about 1 where it is not. So sums about the column's mean, which are quick products of matrices, are used only for pairs
that lose no digits by that. Others are computed again, each about its own means.
"""

from __future__ import annotations

import numpy as np

from tablepuppet.arrays import Array, Mask
from tablepuppet.party.allowance import check_time

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
