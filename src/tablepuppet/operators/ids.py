"""Columns that identify predictions: values of any column of a query's tables, for the rows that take part.

The op reads them at the party, where the policy gives the column the use ``id``. The coordinator puts the shards of
a table together and gathers to joined rows. Nothing else of the row is sent, and nothing is stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import pyarrow as pa
from msgspec import Meta

from tablepuppet.errors import LearnError, PartyError
from tablepuppet.operators.client import Client
from tablepuppet.party.allowance import check_reply
from tablepuppet.party.bounded import size_of
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.ops import Values, op
from tablepuppet.party.policy import Use
from tablepuppet.party.release import Release
from tablepuppet.party.returns import EACH, ColumnPart
from tablepuppet.party.sent_column import read_column, sent_column
from tablepuppet.spelling import did_you_mean
from tablepuppet.sql.plan import Plan

Names = Annotated[Sequence[str], Meta(min_length=1, max_length=100)]
"""Columns that are asked for at once."""


@op(
    "rows.ids",
    asked="`predict(rel, ids=[...])`",
    releases=Release.IDS,
    fields=("columns",),
    use=Use.ID,
    returns={EACH: ColumnPart()},
)
def id_columns(table: LocalTable, view: str, columns: Names) -> Values:
    """The values of columns of the table, selected or not, for the rows of a relation."""
    if len({name.lower() for name in columns}) < len(columns):
        raise PartyError(f"party {table.grant.party!r}: name each column once")
    table.view(view)
    if table.is_repeat:  # it was answered before, and nobody reads this reply
        return {}
    reply: Values = {}
    for number, column in enumerate(table.beside(columns).columns):
        reply |= sent_column(table.taken(column, view), str(number))
        check_reply(size_of(reply))
    return reply


@dataclass(frozen=True)
class Field:
    """A column of a table of the query, selected or not."""

    alias: str
    column: str


def find_field(plan: Plan, name: str) -> Field:
    """The column that ``alias.column`` means, or ``column`` where one table only has it; LearnError if none does."""
    fields = [Field(alias, column) for alias, table in plan.tables.items() for column in table.columns]
    wanted = str(name).lower()
    qualified = [field for field in fields if f"{field.alias}.{field.column}".lower() == wanted]
    found = qualified or [field for field in fields if field.column.lower() == wanted]
    exact = [field for field in found if name in (field.column, f"{field.alias}.{field.column}")]
    chosen = exact if len(exact) == 1 else found
    if len(chosen) > 1:
        names = " or ".join(f"{field.alias}.{field.column}" for field in chosen)
        raise LearnError(f"ids: {name!r} may be {names}; name the table's alias too")
    if not chosen:
        known = [f"{field.alias}.{field.column}" for field in fields]
        raise LearnError(f"ids: no table of the query has a column {name!r}{did_you_mean(str(name), known)}")
    return chosen[0]


def find_fields(plan: Plan, names: Sequence[str]) -> dict[str, Field]:
    """The columns to identify rows by, as they are asked for; LearnError unless they are all there, each once."""
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise LearnError("ids is a list of columns, such as ids=['o.order_id']")
    asked = {name: find_field(plan, name) for name in names}
    if not names or len(set(asked.values())) < len(names):
        raise LearnError("ids names at least one column, and each once")
    return asked


def joined_ids(client: Client, names: Sequence[str]) -> pa.Table:
    """Columns by the names they are asked for, one value per joined row, in the order of joined rows."""
    asked = find_fields(client.plan, names)
    by_alias: dict[str, list[str]] = {}
    for field in asked.values():
        by_alias.setdefault(field.alias, []).append(field.column)
    pending = client.ask("rows.ids", {alias: {"columns": each} for alias, each in by_alias.items()})
    replies = pending.read()
    base = {alias: _of_shards(client, alias, columns, replies[alias]) for alias, columns in by_alias.items()}
    return pa.table(
        {name: client.rows.taken_column(field.alias, base[field.alias][field.column]) for name, field in asked.items()}
    )


def _of_shards(client: Client, alias: str, columns: Sequence[str], replies: Sequence[Mapping[str, Any]]) -> pa.Table:
    """The columns over the rows of a table, from its shards."""
    parts = []
    for shard, reply in zip(client.shards(alias), replies, strict=True):
        where = f"party {shard.party!r}: table {alias!r}"
        rows, types = len(shard.row_ids), client.plan.tables[alias].columns
        read = [read_column(reply, rows, where, types[name], str(n)) for n, name in enumerate(columns)]
        parts.append(pa.table(read, list(columns)))
    if not parts:
        return pa.table({name: pa.nulls(0) for name in columns})
    try:
        return pa.concat_tables(parts, promote_options="permissive")
    except pa.ArrowException:
        raise LearnError(
            f"ids: shards of table {alias!r} send {', '.join(columns)} in different types; publish a view that "
            "casts them"
        ) from None
