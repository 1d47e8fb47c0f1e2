"""The share of a fit's promise that goes to the statistics of encoders, by table: numbers only.

Comes in: how many statistics each table's columns need. Goes out: their noise, and what it came to. Statistics that
were not asked for, as a policy gives bounds, are not spent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tablepuppet.learn.labels.noisy import described
from tablepuppet.prep.private_encode import EncoderNoise, is_category
from tablepuppet.privacy.shares import TAIL_DELTA, Shares, tail_delta
from tablepuppet.sql.plan import Plan
from tablepuppet.sql.query import OutputColumn

ENCODERS = 0.2  # of a table's promise
RELEASES = {"number": 2, "category": 1}  # of a column's statistics


@dataclass(frozen=True)
class Statistics:
    """Noisy statistics of one table's columns."""

    planned: int = 0  # releases that noise is shared among
    expected: int = 0  # those of them that will be made at most: policies that give bounds or categories save others
    lists: int = 0  # of categories: they need a little of delta

    def __add__(self, other: Statistics) -> Statistics:
        return Statistics(self.planned + other.planned, self.expected + other.expected, self.lists + other.lists)


def statistics_of(
    columns: Iterable[OutputColumn], categorical: frozenset[str], known: frozenset[str] = frozenset()
) -> dict[str, Statistics]:
    """Those of some columns, by table; policies of all parties describe the ``known`` ones."""
    found: dict[str, Statistics] = {}
    for column in columns:
        is_list = is_category(column, categorical)
        count = RELEASES["category" if is_list else "number"]
        one = Statistics(count, 0 if column.name in known else count, int(is_list))
        found[column.alias] = found.get(column.alias, Statistics()) + one
    return found


def known_columns(plan: Plan) -> frozenset[str]:
    """Features of which the policies of all their parties say which values they may have."""
    found = set()
    for column in plan.query.features:
        what = "categories" if is_category(column, plan.query.categorical) else "bounds"
        shards = plan.tables[column.alias].shards
        if all(described(column.expression, getattr(shard, what)) is not None for shard in shards):
            found.add(column.name)
    return frozenset(found)


@dataclass
class EncoderPromise:
    """The noise of encoders' statistics, and how much of it was used; a table is promised epsilon at delta in all."""

    epsilon: float
    delta: float
    tables: Mapping[str, Statistics]

    def shares(self, alias: str | None = None) -> Shares:
        """How a table's promise is divided; of all tables alike: as that of the one with most lists."""
        lists = [each.lists for each in self.tables.values()] if alias is None else [self.tables[alias].lists]
        return Shares(self.epsilon, self.delta, max(lists, default=0))

    @cached_property
    def noise(self) -> EncoderNoise:
        """By table."""
        return EncoderNoise({a: self.shares(a).multiplier(ENCODERS / each.planned) for a, each in self.tables.items()})

    def precision(self, alias: str, releases: int | None = None) -> float:
        """The sum of 1 / multiplier^2 of so many statistics, or of those that were made."""
        made = self.noise.used.get(alias, 0) if releases is None else releases
        return float(made / self.noise.multipliers[alias] ** 2)

    def spend_all(self) -> None:
        """Count all statistics as if they had been made."""
        self.noise.used.update({alias: each.expected for alias, each in self.tables.items()})

    def delta_left(self, aliases: Sequence[str], rows: int = 1) -> float:
        """What lists of categories leave of delta to somebody with so many rows in each of these tables."""
        if rows == 1:
            return self.delta - sum(self.tables[alias].lists for alias in aliases) * TAIL_DELTA
        lists = ((self.tables[alias].lists, self.noise.multipliers[alias]) for alias in aliases)
        return self.delta - sum(count * tail_delta(rows, multiplier) for count, multiplier in lists)
