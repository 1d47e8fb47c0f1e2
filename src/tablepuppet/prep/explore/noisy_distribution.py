"""The distribution of a column from two noisy histograms of it (noisy_sums.py).

Quantiles have intervals for their noise, and there is a histogram to show; this uses noisy counts only, so it costs no
privacy. The sum of many fine bins has much noise, so a coarse histogram, a second release, is used too (Hay et al.
2010, with two levels).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tablepuppet.arrays import Array

COARSE, FINE = 16, 256  # bins; each coarse one has FAN fine ones
FAN = FINE // COARSE
SURE = 2.0  # standard deviations of noise that an interval reaches to each side
HIDDEN = 3.0  # standard deviations of noise below which a count says nothing


@dataclass(frozen=True)
class NoisyDistribution:
    """Counts in `COARSE` and `FINE` equally wide bins between bounds, each with noise of deviation ``sigma``."""

    low: float
    high: float
    coarse: Array
    fine: Array
    sigma: float

    @cached_property
    def edges(self) -> Array:
        return np.linspace(self.low, self.high, FINE + 1)

    @cached_property
    def counts(self) -> Array:
        """The best unbiased estimate of the fine counts.

        With c a coarse count and F the sum of its f fine ones, the weighted mean of both is (f c + F) / (f + 1); what
        it differs from F is divided among the fine ones.
        """
        fine = self.fine.reshape(COARSE, FAN)
        away = FAN / (FAN + 1) * (self.coarse - fine.sum(axis=1))
        return np.asarray((fine + away[:, None] / FAN).ravel())

    @cached_property
    def below(self) -> Array:
        """Rows below each edge: the rising sequence that is nearest to the sums, from 0 to the total."""
        from scipy.optimize import isotonic_regression  # takes a while to load

        sums = np.asarray(isotonic_regression(np.cumsum(self.counts)).x)
        return np.concatenate([[0.0], np.clip(sums, 0.0, max(self.total, 0.0))])

    @property
    def total(self) -> float:
        """Rows with a value."""
        return float(self.counts.sum())

    def _variance(self, edge: Array | float) -> Array:
        """Of the sum of counts below a fine edge: coarse ones have f / (f + 1), b fine ones b (1 - b / (f + 1))."""
        whole, part = np.divmod(np.asarray(edge, np.float64), FAN)
        return np.asarray(self.sigma**2 * (whole * FAN / (FAN + 1) + part * (1 - part / (FAN + 1))))

    @property
    def is_hidden(self) -> bool:
        """Whether noise leaves nothing to be said."""
        return self.total <= HIDDEN * math.sqrt(float(self._variance(float(FINE))))

    def _beyond_rank(self, share: float) -> tuple[Array, Array]:
        """At each edge: the sum below it less ``share`` of the total, unbiased, and its standard deviation of noise.

        The covariance of the sum below edge k and the total is sigma^2 k / (f + 1).
        """
        edges = np.arange(FINE + 1.0)
        away = np.concatenate([[0.0], np.cumsum(self.counts)]) - share * self.total
        both = self.sigma**2 * edges / (FAN + 1)
        variance = self._variance(edges) + share**2 * self._variance(float(FINE)) - 2 * share * both
        return away, np.sqrt(np.maximum(variance, 0.0))

    def quantile(self, share: float) -> tuple[float, float, float]:
        """(value, lowest, highest), the last two at `SURE` deviations of noise; NaN if hidden.

        The interval has every bin that the quantile may be in, by the bounds of the sums below its two edges.
        """
        if self.is_hidden:
            return math.nan, math.nan, math.nan
        value, (away, noise) = self._value(share * self.total), self._beyond_rank(share)
        reached = np.flatnonzero(away + SURE * noise >= 0)  # edges that may lie at the quantile or above it
        passed = np.flatnonzero(away - SURE * noise <= 0)  # edges that may lie below it or at it
        first = max(int(reached[0]) - 1, 0) if len(reached) else 0
        last = min(int(passed[-1]) + 1, FINE) if len(passed) else FINE
        return value, min(float(self.edges[first]), value), max(float(self.edges[last]), value)

    def _value(self, rank: float) -> float:
        """The value at a rank: rows are taken to lie evenly in a bin."""
        rank = min(max(rank, 0.0), float(self.below[-1]))
        place = int(np.searchsorted(self.below, rank, side="left"))
        if place == 0:
            place = int(np.searchsorted(self.below, 0.0, side="right"))
            return float(self.edges[min(place, FINE) - 1])
        before, after = self.below[place - 1], self.below[place]
        part = (rank - before) / (after - before) if after > before else 1.0
        return float(self.edges[place - 1] + part * (self.edges[place] - self.edges[place - 1]))

    def merged(self, bins: int) -> tuple[Array, Array, float]:
        """(edges, counts, their noise) of fewer bins, a divisor of `FINE` and a multiple of `COARSE`."""
        size = FINE // bins
        counts = self.counts.reshape(bins, size).sum(axis=1)
        return self.edges[::size], counts, math.sqrt(float(self._variance(float(size))))
