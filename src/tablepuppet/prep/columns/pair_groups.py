"""Which pairs of columns may be released, by the rows that have values of both.

Input: which rows have a value in each column, and the policy's ``min_group``. Output: pairs to release, and how many
different rows each of their sums rests on, and each difference of two such sums of one column. The coordinator sees the
former only.

A sum of column a over the rows that also have b, and one over those that also have c, differ by the rows of a that have
only one of b and c. Columns whose values are missing in the same rows have one pattern; there are few patterns in most
tables, and only the first `MOST` are compared, as there are as many differences as triples of patterns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array, Counts, Mask
from tablepuppet.party.allowance import check_time

MOST = 64  # patterns that are compared: bits of a word
SOME = 1 << 11  # kinds of rows that are counted first, where there are more


@dataclass(frozen=True)
class Patterns:
    """The patterns of columns: which of these are ``few`` values, and which pairs of columns are ``released``."""

    few: Mask  # (columns,)
    released: Mask  # (columns, columns)
    groups: Counts  # the different rows of all sums that are released, and of their differences

    @classmethod
    def of(cls, present: Sequence[Callable[[], Mask]], firsts: Mask, least: int) -> Patterns:
        """Those of columns, by which rows have a value; of rows that are listed again only the first counts."""
        columns = len(present)
        if least <= 1:
            return cls(np.zeros(columns, bool), np.ones((columns, columns), bool), np.zeros(0, np.int64))
        place_of, words, size = _patterns(present, firsts)
        compared = _Compared.of(words, size, least)
        inside = np.minimum(place_of, MOST - 1)
        released = compared.released[np.ix_(inside, inside)]
        released[place_of >= MOST], released[:, place_of >= MOST] = False, False
        return cls(compared.few[inside] & (place_of < MOST), released, compared.groups)


@dataclass(frozen=True)
class _Compared:
    """Patterns, compared with each other: (patterns,) few and (patterns, patterns) released."""

    few: Mask
    released: Mask
    groups: Counts

    @classmethod
    def of(cls, words: NDArray[np.uint64], size: int, least: int) -> _Compared:
        """Bit i of a row's word says whether it has a value of pattern i."""
        kinds, counts = np.unique(words, return_counts=True)
        bits = (kinds[None] >> np.arange(size, dtype=np.uint64)[:, None]) & np.uint64(1)  # (patterns, kinds of rows)
        has = bits.astype(np.float64)
        few = ~_is_group(has @ counts, least)
        has[few] = 0.0  # as if no row had a value
        differences = _differences(has, counts, least)
        both, allowed = (has * counts) @ has.T, _is_group(differences, least)
        released = np.eye(size, dtype=bool)
        for a in range(size):
            for b in range(a + 1, size):
                enough = bool(_is_group(both[a, b], least))
                if enough and allowed[a, b, released[a]].all() and allowed[b, a, released[b]].all():
                    released[a, b] = released[b, a] = True
        shown = released[:, :, None] & released[:, None, :]
        groups = np.concatenate([both[released], differences[shown]])
        return cls(few, released, np.rint(groups).astype(np.int64))


def _differences(has: Array, counts: Counts, least: int) -> Array:
    """[a, b, c]: rows with a, and with only one of b and c; where it is ``least`` or more, perhaps not all of them."""
    size, every = len(has), has.shape[1] // SOME + 1
    some, weights = np.ascontiguousarray(has[:, ::every]), counts[::every]
    found = np.empty((size, size, size))
    for place, line in enumerate(some):
        check_time()
        both = (some * (line * weights)) @ some.T
        found[place] = np.diag(both)[:, None] + np.diag(both) - 2 * both
    one, other = np.triu_indices(size, 1)
    there = np.asarray(has.any(axis=1))
    for a in np.flatnonzero(there).tolist() if every > 1 else []:
        undecided = np.asarray((found[a, one, other] < least - 0.5) & (there[one] | there[other]))
        for place in np.flatnonzero(undecided).tolist():
            check_time()
            b, c = one[place], other[place]
            found[a, b, c] = found[a, c, b] = (has[a] * counts) @ np.abs(has[b] - has[c])
    return found


def _patterns(present: Sequence[Callable[[], Mask]], firsts: Mask) -> tuple[NDArray[np.intp], NDArray[np.uint64], int]:
    """The number of each column's pattern; by row a word, of which bit i says whether it has a value of pattern i; and
    how many patterns these words have.
    """
    known, places, words = dict[bytes, int](), list[int](), np.zeros(int(np.count_nonzero(firsts)), np.uint64)
    for column in present:
        check_time()
        pattern = column()[firsts]
        place = known.setdefault(np.packbits(pattern).tobytes(), len(known))
        places.append(place)
        if place == len(known) - 1 < MOST:
            words |= pattern.astype(np.uint64) << np.uint64(place)
    return np.array(places, np.intp), words, min(len(known), MOST)


def _is_group(rows: Array, least: int) -> Mask:
    return np.asarray((rows < 0.5) | (rows > least - 0.5))
