"""`relation.describe()`: what the joined rows look like, without one of them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from rich.table import Table as RichTable

from tablepuppet.operators.client import Client
from tablepuppet.prep.statistics import CategoryStatistics, CategorySummary, NumberStatistics
from tablepuppet.runs.events import Events
from tablepuppet.sql.catalog import rendered, rendered_html
from tablepuppet.sql.query import OutputColumn
from tablepuppet.sql.types import KEY_LIKE, NUMERIC, Family, family

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
        ("top_share", pa.float64()),
    ]
)


class Description:
    """Statistics per column over joined rows: a readable table, and Arrow by `to_arrow`."""

    def __init__(self, rows: list[dict[str, Any]]):
        self._table = pa.Table.from_pylist(rows, schema=_SCHEMA)

    def to_arrow(self) -> pa.Table:
        """One row per column; what does not apply to a column is null."""
        return self._table

    def _render(self) -> RichTable:
        view = RichTable(title="Joined rows", title_justify="left")
        for field in _SCHEMA:
            numeric = not pa.types.is_string(field.type)
            view.add_column(field.name.replace("_", " "), justify="right" if numeric else "left")
        for row in self._table.to_pylist():
            view.add_row(*(_cell(value) for value in row.values()))
        return view

    def __rich__(self) -> RichTable:
        return self._render()

    def __str__(self) -> str:
        return rendered(self._render())

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return rendered_html(self._render())


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


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
    for column in listed:
        row: dict[str, Any] = {"column": column.name, "table": column.alias, "type": column.type}
        if column.name in summaries:
            found = summaries[column.name]
            row |= {"count": round(found.count), "missing": found.missing}
            row |= {"mean": _known(found.mean), "std": _known(found.std(1))}
            row |= {"min": _known(found.minimum), "max": _known(found.maximum)}
        if column.name in asked:
            with_share = column.name in categorical or family(column.type) is Family.TEXT
            row |= _categories(asked[column.name].read(), len(client.mapping), with_share)
        rows.append(row)
        done(len(rows))
    return Description(rows)


def _ask_categories(client: Client, column: OutputColumn) -> CategoryStatistics:
    """Distinct values; digests are asked for only where shards must be compared."""
    most = None if len(client.shards(column.alias)) > 1 else 0
    return CategoryStatistics(client, column, client.new_name(), most)


def _categories(found: CategorySummary, joined_rows: int, with_share: bool) -> dict[str, Any]:
    count = round(joined_rows - found.missing)
    row: dict[str, Any] = {"count": count, "missing": round(found.missing), "distinct": found.distinct}
    return row | ({"top_share": found.top / count if count else None} if with_share else {})


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
