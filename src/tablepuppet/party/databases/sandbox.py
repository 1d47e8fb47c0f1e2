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

from tablepuppet.party.databases.names import text_literal

# In this order: nothing can be set after the lock, and no file allowed after access is closed.
_LOCK = (
    "SET TimeZone = 'UTC'",
    "SET enable_progress_bar = false",  # it would write to stdout
    "SET autoinstall_known_extensions = false",
    "SET autoload_known_extensions = false",
    "SET enable_external_access = false",
    "SET lock_configuration = true",
)


_numbers = itertools.count()


@contextmanager
def sandbox(*setup: str) -> Iterator[duckdb.DuckDBPyConnection]:
    """A private DuckDB after the ``setup`` statements have run and everything else is locked.

    Raises `duckdb.Error` when a setup statement fails. Large queries spill into a folder of their own.
    """
    with TemporaryDirectory(prefix="tablepuppet-") as spill:
        connection = duckdb.connect(config={"temp_directory": spill, "python_enable_replacements": False})
        try:
            for statement in (*setup, *_LOCK):
                connection.execute(statement)
            yield connection
        finally:
            connection.close()


def describe(connection: duckdb.DuckDBPyConnection, relation: str) -> dict[str, str]:
    """Columns of something that can stand after FROM, with the types in which parties publish them."""
    rows = connection.execute(f"DESCRIBE SELECT * FROM {relation}").fetchall()
    return {name: _published(type_name) for name, type_name, *_ in rows}


def count(connection: duckdb.DuckDBPyConnection, relation: str) -> int:
    """The number of rows of something that can stand after FROM."""
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
