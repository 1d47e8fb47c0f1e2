"""The one place where DuckDB is opened: a connection that never draws a progress bar.

DuckDB draws bars on its own wherever it takes Python to be interactive, into the output of a command or of a notebook.
"""

from __future__ import annotations

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
