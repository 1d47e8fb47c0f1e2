"""The DuckDB connection in which a party evaluates what an analyst wrote.

It reaches nothing but what it was given while it was set up: no other file, no network, no extension, no Python
variable; and its configuration is locked.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb

from tablepuppet.party.allowance import current, interrupted_in_time
from tablepuppet.party.databases.names import text_literal
from tablepuppet.pieces import cores
from tablepuppet.sql.quiet_duckdb import connect

# In this order: nothing can be set after the lock, and no file allowed after access is closed.
_LOCK = (
    "SET TimeZone = 'UTC'",
    # What is computed of a row must not depend on others: least and largest values of Parquet files leave out NaN
    "SET disabled_optimizers = 'statistics_propagation'",
    "SET autoinstall_known_extensions = false",
    "SET autoload_known_extensions = false",
    "SET enable_external_access = false",
    "SET lock_configuration = true",
)


SPILL = 4  # times the memory, on disk
MOST_THREADS = 4
LEAST = 64 << 20  # bytes, without which DuckDB reads next to nothing
_numbers = itertools.count()


@contextmanager
def sandbox(*setup: str) -> Iterator[duckdb.DuckDBPyConnection]:
    """A private DuckDB after the ``setup`` statements have run and everything else is locked.

    Raises `duckdb.Error` when a setup statement fails. Large queries spill into a folder of their own. Memory and time
    are those that the request is allowed.
    """
    with TemporaryDirectory(prefix="tablepuppet-") as spill:
        settings = {"temp_directory": spill, "python_enable_replacements": False, **_memory_settings()}
        connection = connect(config=settings)
        try:
            with interrupted_in_time(connection):
                for statement in (*setup, *_LOCK):
                    connection.execute(statement)
                yield connection
        finally:
            connection.close()


def _memory_settings() -> dict[str, str | bool]:
    """DuckDB's own limits; texts that grow within one step are not in them, see `sql/growth.py`."""
    allowance = current()
    if allowance is None or allowance.expression_bytes is None:
        return {}
    most = max(allowance.expression_bytes, LEAST)
    threads = min(MOST_THREADS, cores())  # each holds a step of its own
    return {"memory_limit": f"{most}B", "max_temp_directory_size": f"{SPILL * most}B", "threads": str(threads)}


def describe(connection: duckdb.DuckDBPyConnection, relation: str) -> dict[str, str]:
    """Columns of an expression after FROM, with the types in which parties publish them."""
    rows = connection.execute(f"DESCRIBE SELECT * FROM {relation}").fetchall()
    return {name: _published(type_name) for name, type_name, *_ in rows}


def count(connection: duckdb.DuckDBPyConnection, relation: str) -> int:
    """The number of rows of an expression after FROM."""
    rows = connection.execute(f"SELECT count(*) FROM {relation}").fetchall()  # fetchone would leave the result open
    return int(rows[0][0])


def new_name() -> str:
    """A name for a temporary table, never used before."""
    return f"source_{next(_numbers)}"


def allow(files: Iterable[Path]) -> str:
    """The setup statement that lets the sandbox read these files, and no others."""
    return f"SET allowed_paths = [{', '.join(text_literal(str(file)) for file in files)}]"


def _published(type_name: str) -> str:
    if type_name.startswith("ENUM") or type_name == '"NULL"':  # a column without any value
        return "VARCHAR"
    return "TIMESTAMP WITH TIME ZONE" if type_name == "TIMESTAMPTZ_NS" else type_name
