"""Views: rows that a query makes of one table's rows where these are, by a subquery or WITH.

Input: the SELECT of a subquery. Output: a `View`, which is expressions over the columns of the table: what it selects,
WHERE, GROUP BY, HAVING, DISTINCT. A party is sent these and no statement: it checks each expression, and writes the
SELECT itself. Aggregates are evaluated in the order of the source, so that sums of floats are the same every time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import duckdb
from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

from tablepuppet.errors import QueryError, plain_text
from tablepuppet.sql.advice import NO_WAY
from tablepuppet.sql.catalog import Shard, VerticalTable
from tablepuppet.sql.dialect import AsWritten
from tablepuppet.sql.expression import (
    FUNCTIONS,
    MOST_TEXT,
    SQLGLOT_FAULTS,
    TWO_WAYS,
    Refused,
    bracketed,
    check,
    column_text,
    is_plain_column,
    never_failing,
    render,
)
from tablepuppet.sql.infer import nulls
from tablepuppet.sql.quiet_duckdb import scratch
from tablepuppet.sql.reading import Unread, aggregates, are_read_alike

AGGREGATES: Mapping[str, int] = {
    **dict.fromkeys("sum avg mean min max median mode product bool_and bool_or count_if countif".split(), 1),
    **dict.fromkeys("stddev stddev_samp stddev_pop variance var_samp var_pop skewness kurtosis entropy".split(), 1),
    **dict.fromkeys("quantile_cont quantile_disc corr covar_samp covar_pop arg_min arg_max min_by max_by".split(), 2),
    "count": 1,
}
"""Aggregates that a party evaluates, and how many arguments they take."""
_IN_ANY_ORDER = frozenset("count count_if countif min max bool_and bool_or median quantile_cont quantile_disc".split())
POSITION, _SOURCE = "__position", "__source"


@dataclass(frozen=True)
class View:
    """A SELECT over one table, as expressions over its columns."""

    columns: Mapping[str, str]  # name -> expression, with aggregates where rows are grouped
    read: Mapping[str, str]  # the columns of the table that it reads, with types
    filter: str = ""
    groups: tuple[str, ...] = ()
    having: str = ""
    distinct: bool = False

    @property
    def is_grouped(self) -> bool:
        """Whether a row of it may be made of several rows of the table."""
        return self.distinct or bool(self.groups) or bool(self.having) or any(map(aggregates_of, self.columns.values()))

    @property
    def text(self) -> str:
        """What it is, for people and as a mark: a SELECT over a table that is not named."""
        return self.text_over("...")

    @property
    def rows_text(self) -> str:
        """What decides which rows it has; "" if these are the table's."""
        return self.text_over("").partition(" FROM ")[2].strip() + " DISTINCT" * self.distinct

    def narrowed(self, names: Collection[str]) -> View:
        """A view of which only these columns are used; of groups, all columns say which there are."""
        if self.is_grouped:
            return self
        columns = {name: text for name, text in self.columns.items() if name in names}
        used = {column for text in filter(None, (*columns.values(), self.filter)) for column in columns_read(text)}
        return replace(self, columns=columns, read={name: kind for name, kind in self.read.items() if name in used})

    def text_over(self, table: str) -> str:
        """Its SELECT, each expression as it is read; one that nobody reads, in quotes."""
        items = [_named(text, name) for name, text in self.columns.items()]
        where = f" WHERE {_shown(self.filter)}" if self.filter else ""
        groups = f" GROUP BY {', '.join(map(_shown, self.groups))}" if self.groups else ""
        having = f" HAVING {_shown(self.having)}" if self.having else ""
        return f"SELECT {'DISTINCT ' * self.distinct}{', '.join(items)} FROM {table}{where}{groups}{having}"

    def read_by(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The columns of the table that some of its own are computed from."""
        texts = (self.columns[name] for name in names)
        return tuple(dict.fromkeys(column for text in texts for column in columns_read(text)))


def _shown(text: str) -> str:
    try:
        return render(read_view(text), copy=True)
    except QueryError:
        return repr(text)


def _named(text: str, name: str) -> str:
    shown = _shown(text)
    return shown if shown == column_text(name) else f"{shown} AS {column_text(name)}"


# Expressions with aggregates.


def _calls(node: exp.Expr) -> list[exp.Expr]:
    """The aggregates of an expression, each with its FILTER; those of windows are none."""
    found: list[exp.Expr] = []
    for part in node.walk():
        if isinstance(part, exp.Anonymous) and part.name.lower() in AGGREGATES:
            call = part.parent if isinstance(part.parent, exp.Filter) else part
            if not isinstance(call.parent, exp.Window):
                found.append(call)
    return found


def _arguments(call: exp.Expr) -> list[exp.Expr]:
    inner = call.this if isinstance(call, exp.Filter) else call
    return [
        each for part in inner.expressions for each in (part.expressions if isinstance(part, exp.Distinct) else [part])
    ]


def check_view(node: exp.Expr) -> None:
    """Raise `Refused` unless a party may evaluate the expression over groups of rows."""
    whole = exp.Paren(this=node.copy())
    for part in whole.find_all(exp.Anonymous):
        if part.name.lower() in aggregates() - AGGREGATES.keys() - FUNCTIONS:
            raise Refused(f"the aggregate {part.name.lower()} is not supported, and {NO_WAY}", node)
    for call in _calls(whole):
        inner = call.this if isinstance(call, exp.Filter) else call
        arguments, name = _arguments(call), inner.name.lower()
        is_star = name == "count" and (not arguments or isinstance(arguments[0], exp.Star))
        if len(arguments) != AGGREGATES[name] and not is_star:
            raise Refused(f"the aggregate {name} takes {AGGREGATES[name]}, not {len(arguments)} arguments", node)
        for each in [] if is_star else arguments:
            check(each)
        if isinstance(call, exp.Filter):
            check(call.expression.this)
        call.replace(exp.column("__aggregate"))
    try:
        check(whole)
    except Refused as refused:
        raise Refused(str(refused), None if refused.node is None else node) from None


@lru_cache(maxsize=1 << 10)
def read_view(text: str) -> exp.Expr:
    """The tree of an expression of a view; QueryError unless a party may evaluate it. Nobody may change the tree."""
    if len(text) > MOST_TEXT:
        raise QueryError(f"an expression has {len(text):,} letters, more than the {MOST_TEXT:,} that a party reads")
    try:
        node = parse_one(text, dialect=AsWritten)
        check_view(node)
        names = {column.name for column in node.find_all(exp.Column)}
        if not is_plain_column(node) and not are_read_alike([text, bracketed(node), render(node)], names):
            if not are_read_alike([text, bracketed(node)], names):
                raise Refused(TWO_WAYS)
            node = parse_one(bracketed(node), dialect=AsWritten)
    except (SqlglotError, RecursionError, Unread, *SQLGLOT_FAULTS) as error:
        raise QueryError("an expression of the plan cannot be parsed") from error
    except Refused as refused:
        raise QueryError(str(refused)) from refused
    if any(column.table for column in node.find_all(exp.Column)):
        raise QueryError("an expression of the plan names its columns without a table")
    return node


def columns_read(text: str) -> tuple[str, ...]:
    """The columns that an expression of a view reads."""
    found = read_view(text).find_all(exp.Column, bfs=False)
    return tuple(dict.fromkeys(column.name for column in found))


def aggregates_of(text: str) -> int:
    """How many aggregates an expression has."""
    return len(_calls(exp.Paren(this=read_view(text).copy())))


# What DuckDB runs at the party.


def view_sql(view: View, source: str, total: bool = False) -> str:
    """The view over a `Source`, written after FROM, with positions; with ``total`` casts are NULL where they fail.

    Rows of a table keep their position; those of groups are numbered in the order of the first row of each: who learns
    an order of rows, as by a split, learns that of the source, and none by values. QueryError if two columns have one
    name: one would stand for the other.
    """
    if len({name.lower() for name in (*view.columns, POSITION)}) < len(view.columns) + 1:
        raise QueryError(f"a subquery gives two columns one name, or calls one {POSITION}: name them differently")
    items = ", ".join(f"{_evaluable(text, view, total)} AS {_quoted(name)}" for name, text in view.columns.items())
    where = f" WHERE {_evaluable(view.filter, view, total)}" if view.filter else ""
    if not view.is_grouped:
        return f'(SELECT {items}, "{POSITION}" FROM {source} AS {_SOURCE}{where})'
    groups = (
        f" GROUP BY {', '.join(f'({_evaluable(each, view, total)})' for each in view.groups)}" if view.groups else ""
    )
    having = f" HAVING {_evaluable(view.having, view, total)}" if view.having else ""
    each_row = view.distinct and not replace(view, distinct=False).is_grouped
    first = f'"{POSITION}"' if each_row else f'min("{POSITION}") AS "{POSITION}"'
    made = f"(SELECT {items}, {first} FROM {source} AS {_SOURCE}{where}{groups}{having})"
    names = ", ".join(map(_quoted, view.columns))
    if view.distinct:
        made = f'(SELECT {names}, min("{POSITION}") AS "{POSITION}" FROM {made} GROUP BY {names})'
    return f'(SELECT {names}, row_number() OVER (ORDER BY "{POSITION}") - 1 AS "{POSITION}" FROM {made})'


def _quoted(name: str) -> str:
    return exp.column(name, quoted=True).sql("duckdb")


def _evaluable(text: str, view: View, total: bool) -> str:
    """An expression of a view as it runs, over columns that are read: no name is one of what the view selects."""
    strange = [name for name in columns_read(text) if name not in view.read]
    if strange:
        raise QueryError(f"a subquery uses {min(strange)!r}, which it does not read")
    whole = exp.Paren(this=read_view(text).copy())
    for column in whole.find_all(exp.Column):
        column.set("table", exp.to_identifier(_SOURCE))
    calls = _calls(whole)
    if not calls:
        return never_failing(whole.this) if total else render(whole)
    for call in calls:
        inner = call.this if isinstance(call, exp.Filter) else call
        if inner.name.lower() not in _IN_ANY_ORDER:
            last = inner.expressions[-1]
            is_distinct = isinstance(last, exp.Distinct)
            key = last.expressions[0].copy() if is_distinct else exp.column(POSITION, quoted=True)
            last.replace(exp.Order(this=last.copy(), expressions=[exp.Ordered(this=key)]))
    for cast in [part for part in whole.find_all(exp.Cast) if total and type(part) is exp.Cast]:
        cast.replace(exp.TryCast(**cast.args))
    return render(whole, copy=False)


# The view of a query.


def view_table(table: VerticalTable, view: View | None) -> VerticalTable:
    """What a query sees of a table through a view: its columns, and what is published of those they are made from."""
    if view is None:
        return table
    types = _types(view_sql(view, f'(SELECT *, 0 AS "{POSITION}" FROM {nulls(view.read)} LIMIT 0)'))
    columns = {name: types[name] for name in view.columns}
    return VerticalTable(table.name, columns, tuple(_seen(shard, view, columns) for shard in table.shards))


@lru_cache(maxsize=1 << 8)
def _types(sql: str) -> dict[str, str]:
    """Types of a view's columns, asked of DuckDB over no rows; ValueError if it cannot evaluate it."""
    try:
        with scratch() as connection:
            found = connection.sql(f"SELECT * FROM {sql}")
            return dict(zip(found.columns, map(str, found.types), strict=True))
    except duckdb.Error as error:
        raise ValueError(plain_text(str(error).split("\n")[0].split(": ", 1)[-1])) from error


def _seen(shard: Shard, view: View, columns: Mapping[str, str]) -> Shard:
    def all_in(names: tuple[str, ...]) -> tuple[str, ...]:
        known = {name.lower() for name in names}
        reads = {name: view.read_by((name,)) for name in view.columns}
        return tuple(name for name, read in reads.items() if read and {each.lower() for each in read} <= known)

    plain = {name: view.read_by((name,))[0] for name, text in view.columns.items() if is_plain_column(read_view(text))}
    return replace(
        shard,
        columns=columns,
        estimated=True,
        public=all_in(shard.public),
        values=all_in(shard.values),
        bounds={name: shard.bounds[column] for name, column in plain.items() if column in shard.bounds},
        categories={name: shard.categories[column] for name, column in plain.items() if column in shard.categories},
    )
