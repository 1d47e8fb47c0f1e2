"""The one place where DuckDB is opened: a connection that never draws a progress bar.

DuckDB draws bars on its own wherever it takes Python to be interactive, into the output of a command or of a notebook.
"""

from __future__ import annotations

import atexit
import functools
from collections.abc import Mapping
from pathlib import Path

import duckdb


def connect(
    database: str | Path = ":memory:", config: Mapping[str, str | bool] | None = None
) -> duckdb.DuckDBPyConnection:
    """A connection without a progress bar; its cursors have none either.

    The bar is asked for before it is switched off: in a notebook without ipywidgets it is off from the start, and
    there DuckDB refuses every statement that sets it.
    """
    connection = duckdb.connect(str(database), config=dict(config or {}))
    is_drawn = connection.execute("SELECT current_setting('enable_progress_bar')").fetchall()[0][0]
    if is_drawn:
        connection.execute("SET enable_progress_bar = false")
    return connection


@functools.cache
def _database() -> duckdb.DuckDBPyConnection:
    """Opened once per process: opening takes longer than most of what is asked of it."""
    connection = connect(config={"enable_external_access": "false", "python_enable_replacements": False})
    connection.execute("SET GLOBAL TimeZone = 'UTC'")
    return connection


atexit.register(_database.cache_clear)  # left to the end of the interpreter, DuckDB may report it as leaked


def scratch() -> duckdb.DuckDBPyConnection:
    """A connection to an empty database in memory, for what needs no table: types of expressions, texts of values.

    It reaches no file, no network and no Python variable.
    """
    return _database().cursor()
