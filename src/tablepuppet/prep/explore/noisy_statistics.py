"""Statistics of the joined rows with noise: what `describe`, `quantile`, `histogram`, `profile` ask with a `Privacy`.

Input: columns, bounds that are not taken from the data, a promise. Output: noisy counts, sums and histograms of
columns, with the noise of each, and what they have cost. All releases of a table share its promise equally. First it is
checked that budgets allow the whole call; then everything is asked in one trip. Only features are counted: a label gets
noise by `label_epsilon`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, Self

import numpy as np

from tablepuppet.arrays import Array
from tablepuppet.errors import LearnError, PrivacyError
from tablepuppet.operators.client import Client, Pending
from tablepuppet.party.arguments import MOST_ITEMS
from tablepuppet.prep.columns.given_bounds import Bounds, bounds_of
from tablepuppet.prep.columns.noisy_sums import BINS, CATEGORIES, COUNTS, MOMENTS, MOST_TIMES
from tablepuppet.prep.columns.selected import find_columns, is_number
from tablepuppet.prep.columns.statistics import key_family, merge_categories
from tablepuppet.prep.explore.noisy_distribution import COARSE, FINE, HIDDEN, NoisyDistribution
from tablepuppet.privacy.funds import PartysFunds, shortages
from tablepuppet.privacy.noise import gaussian_sigma
from tablepuppet.privacy.noise_plan import NoisePlan, NoisyRelease, Shares, charges
from tablepuppet.privacy.settings import Privacy
from tablepuppet.runs.events import Events
from tablepuppet.runs.figures import number
from tablepuppet.runs.table_view import ShownAsTable, TableView, aligned
from tablepuppet.sql.catalog import described
from tablepuppet.sql.plan import known_of_features
from tablepuppet.sql.query import OutputColumn

SUMS = 3  # numbers of a release of moments


@dataclass(frozen=True)
class NoiseRequest:
    """What a caller asks for: the promise, bounds of columns, how often a row counts at most (None: as often as it is
    joined), and where to look up what is left of budgets.
    """

    privacy: Privacy
    bounds: Any
    max_times: int | None
    funds: Callable[[], PartysFunds]

    @classmethod
    def of(
        cls, step: str, privacy: object, bounds: Any, max_times: Any, funds: Callable[[], PartysFunds]
    ) -> Self | None:
        """None without ``privacy``; PrivacyError or LearnError unless all of it makes sense."""
        if privacy is None:
            if bounds is not None or max_times is not None:
                raise LearnError(
                    f"{step}: bounds and max_times are for noise: set privacy=tp.Privacy(feature_epsilon=...) too"
                )
            return None
        if not isinstance(privacy, Privacy):
            raise PrivacyError(f"{step}: privacy must be tp.Privacy(feature_epsilon=...), not {type(privacy).__name__}")
        if privacy.feature_epsilon is None or privacy != Privacy(
            feature_epsilon=privacy.feature_epsilon, delta=privacy.delta
        ):
            raise PrivacyError(
                f"{step}: statistics have noise by tp.Privacy(feature_epsilon=..., delta=...) and no other setting; "
                "set those two only"
            )
        whole = isinstance(max_times, Integral) and not isinstance(max_times, bool)
        if max_times is not None and not (whole and 1 <= int(max_times) <= MOST_TIMES):
            raise LearnError(
                f"{step}: max_times is how often a row counts at most, a whole number from 1 to {MOST_TIMES:,}, not "
                f"{max_times!r}"
            )
        return cls(privacy, bounds, None if max_times is None else int(max_times), funds)


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
class Charged:
    """What a request adds to a budget: an epsilon at the budget's own delta."""

    epsilon: float
    delta: float

    def __str__(self) -> str:
        return f"{number(self.epsilon)} at delta {self.delta:g}"


@dataclass(frozen=True, repr=False)
class Spent(ShownAsTable):
    """What noisy statistics cost: ``epsilon`` at ``delta`` for a row of any one table.

    ``tables`` has the epsilon of each table, ``total`` that of somebody with a row in every table. ``multipliers`` is
    the noise of a release, divided by what one row may change in it. ``charged`` is what was added to budgets, by party
    and table, at the budget's own delta: budgets add up Renyi divergences, which alone is more than ``epsilon``.
    """

    epsilon: float
    delta: float
    total: float
    tables: Mapping[str, float]
    releases: Mapping[str, int]
    multipliers: Mapping[str, float]
    charged: Mapping[str, Charged] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: NoisePlan, promised: float, charged: Mapping[str, Charged]) -> Self:
        """With all releases of the plan made; of one table they never cost more than was promised."""
        tables = {each.alias: min(plan.epsilon([each.alias]), promised) for each in plan.releases}
        return cls(
            max(tables.values(), default=0.0),
            plan.delta,
            plan.epsilon(tables),
            tables,
            {each.alias: each.times for each in plan.releases},
            {each.alias: each.multiplier for each in plan.releases},
            charged,
        )

    def __str__(self) -> str:
        made = ", ".join(f"{name}: {count}" for name, count in self.releases.items())
        charged = ", ".join(f"{name} {each}" for name, each in self.charged.items())
        booked = f"; charged to budgets: {charged}" if charged else ""
        return f"epsilon {number(self.epsilon)} at delta {self.delta:g} (noisy releases: {made}{booked})"

    def table_view(self) -> TableView:
        rows = [
            [name, number(epsilon), f"{self.delta:g}", f"{self.releases[name]:,}", number(self.multipliers[name], 3)]
            for name, epsilon in self.tables.items()
        ]
        names = ("epsilon", "delta", "noisy releases", "noise multiplier")
        return TableView("Spent", aligned(["table"], names), rows)


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
        self._planned: list[tuple[str, int, bool]] = []  # a release each: alias, numbers, whether it is a list
        self._wanted: dict[tuple[str, str, int], list[tuple[OutputColumn, Bounds]]] = {}  # by op, alias and bins
        self._lists: list[OutputColumn] = []
        self._pending: dict[tuple[str, str, int], Pending] = {}
        self._multipliers: dict[str, float] = {}  # by table, when all is asked

    def bounds(self, columns: Sequence[OutputColumn]) -> dict[str, Bounds]:
        """The bounds of the numbers among some columns; PrivacyError if one has none."""
        numbers = [column for column in columns if is_number(column)]
        return bounds_of(self._client.plan, numbers, self._noise.bounds, self._step)

    def counts(self, column: OutputColumn) -> Callable[[], NoisySummary]:
        """How many rows have a value."""
        read = self._release(COUNTS, column, (0.0, 1.0), ())

        def summary() -> NoisySummary:
            count, noise = read()
            return NoisySummary(float(count), noise, self.rows(column.alias))

        return summary

    def moments(self, column: OutputColumn, bounds: Bounds) -> Callable[[], NoisySummary]:
        """Count, mean and standard deviation."""
        read = self._release(MOMENTS, column, bounds, (SUMS,), sensitivity=math.sqrt(SUMS))
        return lambda: NoisySummary.of(*read(), self.rows(column.alias), bounds)

    def bins(self, column: OutputColumn, bounds: Bounds, bins: int) -> Callable[[], tuple[Array, float]]:
        """(counts of a histogram, the noise of each)."""
        return self._release(BINS, column, bounds, (bins,), bins=bins)

    def distribution(self, column: OutputColumn, bounds: Bounds) -> Callable[[], NoisyDistribution]:
        """What quantiles are made of."""
        coarse, fine = self.bins(column, bounds, COARSE), self.bins(column, bounds, FINE)
        return lambda: NoisyDistribution(*bounds, coarse()[0], *fine())

    def categories(self, column: OutputColumn) -> Callable[[], Array]:
        """Noisy counts of the categories that enough rows have, or that policies list, the most frequent first."""
        self._lists.append(column)
        shards, rows = self._client.plan.tables[column.alias].shards, self._client.tables[column.alias].rows
        is_list = any(described(column.expression, shard.categories) is None for shard in shards)
        self._planned.append((column.alias, rows, is_list))

        def read() -> Array:
            replies = self._pending[CATEGORIES, column.name, 0].read()[column.alias]
            return -np.sort(-merge_categories([{**reply, "missing": 0.0, "top": 0.0} for reply in replies]).weights)

        return read

    def _release(
        self, op: str, column: OutputColumn, bounds: Bounds, shape: tuple[int, ...], bins: int = 0,
        sensitivity: float = 1.0,
    ) -> Callable[[], tuple[Array, float]]:  # fmt: skip
        """Plan a release of one column; it is read as (the sum over shards, the standard deviation of its noise)."""
        alias, numbers = column.alias, math.prod(shape)
        wanted = self._wanted.setdefault((op, alias, bins), [])
        place, name = len(wanted), "sums" if op == MOMENTS else "counts"
        wanted.append((column, bounds))
        self._planned.append((alias, numbers, False))

        def read() -> tuple[Array, float]:
            replies = self._pending[op, alias, bins].read()[alias]
            total = np.asarray(sum((reply[name][place] for reply in replies), start=np.zeros(shape)))
            one = gaussian_sigma(self._multiplier(alias), sensitivity * self._times(alias), numbers)
            return total, one * math.sqrt(max(len(self._client.shards(alias)), 1))  # every shard adds its own noise

        return read

    def ask(self, events: Events) -> Spent:
        """Ask for all of it; PrivacyError, before anything is spent, if that cannot be."""
        plan, privacy = self._plan(), self._noise.privacy
        for alias in dict.fromkeys(alias for alias, _, _ in self._planned):
            privacy.check_rows(self._client.tables[alias].rows)
        charged = self._check_budgets(plan)
        self._multipliers = {each.alias: each.multiplier for each in plan.releases}
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
        assert privacy.feature_epsilon is not None, "`NoiseRequest.of` has checked it"
        return Spent.of(plan, privacy.feature_epsilon, charged)

    def _plan(self) -> NoisePlan:
        """The releases of each table. One that is used under two aliases is one table, as a row may be in both."""
        tables, privacy, releases = self._client.plan.tables, self._noise.privacy, []
        assert privacy.feature_epsilon is not None, "`NoiseRequest.of` has checked it"
        for name in dict.fromkeys(tables[alias].name for alias, _, _ in self._planned):
            planned = [each for each in self._planned if tables[each[0]].name == name]
            lists = sum(is_list for _, _, is_list in planned)
            multiplier = Shares(privacy.feature_epsilon, privacy.delta, lists).multiplier(1 / len(planned))
            numbers = sum(size for _, size, _ in planned)
            parties = {shard.party for alias, _, _ in planned for shard in tables[alias].shards}
            releases.append(
                NoisyRelease(
                    name, self._step, len(planned), multiplier, lists=lists, numbers=numbers, table=name,
                    parties=tuple(sorted(parties)),
                )
            )  # fmt: skip
        return NoisePlan(privacy.delta, tuple(releases))

    def _check_budgets(self, plan: NoisePlan) -> dict[str, Charged]:
        """What budgets will be charged, by party and table; PrivacyError if one is too small for all of it."""
        costs, funds = charges(plan.releases), self._noise.funds()
        for short in shortages(costs, funds):
            raise PrivacyError(
                f"{self._step}: {short}; nothing was spent; use a smaller epsilon, or ask the party's operator",
                rule=short.funds.rule,
            )
        return {
            f"{party}.{table}": Charged(each.needed(cost), each.delta)
            for (party, table), cost in costs.items()
            for each in funds.get((party, table.lower()), ())
        }

    def _ask(self, op: str, alias: str, given: Mapping[str, Any]) -> Pending:
        noise = {"multiplier": self._multiplier(alias), "times": self._times(alias)}
        return self._client.ask(op, {alias: {**given, **noise}})

    def _multiplier(self, alias: str) -> float:
        return self._multipliers[self._client.plan.tables[alias].name]

    def _times(self, alias: str) -> int:
        """How often a row of a table counts at most; how often rows are joined is public."""
        most = min(int(self._client.tables[alias].counts.max(initial=1)), MOST_TIMES)
        return most if self._noise.max_times is None else min(most, self._noise.max_times)

    def rows(self, alias: str) -> float:
        """The number of joined rows; each base row counts at most ``max_times`` times."""
        return float(np.minimum(self._client.tables[alias].counts, self._times(alias)).sum())
