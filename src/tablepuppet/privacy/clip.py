"""Clipping: no row adds more than its bound to a release, whatever its values are.

Input: numbers by row. Output: the same numbers, each row scaled to a length within the bound. A row with a number that
is not finite counts as a null record, which adds nothing. Lengths neither underflow nor overflow: if the sum of squares
is too small or too large, the row is first divided by its largest number. After a row is clipped, its length is
computed again and compared with the bound.

Sums are computed in blocks of rows, and a row is in one block only. So if two sums differ in one row, rounding changes
their difference by at most the rounding error of one block. This is less than `SLACK` of the bound, which the noise
takes into account (`noise.gaussian_sigma`).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array

BLOCK = 1 << 14  # rows: the rounding errors of their sum are below BLOCK^2 2^-52, a share of 6e-8 of what a row may add
NUMBERS = 1 << 22  # of a block
ROUNDING = 1e-9  # relative: a row that was cut is no longer than its bound but for this
_ORDINARY = (1e-200, 1e200)  # sums of squares that lost nothing


def lengths_of(values: Array) -> Array:
    """The length of every row of values, (rows,) or (rows, columns); infinite or NaN where a number is.

    >>> lengths_of(np.array([[3e-170, 4e-170], [3e170, 4e170], [0.0, 0.0]])).tolist()
    [5e-170, 5e+170, 0.0]
    """
    if values.ndim == 1:
        return np.abs(values)
    with np.errstate(all="ignore"):
        squares = np.einsum("ij,ij->i", values, values)
        found = np.sqrt(squares)
        odd = np.flatnonzero(~((squares > _ORDINARY[0]) & (squares < _ORDINARY[1])))
        if len(odd):
            largest = np.abs(values[odd]).max(axis=1, initial=0.0)
            scaled = values[odd] / np.where(largest > 0, largest, 1.0)[:, None]
            found[odd] = np.sqrt(np.einsum("ij,ij->i", scaled, scaled)) * largest
    return np.asarray(found, np.float64)


def kept_shares(lengths: Array, bound: float) -> Array:
    """What is kept of rows of these lengths, so that none is longer than ``bound``; nothing of those that have none."""
    with np.errstate(all="ignore"):
        shares = np.minimum(1.0, bound / np.where(lengths > 0, lengths, bound))
        return np.where(lengths * shares <= bound * (1 + ROUNDING), shares, 0.0)  # NaN fails too


def clipped(values: Array, bound: float, times: Array | float = 1.0) -> Array:
    """Values of rows, each cut so that its length times ``times`` is at most ``bound``; zero where it has none.

    >>> clipped(np.array([[3.0, 4.0], [np.nan, 0.0], [0.3, 0.4]]), 1.0).tolist()
    [[0.6..., 0.8], [0.0, 0.0], [0.3, 0.4]]
    """
    with np.errstate(all="ignore"):
        kept = by_row(values, kept_shares(lengths_of(values) * times, bound))
        within = lengths_of(kept) * times <= bound * (1 + ROUNDING)
    return kept if within.all() else zeroed(kept, ~within)


def clipped_layers(
    inputs: list[Array], slopes: list[Array], sizes: list[Array], has_values: NDArray[np.bool_], bound: float
) -> tuple[list[Array], list[Array]]:
    """(inputs, slopes) of a network's layers, such that the gradient of every row has at most the length ``bound``.

    A row's gradient by the weights of a layer is the outer product of the layer's input, with its bias of length
    ``sizes``, and the derivative by its output, the slope. So its norm follows from theirs, and no gradient of a single
    row is stored. ``inputs`` are those of all layers but the first. Rows without values, and rows whose length is still
    above the bound or no number, become zero.
    """
    kept = kept_shares(_over_layers(sizes, slopes), bound)
    cut = [by_row(slope, kept) for slope in slopes]
    out = ~((_over_layers(sizes, cut) <= bound * (1 + ROUNDING)) & has_values)  # NaN fails too
    return [zeroed(each, out) for each in inputs], [zeroed(each, out) for each in cut]


def _over_layers(sizes: list[Array], slopes: list[Array]) -> Array:
    """The norm of every row's gradient over all layers."""
    found = np.zeros(len(slopes[0]))
    for size, slope in zip(sizes, slopes, strict=True):
        found = np.hypot(found, size * lengths_of(slope))
    return found


def by_row(values: Array, factors: Array) -> Array:
    """Every row of values times its factor."""
    return np.asarray(values * (factors if values.ndim == 1 else factors[:, None]))


def zeroed(values: Array, rows: NDArray[np.bool_]) -> Array:
    """Values with zeros in some rows, whatever they held."""
    return np.where(rows if values.ndim == 1 else rows[:, None], 0.0, values)


def blocks(rows: int, width: int = 1) -> Iterator[slice]:
    """The rows, a block at a time; fewer at a time where each needs room for ``width`` numbers."""
    size = max(1, min(BLOCK, NUMBERS // max(width, 1)))
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))
