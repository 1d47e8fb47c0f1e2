"""Sums by node, column and bin, which is where trees spend their time at a party. Nothing here knows who.

SciPy multiplies the sums by a sparse matrix with a 1 for each row and bin: half the time of NumPy's bincount by column.
Numba would take less, but its compiler takes as long as it saves in a fit (``python -m benchmarks.trees kernels``).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array
from tablepuppet.party.allowance import check_time

PIECE = 1 << 19  # cells of bins that are read at a time: time is checked between, and memory is little


def histograms(bins: NDArray[np.uint8], rows: NDArray[np.integer], sizes: NDArray[np.integer], values: Array,
               width: int) -> Array:  # fmt: skip
    """``values``, (entries, kinds), summed by the bins of their ``rows``: (nodes, columns, width, kinds).

    ``sizes`` of entries belong to each node. ``bins`` are (rows, columns), below ``width``.

    >>> bins = np.array([[0, 1], [1, 1]], np.uint8)
    >>> histograms(bins, np.array([0, 1, 0]), np.array([2, 1]), np.array([[1.0], [2.0], [5.0]]), 2)[..., 0].tolist()
    [[[1.0, 2.0], [0.0, 3.0]], [[5.0, 0.0], [0.0, 5.0]]]
    """
    from scipy.sparse import csr_array  # takes a while to load

    columns, kinds = bins.shape[1], values.shape[1]
    found = np.zeros((len(sizes), columns * width, kinds))
    if not columns:
        return found.reshape(len(sizes), columns, width, kinds)
    step, start = max(PIECE // columns, 1), 0
    longest = min(step, int(sizes.max(initial=0)))
    ones, starts = np.ones(longest * columns), np.arange(longest + 1, dtype=np.int32) * np.int32(columns)
    offsets = np.arange(columns, dtype=np.int32) * np.int32(width)
    for node, size in enumerate(sizes.tolist()):
        for first in range(start, start + size, step):
            check_time()
            part = slice(first, min(first + step, start + size))
            cells = np.add(bins[rows[part]], offsets, dtype=np.int32)
            shape = (len(cells), columns * width)
            by_row = csr_array((ones[: cells.size], cells.ravel(), starts[: len(cells) + 1]), shape=shape)
            found[node] += by_row.T @ values[part]
        start += size
    return found.reshape(len(sizes), columns, width, kinds)
