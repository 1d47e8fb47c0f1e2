"""What is known about a column of numbers without asking again: moments and order statistics, updated step by step.

Sums after a fill or a scaling are computed from those before. Order statistics can be computed through every increasing
function, through a fill, and if values at the ends become missing. So for most pipelines, the statistics of the columns
as they were read are enough; all columns are asked for in one trip.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np

from tablepuppet.prep.statistics import NumberSummary


class NotYetKnown(Exception):  # noqa: N818 - a step waits, nothing is wrong
    """A statistic is wanted and will be asked for."""


def together(wanted: Iterable[Callable[[], float]]) -> list[float]:
    """All of these statistics; unknown ones are wanted together."""
    found, waits = [], False
    for each in wanted:
        try:
            found.append(each())
        except NotYetKnown:
            waits = True
    if waits:
        raise NotYetKnown
    return found


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


class Ranks(Protocol):
    """The order statistics of a column over joined rows; missing values are left out."""

    @property
    def count(self) -> float:
        """Joined rows with a value."""
        ...

    def value(self, rank: float) -> float:
        """The value at a rank, from 0."""
        ...


@dataclass(frozen=True)
class Mapped:
    """After a rising function."""

    inner: Ranks
    function: Callable[[float], float]

    @property
    def count(self) -> float:
        """Joined rows with a value."""
        return self.inner.count

    def value(self, rank: float) -> float:
        """The value at a rank."""
        return self.function(self.inner.value(rank))


@dataclass(frozen=True)
class Filled:
    """With one more value, in this number of rows.

    With S the order statistics before and m rows that are filled with c, the value at rank r is c, but no more than
    S(r) and no less than S(r - m).
    """

    inner: Ranks
    missing: float
    fill: float

    @property
    def count(self) -> float:
        """Joined rows with a value."""
        return self.inner.count + self.missing

    def value(self, rank: float) -> float:
        """The value at a rank."""
        no_more = partial(self.inner.value, rank) if rank < self.inner.count else lambda: math.inf
        no_less = partial(self.inner.value, rank - self.missing) if rank >= self.missing else lambda: -math.inf
        most, least = together([no_more, no_less])
        return max(min(self.fill, most), least)


@dataclass(frozen=True)
class Shortened:
    """Without the ``below`` lowest rows; ``count`` are left."""

    inner: Ranks
    below: float
    count: float

    def value(self, rank: float) -> float:
        """The value at a rank."""
        return self.inner.value(rank + self.below)


def quantile_of(ranks: Ranks, share: float) -> float:
    """The quantile as NumPy's ``linear``."""
    if not math.isfinite(ranks.count) or ranks.count < 1:
        return math.nan
    place = (ranks.count - 1) * share
    below = math.floor(place)
    low, high = together(partial(ranks.value, rank) for rank in (below, min(below + 1, ranks.count - 1)))
    return float(np.quantile(np.array([low, high]), place - below))


def quantiles_of(ranks: Ranks, shares: Iterable[float]) -> list[float]:
    """Several quantiles."""
    return together(partial(quantile_of, ranks, share) for share in shares)
