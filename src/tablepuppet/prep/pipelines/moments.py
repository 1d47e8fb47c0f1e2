"""What is known about a column of numbers without asking again: moments and order statistics, updated step by step.

Sums after a fill or a scaling are computed from those before. Order statistics can be computed through every increasing
function, through a fill, and if values at the ends become missing. So for most pipelines, the statistics of the columns
as they were read are enough; all columns are asked for in one trip. Which ranks of a column as it was read are needed
follows from counts (`Places`); values at them are the input of `Ranks`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from tablepuppet.prep.columns.statistics import NumberSummary

AtRanks = Mapping[float, float]
"""Values of a column as it was read, by rank."""


@dataclass(frozen=True)
class Moments:
    """Joined rows, those with a value, their mean and the sum of squares about it."""

    rows: float
    count: float
    mean: float
    squares: float

    @classmethod
    def of(cls, summary: NumberSummary) -> Moments:
        """Those of a column as it was read."""
        return cls(summary.rows, summary.count, summary.mean, summary.squares)

    @property
    def missing(self) -> float:
        """Joined rows without a value."""
        return self.rows - self.count

    @property
    def std(self) -> float:
        """Standard deviation (ddof 0) of the rows with a value."""
        return math.sqrt(self.squares / self.count) if self.count else math.nan

    @property
    def sample_std(self) -> float:
        """Standard deviation without bias (ddof 1), as `describe` and `outlier_by_sd` have it; 0 of a single row."""
        return math.sqrt(self.squares / (self.count - 1)) if self.count > 1 else 0.0

    @property
    def square(self) -> float:
        """The mean square of the rows with a value."""
        return self.squares / self.count + self.mean**2 if self.count else math.nan

    def filled(self, value: float) -> Moments:
        """With ``value`` in the rows without one.

        >>> Moments(4, 2, 1.0, 2.0).filled(3.0)
        Moments(rows=4, count=4, mean=2.0, squares=6.0)
        """
        if value == self.mean or not self.missing:
            return Moments(self.rows, self.rows, self.mean, self.squares)
        away = value - self.mean
        mean = self.mean + self.missing / self.rows * away
        return Moments(self.rows, self.rows, mean, self.squares + self.count * self.missing / self.rows * away**2)

    def scaled(self, centre: float, scale: float) -> Moments:
        """Of (value - centre) / scale; exactly 0 and 1 if it is standardised so."""
        squares = self.count if scale == self.std else self.squares / scale**2
        return Moments(self.rows, self.count, (self.mean - centre) / scale, squares)


def of_flag(rows: float, share: float) -> Moments:
    """Of a column that is 1 in a share of the rows, else 0."""
    return Moments(rows, rows, share, rows * share * (1 - share))


def _ends(summary: NumberSummary) -> dict[float, float]:
    """The ends of a column as it was read, where they are known with its sums."""
    ends = {0.0: summary.minimum, summary.count - 1: summary.maximum}
    return {rank: end for rank, end in ends.items() if not math.isnan(end)}


def _around(count: float, share: float) -> tuple[float, list[float]]:
    """(the place of a quantile, as NumPy's ``linear``, the ranks on both sides); no ranks if there is none."""
    if not math.isfinite(count) or count < 1:
        return math.nan, []
    place = (count - 1) * share
    below = math.floor(place)
    return place, [below, min(below + 1, count - 1)]


@dataclass(frozen=True)
class Places:
    """On which ranks of a column, as it was read, the order statistics after steps depend."""

    count: float  # joined rows with a value
    read: Callable[[float], list[float]]  # for the value at a rank, from 0

    @classmethod
    def of(cls, summary: NumberSummary) -> Places:
        """Of a column as it was read: ends that are known with its sums need not be asked for."""
        ends = _ends(summary)
        return cls(summary.count, lambda rank: [] if rank in ends else [rank])

    def filled(self, missing: float) -> Places:
        """With one more value, in this number of rows: see `Ranks.filled`."""

        def read(rank: float) -> list[float]:
            return [
                *(self.read(rank) if rank < self.count else []),
                *(self.read(rank - missing) if rank >= missing else []),
            ]

        return Places(self.count + missing, read)

    def shortened(self, below: float, count: float) -> Places:
        """Without the ``below`` lowest rows; ``count`` are left."""
        return Places(count, lambda rank: self.read(rank + below))

    def for_ends(self) -> list[float]:
        """Those that the lowest and the highest value depend on."""
        return [*self.read(0.0), *self.read(self.count - 1)] if self.count >= 1 else []

    def for_quantiles(self, shares: Iterable[float]) -> list[float]:
        """Those that quantiles depend on."""
        return [each for share in shares for rank in _around(self.count, share)[1] for each in self.read(rank)]


@dataclass(frozen=True)
class Ranks:
    """The order statistics of a column over joined rows; missing values are left out."""

    count: float  # joined rows with a value
    value: Callable[[float, AtRanks], float]  # that at a rank, from 0, by values of the column as it was read

    @classmethod
    def of(cls, summary: NumberSummary) -> Ranks:
        """Of a column as it was read."""
        ends = _ends(summary)
        return cls(summary.count, lambda rank, known: ends[rank] if rank in ends else known[rank])

    def mapped(self, function: Callable[[float], float]) -> Ranks:
        """After a rising function."""
        return Ranks(self.count, lambda rank, known: function(self.value(rank, known)))

    def filled(self, missing: float, fill: float) -> Ranks:
        """With one more value, in this number of rows.

        With S the order statistics before and m rows that are filled with c, the value at rank r is c, but no more
        than S(r) and no less than S(r - m).
        """

        def value(rank: float, known: AtRanks) -> float:
            most = self.value(rank, known) if rank < self.count else math.inf
            least = self.value(rank - missing, known) if rank >= missing else -math.inf
            return max(min(fill, most), least)

        return Ranks(self.count + missing, value)

    def shortened(self, below: float, count: float) -> Ranks:
        """Without the ``below`` lowest rows; ``count`` are left."""
        return Ranks(count, lambda rank, known: self.value(rank + below, known))

    def ends(self, known: AtRanks) -> tuple[float, float]:
        """The lowest and the highest value."""
        return self.value(0.0, known), self.value(self.count - 1, known)

    def quantile(self, share: float, known: AtRanks) -> float:
        """The quantile as NumPy's ``linear``."""
        place, ranks = _around(self.count, share)
        if not ranks:
            return math.nan
        return float(np.quantile([self.value(rank, known) for rank in ranks], place - ranks[0]))
