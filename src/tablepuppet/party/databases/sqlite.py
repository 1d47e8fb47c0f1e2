"""A party whose tables are in a SQLite file, read through ADBC within one read transaction.

SQLite keeps a type with every value and only a preference with the column: that is what is published, and a value
that does not agree with it is an error. Position: rowid; the primary key without one; for views the read columns.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import quote

from adbc_driver_manager import Error as DriverError
from adbc_driver_sqlite import StatementOptions, dbapi

from tablepuppet.errors import PartyError
from tablepuppet.party.database import Source, SourceTable
from tablepuppet.party.databases.loading import SENT_POSITION, ForeignColumn, Loader, misfit, sent_name
from tablepuppet.party.databases.names import AskedColumn, find_columns, find_table, identifier
from tablepuppet.party.databases.paths import existing
from tablepuppet.party.databases.positions import numbered_by
from tablepuppet.party.databases.pushdown import Comparable, Value, condition, kind_of
from tablepuppet.party.databases.sandbox import sandbox
from tablepuppet.party.databases.sqlite_types import duckdb_type, storage_of, type_of_values
from tablepuppet.sql.query import Comparison

logger = logging.getLogger(__name__)

_CATALOG = """
    SELECT name, type, wr FROM pragma_table_list
    WHERE schema = 'main' AND type IN ('table', 'view', 'virtual') AND substr(name, 1, 7) <> 'sqlite_'
    ORDER BY name
"""
_COLUMNS = "SELECT name, type, pk FROM pragma_table_xinfo(?) WHERE hidden <> 1 ORDER BY cid"
_BATCH_ROWS = {StatementOptions.BATCH_ROWS.value: "65536"}


@dataclass(frozen=True)
class SQLite:
    """A SQLite file."""

    party: str
    path: str

    def tables(self) -> list[SourceTable]:
        """Every table and view; a view that cannot be evaluated is logged and left out."""
        with self._connected() as connection:
            tables = [self._published(connection, name) for name in _catalog(connection)]
            return [table for table in tables if table is not None]

    @contextmanager
    def reader(self) -> Iterator[_Reader]:
        """Open one read transaction; SQLite keeps its moment until it ends."""
        with self._connected() as connection, sandbox() as duck:
            yield _Reader(self.party, connection, Loader(self.party, duck))

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        path = existing(self.party, "SQLite", self.path)
        with ExitStack() as stack:
            try:
                connection = stack.enter_context(dbapi.connect(f"file:{quote(str(path))}?mode=ro"))
                _rows(connection, "PRAGMA busy_timeout = 5000")
                _rows(connection, "SELECT count(*) FROM sqlite_schema")  # the transaction's moment is now
            except (DriverError, OSError) as error:
                raise PartyError(f"Party {self.party!r}: {_why_closed(str(error), str(path))}") from None
            yield connection

    def _published(self, connection: Any, name: str) -> SourceTable | None:
        try:
            columns = _types(connection, name, _rows(connection, _COLUMNS, name))
            [(rows,)] = _rows(connection, f"SELECT count(*) FROM {identifier(name)}")
        except (DriverError, OSError):
            logger.warning("Party %r: %r cannot be read and is not published", self.party, name)
            return None
        return SourceTable(name, columns, rows)


def _why_closed(message: str, path: str) -> str:
    if "locked" in message:
        return f"{path} is locked by a process that writes to it; try again when it has finished"
    if "not a database" in message:
        return f"{path} is not a SQLite database; check the URL"
    return f"{path} cannot be opened by SQLite; check the file and that it may be read"


def _rows(connection: Any, sql: str, *parameters: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters or None)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows


def _types(connection: Any, name: str, details: list[tuple[Any, ...]]) -> dict[str, str]:
    """The DuckDB types of a table's columns; one without a declared type, as of a view, has that of its values."""
    types = {}
    for column, declared, _ in details:
        if declared:
            types[column] = duckdb_type(declared)
        else:
            types[column] = _type_of_values(connection, name, column)
    return types


def _type_of_values(connection: Any, name: str, column: str) -> str:
    try:
        classes = _rows(connection, f"SELECT DISTINCT typeof({identifier(column)}) FROM {identifier(name)}")
    except (DriverError, OSError):  # a view may fail in one column and still be of use
        return "VARCHAR"
    return type_of_values({kind for (kind,) in classes})


def _catalog(connection: Any) -> dict[str, tuple[str, bool]]:
    """For every table and view: what it is, and whether it has no rowid."""
    return {name: (kind, bool(without_rowid)) for name, kind, without_rowid in _rows(connection, _CATALOG)}


@dataclass(frozen=True)
class _Reader:
    party: str
    connection: Any
    loader: Loader

    def source(self, table: str, columns: Mapping[str, str], where: Sequence[Comparison] = ()) -> Source:
        """The columns, copied into DuckDB."""
        catalog = _catalog(self.connection)
        name = find_table(self.party, catalog, table)
        try:
            details = _rows(self.connection, _COLUMNS, name)
            stored = _types(self.connection, name, details)
            asked = find_columns(self.party, name, stored, columns)
            position = self._position(name, catalog[name], details, asked)
        except (DriverError, OSError):
            raise PartyError(f"Party {self.party!r}: SQLite cannot evaluate {name!r}; try SELECT there") from None
        parameters: list[Value] = []
        sql = _query(name, asked, position, where, parameters)
        sent = [ForeignColumn(column, sent_name(index)) for index, column in enumerate(asked)]
        return self.loader.load(name, sent, partial(self._read, name, asked, sql, parameters))

    def _position(
        self, name: str, entry: tuple[str, bool], details: list[tuple[Any, ...]], asked: Sequence[AskedColumn]
    ) -> str:
        kind, without_rowid = entry
        taken = {column.lower() for column, _, _ in details}
        rowid = next((alias for alias in ("rowid", "_rowid_", "oid") if alias not in taken), None)
        if kind == "table" and not without_rowid and rowid:
            bounds = f"SELECT min({rowid}), max({rowid}), count(*) FROM {identifier(name)}"
            [(first, last, rows)] = _rows(self.connection, bounds)
            if rows and last - first + 1 == rows:  # nothing was deleted: no need to number the rows
                return f"{rowid} - ({first})"
            order = [rowid]
        elif kind == "table" and without_rowid:
            key = sorted((place, column) for column, _, place in details if place)
            order = [identifier(column) for _, column in key]
        else:
            order = sorted(f"{identifier(column.stored)} COLLATE BINARY" for column in asked)
        return numbered_by(order)

    @contextmanager
    def _read(self, table: str, asked: Sequence[AskedColumn], sql: str, parameters: list[Value]) -> Iterator[Any]:
        """The answer as Arrow batches; raises `PartyError` when a column turns out to hold values of another class."""
        expected = [storage_of(column.declared).arrow for column in asked]
        try:
            with self.connection.cursor() as cursor:
                cursor.adbc_statement.set_options(**_BATCH_ROWS)
                cursor.execute(sql, parameters or None)
                with cursor.fetch_record_batch() as batches:
                    if batches.schema.types[: len(asked)] != expected:
                        raise TypeError("a column changed its type on the way")
                    yield batches
        except Exception:
            if column := self._misfit(table, asked):
                raise misfit(self.party, table, column) from None
            raise

    def _misfit(self, table: str, asked: Sequence[AskedColumn]) -> AskedColumn | None:
        for column in asked:
            classes = ", ".join(f"'{name}'" for name in (*storage_of(column.declared).classes, "null"))
            check = f"FROM {identifier(table)} WHERE typeof({identifier(column.stored)}) NOT IN ({classes})"
            if _rows(self.connection, f"SELECT EXISTS (SELECT 1 {check})") == [(1,)]:
                return column
        return None


def _query(
    table: str, asked: Sequence[AskedColumn], position: str, where: Sequence[Comparison], parameters: list[Value]
) -> str:
    """The SELECT to send. Its first row is an example from which the driver learns the types; its position is -1.

    The driver guesses a column's type from the first batch, and takes one of NULLs for integers.
    """
    names = [sent_name(index) for index in range(len(asked))]
    storages = [storage_of(column.declared) for column in asked]
    sent = [storage.sent.format(column=name) for storage, name in zip(storages, names, strict=True)]
    comparables = {
        column.name.lower(): Comparable(f"({sql}) COLLATE BINARY", kind_of(column.declared), digits=99)
        for column, sql in zip(asked, sent, strict=True)
        if not column.declared.startswith("DECIMAL")  # sent as text, which SQLite would compare as text
    }

    def bound(value: Value) -> str:
        parameters.append(value)
        return "?"

    examples = [f"{storage.example} AS {name}" for storage, name in zip(storages, names, strict=True)]
    inner = [f"{identifier(column.stored)} AS {name}" for column, name in zip(asked, names, strict=True)]
    return (
        f"SELECT {', '.join([*examples, f'-1 AS {SENT_POSITION}'])} UNION ALL "
        f"SELECT {', '.join([*sent, SENT_POSITION])} "
        f"FROM (SELECT {', '.join([*inner, f'{position} AS {SENT_POSITION}'])} FROM {identifier(table)}) "
        f"{condition(where, comparables, bound)}"
    )
