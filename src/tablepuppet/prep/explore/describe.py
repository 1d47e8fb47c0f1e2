"""`relation.describe()`: summary statistics of the joined rows; it releases no row.

Dates and timestamps are computed as days since 1970-01-01, by parties and coordinator; they are shown as dates.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from tablepuppet.operators.client import Client
from tablepuppet.prep.columns.category_names import Coded, ask_public_names
from tablepuppet.prep.columns.days import DATES, as_date, shown_date
from tablepuppet.prep.columns.selected import check_without_noise, is_date, is_public
from tablepuppet.prep.columns.statistics import CategoryStatistics, CategorySummary, NumberStatistics
from tablepuppet.prep.explore.distribution import Distributions
from tablepuppet.prep.explore.quantiles import quantiles_of
from tablepuppet.runs.events import Events
from tablepuppet.runs.figures import NOT_APPLICABLE, UNKNOWN, WITHHELD, number, shown
from tablepuppet.runs.table_view import Align, ArrowRows, ShownAsTables, TableView, arrow_table
from tablepuppet.sql.query import OutputColumn
from tablepuppet.sql.types import KEY_LIKE, NUMERIC, Family, family

COUNTED = (*KEY_LIKE, Family.FLOAT)  # families whose values can be distinguished by digests
MOST_FLOATS = 1 << 17  # of a shard whose different floats are compared with those of others
_QUARTILES = {"q25": 0.25, "median": 0.5, "q75": 0.75}
_DATES = {name: f"{name}_date" for name in ("mean", "min", *_QUARTILES, "max")}
_SCHEMA = pa.schema(
    [
        ("column", pa.string()),
        ("table", pa.string()),
        ("type", pa.string()),
        ("count", pa.int64()),
        ("missing", pa.int64()),
        ("mean", pa.float64()),
        ("std", pa.float64()),
        ("min", pa.float64()),
        *((name, pa.float64()) for name in _QUARTILES),
        ("max", pa.float64()),
        ("skew", pa.float64()),
        ("kurtosis", pa.float64()),
        ("distinct", pa.int64()),
        ("top", pa.string()),
        ("top_share", pa.float64()),
        *((name, pa.timestamp("us")) for name in _DATES.values()),
    ]
)


_SHOWN = {
    "numbers": ("column", "table", "missing", "mean", "std", "min", *_QUARTILES, "max", "distinct", "skew"),
    "categories": ("column", "table", "missing", "distinct", "top", "top_share"),
}  # to people: what fits in a window


class Description(ShownAsTables, ArrowRows):
    """Statistics per column over joined rows: readable tables, and Arrow by `to_arrow`."""

    def __init__(
        self,
        rows: list[dict[str, Any]],
        not_finite: Sequence[str] = (),
        public: Sequence[str] = (),
        rare: Sequence[str] = (),
    ):
        """``public`` are columns whose values policies release: extremes, and names of categories; ``rare`` those with
        values in too few rows to be released, so that different values are not counted.
        """
        self._table, self._not_finite = arrow_table(rows, _SCHEMA), not_finite
        self._public, self._rare = frozenset(public), frozenset(rare)

    def to_arrow(self) -> pa.Table:
        """One row per column; what does not apply to a column is null.

        ``mean``, ``min``, ``q25``, ``median``, ``q75`` and ``max`` of dates and timestamps are days since 1970-01-01;
        ``mean_date``, ``min_date`` and so on are the same as timestamps (UTC), null outside of the years 1 to 9999.
        """
        return self._table

    def facts(self, column: str) -> dict[str, str]:
        """What is known of one column, by name, as it is shown."""
        row = _for_people(next(row for row in self._table.to_pylist() if row["column"] == column))
        return {name: self._cell(name, row) for name in row}

    def table_views(self) -> list[TableView]:
        """Numbers, then categories, for people: one row per column."""
        odd = ", ".join(self._not_finite)
        remark = f" (NaN or infinite values, and so without mean and other numbers: {odd}; filter them in WHERE)"
        kinds = {"numbers": list[dict[str, Any]](), "categories": list[dict[str, Any]]()}
        for row in self._table.to_pylist():
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


def describe(
    client: Client, columns: Iterable[OutputColumn], categorical: frozenset[str], events: Events,
    numbers: NumberStatistics | None = None,
) -> Description:  # fmt: skip
    """Statistics of every column, over joined rows; ``numbers`` has those of numbers, with shape, if known."""
    listed = list(columns)
    check_without_noise(client.plan, listed, "describe")
    done = events.progress("describe", "computing statistics at the parties", len(listed))
    numeric = [column for column in listed if family(column.type) in NUMERIC]
    asked_numbers = numbers or NumberStatistics(client, numeric, shape=True)
    asked_quartiles = Distributions(client, numeric)
    asked = {
        column.name: _ask_categories(client, column, is_category(column, categorical))
        for column in listed
        if family(column.type) in COUNTED
    }
    summaries, rows, rare = asked_numbers.read(), [], list[str]()
    categories = [each for each in asked.values() if is_category(each.column, categorical)]
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
            with_share = is_category(column, categorical)
            counted, shards = asked[column.name].read(), len(client.shards(column.alias))
            row |= _categories(counted, len(client.rows), row.get("count"), with_share)
            rare += [column.name] if row["distinct"] is None else []
            if shards > 1 and len(counted.digests) < counted.distinct:
                row["distinct"] = None  # shards were not compared
            row |= {"top": tops.get(column.name)}
        rows.append(row)
        done(len(rows))
    odd = [column.name for column in numeric if summaries[column.name].not_finite]
    return Description(rows, odd, [column.name for column in listed if is_public(client.plan, column)], rare)


def is_category(column: OutputColumn, categorical: frozenset[str]) -> bool:
    """Whether a column is shown as categories: texts, and those that the query lists."""
    return column.name in categorical or family(column.type) is Family.TEXT


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
