"""The share of the privacy promise that is spent on encoder statistics, by table: numbers only.

Input: how many statistics each table's columns need. Output: their noise, and what was spent. Statistics that are
not needed, since a policy gives bounds, cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tablepuppet.prep.private_encode import EncoderNoise
from tablepuppet.prep.selected import is_category
from tablepuppet.privacy.shares import TAIL_DELTA, Shares, tail_delta
from tablepuppet.sql.catalog import described
from tablepuppet.sql.plan import Plan
from tablepuppet.sql.query import OutputColumn

ENCODERS = 0.2  # of a table's promise
RELEASES = {"number": 2, "category": 1}  # of a column's statistics


@dataclass(frozen=True)
class EncoderReleases:
    """Noisy statistics of one table's columns."""

    planned: int = 0  # releases among which the promise is divided
    expected: int = 0  # releases that will be made at most: policies with bounds or categories save the others
    lists: int = 0  # lists of categories: each needs a little of delta

    def __add__(self, other: EncoderReleases) -> EncoderReleases:
        return EncoderReleases(self.planned + other.planned, self.expected + other.expected, self.lists + other.lists)


def statistics_of(
    columns: Iterable[OutputColumn], categorical: frozenset[str], known: frozenset[str] = frozenset()
) -> dict[str, EncoderReleases]:
    """The statistics that some columns need, by table; for ``known`` columns all policies give the values."""
    found: dict[str, EncoderReleases] = {}
    for column in columns:
        is_list = is_category(column, categorical)
        count = RELEASES["category" if is_list else "number"]
        one = EncoderReleases(count, 0 if column.name in known else count, int(is_list))
        found[column.alias] = found.get(column.alias, EncoderReleases()) + one
    return found


def known_columns(plan: Plan) -> frozenset[str]:
    """Features whose bounds or categories are given by the policies of all their parties."""
    found = set()
    for column in plan.query.features:
        what = "categories" if is_category(column, plan.query.categorical) else "bounds"
        shards = plan.tables[column.alias].shards
        if all(described(column.expression, getattr(shard, what)) is not None for shard in shards):
            found.add(column.name)
    return frozenset(found)


@dataclass
class EncoderPromise:
    """The noise of encoder statistics, and how much was spent; the total promise of a table is (epsilon, delta)."""

    epsilon: float
    delta: float
    tables: Mapping[str, EncoderReleases]

    def shares(self, alias: str | None = None) -> Shares:
        """How a table's promise is divided; without alias, as for the table with most lists."""
        lists = [each.lists for each in self.tables.values()] if alias is None else [self.tables[alias].lists]
        return Shares(self.epsilon, self.delta, max(lists, default=0))

    @cached_property
    def noise(self) -> EncoderNoise:
        """By table."""
        return EncoderNoise({a: self.shares(a).multiplier(ENCODERS / each.planned) for a, each in self.tables.items()})

    def precision(self, alias: str, releases: int | None = None) -> float:
        """The sum of 1 / multiplier^2 over ``releases`` statistics, or over those that were made."""
        made = self.noise.used.get(alias, 0) if releases is None else releases
        return float(made / self.noise.multipliers[alias] ** 2)

    def spend_all(self) -> None:
        """Count all statistics as if they had been made."""
        self.noise.used.update({alias: each.expected for alias, each in self.tables.items()})

    def delta_left(self, aliases: Sequence[str], rows: int = 1) -> float:
        """The delta that is left after lists of categories, for a person with ``rows`` rows in each of these tables."""
        if rows == 1:
            return self.delta - sum(self.tables[alias].lists for alias in aliases) * TAIL_DELTA
        lists = ((self.tables[alias].lists, self.noise.multipliers[alias]) for alias in aliases)
        return self.delta - sum(count * tail_delta(rows, multiplier) for count, multiplier in lists)
