"""The worst slices of a table of codes, level by level (SliceLine, Sagadeeva and Boehm 2021); it makes no trip.

A slice is a set of (column, value) pairs, at most one value per column; its rows are those that have all these values.
For n rows with the total error e, a slice of s rows with the total error se has the score

    alpha * ((se / s) / (e / n) - 1) - (1 - alpha) * (n / s - 1)

So the slice of all rows has score 0, and a small slice needs a large mean error. A slice inside another has no more
rows, no larger total error and no larger single error. This gives an upper bound of its score; a slice whose bound is
too low to be among the best is not counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array

Pair = tuple[int, int]  # column, value
Key = tuple[Pair, ...]  # rising columns
Rows = NDArray[np.intp]


@dataclass(frozen=True)
class Counts:
    """What is known of a slice."""

    size: int
    error: float  # sum over its rows
    worst: float  # largest error of a row


@dataclass(frozen=True)
class Found:
    """A slice that is reported."""

    pairs: Key
    counts: Counts
    score: float


@dataclass(frozen=True)
class Scoring:
    """How slices of a table are scored, and how small one may be."""

    rows: int
    error: float
    alpha: float
    least: int

    def score(self, size: float, error: float) -> float:
        """The score of a slice; the whole table has 0."""
        mean = error / size * self.rows / self.error
        return self.alpha * (mean - 1) - (1 - self.alpha) * (self.rows / size - 1)

    def bound(self, most: Counts) -> float:
        """The largest score of a slice with at most these counts. For sizes up to error / worst the mean error can be
        ``worst``, and a larger slice is better; beyond that the score is monotone in the size.
        """
        if most.size < self.least or most.error <= 0:
            return -np.inf
        turn = min(max(most.error / most.worst, self.least), most.size)
        sizes = {float(self.least), turn, float(most.size)}
        return max(self.score(size, min(most.error, size * most.worst)) for size in sizes)


@dataclass
class Lattice:
    """Codes of columns over all rows, and an error per row.

    A slice must have ``least_rows`` different rows of the label's table, ``tables[0]``, and of the tables of its
    columns: ``owner`` is the place of each column's table. A table is given by its row of every joined row.
    """

    codes: Sequence[NDArray[np.integer]]
    sizes: Sequence[int]  # values of each column
    errors: Array
    tables: Sequence[NDArray[np.integer]]
    owner: Sequence[int]
    least_rows: int
    _rows: dict[Pair, Rows] = field(default_factory=dict, init=False)

    def worst(self, k: int, scoring: Scoring, levels: int) -> list[Found]:
        """The ``k`` slices with the highest scores above 0, of ``levels`` columns at most; equal ones by fewer."""
        best: list[Found] = []
        level = self._first(scoring)
        for depth in range(1, min(levels, len(self.codes)) + 1):
            best = self._merged(best, level, scoring, k)
            if depth < levels:
                level = self._next(level, scoring, best[-1].score if len(best) == k else 0.0)
        return best

    def _first(self, scoring: Scoring) -> dict[Key, Counts]:
        found: dict[Key, Counts] = {}
        for column in range(len(self.codes)):
            order = np.argsort(self.codes[column], kind="stable")
            ends = np.cumsum(np.bincount(self.codes[column], minlength=self.sizes[column]))
            for value, rows in enumerate(np.split(order, ends[:-1])):
                self._rows[column, value] = rows
            found |= self._children((), column, np.arange(len(self.errors)), scoring)
        return found

    def _next(self, level: Mapping[Key, Counts], scoring: Scoring, floor: float) -> dict[Key, Counts]:
        """The slices with one column more, of which all with one less are known and whose bound is above ``floor``."""
        found: dict[Key, Counts] = {}
        alive = {key: counts for key, counts in level.items() if scoring.bound(counts) > floor}
        for parent in alive:
            rows: Rows | None = None
            for column in range(parent[-1][0] + 1, len(self.codes)):
                keys = [(*parent, (column, value)) for value in range(self.sizes[column])]
                wanted = {key for key in keys if self._may_be(key, alive, scoring, floor)}
                if not wanted:
                    continue
                rows = self.rows(parent) if rows is None else rows
                children = self._children(parent, column, rows, scoring)
                found |= {key: counts for key, counts in children.items() if key in wanted}
        return found

    def _may_be(self, key: Key, alive: Mapping[Key, Counts], scoring: Scoring, floor: float) -> bool:
        parents = [alive.get(parent) for parent in _parents(key)]
        known = [each for each in parents if each is not None]
        if len(known) < len(parents):
            return False
        most = Counts(min(e.size for e in known), min(e.error for e in known), min(e.worst for e in known))
        return scoring.bound(most) > floor

    def _children(self, parent: Key, column: int, rows: Rows, scoring: Scoring) -> dict[Key, Counts]:
        """The slices of a parent by the values of one more column that are large enough, in every table involved."""
        codes, errors, values = self.codes[column][rows], self.errors[rows], self.sizes[column]
        sizes = np.bincount(codes, minlength=values)
        sums = np.bincount(codes, errors, minlength=values)
        worst = np.zeros(values)
        np.maximum.at(worst, codes, errors)
        enough = sizes >= max(scoring.least, 1)
        if self.least_rows > 1:
            for table in self._involved((*parent, (column, 0))):
                pairs = np.unique(table[rows].astype(np.int64) * values + codes)
                enough &= np.bincount(pairs % values, minlength=values) >= self.least_rows
        return {
            (*parent, (column, value)): Counts(int(sizes[value]), float(sums[value]), float(worst[value]))
            for value in np.flatnonzero(enough).tolist()
        }

    def _merged(self, best: list[Found], level: Mapping[Key, Counts], scoring: Scoring, k: int) -> list[Found]:
        """The best of those known and of a new level. Only candidates for the best are compared with their parents."""
        scored = [(scoring.score(counts.size, counts.error), key) for key, counts in level.items()]
        found = list(best)
        for score, key in sorted(scored, key=lambda each: (-each[0], each[1])):
            if score <= 0 or (len(found) >= k and score <= found[k - 1].score):
                break
            if self._may_be_reported(key):
                found = sorted([*found, Found(key, level[key], score)], key=lambda each: -each.score)[:k]
        return found

    def _may_be_reported(self, key: Key) -> bool:
        """Whether what a slice leaves of every slice around it has enough different rows too: it follows from both."""
        inside = np.zeros(len(self.errors), bool)
        inside[self.rows(key)] = True
        for parent in _parents(key):
            rows = self.rows(parent)
            rest = rows[~inside[rows]]
            if len(rest) == 0:
                return False  # the same rows under a longer name
            if self.least_rows > 1 and any(
                len(np.unique(table[rest])) < self.least_rows for table in self._involved(key)
            ):
                return False
        return True

    def _involved(self, key: Key) -> list[NDArray[np.integer]]:
        return [self.tables[place] for place in sorted({0, *(self.owner[column] for column, _ in key)})]

    def rows(self, key: Key) -> Rows:
        """The rows of a slice."""
        if not key:
            return np.arange(len(self.errors))
        rows = self._rows[min(key, key=lambda pair: len(self._rows[pair]))]
        for column, value in key:
            rows = rows[self.codes[column][rows] == value]
        return rows


def _parents(key: Key) -> Iterator[Key]:
    """All slices with one pair less."""
    return combinations(key, len(key) - 1)
