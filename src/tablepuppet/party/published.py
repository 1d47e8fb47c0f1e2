"""What an operator publishes of a database: only the tables and columns that the party file names.

A published table is a table of the database under its own name, or a SELECT over such tables, which DuckDB evaluates at
the party like everything else. It is a `Database` around a `Database`: its readers cannot see what is not named.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import duckdb
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.scope import traverse_scope

from tablepuppet.errors import ConfigError, PartyError
from tablepuppet.party.config import PartyFile
from tablepuppet.party.database import POSITION, Database, Reader, Source, SourceTable
from tablepuppet.party.databases.names import (
    UnknownNameError,
    find_columns,
    find_names,
    find_table,
    identifier,
    numbered_by,
    select,
)
from tablepuppet.party.databases.sandbox import count, describe, sandbox
from tablepuppet.party.databases.urls import open_database
from tablepuppet.party.databases.view_text import aggregating
from tablepuppet.party.delivery import Deliveries
from tablepuppet.sql.dialect import AsWritten
from tablepuppet.sql.expression import SQLGLOT_FAULTS, render
from tablepuppet.sql.query import Comparison
from tablepuppet.sql.reading import Unread, difference
from tablepuppet.sql.types import Family, family

SEE_MORE = "; its operator can see more with 'tablepuppet party check'"


@dataclass(frozen=True)
class PublishedTable:
    """A table to publish: its columns, and the SELECT it is made of, if it is no table of the database."""

    name: str
    columns: tuple[str, ...]
    sql: str | None = None


class Published:
    """A database of which only named tables and columns can be seen."""

    def __init__(self, party: str, database: Database, tables: Sequence[PublishedTable]):
        self._party, self._database = party, database
        self._tables = {table.name: table for table in tables}
        self._selects = {each.name: PublishedSelect.parsed(party, each.name, each.sql) for each in tables if each.sql}
        self._known: dict[str, SourceTable] = {}  # the database's own tables, as last seen

    def tables(self, names: Collection[str] | None = None) -> list[SourceTable]:
        """Published tables; PartyError if one of them, or a column, is not there.

        The database is asked for the tables that these read, and for no others.
        """
        wanted = self._tables if names is None else [find_table(self._party, self._tables, name) for name in names]
        tables = [self._tables[name] for name in wanted]
        stored = self._ask(tables)
        self._known = self._known | stored  # readers keep the one they have
        return [self._select(table, stored) if table.sql else self._plain(table, stored) for table in tables]

    @contextmanager
    def reader(self) -> Iterator[Reader]:
        """Open the database for reading what is published of it."""
        known = {name.lower() for name in self._known}
        selects = [table for table in self._tables.values() if table.sql]
        if any(name.lower() not in known for table in selects for name in self._reads(table)):
            self._known = self._known | self._ask(selects)
        with self._database.reader() as reader:
            yield _Reader(self._party, reader, self._tables, self._selects, self._known)

    def _ask(self, tables: Sequence[PublishedTable]) -> dict[str, SourceTable]:
        """The database's own tables that published ones read."""
        reads = {table.name: self._reads(table) for table in tables}
        try:
            wanted = dict.fromkeys(name for names in reads.values() for name in names)
            return {table.name: table for table in self._database.tables(wanted)}
        except UnknownNameError as error:
            with _silent(self._party, next(table for table, names in reads.items() if error.name in names)):
                raise

    def _reads(self, table: PublishedTable) -> Collection[str]:
        return self._selects[table.name].tables.values() if table.sql else (table.name,)

    def _select(self, table: PublishedTable, stored: Mapping[str, SourceTable]) -> SourceTable:
        """A published SELECT. Its columns follow from types; its rows are counted if those it reads were.

        Else it has, by estimate, the rows of the largest table that it reads.
        """
        view = self._selects[table.name]
        with _silent(self._party, table.name):
            reads = [stored[find_table(self._party, stored, name)] for name in view.tables.values()]
            aggregates = view.aggregates or any(each.aggregates for each in reads)
            if not any(each.estimated for each in reads):
                with self._database.reader() as reader:
                    inner = _Reader(self._party, reader, self._tables, self._selects, stored)
                    return inner.described(table, aggregates)
            parts = [
                f"{identifier(alias)} AS {_empty(read_by(view, each))}"
                for alias, each in zip(view.tables, reads, strict=True)
            ]
            with sandbox() as connection:
                try:
                    columns = describe(connection, f"(WITH {', '.join(parts)} SELECT * FROM ({view.sql}))")
                except duckdb.Error as error:
                    raise _broken(self._party, table, error) from error
            rows = max(each.rows for each in reads)
            return SourceTable(table.name, _narrowed(self._party, table, columns), rows, aggregates, estimated=True)

    def _plain(self, table: PublishedTable, stored: Mapping[str, SourceTable]) -> SourceTable:
        with _silent(self._party, table.name):
            found = stored[find_table(self._party, stored, table.name)]
            return replace(found, name=table.name, columns=_narrowed(self._party, table, found.columns))


@contextmanager
def _silent(party: str, table: str) -> Iterator[None]:
    """An unknown name must not list what is hidden to a caller; the operator finds the list in the cause."""
    try:
        yield
    except UnknownNameError as error:
        raise PartyError(
            f"Party {party!r}: its database has not all that published table {table!r} needs{SEE_MORE}"
        ) from error


def _narrowed(party: str, table: PublishedTable, columns: Mapping[str, str]) -> dict[str, str]:
    """The published ones of a table's columns, in the table's order."""
    found = set(find_names(party, table.name, columns, table.columns))
    return {name: type_name for name, type_name in columns.items() if name in found}


@dataclass(frozen=True)
class _Reader:
    party: str
    inner: Reader
    published: Mapping[str, PublishedTable]
    views: Mapping[str, PublishedSelect]
    stored: Mapping[str, SourceTable]

    def source(self, table: str, columns: Mapping[str, str], where: Sequence[Comparison] = ()) -> Source:
        """The columns of a published table; what is not published is not there."""
        found = self.published[find_table(self.party, self.published, table)]
        find_names(self.party, found.name, found.columns, columns)
        with _silent(self.party, found.name):
            return self._select(found, columns) if found.sql else self.inner.source(found.name, columns, where)

    def _select(self, found: PublishedTable, columns: Mapping[str, str]) -> Source:
        view = self._view(found)
        try:
            asked = find_columns(self.party, found.name, describe(view.connection, view.sql), columns)
        except duckdb.Error as error:
            raise _broken(self.party, found, error) from error
        order = sorted(identifier(column.stored) for column in asked)
        return Source(view.connection, select(asked, numbered_by(order), view.sql))

    def described(self, table: PublishedTable, aggregates: bool) -> SourceTable:
        """A published SELECT, with its columns and number of rows."""
        with _silent(self.party, table.name):
            view = self._view(table)
            try:
                columns = describe(view.connection, view.sql)
            except duckdb.Error as error:
                raise _broken(self.party, table, error) from error
            published = _narrowed(self.party, table, columns)
        try:
            return SourceTable(table.name, published, count(view.connection, view.sql), aggregates)
        except duckdb.Error as error:  # DuckDB's message may quote a value of a row
            raise _broken(self.party, table, error) from None

    def _view(self, table: PublishedTable) -> Source:
        """The SELECT as a subquery over the tables it reads, each a subquery of its own name."""
        view = self.views[table.name]
        parts, connection = [], None
        for alias, name in view.tables.items():
            stored = self.stored[find_table(self.party, self.stored, name)]
            source = self.inner.source(stored.name, read_by(view, stored))
            connection = source.connection
            hidden = f"(SELECT * EXCLUDE ({POSITION}) FROM {source.sql})"
            parts.append(f"{identifier(alias)} AS {hidden}")
        assert connection is not None, "a view reads at least one table"
        return Source(connection, f"(WITH {', '.join(parts)} SELECT * FROM ({view.sql}))")


def _broken(party: str, table: PublishedTable, error: duckdb.Error) -> PartyError:
    return PartyError(
        f"Party {party!r}: the SELECT of published table {table.name!r} cannot be evaluated "
        f"({type(error).__name__}){SEE_MORE}"
    )


def _empty(columns: Mapping[str, str]) -> str:
    """A subquery with these columns and no row."""
    nulls = [f"CAST(NULL AS {type_name}) AS {identifier(name)}" for name, type_name in columns.items()]
    return f"(SELECT {', '.join(nulls)} WHERE false)"


def open_deliveries(settings: PartyFile) -> Deliveries:
    """Where a party file lets predictions be written."""
    state = None if settings.state_dir is None else Path(settings.state_dir)
    database = open_published(settings, with_keys=True)
    return Deliveries(settings.name, settings.targets(), database, state, settings.database)


def open_published(settings: PartyFile, *, with_keys: bool = False) -> Published:
    """What a party file publishes of its database, which is first opened when it is read.

    ``with_keys``, for code of the party itself: also the key columns beside which delivered predictions are written.
    """
    tables = []
    for name, table in settings.tables.items():
        known = {column.lower() for column in table.columns}
        keys = table.predictions.keys if with_keys and table.predictions else []
        more = [key for key in keys if key.lower() not in known]
        tables.append(PublishedTable(name, (*table.columns, *more), table.sql))
    most = settings.limits.database_connections
    return Published(settings.name, open_database(settings.name, settings.database, most_connections=most), tables)


# A SELECT that an operator publishes as a table: it is checked, and its tables and columns are listed. The text comes
# from the party's own file, never from a caller. Still it must be one SELECT over the tables of the database: no
# statement that changes anything, no function that opens a file.


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
