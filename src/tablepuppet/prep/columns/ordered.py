"""Numbers as 64-bit words in the same order, and the buckets that divide these words, 8 bits at a time.

The word of a value is its IEEE 754 bits with the sign bit flipped, or with all bits flipped if it is negative. Dividing
words instead of values needs no minimum or maximum, and outliers do not make buckets wide: after eight divisions a
bucket is a single value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Words
from tablepuppet.pieces import over_pieces

DEPTHS = 8  # cuts of 8 bits until a bucket is one word
FAN = 256
MOST_COMPARED = 8  # buckets whose ends are compared with all values
SIGN = np.uint64(1 << 63)


def words_of(values: NDArray[np.float64]) -> Words:
    """Words in the order of the values; NaN is above infinity, and both zeros are one.

    >>> words_of(np.array([-1.0, -0.0, 0.0, 2.5])).argsort(kind="stable").tolist()
    [0, 1, 2, 3]
    """
    found = np.empty(len(values), np.uint64)

    def write(part: slice) -> None:
        whole = values[part] + 0.0  # one zero
        odd = np.isnan(whole)
        if odd.any():
            whole[odd] = np.nan  # one NaN
        flips = (whole.view(np.int64) >> 63).view(np.uint64) | SIGN  # all bits of negative numbers, else the first
        np.bitwise_xor(whole.view(np.uint64), flips, out=found[part])

    over_pieces(write, len(values))
    return found


def values_of(words: Words) -> NDArray[np.float64]:
    """The values whose words these are.

    >>> values_of(words_of(np.array([-1.5, 0.0, 3.0, np.inf]))).tolist()
    [-1.5, 0.0, 3.0, inf]
    """
    return np.where(words & SIGN, words ^ SIGN, ~words).view(np.float64)


INFINITY = int(words_of(np.array([np.inf]))[0])


def around(values: NDArray[np.float64], buckets: Sequence[Bucket]) -> NDArray[np.bool_] | None:
    """Which values may be in one of some buckets, found without their words; None if that is not worth the while.

    Some more may be marked, such as zero for the bucket that ends at the other zero.

    >>> around(np.array([-1.0, 1.0, 1.9, 7.0]), [Bucket(0xBFF0, 2)]).tolist()
    [False, True, False, False]
    """
    if not buckets or len(buckets) > MOST_COMPARED or not all(bucket.depth for bucket in buckets):
        return None
    ends = values_of(np.array([[bucket.low, bucket.high] for bucket in buckets], np.uint64))
    if np.isnan(ends).any():
        return None
    found = np.zeros(len(values), bool)

    def mark(part: slice) -> None:
        here = values[part]
        for low, high in ends:
            found[part] |= (here >= low) & (here <= high)

    over_pieces(mark, len(values))
    return found


@dataclass(frozen=True)
class Bucket:
    """The words that begin with ``depth`` bytes, which are ``prefix``."""

    prefix: int = 0
    depth: int = 0

    @property
    def low(self) -> int:
        return self.prefix << (64 - 8 * self.depth)

    @property
    def high(self) -> int:
        return self.low + (1 << (64 - 8 * self.depth)) - 1

    def child(self, byte: int) -> Bucket:
        """The bucket of those whose next byte is this one."""
        return Bucket(self.prefix << 8 | byte, self.depth + 1)

    def chosen(self, words: Words) -> NDArray[np.bool_] | slice:
        return (words >> np.uint64(64 - 8 * self.depth)) == np.uint64(self.prefix) if self.depth else slice(None)

    def children(self, words: Words) -> NDArray[np.intp]:
        """The byte after the prefix, and `FAN` for words that are not in it."""
        away = words - np.uint64(self.low)  # of words below it, beyond all that are in it
        return np.asarray(np.minimum(away >> np.uint64(56 - 8 * self.depth), np.uint64(FAN)), np.intp)
