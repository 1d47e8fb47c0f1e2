"""A SELECT that an operator publishes as a table: it is checked, and its tables and columns are listed.

The text comes from the party's own file, never from a caller. Still it must be one SELECT over the tables of the
database: no statement that changes anything, no function that opens a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.scope import traverse_scope

from tablepuppet.errors import ConfigError
from tablepuppet.party.database import SourceTable
from tablepuppet.party.databases.view_text import aggregating
from tablepuppet.sql.dialect import AsWritten
from tablepuppet.sql.expression import SQLGLOT_FAULTS, render
from tablepuppet.sql.reading import Unread, difference
from tablepuppet.sql.types import Family, family


@dataclass(frozen=True)
class PublishedSelect:
    """A checked SELECT, with the tables of the database it reads and every name that it mentions."""

    sql: str  # reads each table under the name that ``tables`` gives it
    tables: Mapping[str, str]  # a name that no table has -> the table
    names: frozenset[str] | None  # in lower case; None: all columns, as with *
    aggregates: bool  # it makes one row of several

    @classmethod
    def parsed(cls, party: str, table: str, sql: str) -> PublishedSelect:
        """Parse ``sql``; ConfigError unless it is one SELECT over plain tables.

        >>> PublishedSelect.parsed("bank", "rich", "SELECT id FROM cards WHERE credit > 1000").tables
        {'__read_0': 'cards'}
        """
        where = f"party {party!r}, tables.{table}.sql"
        try:
            [query] = sqlglot.parse(sql, dialect=AsWritten)
            scopes = traverse_scope(query) if isinstance(query, exp.Query) else []
        except (SqlglotError, ValueError, RecursionError, *SQLGLOT_FAULTS):
            raise ConfigError(f"{where}: is not one SELECT that can be parsed") from None
        if not isinstance(query, exp.Query) or query.find(exp.Into, exp.DML, exp.DDL, exp.Command):
            raise ConfigError(f"{where}: only a SELECT can be published")
        _require_read_alike(query, sql, where)
        names = _names(query)
        used = {id(s): s for scope in scopes for s in scope.sources.values() if isinstance(s, exp.Table)}
        tables = _renamed(list(used.values()), where)
        if not tables:
            raise ConfigError(f"{where}: reads no table of the database")
        # The parser's own text, so that nothing of the file's, such as a comment, reaches the query around it.
        return cls(render(query), tables, names, bool(aggregating({table: sql}, "duckdb")))


def _require_read_alike(query: exp.Query, sql: str, where: str) -> None:
    """ConfigError unless DuckDB reads the parser's text as it reads that of the file."""
    try:
        same = difference(sql, render(query)) is None
    except Unread:
        same = False
    if not same:
        raise ConfigError(
            f"{where}: DuckDB would read it in another way once it is written anew; write it in a simpler way, or "
            "create the view in the database itself"
        )


def _renamed(uses: list[exp.Table], where: str) -> dict[str, str]:
    """Give every table that is read a name that none has, and its own as alias."""
    tables: dict[str, str] = {}
    for use in uses:
        name = _plain_name(use, where)
        new = next((known for known, table in tables.items() if table == name), f"__read_{len(tables)}")
        tables[new] = name
        if not use.alias:
            use.set("alias", exp.TableAlias(this=use.this.copy()))
        use.set("this", exp.to_identifier(new, quoted=True))
    return tables


def _plain_name(table: exp.Table, where: str) -> str:
    if not isinstance(table.this, exp.Identifier) or table.args.get("db") is not None:
        raise ConfigError(f"{where}: reads {render(table)}; name tables of the database only, unqualified")
    return table.name


def _names(query: exp.Query) -> frozenset[str] | None:
    stars = [star for star in query.find_all(exp.Star, exp.Columns) if not _is_count(star.parent)]
    if stars or any(join.method == "NATURAL" for join in query.find_all(exp.Join)):
        return None
    return frozenset(name.name.lower() for name in query.find_all(exp.Identifier))


def _is_count(node: exp.Expr | None) -> bool:
    return isinstance(node, exp.Anonymous) and node.name.lower() == "count"


def read_by(view: PublishedSelect, table: SourceTable) -> dict[str, str]:
    """The columns of a table that a published SELECT may read, with types; unreadable types are left out."""
    readable = {name: kind for name, kind in table.columns.items() if family(kind) is not Family.OTHER}
    used = {n: kind for n, kind in readable.items() if view.names is None or n.lower() in view.names}
    return used or dict(list(readable.items())[:1])  # count(*) needs rows, though no column
