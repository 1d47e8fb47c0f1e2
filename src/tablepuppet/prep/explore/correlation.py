"""`relation.correlation()` and `relation.covariance()`: pairs of columns over joined rows, with the results of pandas.

Each pair is computed over the joined rows that have both values, about its means over these rows (pair_moments.py). For
columns of one table, the party returns weighted products of its columns (release GRAM). For columns of two tables, both
are sent, one number per base row (sent_columns.py), and the coordinator uses the mapping to combine them.

Nothing is released for a pair if the rows with both values, or those with only one of them, are some but fewer than the
policy's ``min_group``. Nor if its rows differ in so few from those of another released pair of one of its columns: the
difference of two sums of that column would be theirs (pair_groups.py). Nor if two columns differ from each other in so
few, up to scale and shift (near.py): their products with a third column would tell of these. Of two such pairs the
first one is released.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tablepuppet.arrays import Array, Mask
from tablepuppet.errors import LearnError, UnknownKeyError
from tablepuppet.operators.client import Client
from tablepuppet.party.allowance import check_time
from tablepuppet.party.groups import Grouped
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.ops import Values, op
from tablepuppet.party.release import Release
from tablepuppet.party.returns import Asked, Numbers, OfGroups, Wrong
from tablepuppet.prep.columns.near import Near
from tablepuppet.prep.columns.pair_groups import Patterns
from tablepuppet.prep.columns.selected import check_across, check_without_noise, find_numbers, sends_across
from tablepuppet.prep.columns.sent_columns import SentColumns
from tablepuppet.prep.columns.statistics import AskedColumns, NumberStatistics, NumberSummary
from tablepuppet.prep.columns.values import numbers
from tablepuppet.prep.explore.pair_moments import (
    COUNT,
    PRODUCT,
    SQUARES,
    TableColumns,
    fill_across,
    merged,
    pair_moments,
)
from tablepuppet.privacy.clip import blocks
from tablepuppet.runs.events import Events
from tablepuppet.runs.figures import UNKNOWN, WITHHELD, fixed, shown
from tablepuppet.runs.table_view import TableResult, TableView, aligned
from tablepuppet.spelling import unknown_key
from tablepuppet.sql.query import OutputColumn

_CORRELATION = "Correlation over joined rows"
LARGE = 1e150  # of larger numbers there are no squares


@dataclass(frozen=True)
class Moments:
    """Moments of each pair of columns (pair_moments.py), NaN where nothing is released: counts are of joined rows."""

    def check(self, value: Any, asked: Asked, reply: Mapping[str, Any]) -> None:
        size = len(asked.arguments["columns"])
        Numbers((4, size, size), finite=False).check(value, asked, reply)
        count = value[COUNT][~np.isnan(value[COUNT])]
        if (count < 0).any() or (asked.joined is not None and (count > asked.joined).any()):
            raise Wrong("has counts of other rows than those that are joined")
        if (value[SQUARES] < 0).any():
            raise Wrong("has squares below 0")


@op(
    "statistics.products",
    asked="`correlation`, `covariance`, `crosstab`, `group_means`",
    releases=Release.STATISTICS | Release.GRAM,
    columns=("columns",),
    returns={"moments": OfGroups(Moments())},
)
def products(table: LocalTable, view: str, columns: Sequence[str]) -> Values:
    """For each pair of columns, over the joined rows that have both: how many, the mean of the first, and sums of its
    squares and of the products of both, about their means.
    """
    rows = table.view(view)
    found = [table.column(name, view) for name in columns]
    patterns = Patterns.of([partial(_has_value, each) for each in found], rows.firsts, table.grant.rules.min_group)
    moments = np.zeros((4, len(columns), len(columns)))
    for block in blocks(len(rows.row_ids), max(len(columns), 1)):  # not all columns as numbers at once
        check_time()
        parts = [numbers(each.slice(block.start, block.stop - block.start)) for each in found]
        present = np.array([each for _, each in parts], bool).reshape(len(columns), -1)
        present[patterns.few] = False  # a column with too few values counts as one without any
        values = np.array([each for each, _ in parts], np.float64).reshape(present.shape)
        moments = merged(moments, pair_moments(values, present, rows.counts[block].astype(np.float64)))
    moments[:, ~_released(found, patterns, rows.firsts, table.grant.rules.min_group)] = np.nan
    return {"moments": Grouped(moments, patterns.groups)}


def _released(found: Sequence[pa.ChunkedArray], patterns: Patterns, firsts: Mask, least: int) -> Mask:
    """The pairs of columns that are released: of two that differ in few rows (near.py), not both with a third one."""
    released, rows_of = patterns.released.copy(), dict[bytes, tuple[Mask, list[int]]]()

    def read(column: int, places: NDArray[np.intp]) -> tuple[Array, Mask]:
        values, present = numbers(found[column].take(places))
        return values, present & ~patterns.few[column]  # a column with too few values counts as one without any

    for place, column in enumerate(found if least > 1 else ()):
        has = _has_value(column) & firsts & ~patterns.few[place]
        rows_of.setdefault(np.packbits(has).tobytes(), (has, []))[1].append(place)
    for has, thirds in rows_of.values():
        near = Near.of(read, len(found), np.flatnonzero(has), least)
        for third in thirds if near.pairs.any() or near.constant.any() else ():
            shown = [third]
            for other in np.flatnonzero(released[third]).tolist():
                if other == third:
                    continue
                if near.constant[other] or near.pairs[other, shown].any():
                    released[third, other] = released[other, third] = False
                else:
                    shown.append(other)
    return released


def _has_value(column: pa.ChunkedArray) -> NDArray[np.bool_]:
    """Which rows have a value."""
    return np.asarray(pc.is_valid(column).to_numpy() if column.null_count else np.ones(len(column), bool))


@dataclass(frozen=True, repr=False, eq=False)
class ColumnMatrix(TableResult):
    """A number for each pair of columns; NaN where it is not known. ``found["a", "b"]`` is one of them.

    ``withheld`` says of which pairs it is not known because of a policy.
    """

    title: str
    columns: list[str]
    values: Array
    withheld: NDArray[np.bool_]
    decimals: int | None = None  # as they are shown; None: as many as each number needs

    def __getitem__(self, pair: tuple[str, str]) -> float:
        return float(self.values[self._places(pair)])

    def is_withheld(self, first: str, second: str) -> bool:
        """Whether a policy withholds the number of this pair."""
        return bool(self.withheld[self._places((first, second))])

    def _places(self, pair: tuple[str, str]) -> tuple[int, int]:
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise UnknownKeyError(
                f"a pair of columns is meant, such as found[{', '.join(map(repr, self.columns[:2]))}]"
            )
        for name in pair:
            if name not in self.columns:
                raise unknown_key(self.title, name, self.columns)
        return self.columns.index(pair[0]), self.columns.index(pair[1])

    def to_arrow(self) -> pa.Table:
        """One row per column; a column of numbers for each, null where it is not known."""
        numbers_ = [pa.array(each, from_pandas=True) for each in self.values.T]
        return pa.table([pa.array(self.columns, pa.string()), *numbers_], names=["column", *self.columns])

    def table_view(self) -> TableView:
        lines = zip(self.columns, self.values.tolist(), self.withheld.tolist(), strict=True)
        rows = [[name, *map(self._cell, line, withheld)] for name, line, withheld in lines]
        return TableView(self.title, aligned([""], self.columns), rows)

    def _cell(self, value: float, withheld: bool) -> str:
        if math.isnan(value):
            return WITHHELD if withheld else UNKNOWN
        return shown(value, 3) if self.decimals is None else fixed(value, self.decimals)


def all_withheld(columns: list[str]) -> ColumnMatrix:
    """Correlations that policies do not allow."""
    shape = len(columns), len(columns)
    return ColumnMatrix(_CORRELATION, columns, np.full(shape, np.nan), np.ones(shape, bool))


def correlation(
    client: Client, names: Sequence[str] | None, across: bool, events: Events, step: str = "correlation",
    numbers_: NumberStatistics | None = None, sent: SentColumns | None = None,
) -> ColumnMatrix:  # fmt: skip
    """Pearson's correlation of each pair of columns; constant ones are left out, if none was named.

    ``numbers_`` are statistics of the columns, and ``sent`` columns, that were asked for before.
    """
    found = _Pairs.ask(client, find_numbers(client.plan, names, step), across, step, numbers_, sent)
    constant = [c.name for c in found.columns if not found.known[c.name].count or not found.known[c.name].squares > 0]
    if constant and names is not None:
        raise LearnError(f"{step}: column {constant[0]!r} is constant or empty, so it has no correlation; leave it out")
    reason = "is constant or empty, so it has no correlation"
    for name in constant:
        events.emit("warning", "column.dropped", f"{name}: {reason}", column=name, reason=reason)
    kept = [place for place, column in enumerate(found.columns) if column.name not in constant]
    pairs, names_kept = np.ix_(kept, kept), [found.columns[place].name for place in kept]
    return ColumnMatrix(_CORRELATION, names_kept, found.correlations()[pairs], found.withheld[pairs], decimals=3)


def covariance(client: Client, names: Sequence[str] | None, across: bool) -> ColumnMatrix:
    """The covariance (ddof 1) of each pair of columns."""
    found = _Pairs.ask(client, find_numbers(client.plan, names, "covariance"), across, "covariance")
    listed = [column.name for column in found.columns]
    return ColumnMatrix("Covariance over joined rows", listed, found.covariances(), found.withheld)


@dataclass(frozen=True)
class _Pairs:
    """The moments of all pairs of columns."""

    columns: list[OutputColumn]
    known: dict[str, NumberSummary]
    moments: Array  # (4, columns, columns)
    withheld: NDArray[np.bool_]  # (columns, columns)

    @classmethod
    def ask(
        cls, client: Client, columns: list[OutputColumn], across: bool, step: str,
        numbers_: NumberStatistics | None = None, sent: SentColumns | None = None,
    ) -> _Pairs:  # fmt: skip
        """One trip: statistics of columns, products, and columns that are compared across tables."""
        check_without_noise(client.plan, columns, step)
        across = across and len({column.alias for column in columns}) > 1
        if across:
            check_across(client.plan, columns, step)
        numbers_ = numbers_ or NumberStatistics(client, columns)
        asked = AskedColumns(client, "statistics.products", columns)
        sent = sent or SentColumns(client)
        sent.ask_numbers(columns if across else [])
        known = numbers_.read()
        for column in columns:
            each = known[column.name]
            if each.not_finite or (each.count and not (abs(each.mean) < LARGE and each.squares < LARGE**2)):
                raise LearnError(
                    f"{step}: column {column.name!r} has NaN, infinite or huge values; filter them in WHERE"
                )
        place = {column.name: number for number, column in enumerate(columns)}
        own = {alias: [place[each.name] for each in listed] for alias, listed in asked.by_alias.items()}
        moments, replies = np.full((4, len(columns), len(columns)), np.nan), asked.replies.read()
        for alias, places in own.items():
            moments[:, np.array(places)[:, None], places] = reduce(
                merged, (reply["moments"] for reply in replies[alias]), np.zeros((4, len(places), len(places)))
            )
        if across:
            tables = {}
            for alias, listed in asked.by_alias.items():
                found, summaries = zip(*((sent.numbers(each), known[each.name]) for each in listed), strict=True)
                least = max(each.least for each in found)
                tables[alias] = TableColumns.of([each.values for each in found], summaries, least)
            fill_across(client.rows, tables, own, moments)
        aliases = np.array([column.alias for column in columns])
        sends = np.array([sends_across(client.plan, (column.alias,)) for column in columns], bool)
        is_asked = (aliases[:, None] == aliases) | across
        withheld = np.isnan(moments[COUNT]) & (is_asked | ~(sends[:, None] & sends))
        return cls(columns, known, moments, withheld)

    def covariances(self) -> Array:
        """With ddof 1; NaN of pairs with fewer than two rows."""
        count = self.moments[COUNT]
        with np.errstate(all="ignore"):
            return np.where(count > 1, self.moments[PRODUCT] / (count - 1), np.nan)

    def correlations(self) -> Array:
        """Of pairs with fewer than two rows, or one value only in these, NaN."""
        count, _, squares, both = self.moments
        with np.errstate(all="ignore"):
            size = np.sqrt(np.where(squares > 0, squares, np.nan))  # of the first column over rows with both
            found = both / size / size.T
        np.fill_diagonal(found, np.where(np.isnan(np.diag(found)), np.nan, 1.0))
        return np.asarray(np.clip(np.where(count > 1, found, np.nan), -1.0, 1.0))
