"""An empty DuckDB in memory, for evaluating what needs no table: types of expressions, texts of values."""

from __future__ import annotations

import atexit
import functools

import duckdb

from tablepuppet.sql.quiet_duckdb import connect


@functools.cache
def _database() -> duckdb.DuckDBPyConnection:
    """Opened once per process: opening takes longer than most of what is asked of it."""
    connection = connect(config={"enable_external_access": "false", "python_enable_replacements": False})
    connection.execute("SET GLOBAL TimeZone = 'UTC'")
    return connection


atexit.register(_database.cache_clear)  # left to the end of the interpreter, DuckDB may report it as leaked


def scratch() -> duckdb.DuckDBPyConnection:
    """A connection of one's own to the empty database; it reaches no file, no network and no Python variable."""
    return _database().cursor()
