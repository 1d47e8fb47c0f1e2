"""A party whose tables are in PostgreSQL (the current schema), read through ADBC in one read-only transaction.

Position: the primary key, else all columns that are read. The URL holds a password: no error repeats it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from adbc_driver_manager import Error as DriverError
from adbc_driver_postgresql import dbapi

from tablepuppet.errors import PartyError
from tablepuppet.party.database import SourceTable, UnavailableError, noticing_loss
from tablepuppet.party.databases.foreign import ForeignReader, ForeignTable
from tablepuppet.party.databases.names import AskedColumn, identifier, numbered_by, text_literal
from tablepuppet.party.databases.postgresql_types import PostgresType
from tablepuppet.party.databases.pushdown import Value
from tablepuppet.party.databases.sandbox import sandbox
from tablepuppet.party.databases.server_urls import check_escapes, check_hosts, masked
from tablepuppet.party.databases.view_text import aggregating
from tablepuppet.sql.query import Comparison

_BEGIN = ("BEGIN READ ONLY ISOLATION LEVEL REPEATABLE READ", "SET LOCAL standard_conforming_strings = on")

# One row per column, in the table's order; domains are followed to their base type.
_CATALOG = """
    WITH RECURSIVE columns AS (
        SELECT c.oid AS table_id, a.attnum AS number, a.atttypid AS type, a.atttypmod AS modifier
        FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
        WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
          AND NOT c.relispartition AND has_table_privilege(c.oid, 'SELECT') AND a.attnum > 0 AND NOT a.attisdropped
      UNION ALL
        SELECT d.table_id, d.number, t.typbasetype, t.typtypmod
        FROM columns d JOIN pg_type t ON t.oid = d.type WHERE t.typtype = 'd'
    )
    SELECT c.relname::text AS table, a.attname::text AS column, t.typname::text AS type, d.modifier,
           t.typtype = 'e' AS is_enum, current_schema()::text AS schema,
           array_position(i.indkey::int2[], a.attnum) AS key_place
    FROM columns d
    JOIN pg_class c ON c.oid = d.table_id
    JOIN pg_attribute a ON a.attrelid = d.table_id AND a.attnum = d.number
    JOIN pg_type t ON t.oid = d.type AND t.typtype <> 'd'
    LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary
    ORDER BY 1, a.attnum
"""
_VIEWS = """
    SELECT relname::text AS name, pg_get_viewdef(oid) AS sql FROM pg_class
    WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('v', 'm')
"""


_Table = ForeignTable[PostgresType]


class PostgreSQL:
    """A PostgreSQL database."""

    def __init__(self, party: str, url: str):
        self.party = party
        self._url = _checked(party, url)

    def tables(self) -> list[SourceTable]:
        """Every table and view of the current schema that the user may read."""
        with self._connected() as connection:
            sums = aggregating({row["name"]: row["sql"] for row in _rows(connection, _VIEWS)}, "postgres")
            return [
                SourceTable(table.name, table.columns, self._count(connection, table), table.name in sums)
                for table in _catalog(connection).values()
            ]

    @contextmanager
    def reader(self) -> Iterator[ForeignReader[_Table]]:
        """Open one transaction that sees the database as it is now."""
        with self._connected() as connection, sandbox() as duck:
            catalog = _catalog(connection)
            yield ForeignReader(self.party, duck, catalog, catalog.__getitem__, partial(_read, connection))

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        with ExitStack() as stack:
            try:
                connection = stack.enter_context(dbapi.connect(self._url, autocommit=True))
                for statement in _BEGIN:
                    _rows(connection, statement)
            except (DriverError, OSError) as error:
                raise UnavailableError(f"Party {self.party!r}: PostgreSQL: {_reason(error, self._url)}") from None
            stack.enter_context(noticing_loss(partial(self._lost, connection)))
            yield connection

    def _lost(self, connection: Any) -> str:
        """Why the connection is lost; "" if it is not: the server answers then, also after an error."""
        try:
            _rows(connection, "ROLLBACK")
        except (DriverError, OSError) as error:
            return f"Party {self.party!r}: PostgreSQL: {_reason(error, self._url)}"
        return ""

    def _count(self, connection: Any, table: _Table) -> int:
        try:
            return int(_rows(connection, f"SELECT count(*) AS rows FROM {table.sql}")[0]["rows"])
        except (DriverError, OSError) as error:
            state = getattr(error, "sqlstate", None)
            raise PartyError(
                f"Party {self.party!r}: PostgreSQL cannot read {table.name!r} (SQLSTATE {state})"
            ) from None


def _checked(party: str, url: str) -> str:
    """The URL with a time limit for connecting; one that libpq would misread, and then quote, is refused."""
    check_escapes(party, "PostgreSQL", url)
    check_hosts(party, "PostgreSQL", url, "postgresql://user:password@host:port/database")
    if "connect_timeout=" in url:
        return url
    return f"{url}{'&' if '?' in url else '?'}connect_timeout=10"


def _reason(error: Exception, url: str) -> str:
    """Why the server, or the way to it, refused; without anything secret that the URL holds."""
    parts = urlsplit(url)
    raw = parts.netloc.rpartition("@")[0].partition(":")[2]
    secrets = [raw, unquote(raw), *(value for name, value in parse_qsl(parts.query) if "password" in name)]
    reason = " ".join(str(error).rpartition("Failed to connect:")[2].split())
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        reason = masked(reason, secret)
    return reason


def _rows(connection: Any, sql: str) -> list[dict[str, Any]]:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        rows: list[dict[str, Any]] = cursor.fetch_arrow_table().to_pylist() if cursor.description else []
        return rows


def _catalog(connection: Any) -> dict[str, _Table]:
    tables: dict[str, _Table] = {}
    for row in _rows(connection, _CATALOG):
        sql = f"{identifier(row['schema'])}.{identifier(row['table'])}"
        table = tables.setdefault(row["table"], _Table(row["table"], sql))
        table.types[row["column"]] = PostgresType(row["type"], row["modifier"], row["is_enum"])
        if row["key_place"] is not None:
            table.key.append((row["key_place"], row["column"]))
    return tables


@contextmanager
def _read(connection: Any, table: _Table, asked: Sequence[AskedColumn], where: Sequence[Comparison]) -> Iterator[Any]:
    stored = [identifier(column.stored) for column in asked]
    order = [identifier(column) for column in table.key_columns]
    if not order:
        order = sorted(type_.ordered(sql) for type_, sql in zip(table.asked_types(asked), stored, strict=True))
    pushed = table.condition(asked, where, _literal)
    with connection.cursor() as cursor:
        cursor.execute(table.numbered(asked, stored, numbered_by(order), pushed))
        with cursor.fetch_record_batch() as batches:
            yield batches


def _literal(value: Value) -> str:
    if isinstance(value, str):
        return text_literal(value)
    return f"'{value!r}'::float8" if isinstance(value, float) else f"({value})"
