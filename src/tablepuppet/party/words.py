"""Dates and decimals as the whole numbers that they are in memory, and back: these are quick to compare and to count.

Input: a column of dates, or of decimals of up to 18 digits. Output: the same as 64-bit integers, NULL where it is NULL.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

MOST_DIGITS = 18  # of a decimal that is one word


def is_word(type_: pa.DataType) -> bool:
    """Whether values of a type, which is no integer, are whole numbers in memory."""
    return bool(pa.types.is_date32(type_) or (pa.types.is_decimal128(type_) and type_.precision <= MOST_DIGITS))


def as_words(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The numbers that a column has in memory: days, or a decimal without its point.

    >>> from decimal import Decimal
    >>> as_words(pa.chunked_array([pa.array([Decimal("1.50"), None, Decimal("-0.01")])])).to_pylist()
    [150, None, -1]
    """
    if pa.types.is_date32(column.type):
        return column.cast(pa.int32()).cast(pa.int64())
    return pa.chunked_array([_words(chunk) for chunk in column.chunks], pa.int64())


def _words(chunk: pa.Array) -> pa.Array:
    pairs = np.frombuffer(chunk.buffers()[1], "<i8", 2 * len(chunk), 16 * chunk.offset) if len(chunk) else np.zeros(0)
    words = pairs[::2].astype(np.int64)  # the lower half: the upper one is its sign
    return pa.array(words, mask=chunk.is_null().to_numpy(zero_copy_only=False) if chunk.null_count else None)


def from_words(words: pa.Array, type_: pa.DataType) -> pa.Array:
    """Words that are not NULL as values of a type again.

    >>> from_words(pa.array([150, -1]), pa.decimal128(3, 2)).to_pylist()
    [Decimal('1.50'), Decimal('-0.01')]
    """
    if pa.types.is_date32(type_):
        return words.cast(pa.int32()).cast(type_)
    low = words.to_numpy(zero_copy_only=False).astype("<i8")
    pairs = np.column_stack([low, low >> 63])
    return pa.Array.from_buffers(type_, len(low), [None, pa.py_buffer(np.ascontiguousarray(pairs).tobytes())])
