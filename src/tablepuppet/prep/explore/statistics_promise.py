"""How the privacy promise for a table is divided among noisy statistics, and what they have spent: numbers only.

Input: a `Privacy` and the planned releases. Output: one noise multiplier for each table and `Spent`, or a PrivacyError
if a budget would be exceeded. All releases of a table get the same share. A table that is used under two aliases is one
table, since a row may be in both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tablepuppet.errors import PrivacyError
from tablepuppet.operators.client import Client
from tablepuppet.privacy.accountant import Spending
from tablepuppet.privacy.funds import PartysFunds
from tablepuppet.privacy.noise import sampling_epsilon
from tablepuppet.privacy.settings import Privacy
from tablepuppet.privacy.shares import TAIL_DELTA, Shares, epsilon_of
from tablepuppet.runs.figures import number
from tablepuppet.runs.table_view import ShownAsTable, TableView, aligned
from tablepuppet.sql.plan import Plan


@dataclass(frozen=True)
class PlannedRelease:
    """One noisy release that each party of a table makes."""

    alias: str
    numbers: int
    is_list: bool = False  # of frequent categories: it needs a little of delta


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

    def __str__(self) -> str:
        made = ", ".join(f"{name}: {count}" for name, count in self.releases.items())
        charged = ", ".join(f"{name} {each}" for name, each in self.charged.items())
        booked = f"; charged to budgets: {charged}" if charged else ""
        return f"epsilon {number(self.epsilon)} at delta {self.delta:g} (noisy releases: {made}{booked})"

    def table_view(self) -> TableView:
        """One row per table."""
        rows = [
            [name, number(epsilon), f"{self.delta:g}", f"{self.releases[name]:,}", number(self.multipliers[name], 3)]
            for name, epsilon in self.tables.items()
        ]
        names = ("epsilon", "delta", "noisy releases", "noise multiplier")
        return TableView("Spent", aligned(["table"], names), rows)


def check_privacy(privacy: object, step: str) -> Privacy:
    """PrivacyError unless it is a promise for features, and only that."""
    if not isinstance(privacy, Privacy):
        raise PrivacyError(f"{step}: privacy must be tp.Privacy(feature_epsilon=...), not {type(privacy).__name__}")
    if privacy.feature_epsilon is None or privacy != Privacy(
        feature_epsilon=privacy.feature_epsilon, delta=privacy.delta
    ):
        raise PrivacyError(
            f"{step}: statistics have noise by tp.Privacy(feature_epsilon=..., delta=...) and no other setting; set "
            "those two only"
        )
    return privacy


@dataclass(frozen=True)
class StatisticsPromise:
    """A promise of `Privacy` for each table, and the releases that share it."""

    privacy: Privacy
    plan: Plan
    planned: Sequence[PlannedRelease]

    def table(self, alias: str) -> str:
        """The name of a table."""
        return self.plan.tables[alias].name

    @cached_property
    def releases(self) -> dict[str, list[PlannedRelease]]:
        """By table."""
        found: dict[str, list[PlannedRelease]] = {}
        for each in self.planned:
            found.setdefault(self.table(each.alias), []).append(each)
        return found

    def multiplier(self, alias: str) -> float:
        """The noise of every release of a table."""
        return self._multipliers[self.table(alias)]

    @cached_property
    def _multipliers(self) -> dict[str, float]:
        assert self.privacy.feature_epsilon is not None, "it was checked"
        shares = {
            name: Shares(self.privacy.feature_epsilon, self.privacy.delta, sum(each.is_list for each in releases))
            for name, releases in self.releases.items()
        }
        return {name: share.multiplier(1 / len(self.releases[name])) for name, share in shares.items()}

    def check(self, client: Client, funds: Callable[[], PartysFunds], step: str) -> dict[str, Charged]:
        """What budgets will be charged, by party and table.

        PrivacyError if delta is too large for a table, or a budget too small for all of it; nothing is spent.
        """
        for alias in dict.fromkeys(each.alias for each in self.planned):
            self.privacy.check_rows(client.tables[alias].rows)
        left, charged = funds(), dict[str, Charged]()
        for name, releases in self.releases.items():
            cost, aliases = self._cost(name, releases), {each.alias for each in releases}
            for party, table in sorted(
                {(s.party, s.name) for alias in aliases for s in self.plan.tables[alias].shards}
            ):
                for each in left.get((party, table.lower()), ()):
                    if not each.allows(cost):
                        raise PrivacyError(
                            f"{step}: party {party!r}, table {table!r}: {each.shortage(cost)}; nothing was spent; use "
                            "a smaller epsilon, or ask the party's operator",
                            rule=each.rule,
                        )
                    charged[f"{party}.{table}"] = Charged(each.needed(cost), each.delta)
        return charged

    def _cost(self, table: str, releases: Sequence[PlannedRelease]) -> Spending:
        """What a party is charged at most."""
        numbers, lists = sum(each.numbers for each in releases), sum(each.is_list for each in releases)
        noise = Spending.of_gaussian(self._multipliers[table], len(releases))
        return noise + Spending.of_pure(sampling_epsilon(max(numbers, 1))) + Spending(tail=lists * TAIL_DELTA)

    def spent(self, charged: Mapping[str, Charged]) -> Spent:
        """With all planned releases made, and what `check` says of budgets."""
        counts = {name: len(releases) for name, releases in self.releases.items()}
        tails = {name: sum(each.is_list for each in releases) * TAIL_DELTA for name, releases in self.releases.items()}
        precision = {name: counts[name] / self._multipliers[name] ** 2 for name in counts}
        most = self.privacy.feature_epsilon or 0.0  # what noise was made for: `epsilon_of` rounds up
        tables = {name: min(epsilon_of(precision[name], self.privacy.delta - tails[name]), most) for name in counts}
        total = epsilon_of(sum(precision.values()), self.privacy.delta - sum(tails.values()))
        return Spent(
            max(tables.values(), default=0.0),
            self.privacy.delta,
            total,
            tables,
            counts,
            dict(self._multipliers),
            charged,
        )
