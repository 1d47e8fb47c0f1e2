"""Arrays of numbers: their types, and moving values by index without widening the index.

NumPy copies an index of narrow integers to 64 bits before it uses it; for millions of rows that copy costs more
than the move. Here the index is widened a piece at a time, which stays in the cache.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

CHUNK = 1 << 15  # index entries at a time
CACHE = 1 << 20  # bytes of values that are quick to reach
Scalar = TypeVar("Scalar", bound=np.generic)

Array = NDArray[np.float64]
Floats = NDArray[np.floating[Any]]  # in double precision, or in that of the wire
Places = NDArray[np.int32]  # in an order: of rows, columns or categories
Codes = NDArray[np.integer[Any]]  # whole numbers in the narrowest type that has them
Counts = NDArray[np.int64]
Mask = NDArray[np.bool_]
Digests = NDArray[np.uint8]  # (distinct, 16)
Words = NDArray[np.uint64]


def take(values: NDArray[Scalar], index: NDArray[np.integer[Any]], shift: int = 0) -> NDArray[Scalar]:
    """``values[index - shift]``, where every place is known to be in range.

    Columns of a matrix are moved as many at a time as fit the cache, and come out column-major.

    >>> take(np.array([10, 20, 30]), np.array([2, 0, 2], np.int8)).tolist()
    [30, 10, 30]
    """
    out = np.empty((len(index), *values.shape[1:]), values.dtype, order="F")
    if values.ndim == 1:
        _take([values], [out], index, shift)
        return out
    columns = [np.ascontiguousarray(values[:, column]) for column in range(values.shape[1])]
    together = max(1, CACHE // max(1, columns[0].nbytes)) if columns else 1
    for first in range(0, len(columns), together):
        group = slice(first, first + together)
        _take(columns[group], [out[:, column] for column in range(len(columns))[group]], index, shift)
    return out


def _take(
    columns: list[NDArray[Scalar]], out: list[NDArray[Scalar]], index: NDArray[np.integer[Any]], shift: int
) -> None:
    wide = np.empty(min(CHUNK, len(index)), np.intp)
    for start in range(0, len(index), CHUNK):
        part = index[start : start + CHUNK]
        places = wide[: len(part)]
        places[:] = part
        if shift:
            places -= shift
        for values, target in zip(columns, out, strict=True):  # mode="clip" skips the bounds check
            np.take(values, places, out=target[start : start + len(part)], mode="clip")


def lossless(values: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
    """Numbers as float32 if none of them is changed by that, as counts are not; else as they are.

    >>> lossless(np.array([1.0, 3.0])).dtype, lossless(np.array([0.1, 3.0])).dtype
    (dtype('float32'), dtype('float64'))
    """
    for start in range(0, len(values), CHUNK):  # most often the first piece decides
        part = values[start : start + CHUNK]
        with np.errstate(over="ignore"):
            if not np.array_equal(part.astype(np.float32), part):
                return values
    return values.astype(np.float32, copy=False)


def mark(size: int, index: NDArray[np.integer[Any]], shift: int = 0) -> NDArray[np.bool_]:
    """Which of the places 0 .. size - 1 occur in ``index - shift``.

    >>> mark(4, np.array([2, 0, 2], np.int8)).tolist()
    [True, False, True, False]
    """
    marked = np.zeros(size, bool)
    for start in range(0, len(index), CHUNK):
        places = index[start : start + CHUNK].astype(np.intp)
        marked[places - shift if shift else places] = True
    return marked


def upright(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Each column with the sign that makes its largest number positive; of several as large, the first.

    Eigenvectors have no sign of their own. Those of a category of two values have two numbers as large, which differ by
    rounding: so numbers that nearly are the largest count too.

    >>> upright(np.array([[-0.5, 0.1], [0.5 + 1e-12, -0.9]])).round(3).tolist()
    [[0.5, -0.1], [-0.5, 0.9]]
    """
    sizes = np.abs(vectors)
    first = (sizes >= (1 - 1e-6) * sizes.max(axis=0, initial=0.0)).argmax(axis=0)
    return np.asarray(vectors * np.sign(vectors[first, np.arange(vectors.shape[1])]))


def are_within(values: NDArray[Any], size: float) -> bool:
    """Whether all numbers are finite, and none is larger than ``size``.

    >>> are_within(np.array([1.0, -2.0]), 2.0), are_within(np.array([3.0]), 2.0), are_within(np.array([np.nan]), 2.0)
    (True, False, False)
    """
    if not values.size:
        return True
    # Not by a product with itself: BLAS would wake a thread on every core for it, of every party of a machine.
    return bool(float(values.min()) >= -size and float(values.max()) <= size)
