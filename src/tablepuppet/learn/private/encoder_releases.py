"""How many noisy statistics the encoders of a table's columns need. It uses the catalog only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tablepuppet.prep.columns.selected import is_category
from tablepuppet.sql.catalog import described
from tablepuppet.sql.plan import Plan
from tablepuppet.sql.query import OutputColumn

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
