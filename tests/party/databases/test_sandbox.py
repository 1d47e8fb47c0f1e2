"""A DuckDB is opened once and used again: what one reading leaves must not reach the next."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tablepuppet.party.databases import sandbox as module
from tablepuppet.party.databases.sandbox import MOST_IDLE, sandbox
from tablepuppet.party.databases.urls import open_database

UNCHECKPOINTED = """
import duckdb, os, sys
connection = duckdb.connect(sys.argv[1])
connection.execute("CREATE TABLE t AS SELECT range AS i FROM range(5)")
connection.execute("CHECKPOINT")
connection.execute("INSERT INTO t VALUES (99)")
os._exit(0)
"""


@pytest.fixture(autouse=True)
def no_others() -> Iterator[None]:
    """No database of other tests is kept."""
    module._idle.close()
    yield
    module._idle.close()


def temp_directory(connection: duckdb.DuckDBPyConnection) -> str:
    """Which tells databases apart."""
    return str(connection.execute("SELECT current_setting('temp_directory')").fetchall()[0][0])


def test_it_is_used_again_and_empty() -> None:
    """The next reading has the same database, without the tables, the registered data and the transaction before it."""
    with sandbox() as connection:
        first = temp_directory(connection)
        connection.register("sent", pa.table({"a": [1]}))
        connection.execute("BEGIN")
        connection.execute("CREATE TEMP TABLE t AS FROM sent")
    with sandbox() as connection:
        assert temp_directory(connection) == first
        for name in ("t", "sent"):
            with pytest.raises(duckdb.CatalogException):
                connection.execute(f"FROM {name}")
        assert connection.execute("SELECT count(*) FROM duckdb_tables()").fetchall() == [(0,)]


def test_two_at_once_and_others_have_their_own() -> None:
    """Two readings at once have two databases, and what was set up otherwise is another one."""
    with sandbox() as one, sandbox() as two, sandbox("SET memory_limit = '80MB'") as three:
        assert len({temp_directory(each) for each in (one, two, three)}) == 3


def test_after_an_error_it_is_closed() -> None:
    """A database in which something failed is not used again, and its folder is gone."""
    found = []

    def fail() -> None:
        with sandbox() as connection:
            found.append(temp_directory(connection))
            connection.execute("FROM nothing")

    with pytest.raises(duckdb.CatalogException):
        fail()
    [first] = found
    assert not Path(first).exists()
    with sandbox() as connection:
        assert temp_directory(connection) != first


@pytest.mark.parametrize("made_again", [False, True])
def test_a_folder_that_was_taken_away(made_again: bool) -> None:
    """A database whose folder was removed meanwhile, or is somebody else's now, is not used again: it would spill rows
    for others to read.
    """
    with sandbox() as connection:
        first = temp_directory(connection)
    Path(first).rmdir()
    if made_again:
        Path(first).mkdir(mode=0o777)
    with sandbox() as connection:
        assert temp_directory(connection) != first
    assert Path(first).exists() == made_again


def test_few_are_kept() -> None:
    """Databases that were not used for longest are closed."""
    found = []
    for number in range(MOST_IDLE + 2):
        with sandbox(f"SET memory_limit = '{80 + number}MB'") as connection:
            found.append(temp_directory(connection))
    assert [Path(each).exists() for each in found] == [False] * 2 + [True] * MOST_IDLE


def test_a_changed_file_is_read_anew(tmp_path: Path) -> None:
    """A file of the same length and time but with other values is read as it is now."""
    database, file = open_database("p", f"parquet:///{tmp_path}"), tmp_path / "t.parquet"
    for value in (1, 2):
        pq.write_table(pa.table({"a": [value]}), file)
        os.utime(file, (0, 0))
        with database.reader() as reader:
            source = reader.source("t", {"a": "BIGINT"})
            assert source.connection.execute(f"SELECT a FROM {source.sql}").fetchall() == [(value,)]


def test_a_file_can_be_written_between_readings(tmp_path: Path) -> None:
    """A DuckDB file is not held between readings: its owner writes, and the next reading has it."""
    path = tmp_path / "s.duckdb"
    database = open_database("p", f"duckdb:///{path}")
    for rows in (1, 2, 3):
        with duckdb.connect(str(path)) as owner:
            owner.execute(f"CREATE OR REPLACE TABLE t AS SELECT range AS i FROM range({rows})")
        [table] = database.tables()
        assert table.rows == rows


def test_what_is_not_in_the_file_yet_is_read(tmp_path: Path) -> None:
    """Rows that are only in the write-ahead log, since their writer was killed, are there."""
    path = tmp_path / "s.duckdb"
    subprocess.run([sys.executable, "-c", UNCHECKPOINTED, str(path)], check=True)
    assert path.with_name("s.duckdb.wal").exists()
    [table] = open_database("p", f"duckdb:///{path}").tables()
    assert table.rows == 6


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_fork_has_its_own() -> None:
    """A process that was forked opens a database of its own: that of its parent has no threads there."""
    script = """
import os
from tablepuppet.party.databases.sandbox import sandbox
with sandbox() as connection:
    connection.execute("SELECT 1")
child = os.fork()
with sandbox() as connection:
    found = connection.execute("SELECT sum(hash(range) % 10) > 0 FROM range(1_000_000)").fetchall()
if not child:
    os._exit(0 if found == [(True,)] else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    assert ran.stdout == "0\n"
