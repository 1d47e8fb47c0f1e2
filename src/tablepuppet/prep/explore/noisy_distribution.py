"""Noisy counts of rows in bins between bounds that the caller chose, and the distribution of a column from two of them.

Party: columns, bounds and noise in, noisy counts out. A row counts as often as it is joined, at most ``times`` times,
and is in one bin, so it changes a count, or a histogram, by at most ``times``. Coordinator: quantiles with intervals
for their noise, and a histogram to show; this uses noisy counts only, so it costs no privacy. The sum of many fine bins
has much noise, so a coarse histogram, a second release, is used too (Hay et al. 2010, with two levels).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tablepuppet.arrays import Array
from tablepuppet.errors import PartyError
from tablepuppet.party.arguments import List, Multiplier
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.ops import Values, op
from tablepuppet.party.policy import Use
from tablepuppet.party.release import Release
from tablepuppet.party.returns import Numbers
from tablepuppet.prep.columns.rows_once import RowsOnce, Times, check_noise, is_group
from tablepuppet.prep.explore.distribution import Bins
from tablepuppet.privacy.clip import blocks

COUNTS, BINS = "private.counts", "private.bins"
ASKED = "`describe`, `histogram`, `quantile`, `profile` with `feature_epsilon`"
COARSE, FINE = 16, 256  # bins; each coarse one has FAN fine ones
FAN = FINE // COARSE
SURE = 2.0  # standard deviations of noise that an interval reaches to each side
HIDDEN = 3.0  # standard deviations of noise below which a count says nothing


@op(
    BINS,
    asked=ASKED,
    releases=Release.HISTOGRAMS,
    columns=("columns",),
    use=Use.FEATURE,
    private=True,
    returns={"counts": Numbers(("columns", "bins"))},
)
def count_bins(
    table: LocalTable,
    view: str,
    columns: Sequence[str],
    lows: List,
    highs: List,
    bins: Bins,
    multiplier: Multiplier,
    times: Times = 1,
) -> Values:
    """Noisy counts of rows in equally wide bins; a value beyond the bounds is in the first or last bin."""
    if lows.shape != (len(columns),) or highs.shape != lows.shape or not (lows < highs).all():
        raise PartyError(f"party {table.grant.party!r}: private.bins needs a low and a higher number for each column")
    check_noise(table, columns, multiplier)
    rows, counts = RowsOnce.of(table, view, columns, times), np.zeros((len(columns), bins))
    for place, name in enumerate(columns):
        inner = np.linspace(lows[place], highs[place], bins + 1)[1:-1]

        def found(name: str = name, inner: Array = inner) -> Iterator[Array]:
            values, present = rows.values(name)
            for block in blocks(len(values)):
                places = np.searchsorted(inner, values[block][present[block]], side="right")
                yield np.asarray(np.bincount(places, rows.weights[block][present[block]], minlength=bins), np.float64)

        noisy = table.noisy(found, (bins,), float(times), multiplier, "bins")
        counts[place] = noisy if is_group(table, noisy.sum(keepdims=True), times) else 0.0
    return {"counts": counts}


@op(
    COUNTS,
    asked=ASKED,
    releases=Release.HISTOGRAMS,
    columns=("columns",),
    use=Use.FEATURE,
    private=True,
    returns={"counts": Numbers(("columns",))},
)
def count_values(
    table: LocalTable, view: str, columns: Sequence[str], multiplier: Multiplier, times: Times = 1
) -> Values:
    """Noisy counts of the rows that have a value, of columns of any type."""
    rows, counts = RowsOnce.of_any(table, view, columns, times), np.zeros(len(columns))
    for place, name in enumerate(columns):

        def found(name: str = name) -> Iterator[Array]:
            present = rows.present(name)
            for block in blocks(len(present)):
                yield np.array([rows.weights[block][present[block]].sum()])

        noisy = table.noisy(found, (1,), float(times), multiplier, "counts")
        counts[place] = noisy[0] if is_group(table, noisy, times) else 0.0
    return {"counts": counts}


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
        """Of the fine bins."""
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
