"""A party whose tables are in one database of a MySQL or MariaDB server, read in one read-only transaction.

Order: the primary key, else all columns that are read. The URL holds a password: no error repeats it. PyMySQL,
because tables are of one moment only within one connection, which the columnar readers do not keep.

A `MySQLType` says what a type is called in DuckDB, and how its values are sent, restored and compared. Everything is
sent as text, which DuckDB casts to the declared type. The zero date, MySQL's way to write "no date", is missing here.
Types that nothing can be learned from keep a name of their own, so that they can be refused by it.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pymysql
from pymysql.constants import ER
from pymysql.converters import encoders
from pymysql.cursors import DictCursor, SSCursor

from tablepuppet.errors import PartyError
from tablepuppet.party.allowance import check_time, interrupted_in_time
from tablepuppet.party.database import SourceTable, UnavailableError, noticing_loss
from tablepuppet.party.databases.foreign import IN_ORDER, MOST_COUNTED, ForeignReader, ForeignTable, Sent, stored
from tablepuppet.party.databases.names import AskedColumn, find_table, identifier, text_literal
from tablepuppet.party.databases.pushdown import Comparable, Kind, Value
from tablepuppet.party.databases.sandbox import sandbox
from tablepuppet.party.databases.servers import (
    application,
    connection_options,
    connections_to,
    masked,
    seconds_left,
)
from tablepuppet.party.databases.urls import Address, database
from tablepuppet.party.databases.view_text import aggregating
from tablepuppet.sql.query import Comparison

_INTEGERS = {
    "tinyint": "TINYINT",
    "smallint": "SMALLINT",
    "mediumint": "INTEGER",
    "int": "INTEGER",
    "bigint": "BIGINT",
}
_TEXTS = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set")
_BYTES = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob")
_TIMES = {"date": "DATE", "datetime": "TIMESTAMP", "timestamp": "TIMESTAMP WITH TIME ZONE"}
_TYPES = {
    **dict.fromkeys(_TEXTS, "VARCHAR"),
    **dict.fromkeys(_BYTES, "BLOB"),
    **_TIMES,
    "float": "FLOAT",
    "double": "DOUBLE",
    "bit": "UBIGINT",
    "year": "SMALLINT",
}
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
logger = logging.getLogger(__name__)
# With this sql_mode names and texts are quoted as in every other database.
_BEGIN = (
    "SET SESSION sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES', time_zone = '+00:00'",
    "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY",
)
# Whoever runs the server may have set less. MariaDB counts seconds, MySQL milliseconds.
_TIMEOUT = "SET SESSION {name} = IF(@@{name} > 0 AND @@{name} < {most}, @@{name}, {most})"
# Not joined: names of tables may differ in case only, and these views compare them without it.
_NAMES = """
    SELECT table_name FROM information_schema.tables
    WHERE table_schema = DATABASE() AND table_type IN ('BASE TABLE', 'SYSTEM VERSIONED', 'VIEW')
    ORDER BY table_name
"""
_SIZE = """
    SELECT table_name, table_type, data_length, table_rows FROM information_schema.tables
    WHERE table_schema = DATABASE() AND table_name = {name}
"""
_COLUMNS = """
    SELECT table_name, column_name, data_type, column_type FROM information_schema.columns
    WHERE table_schema = DATABASE() AND FIND_IN_SET('select', privileges) AND table_name = {name}
    ORDER BY ordinal_position
"""
_KEYS = """
    SELECT table_name, column_name, seq_in_index FROM information_schema.statistics
    WHERE table_schema = DATABASE() AND index_name = 'PRIMARY' AND table_name = {name}
"""
_VIEWS = """
    SELECT table_name, coalesce(view_definition, '') FROM information_schema.views WHERE table_schema = DATABASE()
"""  # a definition is empty for a user who may not see it
_BATCH_ROWS = 65536
UNKNOWN = 1000  # rows of a view of which nothing is known, an estimate like others
GREETING = 10.0  # seconds for the server to let somebody in; one that is frozen accepts connections, and is silent
CANCEL = 5.0  # seconds for the server to end a statement; one that has fallen silent does not


@dataclass(frozen=True)
class MySQLType:
    """A column's type: its name, and its whole declaration."""

    name: str
    declared: str

    @property
    def duckdb(self) -> str:
        """The DuckDB type in which the column is published; BOOL is kept by MySQL as tinyint(1).

        >>> [MySQLType(d.partition("(")[0], d).duckdb for d in ("tinyint(1)", "tinyint(4)", "int(10) unsigned")]
        ['BOOLEAN', 'TINYINT', 'UINTEGER']
        >>> [MySQLType(d.partition("(")[0], d).duckdb for d in ("decimal(8,2)", "decimal(65,30)", "geometry")]
        ['DECIMAL(8,2)', 'DOUBLE', 'GEOMETRY']
        """
        if self.declared in ("tinyint(1)", "bit(1)"):
            return "BOOLEAN"
        if self.name in _INTEGERS:
            return f"{'U' if 'unsigned' in self.declared else ''}{_INTEGERS[self.name]}"
        if decimal := _DECIMAL.match(self.declared):
            digits, scale = int(decimal[1]), int(decimal[2])
            return f"DECIMAL({digits},{scale})" if digits <= 38 else "DOUBLE"
        return _TYPES.get(self.name, self.name.upper())

    def sent(self, column: str) -> str:
        """MySQL's expression for what is sent: as text, a FLOAT alone would have six digits and a BIT be bytes."""
        match self.name:
            case "float" | "double":
                return f"{column} + 0e0"
            case "bit":
                return f"{column} + 0"
            case "uuid":
                return f"CAST({column} AS CHAR)"
        return column

    def restored(self, column: str) -> str:
        """DuckDB's expression that takes the zero date for a missing value."""
        if self.name not in _TIMES:
            return column
        return f"CASE WHEN starts_with({column}, '0000-00-00') THEN NULL ELSE {column} END"

    @property
    def orders_alike(self) -> bool:
        """Whether values are in the same order in DuckDB: numbers that are not rounded, and times."""
        return self._kind() in ("integer", "decimal") or self.name in _TIMES

    def comparable(self, column: str) -> Comparable | None:
        """How the column compares in MySQL; None for moments, where IS NULL finds zero dates or does not.

        A zero date, NULL here, is less than every day there. Text compares as bytes: collations ignore case and spaces
        at the end.
        """
        if self.name == "date":
            return Comparable(column, "date", nulls=False)
        if self.name in _TIMES:
            return None
        if self.duckdb == "VARCHAR":
            return Comparable(f"CAST(CONVERT({column} USING utf8mb4) AS BINARY)", "text", also=column)
        decimal = _DECIMAL.match(self.declared)
        return Comparable(column, self._kind(), int(decimal[1]) if decimal else 0)

    def _kind(self) -> Kind:
        if self.name in _INTEGERS and self.duckdb != "BOOLEAN":
            return "integer"
        if self.duckdb.startswith("DECIMAL"):
            return "decimal"
        # Neither FLOAT nor YEAR, which takes 20 for 2020, nor a decimal that is rounded here.
        return "double" if self.name == "double" else "other"


_Table = ForeignTable[MySQLType]


class MySQL:
    """A database of a MySQL or MariaDB server; at most so many connections to it are open at once."""

    def __init__(self, party: str, url: str, most_connections: int | None = None):
        self.party = party
        self._options = {**connection_options(party, url), "program_name": application(party)}
        self._connections = connections_to(url, most_connections)

    def tables(self, names: Collection[str] | None = None) -> list[SourceTable]:
        """Tables and views that can be read; the others are logged and left out.

        Rows of a small table are counted; of others, and of views, the server's estimate is taken.
        """
        with self._connected() as connection:
            known = _names(connection)
            wanted = known if names is None else [find_table(self.party, known, name) for name in names]
            found = [_table(connection, name) for name in wanted]
            sizes = [_size(connection, name) for name in wanted]
            views = {name for name, size in zip(wanted, sizes, strict=True) if size.is_view}
            sums = aggregating(dict(_rows(connection, _VIEWS)) if views else {}, "mysql", views)
            tables = [self._described(connection, *each, sums) for each in zip(found, sizes, strict=True)]
            return [table for table in tables if table is not None]

    @contextmanager
    def reader(self) -> Iterator[ForeignReader[_Table]]:
        """Open one transaction that sees the database as it is now, as far as its engines have transactions."""
        with self._connected() as connection, sandbox() as duck:
            find, read = partial(_table, connection), partial(self._read, connection)
            yield ForeignReader(self.party, duck, _names(connection), find, read)

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        with ExitStack() as stack:
            stack.enter_context(self._connections.one(self.party))
            try:
                # Encoders alone: without decoders every value arrives as the text that was sent.
                left = seconds_left() or math.inf
                greeting, silence = min(GREETING, left), min(self._options["read_timeout"], left)
                options = self._options | {"read_timeout": greeting, "conv": dict(encoders), "autocommit": True}
                connection = stack.enter_context(pymysql.connect(**options))
                connection._read_timeout = silence  # PyMySQL has one for both
                for statement in (*_BEGIN, *_limits(connection)):
                    _rows(connection, statement)
            except Exception as error:  # of whatever class: another kind of server may answer at that port
                raise UnavailableError(f"Party {self.party!r}: MySQL: {self._reason(error)}") from None
            stack.enter_context(noticing_loss(partial(self._lost, connection)))
            stack.enter_context(interrupted_in_time(partial(self._cancel, connection.thread_id())))
            yield connection

    def _cancel(self, number: int) -> None:
        """End what a connection does; only another one can say so."""
        with pymysql.connect(**self._options | {"connect_timeout": CANCEL, "read_timeout": CANCEL}) as other:
            _rows(other, f"KILL QUERY {number:d}")

    def _lost(self, connection: Any) -> str:
        """That the connection is lost; "" if it is not: the driver closes it then."""
        where = f"{self._options.get('host', '')}:{self._options.get('port', '')}"
        return "" if connection.open else f"Party {self.party!r}: MySQL: the connection to {where} was lost"

    @contextmanager
    def _read(
        self, connection: Any, table: _Table, asked: Sequence[AskedColumn], where: Sequence[Comparison]
    ) -> Iterator[Sent]:
        """Rows are sorted here, not by the server, unless the key is of texts: these are in the order of an index."""
        pushed = table.condition(asked, where, _literal)
        sql, position = table.unsorted(asked, pushed, "FIRST")
        if table.key and not table.orders_alike:
            sql, position = f"{sql} ORDER BY {', '.join(map(stored, table.key_columns))}", IN_ORDER
        with connection.cursor(SSCursor) as cursor:  # which does not hold the whole answer
            try:
                cursor.execute(f"/* {application(self.party)} */ {sql}")
            except pymysql.Error as error:
                check_time()
                reason = f"its database could not read it (error {error.args[0]}); try SELECT there"
                raise PartyError(f"Party {self.party!r}: table {table.name!r}: {reason}") from None
            schema = pa.schema([(name, pa.large_string()) for name, *_ in cursor.description])
            batches = pa.RecordBatchReader.from_batches(schema, _batches(cursor, schema))
            yield Sent(batches, position, of_all=not pushed)

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

    def _described(self, connection: Any, table: _Table, size: _Size, sums: frozenset[str]) -> SourceTable | None:
        try:
            if table.types:
                rows = size.rows if size.rows is not None else _expected(connection, table)
                if is_small := not size.is_view and size.bytes <= MOST_COUNTED:
                    [(rows,)] = _rows(connection, f"SELECT count(*) FROM {table.sql}")
                return SourceTable(table.name, table.columns, int(rows), table.name in sums, estimated=not is_small)
        except pymysql.Error as error:
            check_time()
            if not connection.open:
                raise UnavailableError(f"Party {self.party!r}: MySQL: {self._reason(error)}") from None
        logger.warning("Party %r: %r cannot be read and is not published", self.party, table.name)
        return None


def _rows(connection: Any, sql: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return list(cursor.fetchall())


def _limits(connection: Any) -> list[str]:
    """Statements after which the server ends by itself what takes longer than the request may."""
    seconds = seconds_left()
    if seconds is None:
        return []
    if "MariaDB" in connection.get_server_info():
        return [_TIMEOUT.format(name="max_statement_time", most=f"{seconds:.3f}")]
    return [_TIMEOUT.format(name="max_execution_time", most=int(1000 * seconds))]


def _names(connection: Any) -> list[str]:
    return [name for (name,) in _rows(connection, _NAMES)]


@dataclass(frozen=True)
class _Size:
    """What the server knows of a table's size without reading it; nothing of a view."""

    is_view: bool
    bytes: int
    rows: int | None


def _size(connection: Any, name: str) -> _Size:
    rows = _rows(connection, _SIZE.format(name=text_literal(name)))
    kind, length, known = next((kind, length, rows) for found, kind, length, rows in rows if found == name)
    return _Size(kind == "VIEW", int(length or 0), None if known is None else int(known))


def _table(connection: Any, name: str) -> _Table:
    """The table or view of a name; one that this user cannot read, or nobody, has no columns."""
    quoted = text_literal(name)
    columns = [row for row in _rows(connection, _COLUMNS.format(name=quoted)) if row[0] == name]
    types = {column: MySQLType(kind.lower(), declared.lower()) for _, column, kind, declared in columns}
    keys = [row for row in _rows(connection, _KEYS.format(name=quoted)) if row[0] == name]
    hidden = not {column for _, column, _ in keys} <= set(types)  # from this user
    return _Table(name, identifier(name), types, [] if hidden else [(int(place), column) for _, column, place in keys])


def _expected(connection: Any, table: _Table) -> int:
    """The rows that the server expects of a view, which it does not evaluate: those of its tables together.

    It says so only to who may read these tables too; a user who may read the view alone knows nothing of them.
    """
    try:
        with connection.cursor(DictCursor) as cursor:
            cursor.execute(f"EXPLAIN SELECT 1 FROM {table.sql}")
            steps = list(cursor.fetchall())
    except pymysql.Error as error:
        if error.args[0] == ER.VIEW_NO_EXPLAIN:
            return UNKNOWN
        raise
    return math.prod(int(step["rows"] or 1) for step in steps if step["id"] == steps[0]["id"])


def _batches(cursor: SSCursor, schema: Any) -> Iterator[Any]:
    """The rows by columns."""
    while rows := cursor.fetchmany(_BATCH_ROWS):
        yield pa.record_batch([pa.array(values, pa.large_string()) for values in zip(*rows, strict=True)], schema)


def _literal(value: Value) -> str:
    if isinstance(value, str):
        return f"CAST({text_literal(value)} AS BINARY)"
    # Without an exponent 0.1 is a decimal.
    return f"({value!r}{'' if isinstance(value, int) or 'e' in repr(value) else 'e0'})"


@database("mysql")
@database("mariadb")
def _opened(address: Address) -> MySQL:
    return MySQL(address.party, address.url, address.most_connections)
