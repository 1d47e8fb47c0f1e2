"""`relation.crosstab()`: counts of joined rows by the categories of two columns, and how strongly the two depend.

For columns of one table, the party counts under digests, and pools categories so that no cell has fewer base rows than
its policy's ``min_group`` (pooled.py). If shards pool different categories, a second trip asks all of them for the same
ones. For columns of two tables, both are sent as one small number per base row (sent_columns.py), and the coordinator
counts and pools.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
from msgspec import Meta
from numpy.typing import NDArray

from tablepuppet.errors import LearnError, PartyError
from tablepuppet.mapping.digests import number_digests
from tablepuppet.operators.client import Client
from tablepuppet.party.arguments import Within
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.ops import Values, op
from tablepuppet.party.release import Release
from tablepuppet.party.returns import JOINED, ROWS, Asked, Digests, Numbers, Plain, Returns, Wrong
from tablepuppet.prep.category_names import CategoryNames, Coded
from tablepuppet.prep.pooled import Grid, pool_lines, rare
from tablepuppet.prep.selected import check_across, check_without_noise, find_category, is_public
from tablepuppet.prep.sent_columns import SentOnce
from tablepuppet.prep.statistics import KeyFamily, categories_of, check_family, key_family
from tablepuppet.runs.table_view import Align, ShownAsTable, TableView
from tablepuppet.sql.query import OutputColumn

Known = Annotated[NDArray[np.uint8], Within(dimensions=(2,))]
Floats = NDArray[np.float64]
MOST = 1000  # categories of a column
OTHER = "(other)"
Most = Annotated[int, Meta(ge=1, le=MOST)]
Families = Annotated[Sequence[KeyFamily], Meta(min_length=2, max_length=2)]


@dataclass(frozen=True)
class CellCounts:
    """Joined rows by the kept categories of both columns; the last line of each is for pooled categories."""

    def check(self, value: Any, asked: Asked, reply: Mapping[str, Any]) -> None:
        """Raise `Wrong` unless it is such an array."""
        most = asked.arguments["most"]
        shape = [len(reply[name]) + 1 if reply[f"{name}_count"] <= most else 1 for name in ("first", "second")]
        Numbers(tuple(shape), least=0.0, most=JOINED).check(value, asked, reply)
        if asked.joined is not None and value.sum() > asked.joined:
            raise Wrong("has counts of more rows than are joined")


TABLE: Returns = {
    "first_count": Plain(int, 0, ROWS), "second_count": Plain(int, 0, ROWS),
    "first": Digests(MOST), "second": Digests(MOST), "first_rare": Digests(MOST), "second_rare": Digests(MOST),
    "weights": CellCounts(),
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
    for name, family in zip(columns, families, strict=True):
        check_family(table, name, family)
    found = [categories_of(table, view, name, family, blinding) for name, family in zip(columns, families, strict=True)]
    sizes = [len(each.digests) for each in found]
    nothing = np.zeros((0, 16), np.uint8)
    reply: Values = {"first_count": sizes[0], "second_count": sizes[1]}
    if max(sizes) > most:
        names = ("first", "second", "first_rare", "second_rare")
        return {**reply, **dict.fromkeys(names, nothing), "weights": np.zeros((1, 1))}
    rows, shape = table.view(view), (sizes[0] + 1, sizes[1] + 1)
    cells = found[0].codes.astype(np.int64) * shape[1] + found[1].codes
    weights = np.bincount(cells, rows.counts, minlength=shape[0] * shape[1]).reshape(shape)
    different = np.bincount(cells[rows.firsts], minlength=shape[0] * shape[1]).reshape(shape)
    pools = rare([Grid(different)], table.grant.rules.min_group)
    for axis, (name, given) in enumerate((("first", first_pool), ("second", second_pool))):
        digests = found[axis].digests
        pooled = pools[axis] | among(digests, given)
        reply |= {name: digests[~pooled], f"{name}_rare": digests[pooled]}
        weights = pool_lines(weights, pooled, axis)
    return {**reply, "weights": weights[:-1, :-1].astype(np.float64)}


def among(digests: NDArray[np.uint8], given: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Which digests are among those given."""
    first, second = (np.ascontiguousarray(each).view("V16").ravel() for each in (digests, given))
    return np.isin(first, second)


def expected_counts(counts: Floats) -> Floats:
    """What the counts would be if the columns had nothing to do with each other."""
    return np.outer(counts.sum(axis=1), counts.sum(axis=0)) / max(float(counts.sum()), 1.0)


def degrees_of_freedom(counts: Floats) -> int:
    """Of a test of independence."""
    rows, columns = (int(np.count_nonzero(counts.sum(axis=axis))) for axis in (1, 0))
    return max(rows - 1, 0) * max(columns - 1, 0)


def chi_squared(counts: Floats) -> float:
    """The statistic of a test of independence; NaN with fewer than two categories of a column."""
    if not degrees_of_freedom(counts):
        return math.nan
    expected = expected_counts(counts)
    some = expected > 0
    return float(np.sum((counts[some] - expected[some]) ** 2 / expected[some]))


def cramers_v(counts: Floats) -> float:
    """The strength of an association, from 0 to 1; NaN with fewer than two categories of a column."""
    fewest = min(int(np.count_nonzero(counts.sum(axis=axis))) for axis in (0, 1))
    return math.sqrt(chi_squared(counts) / (float(counts.sum()) * (fewest - 1))) if fewest > 1 else math.nan


@dataclass(frozen=True, repr=False, eq=False)
class Crosstab(ShownAsTable):
    """Joined rows by the categories of two columns, ``(other)`` those that are pooled; rows without a value are left
    out.

    ``chi2`` (without correction), ``dof`` and ``p_value`` are those of a test of independence; ``cramers_v`` is from 0
    to 1; ``mutual_information`` is in nats.
    """

    names: tuple[str, str]
    rows: list[str]
    columns: list[str]
    counts: Floats  # (rows, columns)

    @property
    def total(self) -> float:
        """Joined rows with both values."""
        return float(self.counts.sum())

    @property
    def expected(self) -> Floats:
        """What the counts would be if the columns had nothing to do with each other."""
        return expected_counts(self.counts)

    @property
    def chi2(self) -> float:
        """The chi-squared statistic; NaN with fewer than two categories of a column."""
        return chi_squared(self.counts)

    @property
    def dof(self) -> int:
        """Degrees of freedom."""
        return degrees_of_freedom(self.counts)

    @property
    def p_value(self) -> float:
        """How likely such a statistic is without any association."""
        from scipy.stats import chi2  # a party needs no SciPy, and it takes a while to load

        return float(chi2.sf(self.chi2, self.dof)) if self.dof else math.nan

    @property
    def cramers_v(self) -> float:
        """The strength of the association, from 0 to 1."""
        return cramers_v(self.counts)

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
        """The table, and below it how closely the columns go together."""
        rows = [
            [label, *(f"{count:,.0f}" for count in line), f"{line.sum():,.0f}"]
            for label, line in zip(self.rows, self.counts, strict=True)
        ]
        rows.append(["all", *(f"{each:,.0f}" for each in self.counts.sum(axis=0)), f"{self.total:,.0f}"])
        sides: dict[str, Align] = {" \\ ".join(self.names): "left"}
        title = (
            f"{self.names[0]} by {self.names[1]}: chi² {self.chi2:.4g} ({self.dof} dof, p {self.p_value:.3g}), "
            f"Cramér's V {self.cramers_v:.3f}, mutual information {self.mutual_information:.4f} nats"
        )
        unique = _unique([*self.columns, "all"])
        return TableView(title, sides | dict.fromkeys(unique, "right"), rows)


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
    """Joined rows by digests of two columns; the last line of each is for pooled categories."""

    columns: Sequence[OutputColumn]
    digests: tuple[NDArray[np.uint8], NDArray[np.uint8]]
    counts: Floats
    is_pooled: tuple[bool, bool]
    blindings: tuple[str, str]  # the names that digests are made under


def crosstab(client: Client, first: str, second: str, most: int) -> Crosstab:
    """Joined rows by the categories of two different columns."""
    return _named(client, count_pairs(client, first, second, most, SentOnce(client)))


def count_pairs(client: Client, first: str, second: str, most: int, sent: SentOnce) -> Counted:
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
    """Ask the shards of one table, again if they have pooled different categories."""
    pools, blinding = [np.zeros((0, 16), np.uint8)] * 2, client.new_name()
    while True:
        asked = {
            "columns": [column.name for column in columns], "families": [key_family(column) for column in columns],
            "blinding": blinding, "most": most, "first_pool": pools[0], "second_pool": pools[1],
        }  # fmt: skip
        replies = client.ask_table("statistics.crosstab", columns[0].alias, asked)
        for axis, name in enumerate(("first", "second")):
            check_number(columns[axis], max((reply[f"{name}_count"] for reply in replies), default=0), most, "crosstab")
        rare_ = [distinct([r[f"{name}_rare"] for r in replies]) for name in ("first", "second")]
        if all(_agree(replies, name, pool) for name, pool in zip(("first", "second"), rare_, strict=True)):
            return _added(replies, (bool(len(rare_[0])), bool(len(rare_[1]))), columns, blinding, most)
        pools = rare_


def _agree(replies: Sequence[Mapping[str, Any]], name: str, pool: NDArray[np.uint8]) -> bool:
    """Whether no shard has sent a category that another has pooled."""
    return not any(among(reply[name], pool).any() for reply in replies)


def distinct(lists: Sequence[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """Digests that are in some list, each once."""
    digests = np.concatenate([np.zeros((0, 16), np.uint8), *lists])
    [codes], _ = number_digests([digests])
    return digests[np.unique(codes, return_index=True)[1]]


def _added(
    replies: Sequence[Mapping[str, Any]], is_pooled: tuple[bool, bool], columns: Sequence[OutputColumn], blinding: str,
    most: int,
) -> Counted:  # fmt: skip
    """The sum of tables, whose categories may differ."""
    digests = tuple(distinct([reply[name] for reply in replies]) for name in ("first", "second"))
    for column, each in zip(columns, digests, strict=True):
        check_number(column, len(each), most, "crosstab")
    counts = np.zeros((len(digests[0]) + 1, len(digests[1]) + 1))
    for reply in replies:
        places = [_places(reply[name], all_) for name, all_ in zip(("first", "second"), digests, strict=True)]
        counts[np.ix_(*places)] += reply["weights"]
    return Counted(columns, (digests[0], digests[1]), counts, is_pooled, (blinding, blinding))


def _places(digests: NDArray[np.uint8], known: NDArray[np.uint8]) -> NDArray[np.int64]:
    """The positions of digests among all known ones; pooled ones have the position after the last."""
    [numbers], _ = number_digests([np.concatenate([known, digests])])
    return np.append(numbers[len(known) :], len(known)).astype(np.int64)


def check_number(column: OutputColumn, found: int, most: int, step: str) -> None:
    """LearnError if a column has too many categories."""
    if found > most:
        raise LearnError(
            f"{step}: column {column.name!r} has {found:,} categories or more, and {most:,} may be counted "
            "(max_categories of fed.sql); group them in SELECT"
        )


def _across(client: Client, columns: Sequence[OutputColumn], most: int, sent: SentOnce) -> Counted:
    """Count the joined rows of two tables by the categories of their base rows."""
    sent.ask_codes(columns)
    first, second = (sent.codes(column) for column in columns)
    for each in (first, second):
        check_number(each.column, len(each.digests), most, "crosstab")
    shape = (len(first.digests) + 1, len(second.digests) + 1)
    meet = sent.meetings(second.column, first.column.alias)
    cells = first.codes[meet.rows] * shape[1] + meet.categories
    counts = np.bincount(cells, meet.counts, minlength=shape[0] * shape[1]).reshape(shape)
    least = max(first.least, second.least)
    pools = [np.zeros(length - 1, bool) for length in shape]
    if least > 1:
        there = [client.mapping.gather(each.column.alias, each.codes) for each in (first, second)]
        joined = there[0] * shape[1] + there[1]  # (joined_rows,)
        merges = ((np.add.reduce, np.maximum.reduce), (np.maximum.reduce, np.add.reduce))
        grids = [
            Grid(different_rows(client, each.column.alias, joined, shape), merge)
            for each, merge in zip((first, second), merges, strict=True)
        ]
        pools = rare(grids, least)
    for axis, pool in enumerate(pools):
        counts = pool_lines(counts, pool, axis)
    kept, is_pooled = (
        (first.digests[~pools[0]], second.digests[~pools[1]]),
        (bool(pools[0].any()), bool(pools[1].any())),
    )
    blindings = (sent.blinding(first.column), sent.blinding(second.column))
    return Counted(columns, kept, counts[:-1, :-1].astype(np.float64), is_pooled, blindings)


def different_rows(client: Client, alias: str, cells: NDArray[np.int64], shape: tuple[int, ...]) -> NDArray[np.int64]:
    """How many different base rows of a table the joined rows of each cell come from."""
    size = math.prod(shape)
    pairs = np.unique(client.mapping.tables[alias].index.astype(np.int64) * size + cells)
    return np.bincount(pairs % size, minlength=size).reshape(shape)


def label_lines(column: OutputColumn, names: Sequence[str | None]) -> list[str]:
    """Categories by name, or by number where the name is not known."""
    return [f"{column.name}={number}" if name is None else name for number, name in enumerate(names)]


def _named(client: Client, found: Counted) -> Crosstab:
    """The table with the names of categories, the most frequent first, pooled categories last."""
    columns, labels, counts = found.columns, [], found.counts
    asked = CategoryNames(client, [
        Coded(column, blinding, digests)
        for column, blinding, digests in zip(columns, found.blindings, found.digests, strict=True)
        if len(digests) and is_public(client.plan, column)
    ])  # fmt: skip
    names = {each.column.name: texts for each, texts in zip(asked.coded, asked.read(), strict=True)}
    for axis, column in enumerate(columns):
        kept = counts.shape[axis] - 1
        order = np.argsort(-counts.sum(axis=1 - axis)[:kept], kind="stable")
        texts = names.get(column.name, [None] * kept)
        lines = label_lines(column, [texts[place] for place in order.tolist()])
        lines += [OTHER] if found.is_pooled[axis] else []
        labels.append(lines)
        counts = np.take(counts, [*order.tolist(), *([kept] if found.is_pooled[axis] else [])], axis=axis)
    return Crosstab((columns[0].name, columns[1].name), labels[0], labels[1], counts)
