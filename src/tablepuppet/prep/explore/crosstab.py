"""`relation.crosstab()`: counts of joined rows by the categories of two columns, and how strongly the two depend.

For columns of one table, the party counts under digests, and pools categories so that no cell has fewer base rows than
its policy's ``min_group`` (pooled.py). Where no pooling can do that, it counts as if no row had both values. If shards
pool different categories, a second trip asks all of them for the same ones. For columns of two tables, both are sent as
one small number per base row (sent_columns.py), and the coordinator counts and pools.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
from msgspec import Meta

from tablepuppet.arrays import Array
from tablepuppet.errors import LearnError, PartyError
from tablepuppet.operators.client import Client
from tablepuppet.party.groups import all_grouped, rows_by
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.ops import Values, op
from tablepuppet.party.release import Release
from tablepuppet.party.returns import JOINED, ROWS, Asked, Digests, Numbers, OfGroups, Plain, Returns, Wrong
from tablepuppet.prep.columns.selected import check_across, check_without_noise, find_category
from tablepuppet.prep.columns.sent_columns import SentColumns
from tablepuppet.prep.columns.statistics import NO_DIGESTS, KeyFamily, categories_of, check_family, key_family
from tablepuppet.prep.explore.pooled import (
    MOST,
    Grid,
    Known,
    Lines,
    Most,
    among,
    are_enough,
    check_number,
    different_rows,
    distinct,
    label_lines,
    places_of,
    pool_lines,
    rare,
)
from tablepuppet.runs.figures import fixed, number
from tablepuppet.runs.table_view import TableResult, TableView, aligned
from tablepuppet.sql.query import OutputColumn

Families = Annotated[Sequence[KeyFamily], Meta(min_length=2, max_length=2)]
AXES = ("first", "second")


@dataclass(frozen=True)
class CellCounts:
    """Joined rows by the kept categories of both columns; the last line of each is for pooled categories."""

    def check(self, value: Any, asked: Asked, reply: Mapping[str, Any]) -> None:
        most = asked.arguments["most"]
        shape = [len(reply[name]) + 1 if reply[f"{name}_count"] <= most else 1 for name in AXES]
        Numbers(tuple(shape), least=0.0, most=JOINED).check(value, asked, reply)
        if asked.joined is not None and value.sum() > asked.joined:
            raise Wrong("has counts of more rows than are joined")


TABLE: Returns = {
    "first_count": OfGroups(Plain(int, 0, ROWS)), "second_count": OfGroups(Plain(int, 0, ROWS)),
    "first": OfGroups(Digests(MOST)), "second": OfGroups(Digests(MOST)),
    "first_rare": OfGroups(Digests(MOST)), "second_rare": OfGroups(Digests(MOST)), "weights": OfGroups(CellCounts()),
}  # fmt: skip


@op(
    "statistics.crosstab",
    asked="`correlation`, `covariance`, `crosstab`, `group_means`",
    releases=Release.KEY_DIGESTS | Release.HISTOGRAMS,
    columns=("columns",),
    returns=TABLE,
)
def count_cells(
    table: LocalTable, view: str, columns: Sequence[str], families: Families, blinding: str, most: Most,
    first_pool: Known, second_pool: Known,
) -> Values:  # fmt: skip
    """Joined rows by the categories of two columns. Rare categories, and those that the caller names, are pooled."""
    if len(columns) != 2 or first_pool.shape[1] != 16 or second_pool.shape[1] != 16:
        raise PartyError(f"party {table.grant.party!r}: a crosstab has two columns, and pools digests of 16 bytes")
    for name, family in zip(columns, families, strict=True):  # before any row is looked at
        check_family(table, name, family)
    found = [categories_of(table, view, name, family, blinding) for name, family in zip(columns, families, strict=True)]
    sizes = [len(each.digests) for each in found]
    rows, shape = table.view(view), (sizes[0] + 1, sizes[1] + 1)
    reply: Values = {"first_count": sizes[0], "second_count": sizes[1]}
    groups = [rows_by(rows, each.codes, size) for each, size in zip(found, sizes, strict=True)]
    if max(sizes) > most:
        return all_grouped({**reply, **_nothing()}, np.concatenate(groups))
    cells = found[0].codes.astype(np.int64) * shape[1] + found[1].codes
    weights = np.bincount(cells, rows.counts, minlength=shape[0] * shape[1]).reshape(shape)
    different = np.bincount(cells[rows.firsts], minlength=shape[0] * shape[1]).reshape(shape)
    least = table.grant.rules.min_group
    pools = rare([Grid(different)], least)
    if not are_enough([Grid(different)], pools, least):
        return all_grouped({**reply, **_nothing()}, np.concatenate(groups))
    for axis, (name, given) in enumerate((("first", first_pool), ("second", second_pool))):
        digests = found[axis].digests
        pools[axis] = pools[axis] | among(digests, given)
        reply |= {name: digests[~pools[axis]], f"{name}_rare": digests[pools[axis]]}
        weights = pool_lines(weights, pools[axis], axis)
    groups.append(Grid(different).computed(pools).ravel())
    return all_grouped({**reply, "weights": weights[:-1, :-1].astype(np.float64)}, np.concatenate(groups))


def _nothing() -> Values:
    """The cells of a shard that may not count, or of which no row has both values."""
    names = ("first", "second", "first_rare", "second_rare")
    return {**dict.fromkeys(names, NO_DIGESTS), "weights": np.zeros((1, 1))}


@dataclass(frozen=True, repr=False, eq=False)
class Crosstab(TableResult):
    """Joined rows by the categories of two columns, ``(other)`` those that are pooled; rows without a value are left
    out. It is empty where some cell would have fewer rows than ``min_group``, however categories are pooled.

    ``chi2`` (without correction), ``dof`` and ``p_value`` are those of a test of independence; ``cramers_v`` is from 0
    to 1; ``mutual_information`` is in nats.
    """

    names: tuple[str, str]
    rows: list[str]
    columns: list[str]
    counts: Array  # (rows, columns)

    @property
    def total(self) -> float:
        return float(self.counts.sum())

    @property
    def expected(self) -> Array:
        """What the counts would be if the columns had nothing to do with each other."""
        return np.outer(self.counts.sum(axis=1), self.counts.sum(axis=0)) / max(self.total, 1.0)

    @property
    def _filled(self) -> tuple[int, int]:
        """The number of categories of each column that some row has."""
        first, second = (int(np.count_nonzero(self.counts.sum(axis=axis))) for axis in (1, 0))
        return first, second

    @property
    def dof(self) -> int:
        first, second = self._filled
        return max(first - 1, 0) * max(second - 1, 0)

    @property
    def chi2(self) -> float:
        """The chi-squared statistic; NaN with fewer than two categories of a column."""
        if not self.dof:
            return math.nan
        some = self.expected > 0
        expected = self.expected[some]
        return float(np.sum((self.counts[some] - expected) ** 2 / expected))

    @property
    def p_value(self) -> float:
        """How likely such a statistic is without any association."""
        from scipy.stats import chi2  # a party needs no SciPy, and it takes a while to load

        return float(chi2.sf(self.chi2, self.dof)) if self.dof else math.nan

    @property
    def cramers_v(self) -> float:
        """The strength of the association, from 0 to 1; NaN with fewer than two categories of a column."""
        return math.sqrt(self.chi2 / (self.total * (min(self._filled) - 1))) if self.dof else math.nan

    @property
    def mutual_information(self) -> float:
        """The mutual information of the two columns, in nats."""
        some = self.counts > 0
        if not self.total:
            return math.nan
        ratio = np.log(self.counts[some] / self.expected[some])
        return max(0.0, float(np.sum(self.counts[some] * ratio)) / self.total)

    def to_arrow(self) -> pa.Table:
        """One row per cell: both categories and the joined rows."""
        first, second = np.indices(self.counts.shape)
        labels = [
            pa.array([lines[i] for i in places.ravel()], pa.string())
            for lines, places in ((self.rows, first), (self.columns, second))
        ]
        return pa.table([*labels, pa.array(self.counts.ravel().astype(np.int64))], names=[*self.names, "count"])

    def table_view(self) -> TableView:
        rows = [
            [label, *(f"{count:,.0f}" for count in line), f"{line.sum():,.0f}"]
            for label, line in zip(self.rows, self.counts, strict=True)
        ]
        rows.append(["all", *(f"{each:,.0f}" for each in self.counts.sum(axis=0)), f"{self.total:,.0f}"])
        title = (
            f"{self.names[0]} by {self.names[1]}: chi² {number(self.chi2)} ({self.dof} dof, p "
            f"{number(self.p_value, 3)}), "
            f"Cramér's V {fixed(self.cramers_v, 3)}, "
            f"mutual information {fixed(self.mutual_information, 4)} nats"
        )
        return TableView(title, aligned([" \\ ".join(self.names)], _unique([*self.columns, "all"])), rows)


def _unique(labels: Sequence[str]) -> list[str]:
    """Labels as names of columns: duplicates are numbered."""
    found: dict[str, None] = {}
    for label in labels:
        name, number = label, 2
        while name in found:
            name, number = f"{label} ({number})", number + 1
        found[name] = None
    return list(found)


@dataclass(frozen=True)
class Counted:
    """Joined rows by the kept and pooled categories of two columns."""

    lines: tuple[Lines, Lines]
    counts: Array


def crosstab(client: Client, first: str, second: str, most: int) -> Crosstab:
    """Joined rows by the categories of two different columns."""
    found = count_pairs(client, first, second, most, SentColumns(client))
    sums = [found.counts.sum(axis=1), found.counts.sum(axis=0)]
    (rows, row_places), (columns, column_places) = label_lines(client, found.lines, sums)
    names = (found.lines[0].column.name, found.lines[1].column.name)
    return Crosstab(names, rows, columns, found.counts[np.ix_(row_places, column_places)])


def count_pairs(client: Client, first: str, second: str, most: int, sent: SentColumns) -> Counted:
    """Joined rows by the categories of two columns; ``sent`` are columns that were asked for before."""
    columns = [find_category(client.plan, name, "crosstab") for name in (first, second)]
    if columns[0] == columns[1]:
        raise LearnError("crosstab: name two different columns")
    check_without_noise(client.plan, columns, "crosstab")
    if columns[0].alias == columns[1].alias:
        return _within(client, columns, most)
    check_across(client.plan, columns, "crosstab")
    return _across(client, columns, most, sent)


def _within(client: Client, columns: Sequence[OutputColumn], most: int) -> Counted:
    """Ask the shards of one table, again if they have pooled different categories, and add up what they count."""
    pools, blinding = [NO_DIGESTS, NO_DIGESTS], client.new_name()
    asked = {
        "columns": [column.name for column in columns], "families": [key_family(column) for column in columns],
        "blinding": blinding, "most": most,
    }  # fmt: skip
    while True:
        given = asked | {"first_pool": pools[0], "second_pool": pools[1]}
        replies = client.ask_table("statistics.crosstab", columns[0].alias, given)
        for column, name in zip(columns, AXES, strict=True):
            check_number(column, max((reply[f"{name}_count"] for reply in replies), default=0), most, "crosstab")
        pools = [distinct([reply[f"{name}_rare"] for reply in replies]) for name in AXES]
        if not any(among(r[name], pool).any() for name, pool in zip(AXES, pools, strict=True) for r in replies):
            break
    first, second = (
        Lines(column, distinct([reply[name] for reply in replies]), bool(len(pool)), blinding)
        for column, name, pool in zip(columns, AXES, pools, strict=True)
    )
    counts = np.zeros((len(first.digests) + 1, len(second.digests) + 1))
    for each in (first, second):
        check_number(each.column, len(each.digests), most, "crosstab")
    for reply in replies:
        places = places_of(reply["first"], first.digests), places_of(reply["second"], second.digests)
        counts[np.ix_(*places)] += reply["weights"]
    return Counted((first, second), counts)


def _across(client: Client, columns: Sequence[OutputColumn], most: int, sent: SentColumns) -> Counted:
    """Count the joined rows of two tables by the categories of their base rows."""
    sent.ask_codes(columns)
    first, second = (sent.codes(column) for column in columns)
    for each in (first, second):
        check_number(each.column, len(each.digests), most, "crosstab")
    shape = (len(first.digests) + 1, len(second.digests) + 1)
    meet = sent.meetings(second.column, first.column.alias)
    cells = first.codes[meet.rows] * shape[1] + meet.groups
    counts = np.bincount(cells, meet.counts, minlength=shape[0] * shape[1]).reshape(shape)
    least = max(first.least, second.least)
    pools = [np.zeros(length - 1, bool) for length in shape]
    if least > 1:
        other = sent.meetings(first.column, second.column.alias)
        grids = [
            Grid(different_rows(meet, first.codes, shape), (np.add.reduce, np.maximum.reduce)),
            Grid(different_rows(other, second.codes, shape[::-1]).T, (np.maximum.reduce, np.add.reduce)),
        ]
        pools = rare(grids, least)
        if not are_enough(grids, pools, least):
            none = [Lines(each.column, NO_DIGESTS, False, each.blinding) for each in (first, second)]
            return Counted((none[0], none[1]), np.zeros((1, 1)))
    for axis, pool in enumerate(pools):
        counts = pool_lines(counts, pool, axis)
    rows, lines = (
        Lines(each.column, each.digests[~pool], bool(pool.any()), each.blinding)
        for each, pool in zip((first, second), pools, strict=True)
    )
    return Counted((rows, lines), counts[:-1, :-1].astype(np.float64))
