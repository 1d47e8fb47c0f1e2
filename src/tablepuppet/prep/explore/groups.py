"""`relation.group_means()`: the mean of a number for each category of another column, over joined rows.

For columns of one table, the party returns count, mean and sum of squares of each category; rare categories are pooled
(pooled.py), together with the rows that have no number. Columns of two tables are sent as one number per base row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tablepuppet.arrays import Array
from tablepuppet.errors import LearnError, PartyError
from tablepuppet.operators.client import Client
from tablepuppet.party.groups import all_grouped, rows_by
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.ops import Values, op
from tablepuppet.party.release import Release
from tablepuppet.party.returns import ROWS, Asked, Digests, Numbers, OfGroups, Plain, Returns, Wrong
from tablepuppet.prep.columns.selected import check_across, check_without_noise, find_category, find_number
from tablepuppet.prep.columns.sent_columns import SentColumns
from tablepuppet.prep.columns.statistics import (
    NO_DIGESTS,
    KeyFamily,
    categories_of,
    check_family,
    key_family,
    released_numbers,
)
from tablepuppet.prep.explore.pooled import (
    MOST,
    Grid,
    Known,
    Lines,
    Merge,
    Most,
    among,
    check_number,
    different_rows,
    distinct,
    label_lines,
    places_of,
    rare,
)
from tablepuppet.runs.figures import NOT_APPLICABLE, shown
from tablepuppet.runs.table_view import TableResult, TableView, aligned
from tablepuppet.sql.query import OutputColumn


@dataclass(frozen=True)
class GroupSums:
    """Count, mean and sum of squares about it for each kept category; the last line is for pooled categories."""

    def check(self, value: Any, asked: Asked, reply: Mapping[str, Any]) -> None:
        lines = len(reply["digests"]) + 1 if reply["count"] <= asked.arguments["most"] else 1
        Numbers((lines, 3), finite=False).check(value, asked, reply)
        count, _, squares = value.T
        if not ((count >= 0) & (count == np.rint(count))).all() or (squares < 0).any():
            raise Wrong("has counts that are none, or squares below 0")
        if asked.joined is not None and count.sum() > asked.joined:
            raise Wrong("has counts of more rows than are joined")


GROUPS: Returns = {
    "count": OfGroups(Plain(int, 0, ROWS)), "digests": OfGroups(Digests(MOST)), "rare": OfGroups(Digests(MOST)),
    "missing_is_rare": OfGroups(Plain(bool)), "sums": OfGroups(GroupSums()),
}  # fmt: skip


@op(
    "statistics.groups",
    asked="`correlation`, `covariance`, `crosstab`, `group_means`",
    releases=Release.KEY_DIGESTS | Release.HISTOGRAMS | Release.STATISTICS,
    columns=("columns",),
    returns=GROUPS,
)
def group_sums(
    table: LocalTable, view: str, columns: Sequence[str], family: KeyFamily, blinding: str, most: Most, pool: Known,
    pool_missing: bool,
) -> Values:  # fmt: skip
    """Count, mean and squares of the first column for each category of the second. Rare categories are pooled, with the
    rows without one if these are few; and those that the caller names. A number in fewer rows than the policy's
    ``min_group`` counts as missing everywhere.
    """
    if len(columns) != 2 or pool.shape[1] != 16:
        raise PartyError(f"party {table.grant.party!r}: groups have two columns, and pool digests of 16 bytes")
    check_family(table, columns[1], family)  # before any row is looked at
    rows = table.view(view)
    values, present = released_numbers(table, view, columns[0])
    found = categories_of(table, view, columns[1], family, blinding)
    size = len(found.digests)
    reply: Values = {"count": size, "digests": NO_DIGESTS, "rare": NO_DIGESTS, "missing_is_rare": False}
    codes, groups = found.codes.astype(np.int64), rows_by(rows, found.codes, size)
    if size > most:
        return all_grouped({**reply, "sums": np.zeros((1, 3))}, groups)
    cells = np.stack([rows_by(rows, np.where(has, codes, -1), size + 1) for has in (present, ~present)], 1)
    pooled = _rare([(cells, np.add.reduce)], table.grant.rules.min_group)
    pooled |= np.append(among(found.digests, pool), pool_missing)
    sums = _sums(values[present], rows.counts[present].astype(np.float64), codes[present], pooled)
    kept = pooled[:-1]
    reply = {"digests": found.digests[~kept], "rare": found.digests[kept], "missing_is_rare": bool(pooled[-1])}
    lines = _grid(cells, np.add.reduce).computed([pooled, np.zeros(1, bool)])
    return all_grouped({"count": size, **reply, "sums": sums}, np.append(groups, lines))


def _rare(cells: Sequence[tuple[NDArray[np.int64], Merge]], least: int) -> NDArray[np.bool_]:
    """Which categories to pool, the missing one as the last.

    ``cells`` are different rows by category, missing ones too, and by whether they have a number.
    """
    return rare([_grid(rows, merge) for rows, merge in cells], least)[0]


def _grid(rows: NDArray[np.int64], merge: Merge) -> Grid:
    """The cells as a grid in which every line may be pooled, that of missing values too."""
    return Grid(np.concatenate([rows, np.zeros((1, 2), np.int64)]), (merge, np.add.reduce))


def _sums(values: Array, weights: Array, codes: NDArray[np.int64], pooled: NDArray[np.bool_]) -> Array:
    """(kept categories and those pooled, 3): weight, mean and weighted squares about it; no mean without values."""
    kept = int(np.count_nonzero(~pooled[:-1]))
    line_of, lines = np.full(len(pooled), kept), kept + 2  # the last line is for rows that are left out
    line_of[:-1][~pooled[:-1]] = np.arange(kept)
    line_of[-1] += not pooled[-1]
    places = line_of[codes]
    count = np.bincount(places, weights, minlength=lines)
    with np.errstate(all="ignore"):
        mean = np.bincount(places, weights * values, minlength=lines) / count
        mean += np.bincount(places, weights * (values - mean[places]), minlength=lines) / count
        squares = np.bincount(places, weights * (values - mean[places]) ** 2, minlength=lines)
    return np.stack([count, mean, np.where(count > 0, squares, 0.0)], 1)[:-1]


@dataclass(frozen=True, repr=False, eq=False)
class GroupMeans(TableResult):
    """Count, mean and standard deviation (ddof 1) of a number by category, the most frequent first; ``(other)`` are
    categories that are pooled. Rows without a category or number are left out.
    """

    column: str
    by: str
    groups: list[str]
    sums: Array  # (groups, 3)

    @property
    def counts(self) -> Array:
        """Joined rows with a number, by group."""
        return self.sums[:, 0]

    @property
    def means(self) -> Array:
        return self.sums[:, 1]

    @property
    def stds(self) -> Array:
        """By group; NaN of a single row."""
        with np.errstate(all="ignore"):
            return np.asarray(np.where(self.counts > 1, np.sqrt(self.sums[:, 2] / (self.counts - 1)), np.nan))

    def to_arrow(self) -> pa.Table:
        """One row per group."""
        return pa.table(
            {
                self.by: pa.array(self.groups, pa.string()),
                "count": pa.array(self.counts.astype(np.int64)),
                "mean": pa.array(self.means, from_pandas=True),
                "std": pa.array(self.stds, from_pandas=True),
            }
        )

    def table_view(self) -> TableView:
        rows = [
            [
                group,
                f"{count:,.0f}",
                *(NOT_APPLICABLE if math.isnan(each) else shown(float(each)) for each in (mean, std)),
            ]
            for group, count, mean, std in zip(self.groups, self.counts, self.means, self.stds, strict=True)
        ]
        return TableView(f"{self.column} by {self.by}", aligned([self.by], ("count", "mean", "std")), rows)


def group_means(client: Client, name: str, by: str, most: int) -> GroupMeans:
    """The mean of one column for each category of another."""
    found = sums_by_group(client, name, by, most, SentColumns(client))
    [(labels, places)] = label_lines(client, [found.by], [found.sums[:, 0]])
    return GroupMeans(found.column.name, found.by.column.name, labels, found.sums[places])


@dataclass(frozen=True)
class Grouped:
    """Sums of a number by the kept and pooled categories of another column."""

    column: OutputColumn
    by: Lines
    sums: Array  # (groups, 3): count, mean, squares about it


def sums_by_group(client: Client, name: str, by: str, most: int, sent: SentColumns) -> Grouped:
    """The sums of a number by the categories of another column; ``sent`` are columns that were asked for before."""
    column, category = find_number(client.plan, name, "group_means"), find_category(client.plan, by, "group_means")
    if column == category:
        raise LearnError("group_means: name two different columns")
    check_without_noise(client.plan, [column, category], "group_means")
    if column.alias == category.alias:
        return _within(client, column, category, most)
    check_across(client.plan, [column, category], "group_means")
    return _across(client, column, category, most, sent)


def _within(client: Client, column: OutputColumn, by: OutputColumn, most: int) -> Grouped:
    """Ask the shards of one table, again if they have pooled different categories."""
    pool, missing, blinding = NO_DIGESTS, False, client.new_name()
    asked = {"columns": [column.name, by.name], "family": key_family(by), "blinding": blinding, "most": most}
    while True:
        replies = client.ask_table("statistics.groups", by.alias, asked | {"pool": pool, "pool_missing": missing})
        check_number(by, max((reply["count"] for reply in replies), default=0), most, "group_means")
        pool, missing = distinct([reply["rare"] for reply in replies]), any(r["missing_is_rare"] for r in replies)
        agreed = all(reply["missing_is_rare"] == missing for reply in replies)
        if agreed and not any(among(reply["digests"], pool).any() for reply in replies):
            break
    digests = distinct([reply["digests"] for reply in replies])
    check_number(by, len(digests), most, "group_means")
    lines = Lines(by, digests, bool(len(pool)) or missing, blinding)
    return Grouped(column, lines, _added(replies, digests))


def _added(replies: Sequence[Mapping[str, Any]], digests: NDArray[np.uint8]) -> Array:
    """Sums of groups over shards, each group's mean moved to that of all."""
    parts = np.zeros((len(replies), len(digests) + 1, 3))
    for part, reply in zip(parts, replies, strict=True):
        part[places_of(reply["digests"], digests)] = reply["sums"]
    counts, squares = parts[:, :, 0], parts[:, :, 2]
    means = np.where(counts > 0, parts[:, :, 1], 0.0)
    with np.errstate(all="ignore"):
        total = counts.sum(axis=0)
        mean = (counts * means).sum(axis=0) / total
        away = np.where(counts > 0, means - mean, 0.0)
    return np.stack([total, mean, (squares + counts * away**2).sum(axis=0)], 1)


def _across(client: Client, column: OutputColumn, by: OutputColumn, most: int, sent: SentColumns) -> Grouped:
    """Groups of joined rows, from both columns over base rows."""
    sent.ask_numbers([column])
    found, numbers_ = sent.codes(by), sent.numbers(column)
    check_number(by, len(found.digests), most, "group_means")
    size, least = len(found.digests), max(numbers_.least, found.least)
    there = ~np.isnan(numbers_.values)
    pool = np.zeros(size + 1, bool)
    meet = sent.meetings(by, column.alias)
    if least > 1:
        missing = (~there).astype(np.int64)
        lacks = client.rows.meetings(column.alias, missing, 2, by.alias)
        of_group = different_rows(lacks, found.codes, (size + 1, 2))
        of_column = different_rows(meet, missing, (2, size + 1)).T
        pool = _rare([(of_group, np.add.reduce), (of_column, np.maximum.reduce)], least)
    some = there[meet.rows]
    rows, groups, counts = meet.rows[some], meet.groups[some], meet.counts[some]
    sums = _sums(numbers_.values[rows], counts.astype(np.float64), groups, pool)
    lines = Lines(by, found.digests[~pool[:-1]], bool(pool.any()), found.blinding)
    return Grouped(column, lines, sums)
