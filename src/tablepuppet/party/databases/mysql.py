"""A party whose tables are in one database of a MySQL or MariaDB server, read in one read-only transaction.

Position: the primary key, else all columns that are read. The URL holds a password: no error repeats it. PyMySQL,
because tables are of one moment only within one connection, which the columnar readers do not keep.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pymysql
from pymysql.converters import encoders
from pymysql.cursors import SSCursor

from tablepuppet.errors import PartyError
from tablepuppet.party.database import SourceTable, UnavailableError, noticing_loss
from tablepuppet.party.databases.foreign import SENT_POSITION, ForeignReader, ForeignTable, sent_name
from tablepuppet.party.databases.mysql_types import MySQLType
from tablepuppet.party.databases.mysql_url import connection_options
from tablepuppet.party.databases.names import AskedColumn, identifier, numbered_by, text_literal
from tablepuppet.party.databases.pushdown import Value
from tablepuppet.party.databases.sandbox import sandbox
from tablepuppet.party.databases.server_urls import masked
from tablepuppet.party.databases.view_text import aggregating
from tablepuppet.sql.query import Comparison

logger = logging.getLogger(__name__)

# With this sql_mode names and texts are quoted as in every other database.
_BEGIN = (
    "SET SESSION sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES', time_zone = '+00:00'",
    "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY",
)
# Not joined: names of tables may differ in case only, and these views compare them without it.
_TABLES = """
    SELECT table_name FROM information_schema.tables
    WHERE table_schema = DATABASE() AND table_type IN ('BASE TABLE', 'SYSTEM VERSIONED', 'VIEW')
    ORDER BY table_name
"""
_COLUMNS = """
    SELECT table_name, column_name, data_type, column_type, coalesce(character_octet_length, 0)
    FROM information_schema.columns
    WHERE table_schema = DATABASE() AND FIND_IN_SET('select', privileges)
    ORDER BY table_name, ordinal_position
"""
_KEYS = """
    SELECT table_name, column_name, seq_in_index FROM information_schema.statistics
    WHERE table_schema = DATABASE() AND index_name = 'PRIMARY'
"""
_VIEWS = """
    SELECT table_name, coalesce(view_definition, '') FROM information_schema.views WHERE table_schema = DATABASE()
"""  # a definition is empty for a user who may not see it
_BATCH_ROWS = 65536


_Table = ForeignTable[MySQLType]


class MySQL:
    """A database of a MySQL or MariaDB server."""

    def __init__(self, party: str, url: str):
        self.party = party
        self._options = connection_options(party, url)

    def tables(self) -> list[SourceTable]:
        """Every table and view that can be read; the others are logged and left out."""
        with self._connected() as (connection, catalog):
            tables = [self._published(connection, table) for table in catalog.values()]
            sums = aggregating(dict(_rows(connection, _VIEWS)), "mysql")
            return [replace(table, aggregates=table.name in sums) for table in tables if table is not None]

    @contextmanager
    def reader(self) -> Iterator[ForeignReader[_Table]]:
        """Open one transaction that sees the database as it is now, as far as its engines have transactions."""
        with self._connected() as (connection, catalog), sandbox() as duck:
            readable = {name: table for name, table in catalog.items() if table.types}
            yield ForeignReader(self.party, duck, readable, catalog.__getitem__, partial(self._read, connection))

    @contextmanager
    def _connected(self) -> Iterator[tuple[Any, dict[str, _Table]]]:
        with ExitStack() as stack:
            try:
                # Encoders alone: without decoders every value arrives as the text that was sent.
                connection = stack.enter_context(pymysql.connect(**self._options, conv=dict(encoders), autocommit=True))
                for statement in _BEGIN:
                    _rows(connection, statement)
                catalog = _catalog(connection)
            except Exception as error:  # of whatever class: another kind of server may answer at that port
                raise UnavailableError(f"Party {self.party!r}: MySQL: {self._reason(error)}") from None
            stack.enter_context(noticing_loss(partial(self._lost, connection)))
            yield connection, catalog

    def _lost(self, connection: Any) -> str:
        """That the connection is lost; "" if it is not: the driver closes it then."""
        where = f"{self._options.get('host', '')}:{self._options.get('port', '')}"
        return "" if connection.open else f"Party {self.party!r}: MySQL: the connection to {where} was lost"

    @contextmanager
    def _read(
        self, connection: Any, table: _Table, asked: Sequence[AskedColumn], where: Sequence[Comparison]
    ) -> Iterator[Any]:
        with connection.cursor(SSCursor) as cursor:  # which does not hold the whole answer
            try:
                cursor.execute(_query(table, asked, where))
            except pymysql.Error as error:
                reason = f"its database could not read it (error {error.args[0]}); try SELECT there"
                raise PartyError(f"Party {self.party!r}: table {table.name!r}: {reason}") from None
            names = [name for name, *_ in cursor.description if name != SENT_POSITION]
            schema = pa.schema([*((name, pa.large_string()) for name in names), (SENT_POSITION, pa.int64())])
            yield pa.RecordBatchReader.from_batches(schema, _batches(cursor, schema))

    def _reason(self, error: Exception) -> str:
        """Why the server, or the way to it, refused."""
        match error:
            case FileNotFoundError():
                return "a file that the URL names as ssl_ca, ssl_cert or ssl_key is missing"
            case pymysql.Error() | OSError():
                reason = " ".join(str(error.args[-1] if error.args else error).split())
            case _:
                reason = "the server that answers there is not MySQL; check host and port"
        return masked(reason, self._options["password"].decode())

    def _published(self, connection: Any, table: _Table) -> SourceTable | None:
        try:
            if table.types:
                [(rows,)] = _rows(connection, f"SELECT count(*) FROM {table.sql}")
                return SourceTable(table.name, table.columns, int(rows))
        except pymysql.Error as error:
            if not connection.open:
                raise UnavailableError(f"Party {self.party!r}: MySQL: {self._reason(error)}") from None
        logger.warning("Party %r: %r cannot be read and is not published", self.party, table.name)
        return None


def _rows(connection: Any, sql: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return list(cursor.fetchall())


def _catalog(connection: Any) -> dict[str, _Table]:
    """Every table and view; one that this user cannot read, or nobody, has no columns."""
    tables = {name: _Table(name, identifier(name)) for (name,) in _rows(connection, _TABLES)}
    for name, column, data_type, column_type, octets in _rows(connection, _COLUMNS):
        if name in tables:
            tables[name].types[column] = MySQLType(data_type.lower(), column_type.lower(), int(octets))
    for name, column, place in _rows(connection, _KEYS):
        if name in tables:
            tables[name].key.append((int(place), column))
    return tables


def _batches(cursor: SSCursor, schema: Any) -> Iterator[Any]:
    """The rows by columns; rows without a position are in the order of positions."""
    start = 0
    while rows := cursor.fetchmany(_BATCH_ROWS):
        columns = [pa.array(values, pa.large_string()) for values in zip(*rows, strict=True)]
        if len(columns) == len(schema):
            columns[-1] = columns[-1].cast(pa.int64())
        else:
            columns.append(pa.array(np.arange(start, start + len(rows), dtype=np.int64)))
        start += len(rows)
        yield pa.record_batch(columns, schema)


def _query(table: _Table, asked: Sequence[AskedColumn], where: Sequence[Comparison]) -> str:
    """The SELECT to send. Rows are numbered before they are filtered; all rows are only sorted, which is faster."""
    pushed, order = table.condition(asked, where, _literal), _order(table, asked)
    stored = [_stored(column.stored) for column in asked]
    if not asked or pushed:
        return table.numbered(asked, stored, numbered_by(order), pushed)
    types = table.asked_types(asked)
    sent = [f"{type_.sent(sql)} AS {sent_name(i)}" for i, (type_, sql) in enumerate(zip(types, stored, strict=True))]
    return f"SELECT {', '.join(sent)} FROM {table.sql} AS t ORDER BY {', '.join(order)}"


def _order(table: _Table, asked: Sequence[AskedColumn]) -> list[str]:
    if table.key and set(table.key_columns) <= set(table.types):  # and not hidden from this user
        return [_stored(column) for column in table.key_columns]
    stored = sorted(column.stored for column in asked)
    return [sql for column in stored for sql in table.types[column].ordered(_stored(column))]


def _stored(column: str) -> str:
    """A column of the table: an ORDER BY alone would find what is sent under the same name."""
    return f"t.{identifier(column)}"


def _literal(value: Value) -> str:
    if isinstance(value, str):
        return f"CAST({text_literal(value)} AS BINARY)"
    # Without an exponent 0.1 is a decimal.
    return f"({value!r}{'' if isinstance(value, int) or 'e' in repr(value) else 'e0'})"
