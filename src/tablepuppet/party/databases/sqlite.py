"""A party whose tables are in a SQLite file, read through ADBC within one read transaction.

SQLite takes any declaration and only prefers a storage class by it (https://sqlite.org/datatype3.html, section 3.1); it
keeps a type with every value. What a column declares is published, and a value that does not agree with it is an error.
A `SQLiteType` says how values are sent so that every batch has one type. Order: rowid; the primary key without one; for
views the read columns.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from urllib.parse import quote

import pyarrow as pa
from adbc_driver_manager import Error as DriverError
from adbc_driver_sqlite import StatementOptions, dbapi

from tablepuppet.errors import PartyError
from tablepuppet.party.database import SourceTable, UnavailableError
from tablepuppet.party.databases.foreign import (
    SENT_POSITION,
    ForeignReader,
    ForeignTable,
    Sent,
    misfit,
    sent_name,
    stored,
)
from tablepuppet.party.databases.names import (
    AskedColumn,
    FileState,
    existing,
    find_table,
    identifier,
    numbered_by,
    state_of,
)
from tablepuppet.party.databases.pushdown import Comparable, Value, kind_of
from tablepuppet.party.databases.sandbox import sandbox
from tablepuppet.party.databases.urls import Address, database
from tablepuppet.party.databases.view_text import aggregating
from tablepuppet.sql.query import Comparison

_RULES = (
    (r"BOOL.*", "BOOLEAN"),
    (r"DATE", "DATE"),
    (r"TIMESTAMP *(WITH TIME ZONE|TZ)", "TIMESTAMP WITH TIME ZONE"),
    (r"(DATETIME|TIMESTAMP).*", "TIMESTAMP"),
    (r"UUID", "UUID"),
    (r"TIME", "TIME"),
    (r"JSONB?", "JSON"),
    (r".*INT.*", "BIGINT"),
    (r".*(CHAR|CLOB|TEXT).*|ANY|", "VARCHAR"),
    (r".*BLOB.*", "BLOB"),
)
_DECIMAL = re.compile(r"(?:DECIMAL|NUMERIC) *\( *(\d+) *(?:, *(\d+) *)?\)")
logger = logging.getLogger(__name__)
_CATALOG = """
    SELECT name, type, wr FROM pragma_table_list
    WHERE schema = 'main' AND type IN ('table', 'view', 'virtual') AND substr(name, 1, 7) <> 'sqlite_'
    ORDER BY name
"""
_VIEWS = "SELECT name, sql FROM sqlite_schema WHERE type = 'view'"
_COLUMNS = "SELECT name, type, pk FROM pragma_table_xinfo(?) WHERE hidden <> 1 ORDER BY cid"
_ROWIDS = ("rowid", "_rowid_", "oid")  # names of it, of which a column may take some
_BATCH_ROWS = {StatementOptions.BATCH_ROWS.value: "65536"}


@dataclass(frozen=True)
class Storage:
    """One of SQLite's storage classes: how a column is sent in it, and recognised."""

    sent: str  # SQL over {column}
    example: str  # a first value from which the driver learns the type
    arrow: Any
    classes: tuple[str, ...]  # the classes of values that are sent unharmed


_INTEGER = Storage("{column}", "0", pa.int64(), ("integer",))
_REAL = Storage(
    "CASE typeof({column}) WHEN 'integer' THEN CAST({column} AS REAL) ELSE {column} END",
    "0.0",
    pa.float64(),
    ("integer", "real"),
)
# As text, because SQLite itself has no decimals, dates or times: DuckDB reads them from the text.
_TEXT = Storage(
    "CASE typeof({column}) WHEN 'blob' THEN {column} ELSE CAST({column} AS TEXT) END",
    "''",
    pa.string(),
    ("integer", "real", "text"),
)


def duckdb_type(declared: str) -> str:
    """The DuckDB type of a declared type.

    >>> [duckdb_type(declared) for declared in ("int unsigned", "NUMERIC(8,2)", "", "NUMERIC", "varchar(3)")]
    ['BIGINT', 'DECIMAL(8,2)', 'VARCHAR', 'DOUBLE', 'VARCHAR']
    """
    name = declared.strip().upper()
    if decimal := _DECIMAL.fullmatch(name):
        digits, scale = int(decimal[1]), int(decimal[2] or 0)
        return f"DECIMAL({digits},{scale})" if scale <= digits <= 38 else "DOUBLE"
    return next((type_name for pattern, type_name in _RULES if re.fullmatch(pattern, name)), "DOUBLE")


def type_of_values(classes: set[str]) -> str:
    """The DuckDB type for values of these storage classes.

    >>> type_of_values({"integer", "null"}), type_of_values({"integer", "real"}), type_of_values({"text", "real"})
    ('BIGINT', 'DOUBLE', 'VARCHAR')
    """
    some = classes - {"null"}
    if not some or some - {"integer", "real"}:
        return "VARCHAR"
    return "BIGINT" if some == {"integer"} else "DOUBLE"


@dataclass(frozen=True)
class SQLiteType:
    """A column's type, as a DuckDB type."""

    duckdb: str

    @property
    def storage(self) -> Storage:
        """The storage class in which values are sent."""
        return {"BIGINT": _INTEGER, "DOUBLE": _REAL}.get(self.duckdb, _TEXT)

    def sent(self, column: str) -> str:
        """SQLite's expression for what is sent."""
        return self.storage.sent.format(column=column)

    def restored(self, column: str) -> str:
        """The column as it is: DuckDB casts it."""
        return column

    @property
    def orders_alike(self) -> bool:
        """Not known: a value may be of any class. SQLite itself numbers rows."""
        return False

    def comparable(self, column: str) -> Comparable | None:
        """How the column compares in SQLite; decimals are sent as text, and SQLite would compare them as text."""
        if self.duckdb.startswith("DECIMAL"):
            return None
        kind = kind_of(self.duckdb)  # dates are texts there, in any form
        return Comparable(f"({self.sent(column)}) COLLATE BINARY", "other" if kind == "date" else kind, digits=99)


@dataclass(frozen=True)
class _Table(ForeignTable[SQLiteType]):
    """A table or view; ``rowid`` is the name by which its rows have numbers, if they do. A key is that of a table
    without such numbers.
    """

    rowid: str | None = None


@dataclass(frozen=True)
class SQLite:
    """A SQLite file."""

    party: str
    path: str
    _counted: dict[str, tuple[FileState, SourceTable]] = field(default_factory=dict, compare=False, repr=False)

    def tables(self, names: Collection[str] | None = None) -> list[SourceTable]:
        """Tables and views; a view that cannot be evaluated is logged and left out.

        Rows are counted, again only if the file has changed.
        """
        path = existing(self.party, "SQLite", self.path)
        state = state_of(path, path.with_name(f"{path.name}-wal"))  # before anything is read
        with self._connected() as connection:
            catalog = {entry[0]: entry for entry in _rows(connection, _CATALOG)}
            wanted = catalog if names is None else [find_table(self.party, catalog, name) for name in names]
            tables = [self._published(connection, state, *catalog[name]) for name in wanted]
            views = {name for name in wanted if catalog[name][1] == "view"}
            sums = aggregating(dict(_rows(connection, _VIEWS)), "sqlite", views) if views else frozenset()
            return [replace(table, aggregates=table.name in sums) for table in tables if table is not None]

    @contextmanager
    def reader(self) -> Iterator[ForeignReader[_Table]]:
        """Open one read transaction; SQLite keeps its moment until it ends."""
        with self._connected() as connection, sandbox() as duck:
            catalog = {entry[0]: entry for entry in _rows(connection, _CATALOG)}

            def find(name: str) -> _Table:
                with self._evaluating(name):
                    return _table(connection, *catalog[name])

            yield ForeignReader(self.party, duck, catalog, find, partial(self._read, connection))

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        path = existing(self.party, "SQLite", self.path)
        with ExitStack() as stack:
            try:
                connection = stack.enter_context(dbapi.connect(f"file:{quote(str(path))}?mode=ro"))
                _rows(connection, "PRAGMA busy_timeout = 5000")
                _rows(connection, "SELECT count(*) FROM sqlite_schema")  # the transaction's moment is now
            except (DriverError, OSError) as error:
                raise UnavailableError(f"Party {self.party!r}: {_why_closed(str(error), str(path))}") from None
            yield connection

    def _published(self, connection: Any, state: FileState, name: str, *kind: Any) -> SourceTable | None:
        if name in self._counted and self._counted[name][0] == state:
            return self._counted[name][1]
        try:
            table = _table(connection, name, *kind)
            [(rows,)] = _rows(connection, f"SELECT count(*) FROM {table.sql}")
        except (DriverError, OSError):
            logger.warning("Party %r: %r cannot be read and is not published", self.party, name)
            return None
        found = SourceTable(name, table.columns, rows)
        self._counted[name] = (state, found)
        return found

    @contextmanager
    def _evaluating(self, name: str) -> Iterator[None]:
        try:
            yield
        except (DriverError, OSError):
            raise PartyError(f"Party {self.party!r}: SQLite cannot evaluate {name!r}; try SELECT there") from None

    @contextmanager
    def _read(
        self, connection: Any, table: _Table, asked: Sequence[AskedColumn], where: Sequence[Comparison]
    ) -> Iterator[Sent]:
        """The answer as Arrow batches; raises `PartyError` when a column turns out to hold values of another class."""
        parameters: list[Value] = []
        pushed = table.condition(asked, where, lambda value: _bound(value, parameters))
        with self._evaluating(table.name):
            position = _order(table, asked) if pushed else _position(connection, table, asked)
        sql = _query(table, asked, position, pushed)
        expected = [type_.storage.arrow for type_ in table.asked_types(asked)]
        try:
            with connection.cursor() as cursor:
                cursor.adbc_statement.set_options(**_BATCH_ROWS)
                cursor.execute(sql, parameters or None)
                with cursor.fetch_record_batch() as batches:
                    if batches.schema.types[: len(asked)] != expected:
                        raise TypeError("a column changed its type on the way")
                    rows = f"(FROM sent WHERE {SENT_POSITION} >= 0)"
                    yield Sent(batches, SENT_POSITION, of_all=not pushed, relation=rows)
        except Exception:
            if column := _misfit(connection, table, asked):
                raise misfit(self.party, table.name, column) from None
            raise


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


def _table(connection: Any, name: str, kind: str, without_rowid: int) -> _Table:
    """A table or view; a column without a declared type, as of a view, has that of its values."""
    types: dict[str, SQLiteType] = {}
    key = []
    for column, declared, place in _rows(connection, _COLUMNS, name):
        types[column] = SQLiteType(duckdb_type(declared) if declared else _type_of_values(connection, name, column))
        key += [(place, column)] if place else []
    found = _Table(name, identifier(name), types)
    if kind != "table":
        return found
    if without_rowid:
        return replace(found, key=key)
    taken = {column.lower() for column in types}
    return replace(found, rowid=next((alias for alias in _ROWIDS if alias not in taken), None))


def _type_of_values(connection: Any, name: str, column: str) -> str:
    try:
        classes = _rows(connection, f"SELECT DISTINCT typeof({identifier(column)}) FROM {identifier(name)}")
    except (DriverError, OSError):  # a view may fail in one column and still be of use
        return "VARCHAR"
    return type_of_values({kind for (kind,) in classes})


def _order(table: _Table, asked: Sequence[AskedColumn]) -> str:
    """The number of a row among those that are sent."""
    if table.rowid is not None:
        return numbered_by([f"t.{table.rowid}"])
    order = [stored(column) for column in table.key_columns]
    return numbered_by(order or sorted(f"{stored(column.stored)} COLLATE BINARY" for column in asked))


def _position(connection: Any, table: _Table, asked: Sequence[AskedColumn]) -> str:
    """The number of a row among all of its table."""
    if table.rowid is None:
        return _order(table, asked)
    bounds = f"SELECT min({table.rowid}), max({table.rowid}), count(*) FROM {table.sql}"
    [(first, last, rows)] = _rows(connection, bounds)
    if rows and last - first + 1 == rows:  # nothing was deleted: no need to number the rows
        return f"t.{table.rowid} - ({first})"
    return _order(table, asked)


def _misfit(connection: Any, table: _Table, asked: Sequence[AskedColumn]) -> AskedColumn | None:
    for column, type_ in zip(asked, table.asked_types(asked), strict=True):
        classes = ", ".join(f"'{name}'" for name in (*type_.storage.classes, "null"))
        check = f"FROM {table.sql} WHERE typeof({identifier(column.stored)}) NOT IN ({classes})"
        if _rows(connection, f"SELECT EXISTS (SELECT 1 {check})") == [(1,)]:
            return column
    return None


def _bound(value: Value, parameters: list[Value]) -> str:
    parameters.append(value)
    return "?"


def _query(table: _Table, asked: Sequence[AskedColumn], position: str, where: str) -> str:
    """The SELECT to send. Its first row is an example from which the driver learns the types; its position is -1.

    The driver guesses a column's type from the first batch, and takes one of NULLs for integers.
    """
    types = table.asked_types(asked)
    examples = [f"{type_.storage.example} AS {sent_name(index)}" for index, type_ in enumerate(types)]
    items = [*table.sent(asked), f"{position} AS {SENT_POSITION}"]
    numbered = f"SELECT {', '.join(items)} FROM {table.sql} AS t {where}"
    return f"SELECT {', '.join([*examples, f'-1 AS {SENT_POSITION}'])} UNION ALL {numbered}"


@database("sqlite", is_file=True)
def _opened(address: Address) -> SQLite:
    return SQLite(address.party, address.path)
