"""`relation.describe()`: summary statistics of the joined rows; it releases no row.

Dates and timestamps are computed as days since 1970-01-01, by parties and coordinator; they are shown as dates. With a
`Privacy`, what can be computed with noise, and the noise of each number: means, deviations and quartiles use values
between bounds, where a value outside counts as the nearest bound. All of that is computed from noisy replies only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tablepuppet.errors import LearnError
from tablepuppet.operators.client import Client
from tablepuppet.prep.columns.category_names import Coded, ask_public_names
from tablepuppet.prep.columns.selected import (
    check_without_noise,
    find_columns,
    is_category,
    is_date,
    is_number,
    is_public,
)
from tablepuppet.prep.columns.statistics import CategoryStatistics, CategorySummary, NumberStatistics
from tablepuppet.prep.columns.values import DATES, as_date, shown_date, shown_value
from tablepuppet.prep.explore.distribution import Distributions
from tablepuppet.prep.explore.noisy_distribution import NoisyDistribution
from tablepuppet.prep.explore.noisy_statistics import NoiseRequest, NoisyStatistics, NoisySummary, Spent, noisy_features
from tablepuppet.prep.explore.quantiles import quantiles_of, with_interval
from tablepuppet.runs.events import Events
from tablepuppet.runs.figures import NOT_APPLICABLE, UNKNOWN, WITHHELD, number, shown
from tablepuppet.runs.table_view import Align, ArrowRows, ShownAsTables, TableView, aligned, arrow_table
from tablepuppet.sql.query import OutputColumn
from tablepuppet.sql.types import KEY_LIKE, NUMERIC, Family, family

COUNTED = (*KEY_LIKE, Family.FLOAT)  # families whose values can be distinguished by digests
MOST_FLOATS = 1 << 17  # of a shard whose different floats are compared with those of others
_QUARTILES = {"q25": 0.25, "median": 0.5, "q75": 0.75}
_DATES = {name: f"{name}_date" for name in ("mean", "min", *_QUARTILES, "max")}
_COLUMN = [
    *((name, pa.string()) for name in ("column", "table", "type")),
    ("count", pa.int64()),
    ("missing", pa.int64()),
]
_SCHEMA = pa.schema(
    [
        *_COLUMN,
        *((name, pa.float64()) for name in ("mean", "std", "min", *_QUARTILES, "max", "skew", "kurtosis")),
        ("distinct", pa.int64()),
        ("top", pa.string()),
        ("top_share", pa.float64()),
        *((name, pa.timestamp("us")) for name in _DATES.values()),
    ]
)
_NOISY_SCHEMA = pa.schema(
    [
        *_COLUMN,
        *((name, pa.float64()) for name in ("count_noise", "mean", "mean_noise", "std", "std_noise")),
        *((f"{name}{end}", pa.float64()) for name in _QUARTILES for end in ("", "_low", "_high")),
        *((name, pa.float64()) for name in ("bound_low", "bound_high")),
    ]
)
_SHOWN = {
    "numbers": ("column", "table", "missing", "mean", "std", "min", *_QUARTILES, "max", "distinct", "skew"),
    "categories": ("column", "table", "missing", "distinct", "top", "top_share"),
}  # to people: what fits in a window
_NOISY_SHOWN = ("count", "missing", "mean", "std", *_QUARTILES)
LEFT_OUT = {
    "min, max": "a single row decides them; the bounds stand in for them",
    "distinct, top": "a single row can add a category; profile(privacy=...) has the frequent ones",
    "skew, kurtosis": "they depend on few rows far out, and have no form with noise here",
}  # of statistics with noise


class Description(ShownAsTables, ArrowRows):
    """Statistics per column over joined rows: readable tables, and Arrow by `to_arrow`.

    With a `Privacy`, ``spent`` is what they have cost, and ``left_out`` says which statistics have no form with noise,
    and why.
    """

    def __init__(
        self, rows: list[dict[str, Any]], spent: Spent | None = None, *, not_finite: Sequence[str] = (),
        public: Sequence[str] = (), rare: Sequence[str] = (),
    ):  # fmt: skip
        """``public`` are columns whose values policies release: extremes, and names of categories; ``rare`` those with
        values in too few rows to be released, so that different values are not counted.
        """
        self._table, self.spent = arrow_table(rows, _SCHEMA if spent is None else _NOISY_SCHEMA), spent
        self.left_out = {} if spent is None else dict(LEFT_OUT)
        self._not_finite, self._public, self._rare = not_finite, frozenset(public), frozenset(rare)

    def to_arrow(self) -> pa.Table:
        """One row per column; what does not apply to a column, or is hidden by noise, is null.

        ``mean``, ``min``, ``q25``, ``median``, ``q75`` and ``max`` of dates and timestamps are days since 1970-01-01;
        ``mean_date``, ``min_date`` and so on are the same as timestamps (UTC), null outside of the years 1 to 9999.
        With noise ``count_noise``, ``mean_noise`` and ``std_noise`` are its standard deviations; that of ``missing`` is
        the one of ``count``. A quartile lies between ``_low`` and ``_high`` at two standard deviations.
        """
        return self._table

    def facts(self, column: str) -> dict[str, str]:
        """What is known of one column, by name, as it is shown; LearnError if it is not described."""
        rows = {row["column"]: row for row in self._table.to_pylist()}
        if column not in rows:
            raise LearnError(f"{column!r} is no described column; there are {', '.join(map(repr, rows))}")
        if self.spent is not None:
            return {name: _noisy_cell(rows[column], name) for name in _NOISY_SHOWN}
        row = _for_people(rows[column])
        return {name: self._cell(name, row) for name in row}

    def table_views(self) -> list[TableView]:
        """For people, one row per column: numbers, then categories; with noise all in one table."""
        listed = self._table.to_pylist()
        if self.spent is not None:
            cells = [
                [row["column"], row["table"], *(_noisy_cell(row, name) for name in _NOISY_SHOWN)] for row in listed
            ]
            return [
                TableView(f"Joined rows with noise: {self.spent}", aligned(["column", "table"], _NOISY_SHOWN), cells)
            ]
        odd = ", ".join(self._not_finite)
        remark = f" (NaN or infinite values, and so without mean and other numbers: {odd}; filter them in WHERE)"
        kinds = {"numbers": list[dict[str, Any]](), "categories": list[dict[str, Any]]()}
        for row in listed:
            is_number = family(row["type"]) in NUMERIC and row["top_share"] is None
            kinds["numbers" if is_number else "categories"].append(_for_people(row))
        views = []
        for kind, rows in kinds.items():
            sides: dict[str, Align] = {
                name.replace("_", " "): "left" if name in ("column", "table", "top") else "right"
                for name in _SHOWN[kind]
            }
            title = f"Joined rows: {kind}{remark if odd and kind == 'numbers' else ''}"
            cells = [[self._cell(name, row) for name in _SHOWN[kind]] for row in rows]
            views += [TableView(title, sides, cells)] if rows else []
        return views

    def _cell(self, name: str, row: dict[str, Any]) -> str:
        """A cell, or why it has no value: extremes and names of categories that are not public stay at their party."""
        if row[name] is not None:
            return shown(round(row[name], 4) + 0.0 if name in ("skew", "kurtosis") else row[name])
        is_value = (name == "top" and row["top_share"]) or (name in ("min", "max") and row["mean"] is not None)
        if is_value and row["column"] not in self._public:
            return WITHHELD
        if name == "distinct":
            return WITHHELD if row["column"] in self._rare else UNKNOWN
        return NOT_APPLICABLE


def _for_people(row: dict[str, Any]) -> dict[str, Any]:
    """A row with dates as dates."""
    dates = {name: row.pop(place) for name, place in _DATES.items()}
    kind = family(row["type"])
    if kind in DATES:
        row |= {name: shown_date(value, kind) for name, value in dates.items() if value is not None}
        row["std"] = None if row["std"] is None else f"{number(row['std'])} days"
    return row


def _noisy_cell(row: Mapping[str, Any], name: str) -> str:
    """A number with its noise, for people."""
    kind, value = family(row["type"]), row[name]
    if value is None:
        return "hidden by noise" if row["bound_low"] is not None else NOT_APPLICABLE
    if name in ("count", "missing"):
        return f"{value:,} ± {number(row['count_noise'], 3)}"
    if name in _QUARTILES:
        return with_interval(value, row[f"{name}_low"], row[f"{name}_high"], kind)
    days = " days" if kind in DATES else ""
    text = shown_value(value, kind) if name == "mean" else f"{shown(value)}{days}"
    return f"{text} ± {number(row[f'{name}_noise'], 3)}{days}"


@dataclass(frozen=True)
class NoisyColumn:
    """What a row of a description with noise is made of, once it was asked for; only numbers have a distribution."""

    column: OutputColumn
    summary: Callable[[], NoisySummary]
    distribution: Callable[[], NoisyDistribution] | None = None

    @classmethod
    def all_of(cls, asked: NoisyStatistics, columns: Sequence[OutputColumn]) -> list[NoisyColumn]:
        """Plan what has to be asked; PrivacyError if a number has no bounds."""
        known = asked.bounds(columns)
        return [
            cls(column, asked.moments(column, known[column.name]), asked.distribution(column, known[column.name]))
            if column.name in known
            else cls(column, asked.counts(column))
            for column in columns
        ]

    def row(self) -> dict[str, Any]:
        """The row of the column."""
        found = self.summary()
        row: dict[str, Any] = {"column": self.column.name, "table": self.column.alias, "type": self.column.type}
        row |= {"count": found.shown_count, "missing": round(found.rows) - found.shown_count}
        row |= {name: getattr(found, name) for name in ("count_noise", "mean", "mean_noise", "std", "std_noise")}
        if self.distribution is not None:
            distribution = self.distribution()
            row |= {"bound_low": distribution.low, "bound_high": distribution.high}
            for name, share in _QUARTILES.items():
                row |= zip((name, f"{name}_low", f"{name}_high"), distribution.quantile(share), strict=True)
        return row


def describe(
    client: Client, names: Sequence[str] | None, events: Events, noise: NoiseRequest | None = None
) -> Description:
    """Statistics of the named columns, or of all, over joined rows; with noise, of features."""
    if noise is None:
        query = client.plan.query
        columns = query.outputs if names is None else find_columns(client.plan, names, "describe")
        return describe_exactly(client, columns, query.categorical, events)
    asked = NoisyStatistics(client, noise, "describe")
    wanted = NoisyColumn.all_of(asked, noisy_features(client, names, "describe"))
    spent = asked.ask(events)
    return Description([each.row() for each in wanted], spent)


def describe_exactly(
    client: Client, listed: Sequence[OutputColumn], categorical: frozenset[str], events: Events,
    numbers: NumberStatistics | None = None,
) -> Description:  # fmt: skip
    """Without noise; ``numbers`` has the statistics of numbers, with shape, if known."""
    check_without_noise(client.plan, listed, "describe")
    done = events.progress("describe", "computing statistics at the parties", len(listed))
    numeric = [column for column in listed if is_number(column)]
    texts = {column.name for column in listed if is_category(column, categorical)}
    asked_numbers = numbers or NumberStatistics(client, numeric, shape=True)
    asked_quartiles = Distributions(client, numeric)
    asked = {
        column.name: _ask_categories(client, column, column.name in texts)
        for column in listed
        if family(column.type) in COUNTED
    }
    summaries, rows, rare, joined = asked_numbers.read(), [], list[str](), len(client.rows)
    categories = [each for each in asked.values() if each.column.name in texts]
    names = ask_public_names(client, [Coded(e.column, e.blinding, e.read().top_digest) for e in categories])
    quartiles = quantiles_of(asked_quartiles, list(_QUARTILES.values()))
    tops = {name: texts[0] for name, texts in names.by_column().items()}
    for column in listed:
        row: dict[str, Any] = {"column": column.name, "table": column.alias, "type": column.type}
        if column.name in summaries:
            found = summaries[column.name]
            row |= {"count": round(found.count), "missing": found.missing}
            row |= {"mean": found.mean, "std": found.std(1), "min": found.minimum, "max": found.maximum}
            row |= {name: each.value for name, each in zip(_QUARTILES, quartiles[column.name], strict=True)}
            row |= {"skew": found.skew, "kurtosis": found.kurtosis}
            if is_date(column):
                row |= {place: as_date(row[name]) for name, place in _DATES.items()}
        if column.name in asked:
            counted, shards = asked[column.name].read(), len(client.shards(column.alias))
            row |= _categories(counted, joined, row.get("count"), column.name in texts)
            rare += [column.name] if row["distinct"] is None else []
            if shards > 1 and len(counted.digests) < counted.distinct:
                row["distinct"] = None  # shards were not compared
            row |= {"top": tops.get(column.name)}
        rows.append(row)
    done(len(rows))
    odd = [column.name for column in numeric if summaries[column.name].not_finite]
    public = [column.name for column in listed if is_public(client.plan, column)]
    return Description(rows, not_finite=odd, public=public, rare=rare)


def _ask_categories(client: Client, column: OutputColumn, top: bool) -> CategoryStatistics:
    """Distinct values, and the ``top`` one; more digests only where shards must be compared, of floats not too many."""
    several = MOST_FLOATS if family(column.type) is Family.FLOAT else None
    most = several if len(client.shards(column.alias)) > 1 else 0
    return CategoryStatistics(client, column, client.new_name(), most, top=top)


def _categories(found: CategorySummary, joined_rows: int, numbers: int | None, with_share: bool) -> dict[str, Any]:
    """Counts of a column's categories. ``numbers`` counts the values of a column of numbers that are not missing.

    Some of these may be too rare to be released as categories: then the number of distinct values is not known.
    """
    counted = round(joined_rows - found.missing)
    count = counted if numbers is None else numbers
    distinct = found.distinct if count == counted else None
    row: dict[str, Any] = {"count": count, "missing": joined_rows - count, "distinct": distinct}
    return row | ({"top_share": found.top / count if count else None} if with_share else {})
