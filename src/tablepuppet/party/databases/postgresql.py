"""A party whose tables are in PostgreSQL (the current schema), read through ADBC in one read-only transaction.

Order: the primary key, else all columns that are read. The URL holds a password: no error repeats it. A
`PostgresType` says what a type is called in DuckDB, and how its values are sent and restored: numbers without a fixed
precision are doubles, as in DuckDB's own reader of PostgreSQL; types that nothing can be learned from keep a name of
their own, so that they can be refused by it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from adbc_driver_manager import Error as DriverError
from adbc_driver_postgresql import StatementOptions, dbapi

from tablepuppet.party.allowance import check_time, interrupted_in_time
from tablepuppet.party.database import SourceTable, UnavailableError, noticing_loss
from tablepuppet.party.databases.foreign import IN_ORDER, MOST_COUNTED, ForeignReader, ForeignTable, Sent, stored
from tablepuppet.party.databases.names import AskedColumn, find_table, identifier, text_literal
from tablepuppet.party.databases.pushdown import Comparable, Value, kind_of
from tablepuppet.party.databases.sandbox import sandbox
from tablepuppet.party.databases.servers import (
    application,
    check_escapes,
    check_hosts,
    connections_to,
    masked,
    seconds_left,
)
from tablepuppet.party.databases.urls import Address, database
from tablepuppet.party.databases.view_text import aggregating
from tablepuppet.sql.query import Comparison
from tablepuppet.sql.types import Family, family

_TYPES = {
    "bool": "BOOLEAN",
    "int2": "SMALLINT",
    "int4": "INTEGER",
    "int8": "BIGINT",
    "float4": "FLOAT",
    "float8": "DOUBLE",
    "text": "VARCHAR",
    "varchar": "VARCHAR",
    "bpchar": "VARCHAR",
    "name": "VARCHAR",
    "date": "DATE",
    "timestamp": "TIMESTAMP",
    "timestamptz": "TIMESTAMP WITH TIME ZONE",
    "uuid": "UUID",
    "bytea": "BLOB",
    "json": "JSON",
    "jsonb": "JSON",
}
_ORDERED = (Family.INTEGER, Family.DECIMAL, Family.DATE, Family.TIMESTAMP, Family.UUID)
_TIMES = ("date", "timestamp", "timestamptz")
# The driver lets infinite times overflow, so these stand for them on the way: later than any time that is meant.
_MINUS_INFINITY, _INFINITY = "294246-01-01", "294246-01-02"
logger = logging.getLogger(__name__)
_BEGIN = (
    "BEGIN READ ONLY ISOLATION LEVEL REPEATABLE READ",
    "SET LOCAL standard_conforming_strings = on",
)
# A party that was killed waits for nothing; servers before 14, or on some systems, do not know it.
_NOTICE = "SET LOCAL client_connection_check_interval = '1s'"
# Whoever runs the server may have set less.
_TIMEOUT = """
    SELECT set_config(name, '{most}', true) FROM (VALUES ('statement_timeout')) AS known (name)
    WHERE current_setting(name) = '0' OR current_setting(name)::interval > '{most} ms'::interval
"""
_READABLE = """
    c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
    AND NOT c.relispartition AND has_table_privilege(c.oid, 'SELECT')
"""
_NAMES = f"SELECT c.relname::text AS name FROM pg_class c WHERE {_READABLE} ORDER BY 1"
# One row per column, in the table's order; domains are followed to their base type.
_TABLE = f"""
    WITH RECURSIVE columns AS (
        SELECT c.oid AS table_id, a.attnum AS number, a.atttypid AS type, a.atttypmod AS modifier
        FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
        WHERE {_READABLE} AND c.relname = {{name}} AND a.attnum > 0 AND NOT a.attisdropped
      UNION ALL
        SELECT d.table_id, d.number, t.typbasetype, t.typtypmod
        FROM columns d JOIN pg_type t ON t.oid = d.type WHERE t.typtype = 'd'
    )
    SELECT a.attname::text AS column, t.typname::text AS type, d.modifier, t.typtype = 'e' AS is_enum,
           current_schema()::text AS schema, array_position(i.indkey::int2[], a.attnum) AS key_place,
           c.relkind::text AS kind, c.oid::int8 AS id
    FROM columns d
    JOIN pg_class c ON c.oid = d.table_id
    JOIN pg_attribute a ON a.attrelid = d.table_id AND a.attnum = d.number
    JOIN pg_type t ON t.oid = d.type AND t.typtype <> 'd'
    LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary
    ORDER BY a.attnum
"""
_PARTS = "SELECT coalesce(sum(pg_relation_size(relid)), 0)::int8 AS bytes FROM pg_partition_tree({id}::oid::regclass)"
_SIZES = {"r": "SELECT pg_relation_size({id}::oid::regclass)::int8 AS bytes", "p": _PARTS}
_SIZES["m"] = _SIZES["r"]
_VIEWS = """
    SELECT relname::text AS name, pg_get_viewdef(oid) AS sql FROM pg_class
    WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('v', 'm')
"""
_NOT_COPIED = {StatementOptions.USE_COPY.value: "false"}


@dataclass(frozen=True)
class PostgresType:
    """A column's type after domains are resolved: its name, its modifier, and whether it is an enum."""

    name: str
    modifier: int
    is_enum: bool

    @property
    def duckdb(self) -> str:
        """The DuckDB type in which the column is published.

        >>> PostgresType("numeric", 655366, False).duckdb, PostgresType("tsvector", -1, False).duckdb
        ('DECIMAL(10,2)', 'TSVECTOR')
        """
        if self.name == "numeric":
            return _decimal(self.modifier)
        if self.is_enum:
            return "VARCHAR"
        own = f"{self.name[1:]}[]" if self.name.startswith("_") else self.name  # _int4 is an array
        return _TYPES.get(self.name, own.upper())

    def sent(self, column: str) -> str:
        """PostgreSQL's expression for what is sent; text has its padding removed, numbers stay exact."""
        if self.name in _TIMES:
            cases = f"WHEN '-infinity' THEN '{_MINUS_INFINITY}' WHEN 'infinity' THEN '{_INFINITY}'"
            return f"CASE {column} {cases} ELSE {column} END"
        return f"{column}::text" if self.name == "numeric" or self.duckdb == "VARCHAR" else column

    def restored(self, column: str) -> str:
        """DuckDB's expression that undoes what ``sent`` did to infinite times."""
        if self.name not in _TIMES:
            return column
        cases = " ".join(
            f"WHEN CAST('{sent}' AS {self.duckdb}) THEN CAST('{meant}' AS {self.duckdb})"
            for sent, meant in ((_MINUS_INFINITY, "-infinity"), (_INFINITY, "infinity"))
        )
        return f"CASE {column} {cases} ELSE {column} END"

    @property
    def orders_alike(self) -> bool:
        """Whether values are in the same order in DuckDB: all but texts, and numbers that are rounded."""
        return family(self.duckdb) in _ORDERED

    def comparable(self, column: str) -> Comparable:
        """How the column compares in PostgreSQL."""
        kind = kind_of(self.duckdb)
        if self.name == "numeric" and kind == "double":  # exact there, rounded here
            kind = "other"
        digits = int(self.duckdb[len("DECIMAL(") :].partition(",")[0]) if kind == "decimal" else 0
        if self.duckdb != "VARCHAR":
            return Comparable(f"({column})", kind, digits)
        # Text by its bytes, whatever the locale. What is equal so is equal as the index has it too; an enum is no text.
        return Comparable(f'({column}::text COLLATE "C")', kind, also="" if self.is_enum else column)


def _decimal(modifier: int) -> str:
    if modifier < 0:
        return "DOUBLE"
    digits = ((modifier - 4) >> 16) & 0xFFFF
    scale = (((modifier - 4) & 0x7FF) ^ 1024) - 1024  # eleven bits with a sign
    digits, scale = max(digits - min(scale, 0), scale), max(scale, 0)
    return f"DECIMAL({digits},{scale})" if digits <= 38 else "DOUBLE"


@dataclass(frozen=True)
class _Table(ForeignTable[PostgresType]):
    kind: str = "r"
    id: int = 0


class PostgreSQL:
    """A PostgreSQL database; at most so many connections to it are open at once."""

    def __init__(self, party: str, url: str, most_connections: int | None = None):
        self.party = party
        self._url = _checked(party, url)
        self._connections = connections_to(url, most_connections)

    def tables(self, names: Collection[str] | None = None) -> list[SourceTable]:
        """Tables and views of the current schema that the user may read.

        Rows of a small table are counted; of others, and of views, the planner's estimate is taken.
        """
        with self._connected() as connection:
            known = _names(connection)
            wanted = known if names is None else [find_table(self.party, known, name) for name in names]
            found = [table for name in wanted if (table := _table(connection, name)).types]
            views = {table.name for table in found if table.kind in "vm"}
            texts = {row["name"]: row["sql"] for row in _rows(connection, _VIEWS)} if views else {}
            sums = aggregating(texts, "postgres", views)
            described = [self._described(connection, table, table.name in sums) for table in found]
            return [table for table in described if table is not None]

    @contextmanager
    def reader(self) -> Iterator[ForeignReader[_Table]]:
        """Open one transaction that sees the database as it is now."""
        with self._connected() as connection, sandbox() as duck:
            names = _names(connection)
            yield ForeignReader(self.party, duck, names, partial(_table, connection), partial(_read, connection))

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        with ExitStack() as stack:
            stack.enter_context(self._connections.one(self.party))
            try:
                uri = _named(self._url, application(self.party))
                connection = stack.enter_context(dbapi.connect(uri, autocommit=True))
                for statement in _BEGIN:
                    _rows(connection, statement)
                _attempt(connection, _NOTICE)
                if (most := seconds_left()) is not None:
                    _rows(connection, _TIMEOUT.format(most=int(1000 * most)))
            except (DriverError, OSError) as error:
                raise UnavailableError(f"Party {self.party!r}: PostgreSQL: {_reason(error, self._url)}") from None
            stack.enter_context(noticing_loss(partial(self._lost, connection)))
            stack.enter_context(interrupted_in_time(connection.adbc_cancel))
            yield connection

    def _lost(self, connection: Any) -> str:
        """Why the connection is lost; "" if it is not: the server answers then, also after an error."""
        try:
            _rows(connection, "ROLLBACK")
        except (DriverError, OSError) as error:
            return f"Party {self.party!r}: PostgreSQL: {_reason(error, self._url)}"
        return ""

    def _described(self, connection: Any, table: _Table, aggregates: bool) -> SourceTable | None:
        try:
            _rows(connection, "SAVEPOINT counted")
            sizes = _rows(connection, _SIZES[table.kind].format(id=table.id)) if table.kind in _SIZES else []
            is_small = bool(sizes) and sizes[0]["bytes"] <= MOST_COUNTED
            rows = _count(connection, table) if is_small else _expected(connection, table)
        except (DriverError, OSError) as error:
            check_time()
            state = getattr(error, "sqlstate", None)
            _rows(
                connection, "ROLLBACK TO SAVEPOINT counted"
            )  # fails if the connection is lost: that says nothing of it
            logger.warning(
                "Party %r: %r cannot be read (SQLSTATE %s) and is not published", self.party, table.name, state
            )
            return None
        return SourceTable(table.name, table.columns, rows, aggregates, estimated=not is_small)


def _checked(party: str, url: str) -> str:
    """The URL with a time limit for connecting; one that libpq would misread, and then quote, is refused."""
    check_escapes(party, "PostgreSQL", url)
    check_hosts(party, "PostgreSQL", url, "postgresql://user:password@host:port/database")
    return url if "connect_timeout=" in url else _with(url, "connect_timeout=10")


def _named(url: str, name: str) -> str:
    """The URL with the name that the server's operator sees, unless it or the environment gives another."""
    return _with(url, f"fallback_application_name={name.replace('/', '%2F')}")


def _with(url: str, parameter: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}{parameter}"


def _reason(error: Exception, url: str) -> str:
    """Why the server, or the way to it, refused; without anything secret that the URL holds."""
    parts = urlsplit(url)
    raw = parts.netloc.rpartition("@")[0].partition(":")[2]
    secrets = [raw, unquote(raw), *(value for name, value in parse_qsl(parts.query) if "password" in name)]
    reason = " ".join(str(error).rpartition("Failed to connect:")[2].split())
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        reason = masked(reason, secret)
    return reason


def _rows(connection: Any, sql: str, **options: str) -> list[dict[str, Any]]:
    with connection.cursor() as cursor:
        cursor.adbc_statement.set_options(**options)
        cursor.execute(sql)
        rows: list[dict[str, Any]] = cursor.fetch_arrow_table().to_pylist() if cursor.description else []
        return rows


def _attempt(connection: Any, sql: str) -> None:
    """Run a statement that a server may refuse."""
    _rows(connection, "SAVEPOINT attempt")
    try:
        _rows(connection, sql)
    except DriverError:
        _rows(connection, "ROLLBACK TO SAVEPOINT attempt")


def _names(connection: Any) -> list[str]:
    return [row["name"] for row in _rows(connection, _NAMES)]


def _table(connection: Any, name: str) -> _Table:
    """The table of a name, from the catalog; it has no columns if there is no such table any more."""
    rows = _rows(connection, _TABLE.format(name=text_literal(name)))
    if not rows:
        return _Table(name, identifier(name))
    sql = f"{identifier(rows[0]['schema'])}.{identifier(name)}"
    types = {row["column"]: PostgresType(row["type"], row["modifier"], row["is_enum"]) for row in rows}
    key = [(row["key_place"], row["column"]) for row in rows if row["key_place"] is not None]
    return _Table(name, sql, types, key, rows[0]["kind"], rows[0]["id"])


def _count(connection: Any, table: _Table) -> int:
    return int(_rows(connection, f"SELECT count(*) AS rows FROM {table.sql}")[0]["rows"])


def _expected(connection: Any, table: _Table) -> int:
    """The rows that the planner expects; nothing is evaluated."""
    [plan] = _rows(connection, f"EXPLAIN (FORMAT JSON) SELECT FROM {table.sql}", **_NOT_COPIED)
    return int(json.loads(next(iter(plan.values())))[0]["Plan"]["Plan Rows"])


@contextmanager
def _read(connection: Any, table: _Table, asked: Sequence[AskedColumn], where: Sequence[Comparison]) -> Iterator[Sent]:
    """Rows are sorted here, not by PostgreSQL, unless the key is of texts: then they come in the order of its index."""
    pushed = table.condition(asked, where, _literal)
    sql, position = table.unsorted(asked, pushed, "LAST")
    by_index = bool(table.key) and not table.orders_alike
    if by_index:
        sql, position = f"{sql} ORDER BY {', '.join(map(stored, table.key_columns))}", IN_ORDER
        _rows(connection, "SET LOCAL enable_sort = off")
    with connection.cursor() as cursor:
        cursor.execute(sql)
        with cursor.fetch_record_batch() as batches:
            yield Sent(batches, position, of_all=not pushed)
    if by_index:
        _rows(connection, "SET LOCAL enable_sort = on")


def _literal(value: Value) -> str:
    if isinstance(value, str):
        return text_literal(value)
    return f"'{value!r}'::float8" if isinstance(value, float) else f"({value})"


@database("postgresql")
@database("postgres")
def _opened(address: Address) -> PostgreSQL:
    return PostgreSQL(address.party, address.url, address.most_connections)
