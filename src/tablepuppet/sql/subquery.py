"""Subqueries of FROM and WITH become views: a SELECT over one table, bound to the catalog."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlglot import exp

from tablepuppet.sql.advice import CLAUSES, INLINED, NO_WAY
from tablepuppet.sql.catalog import VerticalTable
from tablepuppet.sql.expression import Refused, column_text, identifier, written
from tablepuppet.sql.place import SqlText
from tablepuppet.sql.view import View, aggregates_of, check_view

_CLAUSES = {"expressions", "from_", "where", "group", "having", "distinct"}
Resolve = Callable[[exp.Column], str]  # the table's spelling of a column


@dataclass(frozen=True)
class Subquery:
    """A SELECT of FROM or WITH that is not bound yet."""

    select: exp.Select
    table: exp.Table
    name: str


def subquery_of(node: exp.Expr, name: str, sql: SqlText) -> Subquery:
    """The SELECT over one table that a subquery is; QueryError for any other."""
    inner = node.this if isinstance(node, exp.Subquery | exp.CTE) else node
    if not isinstance(inner, exp.Select):
        raise sql.error(f"a subquery is one SELECT over one table; for others {NO_WAY}", node)
    for clause, value in inner.args.items():
        if value and clause not in _CLAUSES | {"joins", "kind", "hint"}:
            word = clause.rstrip("_").upper()
            keyword, message = CLAUSES.get(clause, (word, f"{word} is not supported, and {NO_WAY}"))
            raise sql.error(message, value[-1] if isinstance(value, list) else value, keyword)
    if inner.args.get("joins"):
        raise sql.error(f"a subquery over several tables is not supported yet; {INLINED}", inner.args["joins"][-1])
    start = inner.args.get("from_")
    if start is None or not isinstance(start.this, exp.Table):
        raise sql.error(f"a subquery is one SELECT over one table; for others {NO_WAY}", start or inner)
    if not name:
        raise sql.error("give the subquery a name: (SELECT ...) AS name", node)
    return Subquery(inner, start.this, name)


def view_of(found: Subquery, table: VerticalTable, resolve: Resolve, sql: SqlText) -> View:
    """The view that a subquery is over a table; ``resolve`` finds its columns."""
    read: dict[str, str] = {}

    def bound(node: exp.Expr) -> str:
        def strip(part: exp.Expr) -> exp.Expr:
            if not isinstance(part, exp.Column) or isinstance(part.this, exp.Star):
                return part
            name = resolve(part)
            read[name] = table.columns[name]
            return exp.column(identifier(name))

        try:
            check_view(node)
            return written(node.copy().transform(strip))
        except Refused as refused:
            raise sql.error(str(refused), refused.node or node) from None

    columns: dict[str, str] = {}
    for item in found.select.expressions:
        for name, text in _items(item, table, bound, read, sql):
            if name.lower() in map(str.lower, columns):
                raise sql.error(f"two columns of the subquery are called {name}; rename one with AS", item)
            columns[name] = text
    groups = _groups(found.select, columns, table, bound, sql)
    where, having = found.select.args.get("where"), found.select.args.get("having")
    filter_text = bound(where.this) if where else ""
    if where and aggregates_of(filter_text):
        raise sql.error("WHERE is about rows, and cannot have an aggregate; write HAVING", where.this)
    distinct = found.select.args.get("distinct")
    if distinct and distinct.args.get("on"):
        raise sql.error(
            "DISTINCT ON is not supported; with GROUP BY, arg_min(value, by) and arg_max(value, by) take one row's",
            distinct,
            "DISTINCT",
        )
    having_text = bound(having.this) if having else ""
    return View(columns, dict(sorted(read.items())), filter_text, groups, having_text, bool(distinct))


def _items(
    item: exp.Expr, table: VerticalTable, bound: Callable[[exp.Expr], str], read: dict[str, str], sql: SqlText
) -> list[tuple[str, str]]:
    """(name, expression) of what one item of the SELECT list selects."""
    inner = item.this if isinstance(item, exp.Alias) else item
    if isinstance(inner, exp.Star) or (isinstance(inner, exp.Column) and isinstance(inner.this, exp.Star)):
        star = inner if isinstance(inner, exp.Star) else inner.this
        if any(star.args.values()):
            raise sql.error("* with EXCLUDE, REPLACE or RENAME is not supported in a subquery; name the columns", item)
        read |= table.columns
        return [(name, column_text(name)) for name in table.columns]
    text = bound(inner)
    if isinstance(item, exp.Alias):
        return [(item.alias, text)]
    if isinstance(inner, exp.Column):
        return [(next(name for name in table.columns if column_text(name) == text), text)]
    raise sql.error("give each expression of a subquery a name with AS", item)


def _groups(
    select: exp.Select, columns: dict[str, str], table: VerticalTable, bound: Callable[[exp.Expr], str], sql: SqlText
) -> tuple[str, ...]:
    """The expressions of GROUP BY: those that it writes, or those of the SELECT list that it names or numbers."""
    group = select.args.get("group")
    if group is None:
        return ()
    if group.args.get("all"):
        return tuple(text for text in columns.values() if not aggregates_of(text))
    found = []
    for each in group.expressions:
        if isinstance(each, exp.Rollup | exp.Cube | exp.GroupingSets):
            raise sql.error(f"ROLLUP, CUBE and GROUPING SETS are not supported, and {NO_WAY}", each)
        if isinstance(each, exp.Literal) and each.is_int:
            place = int(each.this)
            if not 1 <= place <= len(columns):
                raise sql.error(f"GROUP BY {place}: the subquery selects {len(columns)} columns", each)
            found.append(list(columns.values())[place - 1])
            continue
        named = next(
            (t for n, t in columns.items() if isinstance(each, exp.Column) and n.lower() == each.name.lower()), ""
        )
        is_alias = named and isinstance(each, exp.Column) and not each.table and table.find(each.name) is None
        found.append(named if is_alias else bound(each))
    for text, node in zip(found, group.expressions, strict=True):
        if aggregates_of(text):
            raise sql.error("GROUP BY cannot have an aggregate", node)
    return tuple(dict.fromkeys(found))
