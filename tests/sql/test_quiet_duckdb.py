"""DuckDB draws no progress bar, wherever it is opened. Notebooks are in tests/test_notebook.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import tablepuppet

DRAWN = """
import sys, duckdb
from tablepuppet.party.databases.sandbox import sandbox
from tablepuppet.sql.quiet_duckdb import connect, scratch

def drawn(connection):
    return connection.execute("SELECT current_setting('enable_progress_bar')").fetchall()[0][0]

with sandbox() as locked:
    print(drawn(duckdb.connect()), drawn(connect()), drawn(connect().cursor()), drawn(scratch()), drawn(locked))
"""


def test_no_bar_where_python_is_interactive() -> None:
    """Where DuckDB would draw bars by default, none of our connections and cursors does."""
    ran = subprocess.run([sys.executable, "-c", DRAWN], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["True", "False", "False", "False", "False"]


def test_duckdb_is_opened_in_one_place() -> None:
    """No other module of the package opens DuckDB by itself."""
    package = Path(tablepuppet.__file__).parent
    found = [path.name for path in sorted(package.rglob("*.py")) if "duckdb.connect(" in path.read_text("utf-8")]
    assert found == ["quiet_duckdb.py"]
