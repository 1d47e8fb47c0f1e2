"""`relation.correlation()` and `relation.covariance()`: pairs of columns over joined rows, with the results of pandas.

Each pair is computed over the joined rows that have both values. For columns of one table, the party returns weighted
products of its columns (release GRAM). For columns of two tables, both are sent, one number per base row
(sent_columns.py), and the coordinator uses the mapping to combine them.

Nothing is released for a pair if the rows with both values, or those with only one of them, are some but fewer than the
policy's ``min_group``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tablepuppet.errors import LearnError, PartyError, UnknownKeyError
from tablepuppet.operators.client import Client
from tablepuppet.party.allowance import check_time
from tablepuppet.party.arguments import Means, Scales
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.ops import Values, op
from tablepuppet.party.release import Release
from tablepuppet.party.returns import Asked, Numbers, Wrong
from tablepuppet.prep.columns.selected import check_across, check_without_noise, find_numbers
from tablepuppet.prep.columns.sent_columns import SentColumns
from tablepuppet.prep.columns.statistics import AskedColumns, NumberStatistics, NumberSummary
from tablepuppet.prep.columns.values import numbers
from tablepuppet.privacy.clip import blocks
from tablepuppet.runs.events import Events
from tablepuppet.runs.figures import shown
from tablepuppet.runs.table_view import TableResult, TableView, aligned
from tablepuppet.spelling import unknown_key
from tablepuppet.sql.query import OutputColumn

Floats = NDArray[np.float64]
LARGE = 1e150  # parties subtract and divide by numbers up to about this
COUNT, SUM, SQUARES, PRODUCT = range(4)  # of a pair: rows with both, sums of the first, of its squares, of products


@dataclass(frozen=True)
class PairSums:
    """Four numbers for each pair of columns, NaN where nothing is released: counts are of joined rows."""

    def check(self, value: Any, asked: Asked, reply: Mapping[str, Any]) -> None:
        """Raise `Wrong` unless it is such an array."""
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
    returns={"sums": PairSums()},
)
def products(table: LocalTable, view: str, columns: Sequence[str], means: Means, scales: Scales) -> Values:
    """For each pair of columns, over the joined rows that have both: how many, and sums of the first, its squares and
    the products of both, less ``means`` and divided by ``scales``.
    """
    if means.shape != (len(columns),) or scales.shape != means.shape:
        raise PartyError(f"party {table.grant.party!r}: products need a mean and a scale for each column")
    rows = table.view(view)
    found = [table.column(name, view) for name in columns]
    few = [not table.grant.is_group(int(np.count_nonzero(pc.is_valid(e).to_numpy() & rows.firsts))) for e in found]
    sums, both = np.zeros((4, len(columns), len(columns))), np.zeros((len(columns), len(columns)), np.int64)
    for block in blocks(len(rows.row_ids), max(len(columns), 1)):  # not all columns as numbers at once
        check_time()
        parts = [numbers(each.slice(block.start, block.stop - block.start)) for each in found]
        present = np.array([each for _, each in parts], bool).reshape(len(columns), -1)
        present[few] = False  # a column with too few values counts as one without any
        values = np.array([each for each, _ in parts], np.float64).reshape(present.shape)
        standard = np.where(present, (values - means[:, None]) / scales[:, None], 0.0)
        sums += _pair_sums(standard, present, rows.counts[block].astype(np.float64))
        first = present[:, rows.firsts[block]].astype(np.float64)
        both += np.rint(first @ first.T).astype(np.int64)
    sums[:, ~_are_groups(table, both)] = np.nan
    return {"sums": sums}


def _pair_sums(values: Floats, present: NDArray[np.bool_], weights: Floats) -> Floats:
    """Weighted sums of pairs of rows of ``values``, zero where they are not present: (4, columns, columns)."""
    there = present.astype(np.float64)
    weighted = there * weights
    return np.stack([weighted @ there.T, values @ weighted.T, values**2 @ weighted.T, (values * weights) @ values.T])


def _are_groups(table: LocalTable, both: NDArray[np.int64]) -> NDArray[np.bool_]:
    """For each pair of columns, whether the rows with ``both``, and with either alone, are enough or none."""
    alone = np.diag(both)[:, None] - both
    return np.asarray(table.grant.is_group(both) & table.grant.is_group(alone) & table.grant.is_group(alone.T))


@dataclass(frozen=True, repr=False, eq=False)
class ColumnMatrix(TableResult):
    """A number for each pair of columns; NaN where it is not known. ``found["a", "b"]`` is one of them."""

    title: str
    columns: list[str]
    values: Floats

    def __getitem__(self, pair: tuple[str, str]) -> float:
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise UnknownKeyError(
                f"a pair of columns is meant, such as found[{', '.join(map(repr, self.columns[:2]))}]"
            )
        for name in pair:
            if name not in self.columns:
                raise unknown_key(self.title, name, self.columns)
        first, second = (self.columns.index(name) for name in pair)
        return float(self.values[first, second])

    def to_arrow(self) -> pa.Table:
        """One row per column; a column of numbers for each, null where it is not known."""
        numbers_ = [pa.array(each, from_pandas=True) for each in self.values.T]
        return pa.table([pa.array(self.columns, pa.string()), *numbers_], names=["column", *self.columns])

    def table_view(self) -> TableView:
        """A square table."""
        rows = [
            [name, *("" if np.isnan(each) else shown(float(each), 3) for each in line)]
            for name, line in zip(self.columns, self.values, strict=True)
        ]
        return TableView(self.title, aligned([""], self.columns), rows)


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
    values = found.correlations()[np.ix_(kept, kept)]
    return ColumnMatrix("Correlation over joined rows", [found.columns[place].name for place in kept], values)


def covariance(client: Client, names: Sequence[str] | None, across: bool) -> ColumnMatrix:
    """The covariance (ddof 1) of each pair of columns."""
    found = _Pairs.ask(client, find_numbers(client.plan, names, "covariance"), across, "covariance")
    return ColumnMatrix("Covariance over joined rows", [c.name for c in found.columns], found.covariances())


@dataclass(frozen=True)
class _Pairs:
    """Sums of all pairs of columns, in units of standard deviations from the means."""

    columns: list[OutputColumn]
    known: dict[str, NumberSummary]
    scales: Floats
    sums: Floats  # (4, columns, columns)

    @classmethod
    def ask(
        cls, client: Client, columns: list[OutputColumn], across: bool, step: str,
        numbers_: NumberStatistics | None = None, sent: SentColumns | None = None,
    ) -> _Pairs:  # fmt: skip
        """Two trips: means and scales, then products, and columns that are compared across tables."""
        check_without_noise(client.plan, columns, step)
        across = across and len({column.alias for column in columns}) > 1
        if across:
            check_across(client.plan, columns, step)
        known = (numbers_ or NumberStatistics(client, columns)).read()
        for column in columns:
            _check_values(column, known[column.name], step)
        means = {column.name: np.nan_to_num(known[column.name].mean) for column in columns}
        scales = {column.name: _scale(known[column.name]) for column in columns}
        asked = AskedColumns(
            client, "statistics.products", columns,
            lambda listed: {
                "means": np.array([means[each.name] for each in listed]),
                "scales": np.array([scales[each.name] for each in listed]),
            },
        )  # fmt: skip
        sent = sent or SentColumns(client)
        sent.ask_numbers(columns if across else [])
        places = {alias: [columns.index(each) for each in listed] for alias, listed in asked.by_alias.items()}
        sums, replies = np.full((4, len(columns), len(columns)), np.nan), asked.replies.read()
        for alias, own in places.items():
            sums[:, np.array(own)[:, None], own] = np.sum([reply["sums"] for reply in replies[alias]], axis=0)
        if across:
            standard = ((sent.numbers(c).values - means[c.name]) / scales[c.name] for c in columns)
            least = {column.alias: sent.numbers(column).least for column in columns}
            _fill_across(client, standard, least, places, sums)
        return cls(columns, known, np.array(list(scales.values())), sums)

    def covariances(self) -> Floats:
        """With ddof 1; NaN of pairs with fewer than two rows."""
        count, first, _, both = self.sums
        with np.errstate(all="ignore"):
            found = np.where(count > 1, (both - first * first.T / count) / (count - 1), np.nan)
        return np.asarray(found * np.outer(self.scales, self.scales))

    def correlations(self) -> Floats:
        """Of pairs with fewer than two rows, or one value only in these, NaN."""
        count, first, squares, both = self.sums
        with np.errstate(all="ignore"):
            spread = squares - first**2 / count  # of the first column over rows with both
            spread = np.where(spread > 1e-14 * squares, spread, np.nan)
            found = (both - first * first.T / count) / np.sqrt(spread * spread.T)
        np.fill_diagonal(found, np.where(np.isnan(np.diag(found)), np.nan, 1.0))
        return np.asarray(np.clip(np.where(count > 1, found, np.nan), -1.0, 1.0))


def _check_values(column: OutputColumn, known: NumberSummary, step: str) -> None:
    """LearnError unless values and their squares are ordinary numbers."""
    if known.not_finite or (known.count and not (abs(known.mean) < LARGE and known.squares < LARGE**2)):
        raise LearnError(f"{step}: column {column.name!r} has NaN, infinite or huge values; filter them in WHERE")


def _scale(known: NumberSummary) -> float:
    """The standard deviation; one if it is zero, or outside of what parties accept as a divisor."""
    found = known.std(0) if known.count else 0.0
    return float(found) if 1 / LARGE < found < LARGE else 1.0


def _fill_across(
    client: Client, standard: Iterable[Floats], least: Mapping[str, int], places: Mapping[str, list[int]], sums: Floats
) -> None:
    """The sums of pairs of columns of two tables, from standardised columns over base rows with NaN for no value.

    With Z the values, 0 where there is none, M whether there is one, and C how often rows of both tables are joined
    with each other: M'CM, Z'CM, Z^2'CM and Z'CZ. C times a column is a gather and a scatter over the mapping.
    """
    present, filled = [], []
    for values in standard:
        present.append(~np.isnan(values))
        filled.append(np.where(present[-1], values, 0.0))
    for one, other in combinations(places, 2):
        near, far = sorted((one, other), key=lambda alias: len(places[alias]))
        through = partial(_through, client, near, far)
        z, m = (np.stack([each[place] for place in places[far]]).astype(np.float64) for each in (filled, present))
        for place in places[near]:
            values, there = filled[place], present[place].astype(np.float64)
            moved, rows, squares = through(values), through(there), through(values**2)
            found = np.stack([m @ rows, m @ moved, m @ squares, z @ moved])  # of the near column
            mirrored = np.stack([found[COUNT], z @ rows, z**2 @ rows, found[PRODUCT]])  # of the far ones
            hidden = _too_few(client, near, far, there, m, max(least[near], least[far]))
            found[:, hidden], mirrored[:, hidden] = np.nan, np.nan
            sums[:, place, places[far]], sums[:, places[far], place] = found, mirrored


def _through(client: Client, near: str, far: str, values: Floats) -> Floats:
    """Values of one table's rows summed at the rows of another, over joined rows."""
    return client.mapping.scatter_sum(far, client.mapping.gather(near, values))


def _too_few(client: Client, near: str, far: str, there: Floats, m: Floats, least: int) -> NDArray[np.bool_]:
    """For each far column, whether the rows of either table that have both values, or one of them, are some but fewer
    than ``least``.
    """
    hidden = np.zeros(len(m), bool)
    for place, column in enumerate(m if least > 1 else ()):
        for here, over in ((there, column), (there, 1.0 - column), (1.0 - there, column)):
            far_rows = np.count_nonzero((over > 0) & (_through(client, near, far, here) > 0))
            near_rows = np.count_nonzero((here > 0) & (_through(client, far, near, over) > 0))
            hidden[place] |= 0 < far_rows < least or 0 < near_rows < least
    return hidden
