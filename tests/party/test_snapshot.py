"""Snapshots: read once, only what is needed, as of one moment; then the source may change."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from adbc_driver_postgresql import dbapi

import tablepuppet as tp
from tablepuppet.party import readings
from tablepuppet.party.databases.urls import open_database
from tablepuppet.party.snapshot import Snapshot, permutation, take_snapshot
from tablepuppet.sql.catalog import Catalog, Shard
from tablepuppet.sql.parse import parse
from tablepuppet.sql.plan import Scan, plan
from tests import mariadb_server
from tests.relations import federation, party_of, places, write_party

Execute = Callable[[str], None]
TABLES = (
    "CREATE TABLE facts (id INTEGER PRIMARY KEY, k INTEGER, x DOUBLE PRECISION)",
    "INSERT INTO facts VALUES (1, 1, 0.5), (2, 1, 1.5), (3, 2, 2.5), (4, 3, 9.5)",
    "CREATE TABLE names (k INTEGER PRIMARY KEY, name TEXT)",
    "INSERT INTO names VALUES (1, 'one'), (2, 'two')",
)
SQL = "SELECT f.x, n.name FROM facts f JOIN names n USING (k)"


def duckdb_source(path: Path) -> tuple[str, Execute]:
    def execute(sql: str) -> None:
        with duckdb.connect(str(path)) as connection:
            connection.execute(sql)

    return f"duckdb:///{path}", execute


_WRITER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], timeout=0.5, isolation_level=None)
connection.execute("PRAGMA journal_mode = WAL")
connection.execute(sys.argv[2])
"""


def mysql_source(url: str) -> tuple[str, Execute]:
    def execute(sql: str) -> None:
        mariadb_server.execute(url, "SET lock_wait_timeout = 2, innodb_lock_wait_timeout = 2", sql)

    return url, execute


def sqlite_source(path: Path) -> tuple[str, Execute]:
    # Another process: two SQLite libraries in one undo each other's locks (sqlite.org/howtocorrupt.html, 2.2.1).
    def execute(sql: str) -> None:
        subprocess.run([sys.executable, "-c", _WRITER, str(path), sql], check=True)

    return f"sqlite:///{path}", execute


def postgres_source(url: str) -> tuple[str, Execute]:
    def execute(sql: str) -> None:
        with dbapi.connect(url, autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '2s'")
            cursor.execute(sql)

    return url, execute


@pytest.fixture
def schema_url(postgres_url: str) -> Iterator[str]:
    """A PostgreSQL schema of the test's own."""
    _, execute = postgres_source(postgres_url)
    execute("CREATE SCHEMA snapshots")
    yield f"{postgres_url}&options=-csearch_path%3Dsnapshots"
    execute("DROP SCHEMA snapshots CASCADE")


@pytest.fixture
def mysql_url(mariadb_url: str) -> Iterator[str]:
    """A MariaDB database of the test's own."""
    with mariadb_server.new_database(mariadb_url, "snapshots") as url:
        yield url


@pytest.fixture(params=["duckdb", "sqlite", "postgresql", "mysql"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Execute]:
    """A database with two tables, and a way to write to it."""
    match request.param:
        case "duckdb":
            url, execute = duckdb_source(tmp_path / "x.duckdb")
        case "sqlite":
            url, execute = sqlite_source(tmp_path / "x.db")
        case "mysql":
            url, execute = mysql_source(request.getfixturevalue("mysql_url"))
        case _:
            url, execute = postgres_source(request.getfixturevalue("schema_url"))
    for statement in TABLES:
        execute(statement)
    return url, execute


def test_writers_do_not_change_a_relation(source: tuple[str, Execute]) -> None:
    """Rows inserted, changed and deleted after `sql` do not move or change what was read; a new query sees them."""
    url, execute = source
    fed = tp.Federation({"p0": url})
    reference = fed.sql(SQL)
    before = (len(reference), places(reference), reference.describe().to_arrow())
    relation = fed.sql(SQL)
    execute("DELETE FROM facts WHERE id = 1")
    execute("INSERT INTO facts VALUES (5, 2, 7.5), (0, 1, 8.5)")
    execute("UPDATE names SET name = 'zwei' WHERE k = 2")
    after = (len(relation), places(relation), relation.describe().to_arrow())
    assert after == before
    assert len(relation.split(test=0.5)[1]) <= 2
    assert len(fed.sql(SQL)) == 4
    assert fed.sql("SELECT name FROM names WHERE name = 'zwei'").describe().to_arrow()["count"].to_pylist() == [1]


@pytest.mark.parametrize("source", ["sqlite", "postgresql", "mysql"], indirect=True)
def test_tables_of_a_party_are_of_one_moment(source: tuple[str, Execute], monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that commits between the reading of two tables is seen in neither, and is not held up."""
    url, execute = source
    written: list[bool] = []

    def and_then_write(*arguments: Any, **named: Any) -> Snapshot:
        snapshot = take_snapshot(*arguments, **named)
        if not written:
            written.append(True)
            execute("INSERT INTO names VALUES (3, 'three')")
            execute("DELETE FROM facts")
        return snapshot

    monkeypatch.setattr(readings, "take_snapshot", and_then_write)
    fed = tp.Federation({"p0": url})
    for sql in (SQL, "SELECT f.x, n.name FROM names n JOIN facts f USING (k)"):
        relation = fed.sql(sql)
        assert len(relation) == 3
        assert relation._session.rows_read == {("p0", "f"): 4, ("p0", "n"): 2}
        execute("DELETE FROM names WHERE k = 3")
        execute("INSERT INTO facts VALUES (1, 1, 0.5), (2, 1, 1.5), (3, 2, 2.5), (4, 3, 9.5)")
        written.clear()


# Only what is needed


def test_unused_columns_of_files_are_not_read(tmp_path: Path) -> None:
    """A Parquet column whose pages are destroyed does no harm as long as no query uses it."""
    write_party(tmp_path, "p0", {"t": pa.table({"k": [1, 2], "x": [0.5, 1.5], "broken": ["some", "text"]})})
    file = tmp_path / "p0" / "t.parquet"
    group = pyarrow.parquet.ParquetFile(file).metadata.row_group(0)
    chunk = group.column(2)
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    data = bytearray(file.read_bytes())
    data[start : start + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
    file.write_bytes(data)
    fed = tp.Federation({"p0": f"parquet:///{tmp_path / 'p0'}"})
    assert fed.sql("SELECT x FROM t WHERE k > 1").describe().to_arrow()["mean"].to_pylist() == [1.5]
    with pytest.raises(tp.PartyError):
        fed.sql("SELECT x, broken FROM t")


@pytest.mark.parametrize(
    ("source", "fails"),
    [
        ("duckdb", "error('read')"),
        ("sqlite", "abs(-9223372036854775807 - 1)"),
        ("postgresql", "1 / (k - k)"),
        ("mysql", "k + 9223372036854775807"),
    ],
    indirect=["source"],
)
def test_unused_columns_of_databases_are_not_read(source: tuple[str, Execute], fails: str) -> None:
    """A view's column that cannot be computed does no harm as long as no query uses it."""
    url, execute = source
    execute(f"CREATE VIEW fragile AS SELECT k, x, {fails} AS broken FROM facts")
    fed = tp.Federation({"p0": url})
    relation = fed.sql("SELECT v.x, n.name FROM fragile v JOIN names n USING (k)")
    assert len(relation) == 3
    with pytest.raises((tp.PartyError, tp.QueryError)):
        fed.sql("SELECT v.x, v.broken FROM fragile v")


def test_a_snapshot_keeps_what_ops_need_and_no_more(tmp_path: Path) -> None:
    """Columns of filters are not kept as values; those of keys stay for the fingerprint, apart from the outputs."""
    fed = federation(tmp_path, {"p0": {"t": pa.table({"k": [1, 2], "f": [0, 1], "x": [0.5, 1.5], "unused": [7, 7]})}})
    relation = fed.sql("SELECT a.x FROM t a JOIN t b ON a.k = b.k WHERE a.f = 1")
    party = party_of(fed.engine, "p0")
    snapshots = {alias: party.table(relation._session.id, alias).snapshot for alias in "ab"}
    assert dict(snapshots["a"].scan.columns) == {"x": "DOUBLE", "f": "BIGINT", "k": "BIGINT"}
    assert dict(snapshots["b"].scan.columns) == {"k": "BIGINT"}
    assert snapshots["a"].outputs.column_names == ["x"]
    assert snapshots["b"].outputs.column_names == []
    assert snapshots["a"].rows == 1
    assert len(relation) == 1
    assert [snapshot.keys.num_columns for snapshot in snapshots.values()] == [1, 1]


# Order and fingerprint


def scan_of(sql: str, rows: pa.Table) -> Scan:
    """The only scan of a query over a table ``t``."""
    columns = {"k": "BIGINT", "x": "DOUBLE", "c": "VARCHAR"}
    catalog = Catalog([Shard("p0", "t", columns, len(rows))])
    return plan(parse(sql, catalog), catalog).scans[0]


def snapshot_of(folder: Path, rows: pa.Table, sql: str = "SELECT x, c FROM t", secret: bytes | None = None) -> Snapshot:
    folder.mkdir()
    database = open_database("p0", write_party(folder, "p0", {"t": rows}))
    with database.reader() as reader:
        return take_snapshot(scan_of(sql, rows), reader, secret)


ROWS = pa.table({"k": [1, 2, 3], "x": [0.5, None, 2.5], "c": ["a", "b", None]})


def test_fingerprint_tells_whether_the_data_changed(tmp_path: Path) -> None:
    """Equal data have one fingerprint; another value, NULL, order or number of rows, or another query, has its own."""
    changed = {
        "same": ROWS,
        "value": ROWS.set_column(1, "x", pa.array([0.5, None, 2.75])),
        "null": ROWS.set_column(1, "x", pa.array([0.5, 2.5, None])),
        "text": ROWS.set_column(2, "c", pa.array(["ab", "", None])),
        "order": ROWS.take(pa.array([1, 0, 2])),
        "fewer": ROWS.slice(0, 2),
        "more": pa.concat_tables([ROWS, ROWS]),
    }
    prints = {name: snapshot_of(tmp_path / name, rows).fingerprint for name, rows in changed.items()}
    prints["filter"] = snapshot_of(tmp_path / "filter", ROWS, "SELECT x, c FROM t WHERE k > 1").fingerprint
    again = snapshot_of(tmp_path / "again", ROWS).fingerprint
    assert prints["same"] == again
    assert len(set(prints.values())) == len(prints)


def test_fingerprint_of_nothing(tmp_path: Path) -> None:
    """Columns without values, and tables without rows, have fingerprints too."""
    empty = ROWS.set_column(1, "x", pa.array([None] * 3, pa.float64()))
    assert (
        snapshot_of(tmp_path / "nulls", empty).fingerprint
        != snapshot_of(tmp_path / "rows", ROWS.slice(0, 0)).fingerprint
    )


def test_row_ids_hide_the_order_of_the_source(tmp_path: Path) -> None:
    """Under a key, row ids are a permutation of the places, the same each time, another for another key."""
    rows = pa.table({"k": range(500), "x": np.arange(500.0), "c": ["a"] * 500})
    for size in (0, 1, 2, 499):
        assert sorted(permutation(size, bytes(32)).tolist()) == list(range(size))
    order = permutation(500, bytes(32))
    assert sorted(order.tolist()) == list(range(500))
    assert np.array_equal(order, permutation(500, bytes(32)))
    assert abs(np.corrcoef(order, np.arange(500))[0, 1]) < 0.2
    assert np.mean(order == permutation(500, bytes(31) + b"1")) < 0.05
    snapshot = snapshot_of(tmp_path / "one", rows, "SELECT x FROM t WHERE k % 2 = 1", b"secret")
    positions = snapshot.position(np.arange(250))
    assert positions.tolist() != sorted(positions.tolist())
    assert sorted(positions.tolist()) == list(range(1, 500, 2))
