"""Sums by node, column and bin, which is where trees spend their time at a party.

Numba compiles the loop if it is installed (the extra ``fast``); else SciPy multiplies the sums by a sparse matrix with
a 1 for each row and bin. Both add up in the same order, so trees are the same. Nothing here knows who.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array
from tablepuppet.party.allowance import check_time

PIECE = 1 << 19  # cells of bins that are read at a time: time is checked between, and memory is little
Add = Callable[[NDArray[np.uint8], NDArray[np.integer], Array, Array], None]


def histograms(bins: NDArray[np.uint8], rows: NDArray[np.integer], sizes: NDArray[np.integer], values: Array,
               width: int) -> Array:  # fmt: skip
    """``values``, (entries, kinds), summed by the bins of their ``rows``: (nodes, columns, width, kinds).

    ``sizes`` of entries belong to each node. ``bins`` are (rows, columns), below ``width``.

    >>> bins = np.array([[0, 1], [1, 1]], np.uint8)
    >>> histograms(bins, np.array([0, 1, 0]), np.array([2, 1]), np.array([[1.0], [2.0], [5.0]]), 2)[..., 0].tolist()
    [[[1.0, 2.0], [0.0, 3.0]], [[5.0, 0.0], [0.0, 5.0]]]
    """
    columns, kinds = bins.shape[1], values.shape[1]
    found = np.zeros((len(sizes), columns, width, kinds))
    if not columns or not kinds:
        return found
    add, step, start = _compiled() or _by_products, max(PIECE // columns, 1), 0
    for node, size in enumerate(sizes.tolist()):
        for first in range(start, start + size, step):
            check_time()
            part = slice(first, min(first + step, start + size))
            add(bins, rows[part], values[part], found[node])
        start += size
    return found


def _by_products(bins: NDArray[np.uint8], rows: NDArray[np.integer], values: Array, sums: Array) -> None:
    from scipy.sparse import csr_array  # takes a while to load

    columns, width = sums.shape[:2]
    cells = np.add(bins[rows], np.arange(columns, dtype=np.int32) * np.int32(width), dtype=np.int32)
    starts = np.arange(len(rows) + 1, dtype=np.int32) * np.int32(columns)
    shape = (len(rows), columns * width)
    ones = csr_array((np.ones(cells.size), cells.ravel(), starts), shape=shape)
    sums += (ones.T @ values).reshape(sums.shape)


@cache
def _compiled() -> Add | None:
    """The loop as machine code; None without Numba."""
    try:
        from numba import njit
    except ImportError:
        return None

    def add(bins: Any, rows: Any, values: Any, sums: Any) -> None:
        for entry in range(len(rows)):
            own, row = values[entry], rows[entry]
            if len(own) == 2:
                first, second = own[0], own[1]
                for column in range(bins.shape[1]):
                    cell = sums[column, bins[row, column]]
                    cell[0] += first
                    cell[1] += second
            else:
                for column in range(bins.shape[1]):
                    cell = sums[column, bins[row, column]]
                    for kind in range(len(own)):
                        cell[kind] += own[kind]

    compiled: Add = njit(nogil=True)(add)
    return compiled
