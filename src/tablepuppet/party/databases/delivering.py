"""Delivered predictions as a table of the party's own database: emptied and filled in one transaction.

Input: the database's URL, a table's name, rows. If there is no such table it is made; one that has other columns
is left alone. Errors name the party and the table, and hold no value and no password.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from tablepuppet.errors import PartyError
from tablepuppet.party.database import UnavailableError
from tablepuppet.party.databases.names import existing, identifier, text_literal
from tablepuppet.party.databases.servers import connection_options
from tablepuppet.party.databases.urls import open_database
from tablepuppet.sql.quiet_duckdb import connect

MOST_NAME = 63  # bytes of a column's name that every database holds
PATIENCE = 10.0  # seconds to wait for others who read or write a file
_LOST = (1053, 1927, 2006, 2013)  # numbers of MySQL's errors
_TYPES = {
    **dict.fromkeys(map(str, (pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16())), "INTEGER"),
    **dict.fromkeys(map(str, (pa.int64(), pa.uint32())), "BIGINT"),
    str(pa.uint64()): "DECIMAL(20,0)",
    **dict.fromkeys(map(str, (pa.float32(), pa.float64())), "DOUBLE PRECISION"),
    str(pa.bool_()): "BOOLEAN",
    str(pa.date32()): "DATE",
}


def replace_rows(party: str, url: str, table: str, rows: pa.Table, run: str) -> None:
    """Replace the rows of a table by these, unless it already has those of the same run."""
    long = [name for name in rows.column_names if len(name.encode()) > MOST_NAME]
    if long or len({name.lower() for name in rows.column_names}) < rows.num_columns:
        raise PartyError(
            f"party {party!r}: names of classes are too long, or differ in case only, for columns of {table!r}; "
            "let its operator name a file instead"
        )
    scheme = url.partition("://")[0].lower()
    kinds: dict[str, Callable[[str, str, str, pa.Table, str], None]] = {
        "duckdb": _into_duckdb, "sqlite": _into_sqlite, "postgresql": _into_postgresql,
        "postgres": _into_postgresql, "mysql": _into_mysql, "mariadb": _into_mysql,
    }  # fmt: skip
    if scheme not in kinds:
        raise PartyError(f"party {party!r}: a database of files has no table to write to; let its operator name a file")
    try:
        kinds[scheme](party, url, table, rows, run)
    except PartyError:
        raise
    except Exception as error:  # of whatever class: it may quote a value
        with open_database(party, url).reader():  # UnavailableError, if that is why
            pass
        if _is_lost(error):
            raise UnavailableError(
                f"Party {party!r}: {scheme}: the connection was lost while predictions were written"
            ) from None
        raise PartyError(
            f"party {party!r} cannot write predictions into table {table!r} ({type(error).__name__}); its operator "
            "must let the user of its database URL write there"
        ) from None


def _is_lost(error: Exception) -> bool:
    """Whether a driver says that the connection broke, or that the server ended it."""
    state, number = str(getattr(error, "sqlstate", None) or ""), error.args[0] if error.args else None
    return state.startswith(("08", "57P")) or number in _LOST or "server closed the connection" in str(error)


def check_database(party: str, url: str, table: str, *, published: bool) -> None:
    """Raise PartyError unless a table of predictions can be written, as far as can be checked without writing."""
    if published:
        raise PartyError(f"party {party!r}: table {table!r} is published; name one for predictions only")
    scheme, _, path = url.partition(":///")
    if scheme.lower() in ("parquet", "csv", "arrow"):
        raise PartyError(f"party {party!r}: a database of files has no table to write to; name a file")
    if scheme.lower() in ("duckdb", "sqlite"):
        file = existing(party, scheme, path)
        if not os.access(file, os.W_OK) or not os.access(file.parent, os.W_OK):
            raise PartyError(f"party {party!r}: its database, or the folder of it, cannot be written by this user")


def _fits(party: str, table: str, found: Sequence[str], rows: pa.Table) -> None:
    if sorted(map(str.lower, found)) != sorted(map(str.lower, rows.column_names)):
        raise PartyError(
            f"party {party!r}: table {table!r} has other columns than these predictions, and is left as it is; its "
            "operator can remove it, or name another"
        )


def _names(rows: pa.Table) -> str:
    return ", ".join(map(identifier, rows.column_names))


def _made(table: str, rows: pa.Table, others: dict[str, str]) -> str:
    """CREATE TABLE for rows; ``others`` are types that a database spells its own way."""
    columns = [f"{identifier(field.name)} {_type(field.type, others)}" for field in rows.schema]
    return f"CREATE TABLE {identifier(table)} ({', '.join(columns)})"


def _type(kind: pa.DataType, others: dict[str, str]) -> str:
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    if pa.types.is_timestamp(kind):
        return others["timestamptz" if kind.tz else "timestamp"]
    return _TYPES.get(str(kind)) or others["text"]


def _plain(rows: pa.Table) -> pa.Table:
    """Rows as numbers, booleans and texts, which every driver knows; timestamps with a zone are written in UTC."""
    columns = []
    for column in rows.columns:
        kind = column.type
        if pa.types.is_timestamp(kind) and kind.tz:
            column = column.cast(pa.timestamp(kind.unit, "UTC")).cast(pa.timestamp(kind.unit))
        number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
        columns.append(column if number and not pa.types.is_uint64(kind) else column.cast(pa.string()))
    return pa.table(columns, rows.column_names)


def _into_duckdb(party: str, url: str, table: str, rows: pa.Table, run: str) -> None:
    path = existing(party, "DuckDB", url.partition(":///")[2])
    with closing(_patiently(path)) as connection:
        connection.execute("BEGIN")
        listed = "SELECT column_name FROM duckdb_columns() WHERE database_name = current_database() "
        listed += f"AND schema_name = 'main' AND table_name = {text_literal(table)}"
        found = [name for (name,) in connection.execute(listed).fetchall()]
        connection.register("delivered_rows", rows)
        if not found:
            connection.execute(f"CREATE TABLE {identifier(table)} AS SELECT * FROM delivered_rows LIMIT 0")
        else:
            _fits(party, table, found, rows)
            if connection.execute(f"SELECT run FROM {identifier(table)} LIMIT 1").fetchall() == [(run,)]:
                return
        connection.execute(f"DELETE FROM {identifier(table)}")
        connection.execute(f"INSERT INTO {identifier(table)} BY NAME SELECT * FROM delivered_rows")
        connection.execute("COMMIT")


def _patiently(path: Path) -> duckdb.DuckDBPyConnection:
    """A DuckDB file has either one writer or readers: wait for them to finish."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return connect(path)
        except duckdb.Error:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def _into_sqlite(party: str, url: str, table: str, rows: pa.Table, run: str) -> None:
    path = existing(party, "SQLite", url.partition(":///")[2])
    with closing(sqlite3.connect(path, timeout=PATIENCE, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        found = [name for (name,) in connection.execute("SELECT name FROM pragma_table_info(?)", [table])]
        if not found:
            kinds = {"text": "TEXT", "timestamp": "TIMESTAMP", "timestamptz": "TIMESTAMP"}
            connection.execute(_made(table, rows, kinds))
        else:
            _fits(party, table, found, rows)
            if connection.execute(f"SELECT run FROM {identifier(table)} LIMIT 1").fetchall() == [(run,)]:
                return
        connection.execute(f"DELETE FROM {identifier(table)}")
        marks = ", ".join("?" * rows.num_columns)
        insert = f"INSERT INTO {identifier(table)} ({_names(rows)}) VALUES ({marks})"
        connection.executemany(insert, zip(*(column.to_pylist() for column in _plain(rows).columns), strict=True))
        connection.execute("COMMIT")


def _into_postgresql(party: str, url: str, table: str, rows: pa.Table, run: str) -> None:
    from adbc_driver_postgresql import dbapi

    listed = (
        "SELECT a.attname::text, format_type(a.atttypid, a.atttypmod)::text FROM pg_attribute a JOIN pg_class c ON "
        "c.oid = a.attrelid WHERE c.relnamespace = current_schema()::regnamespace AND a.attnum > 0 "
        f"AND NOT a.attisdropped AND c.relname = {text_literal(table)}"
    )
    with dbapi.connect(url) as connection, connection.cursor() as cursor:
        cursor.execute("SET LOCAL TimeZone = 'UTC'")
        cursor.execute(listed)
        types = dict(cursor.fetchall())
        if not types:
            kinds = {"text": "TEXT", "timestamp": "TIMESTAMP", "timestamptz": "TIMESTAMPTZ"}
            cursor.execute(_made(table, rows, kinds))
            cursor.execute(listed)
            types = dict(cursor.fetchall())
        else:
            _fits(party, table, list(types), rows)
            cursor.execute(f"SELECT run FROM {identifier(table)} LIMIT 1")
            if [tuple(row) for row in cursor.fetchall()] == [(run,)]:
                return
        cursor.adbc_ingest("delivered_rows", _plain(rows), mode="create", temporary=True)
        stored = {name.lower(): name for name in types}
        chosen = [stored[name.lower()] for name in rows.column_names]
        casts = [
            f"CAST({identifier(name)} AS {types[kept]})" for name, kept in zip(rows.column_names, chosen, strict=True)
        ]
        cursor.execute(f"DELETE FROM {identifier(table)}")
        cursor.execute(
            f"INSERT INTO {identifier(table)} ({', '.join(map(identifier, chosen))}) SELECT {', '.join(casts)} FROM "
            "pg_temp.delivered_rows"
        )
        cursor.execute("DROP TABLE pg_temp.delivered_rows")
        connection.commit()


def _into_mysql(party: str, url: str, table: str, rows: pa.Table, run: str) -> None:
    import pymysql

    with closing(pymysql.connect(**connection_options(party, url), autocommit=True)) as connection:
        _mysql(connection, party, table, rows, run)


def _mysql(connection: Any, party: str, table: str, rows: pa.Table, run: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SET SESSION sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,STRICT_ALL_TABLES', time_zone = '+00:00'"
        )
        cursor.execute(
            "SELECT column_name FROM information_schema.columns WHERE table_schema = DATABASE() "
            f"AND table_name = {text_literal(table)}"
        )
        found = [name for (name,) in cursor.fetchall()]
        if not found:  # it stays, empty, if something fails later: MySQL makes tables outside of transactions
            kinds = {"text": "LONGTEXT", "timestamp": "DATETIME(6)", "timestamptz": "DATETIME(6)"}
            cursor.execute(_made(table, rows, kinds) + " ENGINE = InnoDB")
        else:
            _fits(party, table, found, rows)
        cursor.execute("START TRANSACTION")
        try:
            cursor.execute(f"SELECT run FROM {identifier(table)} LIMIT 1 FOR UPDATE")
            if [tuple(row) for row in cursor.fetchall()] == [(run,)]:
                return
            cursor.execute(f"DELETE FROM {identifier(table)}")
            marks = ", ".join(["%s"] * rows.num_columns)
            names = _names(rows).replace("%", "%%")
            values = zip(*(column.to_pylist() for column in _plain(rows).columns), strict=True)
            cursor.executemany(f"INSERT INTO {identifier(table)} ({names}) VALUES ({marks})", values)
            cursor.execute("COMMIT")
        finally:
            with suppress(Exception):  # the connection may be gone, and with it the transaction
                cursor.execute("ROLLBACK")
