"""`relation.describe()`: what the joined rows look like, without one of them.

Dates and timestamps are computed as days since 1970-01-01, at the parties and here; they are shown as dates.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from tablepuppet.operators.client import Client
from tablepuppet.prep.category_names import Coded, ask_names, is_public
from tablepuppet.prep.statistics import CategoryStatistics, CategorySummary, NumberStatistics
from tablepuppet.runs.events import Events
from tablepuppet.runs.table_view import Align, ShownAsTable, TableView, shown
from tablepuppet.sql.query import OutputColumn
from tablepuppet.sql.types import KEY_LIKE, NUMERIC, Family, family

_DATES = {"mean": "mean_date", "min": "min_date", "max": "max_date"}
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
        ("max", pa.float64()),
        ("distinct", pa.int64()),
        ("top", pa.string()),
        ("top_share", pa.float64()),
        *((name, pa.timestamp("us")) for name in _DATES.values()),
    ]
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Description(ShownAsTable):
    """Statistics per column over joined rows: a readable table, and Arrow by `to_arrow`."""

    def __init__(self, rows: list[dict[str, Any]]):
        self._table = pa.Table.from_pylist(rows, schema=_SCHEMA)

    def to_arrow(self) -> pa.Table:
        """One row per column; what does not apply to a column is null.

        ``mean``, ``min`` and ``max`` of dates and timestamps are days since 1970-01-01; ``mean_date``, ``min_date`` and
        ``max_date`` are the same as timestamps (UTC), null outside of the years 1 to 9999.
        """
        return self._table

    def table_view(self) -> TableView:
        """One row per column, for people."""
        fields = [field for field in _SCHEMA if field.name not in _DATES.values()]
        sides: dict[str, Align] = {
            field.name.replace("_", " "): "left" if pa.types.is_string(field.type) else "right" for field in fields
        }
        rows = [[shown(value) for value in _for_people(row).values()] for row in self._table.to_pylist()]
        return TableView("Joined rows", sides, rows)


def _for_people(row: dict[str, Any]) -> dict[str, Any]:
    """A row with dates as dates."""
    dates = {name: row.pop(place) for name, place in _DATES.items()}
    kind = family(row["type"])
    if kind in (Family.DATE, Family.TIMESTAMP):
        row |= {name: _day(value, kind) for name, value in dates.items() if value is not None}
        row["std"] = None if row["std"] is None else f"{row['std']:,.4g} days"
    return row


def _day(value: datetime, kind: Family) -> str:
    return f"{value:%Y-%m-%d}" if kind is Family.DATE else f"{value:%Y-%m-%d %H:%M:%S}"


def describe(
    client: Client, columns: Iterable[OutputColumn], categorical: frozenset[str], events: Events
) -> Description:
    """Statistics of every column, over joined rows."""
    listed = list(columns)
    done = events.progress("describe", "computing statistics at the parties", len(listed))
    numeric = [column for column in listed if family(column.type) in NUMERIC]
    asked_numbers = NumberStatistics(client, numeric)
    asked = {column.name: _ask_categories(client, column) for column in listed if family(column.type) in KEY_LIKE}
    summaries, rows = asked_numbers.read(), []
    tops = _tops(client, [c for c in listed if c.name in asked and _is_category(c, categorical)], asked)
    for column in listed:
        row: dict[str, Any] = {"column": column.name, "table": column.alias, "type": column.type}
        if column.name in summaries:
            found = summaries[column.name]
            row |= {"count": round(found.count), "missing": found.missing}
            row |= {"mean": _known(found.mean), "std": _known(found.std(1))}
            row |= {"min": _known(found.minimum), "max": _known(found.maximum)}
            if family(column.type) in (Family.DATE, Family.TIMESTAMP):
                row |= {place: _date(row[name]) for name, place in _DATES.items()}
        if column.name in asked:
            with_share = _is_category(column, categorical)
            row |= _categories(asked[column.name].read(), len(client.mapping), row.get("count"), with_share)
            row |= {"top": tops.get(column.name)}
        rows.append(row)
        done(len(rows))
    return Description(rows)


def _is_category(column: OutputColumn, categorical: frozenset[str]) -> bool:
    return column.name in categorical or family(column.type) is Family.TEXT


def _tops(
    client: Client, columns: Iterable[OutputColumn], asked: Mapping[str, CategoryStatistics]
) -> dict[str, str | None]:
    """The name of the most frequent category of each public column."""
    coded = []
    for column in columns:
        digest = asked[column.name].read().top_digest
        if len(digest) and is_public(client.plan, column):
            coded.append(Coded(column, asked[column.name].blinding, digest))
    names = ask_names(client, coded)
    return {each.column.name: told[0] for each, told in zip(coded, names, strict=True)}


def _ask_categories(client: Client, column: OutputColumn) -> CategoryStatistics:
    """Distinct values; digests are asked for only where shards must be compared."""
    most = None if len(client.shards(column.alias)) > 1 else 0
    return CategoryStatistics(client, column, client.new_name(), most)


def _categories(found: CategorySummary, joined_rows: int, numbers: int | None, with_share: bool) -> dict[str, Any]:
    """Counts of a column's categories. Of numbers, so many of which are not missing, some may be too rare to be told of
    as categories: how many distinct ones there are is not known then.
    """
    told = round(joined_rows - found.missing)
    count = told if numbers is None else numbers
    distinct = found.distinct if count == told else None
    row: dict[str, Any] = {"count": count, "missing": joined_rows - count, "distinct": distinct}
    return row | ({"top_share": found.top / count if count else None} if with_share else {})


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _date(days: float | None) -> datetime | None:
    """Days since 1970-01-01 as a time, to the nearest microsecond; None for what no calendar of ours has."""
    try:
        return None if days is None else (_EPOCH + timedelta(days=days)).replace(tzinfo=None)
    except (OverflowError, ValueError):
        return None
