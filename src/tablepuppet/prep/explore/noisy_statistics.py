"""Statistics of the joined rows with noise: what `describe`, `quantile`, `histogram`, `profile` ask with a `Privacy`.

Input: columns, bounds that are not taken from the data, a promise. Output: noisy counts, sums and histograms of
columns, with the noise of each. First it is checked that budgets allow the whole call; then everything is asked in one
trip. Only features are counted: a label gets noise by `label_epsilon`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.errors import LearnError, PrivacyError
from tablepuppet.operators.client import Client, Pending
from tablepuppet.party.arguments import MOST_ITEMS
from tablepuppet.prep.columns.given_bounds import Bounds
from tablepuppet.prep.columns.rows_once import MOST_TIMES
from tablepuppet.prep.columns.selected import find_columns
from tablepuppet.prep.columns.statistics import key_family, merge_categories
from tablepuppet.prep.encode.private_encode import CATEGORIES, MOMENTS
from tablepuppet.prep.explore.noisy_distribution import COARSE, FINE, HIDDEN, NoisyDistribution
from tablepuppet.prep.explore.private_bins import BINS, COUNTS
from tablepuppet.prep.explore.statistics_promise import PlannedRelease, Spent, StatisticsPromise, check_privacy
from tablepuppet.privacy.funds import PartysFunds
from tablepuppet.privacy.noise import gaussian_sigma
from tablepuppet.privacy.settings import Privacy
from tablepuppet.runs.events import Events
from tablepuppet.sql.catalog import described
from tablepuppet.sql.other_uses import known_of_features
from tablepuppet.sql.query import OutputColumn

SUMS = 3  # numbers of a release of moments
Array = NDArray[np.float64]


@dataclass(frozen=True)
class NoiseRequest:
    """What a caller asks for: the promise, how often a row counts at most (None: as often as it is joined), and where
    to look up what is left of budgets.
    """

    privacy: Privacy
    max_times: int | None
    funds: Callable[[], PartysFunds]

    @classmethod
    def of(cls, privacy: object, max_times: Any, funds: Callable[[], PartysFunds], step: str) -> NoiseRequest:
        """PrivacyError or LearnError unless both make sense."""
        checked = check_privacy(privacy, step)
        whole = isinstance(max_times, Integral) and not isinstance(max_times, bool)
        if max_times is not None and not (whole and 1 <= int(max_times) <= MOST_TIMES):
            raise LearnError(
                f"{step}: max_times is how often a row counts at most, a whole number from 1 to {MOST_TIMES:,}, not "
                f"{max_times!r}"
            )
        return cls(checked, None if max_times is None else int(max_times), funds)


def noisy_features(client: Client, names: Sequence[str] | None, step: str) -> list[OutputColumn]:
    """The named features, each once, or all of them; PrivacyError for a label."""
    query = client.plan.query
    found = query.features if names is None else find_columns(client.plan, names, step)
    for column in found:
        if column is query.label:
            raise PrivacyError(
                f"{step}: {column.name!r} is the label, and feature_epsilon is about features; leave it out, or open "
                "the relation without label= to count it as a feature"
            )
    if len(found) > MOST_ITEMS:
        raise LearnError(f"{step}: at most {MOST_ITEMS:,} columns at once; name some by columns=[...]")
    return list(found)


@dataclass(frozen=True)
class NoisySummary:
    """A count of joined rows, and of numbers between bounds mean and standard deviation, each with the deviation of its
    noise; NaN if hidden. Each base row counts at most ``max_times`` times.
    """

    count: float
    count_noise: float
    rows: float  # that there are, with and without a value
    mean: float = math.nan
    mean_noise: float = math.nan
    std: float = math.nan
    std_noise: float = math.nan

    @property
    def shown_count(self) -> int:
        """As a number of rows that there may be."""
        return round(min(max(self.count, 0.0), self.rows))

    @classmethod
    def of(cls, sums: Array, sigma: float, rows: float, bounds: Bounds) -> NoisySummary:
        """From noisy count, sum and sum of squares, where the bounds are -1 and 1.

        With n rows, mean m and variance v, the noise of m is s/n sqrt(1 + m^2), and that of v is
        s/n sqrt(1 + 4 m^2 + (v - m^2)^2), to first order.
        """
        count = float(sums[0])
        if count <= HIDDEN * sigma:  # noise leaves nothing to be said of the rows that have a value
            return cls(count, sigma, rows)
        low, half, each = bounds[0], (bounds[1] - bounds[0]) / 2, sigma / count
        mean = min(max(float(sums[1]) / count, -1.0), 1.0)
        variance = min(max(float(sums[2]) / count - mean**2, 0.0), 1.0)
        mean_noise, noise = each * math.sqrt(1 + mean**2), each * math.hypot(1, 2 * mean, variance - mean**2)
        std = math.sqrt(variance)
        std_noise = noise / (2 * std) if std > math.sqrt(noise) else math.sqrt(noise)
        return cls(count, sigma, rows, low + half * (1 + mean), half * mean_noise, half * std, half * std_noise)


class NoisyStatistics:
    """Noisy statistics of columns. Each method plans a release, and returns a function that reads it after `ask`."""

    def __init__(self, client: Client, noise: NoiseRequest, step: str):
        self._client, self._noise, self._step = client, noise, step
        self._planned: list[PlannedRelease] = []
        self._wanted: dict[tuple[str, str, int], list[tuple[OutputColumn, Bounds]]] = {}  # by op, alias and bins
        self._lists: list[OutputColumn] = []
        self._pending: dict[tuple[str, str, int], Pending] = {}
        self._multipliers: Callable[[str], float] | None = None  # by alias, when all is asked

    def counts(self, column: OutputColumn) -> Callable[[], NoisySummary]:
        """How many rows have a value."""
        read = self._plan(COUNTS, column, (0.0, 1.0), ())

        def summary() -> NoisySummary:
            count, noise = read()
            return NoisySummary(float(count), noise, self.rows(column.alias))

        return summary

    def moments(self, column: OutputColumn, bounds: Bounds) -> Callable[[], NoisySummary]:
        """Count, mean and standard deviation."""
        read = self._plan(MOMENTS, column, bounds, (SUMS,), sensitivity=math.sqrt(SUMS))
        return lambda: NoisySummary.of(*read(), self.rows(column.alias), bounds)

    def bins(self, column: OutputColumn, bounds: Bounds, bins: int) -> Callable[[], tuple[Array, float]]:
        """(counts of a histogram, the noise of each)."""
        return self._plan(BINS, column, bounds, (bins,), bins=bins)

    def distribution(self, column: OutputColumn, bounds: Bounds) -> Callable[[], NoisyDistribution]:
        """What quantiles are made of."""
        coarse, fine = self.bins(column, bounds, COARSE), self.bins(column, bounds, FINE)
        return lambda: NoisyDistribution(*bounds, coarse()[0], *fine())

    def categories(self, column: OutputColumn) -> Callable[[], Array]:
        """Noisy counts of the categories that enough rows have, or that policies list, the most frequent first."""
        self._lists.append(column)
        shards, rows = self._client.plan.tables[column.alias].shards, self._client.tables[column.alias].rows
        is_list = any(described(column.expression, shard.categories) is None for shard in shards)
        self._planned.append(PlannedRelease(column.alias, rows, is_list))

        def read() -> Array:
            replies = self._pending[CATEGORIES, column.name, 0].read()[column.alias]
            return -np.sort(-merge_categories([{**reply, "missing": 0.0, "top": 0.0} for reply in replies]).weights)

        return read

    def _plan(
        self, op: str, column: OutputColumn, bounds: Bounds, shape: tuple[int, ...], bins: int = 0,
        sensitivity: float = 1.0,
    ) -> Callable[[], tuple[Array, float]]:  # fmt: skip
        """Plan a release of one column; it is read as (the sum over shards, the standard deviation of its noise)."""
        alias, numbers = column.alias, math.prod(shape)
        wanted = self._wanted.setdefault((op, alias, bins), [])
        place, name = len(wanted), "sums" if op == MOMENTS else "counts"
        wanted.append((column, bounds))
        self._planned.append(PlannedRelease(alias, numbers))

        def read() -> tuple[Array, float]:
            replies = self._pending[op, alias, bins].read()[alias]
            total = np.asarray(sum((reply[name][place] for reply in replies), start=np.zeros(shape)))
            one = gaussian_sigma(self._multiplier(alias), sensitivity * self._times(alias), numbers)
            return total, one * math.sqrt(max(len(self._client.shards(alias)), 1))  # every shard adds its own noise

        return read

    def ask(self, events: Events) -> Spent:
        """Ask for all of it; PrivacyError, before anything is spent, if that cannot be."""
        promise = StatisticsPromise(self._noise.privacy, self._client.plan, self._planned)
        charged = promise.check(self._client, self._noise.funds, self._step)
        self._multipliers = promise.multiplier
        for known in known_of_features(self._client.plan):
            events.emit("warning", "privacy.known", f"{known} Leave it out there if it is to be protected.")
        for (op, alias, bins), wanted in self._wanted.items():
            given: dict[str, Any] = {"columns": [column.name for column, _ in wanted]}
            if op != COUNTS:
                given |= {"lows": np.array([low for _, (low, _) in wanted])}
                given |= {"highs": np.array([high for _, (_, high) in wanted])}
            if bins:
                given["bins"] = bins
            self._pending[op, alias, bins] = self._ask(op, alias, given)
        for column in self._lists:
            names = {"column": column.name, "family": key_family(column), "blinding": self._client.new_name()}
            self._pending[CATEGORIES, column.name, 0] = self._ask(CATEGORIES, column.alias, names | {"counted": True})
        return promise.spent(charged)

    def _ask(self, op: str, alias: str, given: Mapping[str, Any]) -> Pending:
        noise = {"multiplier": self._multiplier(alias), "times": self._times(alias)}
        return self._client.ask(op, lambda name, _: {**given, **noise} if name == alias else None)

    def _multiplier(self, alias: str) -> float:
        assert self._multipliers is not None, "they are known when all is asked"
        return self._multipliers(alias)

    def _times(self, alias: str) -> int:
        """How often a row of a table counts at most; how often rows are joined is public."""
        most = min(int(self._client.tables[alias].counts.max(initial=1)), MOST_TIMES)
        return most if self._noise.max_times is None else min(most, self._noise.max_times)

    def rows(self, alias: str) -> float:
        """The number of joined rows; each base row counts at most ``max_times`` times."""
        return float(np.minimum(self._client.tables[alias].counts, self._times(alias)).sum())
