"""Cells of a column: how a party divides the ordered words (ordered.py) of its rows before it counts them.

Input: a column of a shard, with how often each row is joined. Output: cells, which the op in distribution.py releases.

If the column is not public, every released cell has at least `least` distinct base rows. Words are halved, and halved
again, at places that are the same for all columns. A half with fewer rows is no cell: its rows are counted in the other
half, wherever they are. So the ends of cells follow from halves with enough rows, and never show where a lonely row is,
the lowest or the highest. The cells of one column over the same rows form a tree, in which each node is the sum of its
children. So no number of answers reveals anything smaller than a cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tablepuppet.arrays import Array, Words
from tablepuppet.party.groups import rows_of
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.policy import Level
from tablepuppet.pieces import over_pieces
from tablepuppet.prep.columns.ordered import DEPTHS, FAN, Bucket, around, words_of
from tablepuppet.prep.columns.statistics import released_numbers

LISTED = 1024  # values of a public column that are listed rather than cut further
SAMPLED = 4 * LISTED  # values that are checked first, to see whether there are few distinct ones
LEAST = 5  # base rows of a cell of a column that is not public, where the policy's min_group is lower
NEXT_NONE = -1  # a cell that is not cut further
COLUMNS = {"lows": np.uint64, "highs": np.uint64, "nexts": np.int16, "weights": np.float64}
"""Smallest and largest word of a cell, next byte to refine or -1, and joined rows."""
GROUPS = "rows"  # the different rows of a cell's group: these stay at the party
Cells = dict[str, NDArray[Any]]
"""Cells of one bucket, in increasing order: an array for each of `COLUMNS`, and for `GROUPS`."""


@dataclass(frozen=True)
class _Run:
    """Neighbouring buckets that are released as one cell; if it is a single one, ``heavy``, that may be refined."""

    low: int
    high: int
    weight: float
    rows: int  # different ones between its ends
    heavy: Bucket | None = None
    left: float = 0.0  # weight of rows below the cell that are counted in it, being too few for one of their own
    right: float = 0.0  # and above it

    @property
    def next(self) -> int:
        """The last byte of the heavy bucket; -1 if there is none, or it is a single word."""
        return self.heavy.prefix % FAN if self.heavy and self.heavy.depth < DEPTHS else NEXT_NONE


@dataclass(frozen=True)
class ColumnWords:
    """The values that rows of a relation have in a column."""

    words: Words
    weights: Array | None  # None: one for each
    firsts: NDArray[np.bool_]  # of rows that are listed again, only the first counts; not needed of a public column
    least: int | None  # different rows of a cell; None: any
    group: int  # different rows that have a value

    @classmethod
    def of(cls, table: LocalTable, view: str, name: str, asked: Sequence[Bucket]) -> ColumnWords:
        """A column; for a public one, rows outside of the asked buckets are not needed."""
        rows = table.view(view)
        values, present = released_numbers(table, view, name)
        least = None if table.level(name) is Level.PUBLIC else max(table.grant.rules.min_group, LEAST)
        near = None if least is not None else around(values, asked)
        chosen = present if near is None else present & near
        part = slice(None) if chosen.all() else chosen
        weights = None if rows.is_each_joined_once else rows.counts[part].astype(np.float64)
        firsts = rows.firsts if least is None else rows.firsts[part]
        return cls(words_of(values[part]), weights, firsts, least, rows_of(rows, present))

    def _sums(self, places: NDArray[np.integer], chosen: NDArray[np.bool_] | slice, size: int) -> Array:
        """The joined rows of chosen rows, by their places."""
        weights = None if self.weights is None else self.weights[chosen]
        return np.bincount(places, weights, minlength=size).astype(np.float64)

    def cells(self, bucket: Bucket) -> Cells:
        """The cells of one bucket; none of a bucket that was not released before."""
        if self.least is None:
            return self._exact(bucket)
        whole = int(np.count_nonzero(self.firsts))
        total = len(self.words) if self.weights is None else self.weights.sum()
        run = _Run(0, Bucket().high, float(total), whole, Bucket()) if whole >= self.least else None
        for depth in range(bucket.depth):
            if run is None:
                break
            wanted = bucket.prefix >> 8 * (bucket.depth - 1 - depth)
            run = next((each for each in self._cut(run) if each.heavy and each.heavy.prefix == wanted), None)
        runs = [] if run is None else self._cut(run)
        columns = [[each.low, each.high, each.next, each.weight, each.rows] for each in runs]
        return _cells(*zip(*columns, strict=True)) if runs else no_cells()

    def _exact(self, bucket: Bucket) -> Cells:
        """Values, if they are few, else the buckets one byte deeper."""
        some = self.words[:: max(1, len(self.words) // SAMPLED)]
        if len(self.words) <= SAMPLED or len(np.unique(some[bucket.chosen(some)])) <= LISTED:  # else they are not few
            chosen = bucket.chosen(self.words)
            few = _few(self.words[chosen], None if self.weights is None else self.weights[chosen])
            if few is not None:
                listed, sums = few
                return self._public(listed, listed, np.full(len(listed), NEXT_NONE), sums)

        def count(part: slice) -> Array:
            return self._sums(bucket.children(self.words[part]), part, FAN + 1)

        sums = np.sum([np.zeros(FAN + 1), *(each for _, each in over_pieces(count, len(self.words)))], axis=0)[:FAN]
        bytes_ = np.flatnonzero(sums)
        width = np.uint64(1 << (56 - 8 * bucket.depth))  # words of a child
        lows = np.uint64(bucket.low) + bytes_.astype(np.uint64) * width
        nexts = bytes_ if bucket.depth + 1 < DEPTHS else np.full(len(bytes_), NEXT_NONE)
        return self._public(lows, lows + (width - np.uint64(1)), nexts, sums[bytes_])

    def _public(self, *columns: NDArray[Any]) -> Cells:
        """Cells of a public column: single values may leave, if the column as a whole has enough rows."""
        return _cells(*columns, np.full(len(columns[0]), self.group))

    def _cut(self, run: _Run) -> list[_Run]:
        """The runs into which the heavy bucket of a run is divided, left to right; first and last get its edges."""
        assert run.heavy is not None
        chosen = run.heavy.chosen(self.words)
        bytes_ = run.heavy.children(self.words[chosen])
        weights = np.append(0.0, np.cumsum(self._sums(bytes_, chosen, FAN)))
        rows = np.append(0, np.cumsum(np.bincount(bytes_[self.firsts[chosen]], minlength=FAN)))
        return self._halves(run, rows, weights, 0, FAN, run.left, run.right)

    def _halves(
        self, run: _Run, rows: NDArray[np.int64], weights: Array, start: int, stop: int,
        left: float, right: float,
    ) -> list[_Run]:  # fmt: skip
        """The runs of a part of a bucket's children, which has enough rows. ``rows`` and ``weights`` are of those
        before each child; ``left`` and ``right`` weigh the rows beside the part that are counted in it.
        """
        assert run.heavy is not None
        assert self.least is not None
        if stop - start == 1:
            child = run.heavy.child(start)
            weight, group = float(weights[stop] - weights[start]) + left + right, int(rows[stop] - rows[start])
            return [_Run(child.low, child.high, weight, group, child, left, right)]
        middle = (start + stop) // 2
        first, second = rows[middle] - rows[start] >= self.least, rows[stop] - rows[middle] >= self.least
        if first and second:
            below = self._halves(run, rows, weights, start, middle, left, 0.0)
            return below + self._halves(run, rows, weights, middle, stop, 0.0, right)
        if first:
            rest = float(weights[stop] - weights[middle])
            return self._halves(run, rows, weights, start, middle, left, right + rest)
        if second:
            rest = float(weights[middle] - weights[start])
            return self._halves(run, rows, weights, middle, stop, left + rest, right)
        low, high = run.heavy.child(start).low, run.heavy.child(stop - 1).high
        return [_Run(low, high, float(weights[stop] - weights[start]) + left + right, int(rows[stop] - rows[start]))]


def _cells(*columns: Any) -> Cells:
    kinds = {**COLUMNS, GROUPS: np.int64}
    return {name: np.asarray(each, kind) for (name, kind), each in zip(kinds.items(), columns, strict=True)}


def no_cells() -> Cells:
    """Those of a bucket without rows."""
    return _cells((), (), (), (), ())


def _few(words: Words, weights: Array | None) -> tuple[Words, Array] | None:
    """(the different words in increasing order, the joined rows of each), if they are few."""
    step = len(words) // SAMPLED
    if step > 1 and len(np.unique(words[::step])) > LISTED:  # a sample shows it
        return None
    if len(words) > SAMPLED:
        found = pa.array(words).dictionary_encode()  # by hashing: much quicker than sorting many
        if len(found.dictionary) > LISTED:
            return None
        listed, sums = found.dictionary.to_numpy(), np.bincount(found.indices.to_numpy(), weights)
        rising = np.argsort(listed)
        return listed[rising], sums[rising].astype(np.float64)
    order = np.argsort(words) if weights is not None else None
    words = np.sort(words) if order is None else words[order]
    starts = np.flatnonzero(np.append(True, words[1:] != words[:-1])[: len(words)])
    if len(starts) > LISTED:
        return None
    sums = np.diff(starts, append=len(words)) if weights is None else np.add.reduceat(weights[order], starts)
    return words[starts], sums.astype(np.float64)
