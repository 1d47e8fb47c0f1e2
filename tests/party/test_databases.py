"""A party's databases: real files, a real PostgreSQL and MariaDB, read through `open_database`."""

from __future__ import annotations

import gzip
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
from adbc_driver_postgresql import dbapi

from tablepuppet.errors import ConfigError, PartyError
from tablepuppet.party.database import POSITION, Database, Source, SourceTable
from tablepuppet.party.databases import duckdb_file
from tablepuppet.party.databases.arrow_tables import InMemory
from tablepuppet.party.databases.sandbox import remove_spilled, sandbox
from tablepuppet.party.databases.urls import open_database
from tablepuppet.sql.query import Comparison
from tests import mariadb_server

CANARY = "canary-4711"
ROWS = [(3, "c", 0.5), (1, "a", None), (2, "😀", 2.5), (4, None, -1.0)]
COLUMNS = {"id": "BIGINT", 'Odd "name" ☺': "VARCHAR", "x": "DOUBLE"}
TABLE = 'A table "of" ☺'  # MariaDB has no emoji beyond the basic plane in names
DDL = """CREATE TABLE "A table ""of"" ☺" (id BIGINT, "Odd ""name"" ☺" TEXT, x DOUBLE PRECISION)"""
INSERT = """INSERT INTO "A table ""of"" ☺" VALUES (3, 'c', 0.5), (1, 'a', NULL), (2, '😀', 2.5), (4, NULL, -1.0)"""


def read(source: Source, sql: str = "SELECT * FROM {} ORDER BY ALL") -> list[tuple[Any, ...]]:
    """What a caller gets from a source, through Arrow as the snapshot does it."""
    table = source.connection.sql(sql.format(source.sql)).to_arrow_table()
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def by_position(source: Source) -> list[tuple[Any, ...]]:
    """Rows in the order of their positions, which must count from 0; the position itself is last."""
    return read(source, f"SELECT * FROM {{}} ORDER BY {POSITION}")


def table_named(database: Database, name: str) -> SourceTable:
    """The published table of that name."""
    return next(table for table in database.tables() if table.name == name)


def read_table(
    database: Database, table: str, columns: Mapping[str, str], where: Sequence[Comparison] = ()
) -> list[tuple[Any, ...]]:
    """One table, read in a reader of its own; positions are the last column."""
    with database.reader() as reader:
        return by_position(reader.source(table, columns, where))


def without_positions(rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Rows without their last column, where their database has left out others before it numbered them."""
    return [row[:-1] for row in rows]


def is_part(some: Sequence[object], everything: Sequence[object]) -> bool:
    """Whether some are all among everything, in the same order."""
    left = iter(everything)
    return all(each in left for each in some)


def failure(action: Callable[[], object]) -> str:
    """What the PartyError or ConfigError says that ``action`` must raise; its whole traceback holds no canary."""
    with pytest.raises((PartyError, ConfigError)) as caught:
        action()
    whole = "".join(traceback.format_exception(caught.value))
    assert CANARY not in whole
    assert "47112" not in whole
    return str(caught.value)


def in_duckdb(path: Path, *statements: str) -> Database:
    with duckdb.connect(str(path)) as connection:
        for statement in statements:
            connection.execute(statement)
    return open_database("shop", f"duckdb:///{path}")


def in_sqlite(path: Path, *statements: str) -> Database:
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()
    return open_database("shop", f"sqlite:///{path}")


def in_postgres(url: str, *statements: str) -> Database:
    with dbapi.connect(url, autocommit=True) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
    return open_database("shop", url)


def ask_postgres(url: str, sql: str) -> list[tuple[Any, ...]]:
    with dbapi.connect(url, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(sql)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows


@contextmanager
def another_process(program: str) -> Iterator[None]:
    """Runs a program up to its end, where it waits until the context ends."""
    with subprocess.Popen(
        [sys.executable, "-c", f"{program}; print('ready', flush=True); input()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield
        finally:
            process.communicate("\n")


@pytest.fixture
def schema_url(postgres_url: str) -> Iterator[str]:
    """A PostgreSQL schema of the test's own."""
    in_postgres(postgres_url, "CREATE SCHEMA test")
    yield f"{postgres_url}&options=-csearch_path%3Dtest"
    in_postgres(postgres_url, "DROP SCHEMA test CASCADE")


@pytest.fixture
def mysql_url(mariadb_url: str) -> Iterator[str]:
    """A MariaDB database of the test's own."""
    with mariadb_server.new_database(mariadb_url, "sample") as url:
        yield url


@pytest.fixture(params=["duckdb", "sqlite", "postgresql", "mysql", "parquet", "parts", "csv", "arrow", "memory"])
def sample(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    """The same four rows in every kind of database."""
    names = list(COLUMNS)
    arrow = pa.table({name: [row[i] for row in ROWS] for i, name in enumerate(names)})
    match request.param:
        case "duckdb":
            return in_duckdb(tmp_path / "x.duckdb", DDL, INSERT)
        case "sqlite":
            return in_sqlite(tmp_path / "x.db", DDL, INSERT)
        case "postgresql":
            return in_postgres(request.getfixturevalue("schema_url"), DDL, INSERT)
        case "mysql":
            mariadb_server.execute(request.getfixturevalue("mysql_url"), DDL, INSERT)
            return open_database("shop", request.getfixturevalue("mysql_url"))
        case "memory":
            return InMemory("shop", {TABLE: arrow})
        case "parquet":
            pyarrow.parquet.write_table(arrow, tmp_path / f"{TABLE}.parquet")
        case "parts":
            (tmp_path / TABLE / "second").mkdir(parents=True)
            pyarrow.parquet.write_table(arrow.slice(0, 3), tmp_path / TABLE / "a part.parquet")
            pyarrow.parquet.write_table(arrow.slice(3), tmp_path / TABLE / "second" / "[b]*.parquet")
            return open_database("shop", f"parquet:///{tmp_path}")
        case "csv":
            lines = ['id,"Odd ""name"" ☺",x', "3,c,0.5", "1,a,", "2,😀,2.5", "4,,-1.0", ""]
            (tmp_path / f"{TABLE}.csv").write_text("\n".join(lines))
        case "arrow":
            pyarrow.feather.write_feather(arrow, tmp_path / f"{TABLE}.feather")
    return open_database("shop", f"{request.param}:///{tmp_path}")


# Without a primary key servers order by all read columns; everything else is as the rows were stored.
def expected_order(database: Database, columns: Mapping[str, str]) -> list[tuple[Any, ...]]:
    chosen = [tuple(row[list(COLUMNS).index(name)] for name in columns) for row in ROWS]
    kind = type(database).__name__
    if kind in ("PostgreSQL", "MySQL"):
        by_name = [index for _, index in sorted((name, index) for index, name in enumerate(columns))]
        chosen.sort(key=lambda row: [((row[index] is None) == (kind == "PostgreSQL"), row[index]) for index in by_name])
    return [(*row, position) for position, row in enumerate(chosen)]


# Every kind


def test_names_types_and_counts(sample: Database) -> None:
    """Every kind publishes awkward names as they are, DuckDB's types and the exact number of rows."""
    assert sample.tables() == [SourceTable(TABLE, COLUMNS, 4)]


def test_rows_and_positions(sample: Database) -> None:
    """Every kind gives every value back, with positions from 0 in its stable order, and the same one twice."""
    columns = {"id": "BIGINT", 'Odd "name" ☺': "VARCHAR"}
    assert read_table(sample, TABLE, columns) == expected_order(sample, columns)
    assert read_table(sample, TABLE, columns) == expected_order(sample, columns)


def test_asked_spelling_and_type(sample: Database) -> None:
    """Names are found whatever their case, and come out as they were asked, in the wider type."""
    with sample.reader() as reader:
        source = reader.source(TABLE.upper(), {"ID": "HUGEINT", "X": "DOUBLE"})
        read_back = source.connection.sql(f"FROM {source.sql}")
        described = list(zip(read_back.columns, map(str, read_back.types), strict=True))
    assert described == [("ID", "HUGEINT"), ("X", "DOUBLE"), (POSITION, "BIGINT")]


def test_no_columns(sample: Database) -> None:
    """Positions alone can be read."""
    assert read_table(sample, TABLE, {}) == [(0,), (1,), (2,), (3,)]


@pytest.mark.parametrize(
    "comparison",
    [
        Comparison("id", "=", (2,)),
        Comparison("ID", "<>", (2,)),
        Comparison("id", ">=", (1.5,)),
        Comparison("id", "in", (1, 4, 2**70)),
        Comparison("id", "<", (float("inf"),)),
        Comparison("x", "=", (0.5,)),
        Comparison("x", "<=", (2,)),
        Comparison("x", "is null"),
        Comparison('Odd "name" ☺', "=", ("😀",)),
        Comparison('Odd "name" ☺', "in", ("a", "it's", "c\0")),
        Comparison('Odd "name" ☺', "<", ("b",)),
        Comparison('Odd "name" ☺', "is not null"),
        Comparison("elsewhere", "=", (1,)),
    ],
)
def test_where_only_leaves_out(sample: Database, comparison: Comparison) -> None:
    """With a comparison no row that passes is lost, and rows keep their order and values."""
    with sample.reader() as reader:
        source = reader.source(TABLE, COLUMNS, [comparison])
        some, of_all = by_position(source), source.of_all
    everything = read_table(sample, TABLE, COLUMNS)
    if not of_all:
        assert [row[-1] for row in some] == list(range(len(some)))
        some, everything = without_positions(some), without_positions(everything)
    assert is_part(some, everything)
    column = next((i for i, name in enumerate(COLUMNS) if name == comparison.column.lower()), None)
    column = 1 if comparison.column.startswith("Odd") else column
    tests: dict[str, Callable[[Any], bool]] = {
        "=": lambda value: value == comparison.values[0],
        "<>": lambda value: value != comparison.values[0],
        "<": lambda value: value < comparison.values[0],
        "<=": lambda value: value <= comparison.values[0],
        ">=": lambda value: value >= comparison.values[0],
        "in": lambda value: value in comparison.values,
        "is not null": lambda value: True,
    }
    for row in everything:
        value = None if column is None else row[column]
        kept = value is None if comparison.operator == "is null" else value is not None
        if kept and comparison.operator != "is null":
            kept = tests[comparison.operator](value)
        assert row in some or not kept


def test_several_comparisons(sample: Database) -> None:
    """Comparisons of several types go together, and what passes them all is there."""
    where = [
        Comparison("id", "in", (1, 2, 3)),
        Comparison('Odd "name" ☺', "in", ("😀", "c", "it's")),
        Comparison("x", ">", (0.25,)),
        Comparison("id", "<", (2.5,)),
    ]
    expected = [row for row in without_positions(read_table(sample, TABLE, COLUMNS)) if row[0] == 2]
    assert len(expected) == 1
    assert expected[0] in without_positions(read_table(sample, TABLE, COLUMNS, where))


def test_unknown_names(sample: Database) -> None:
    """A table or column that is not there is an error that lists those that are."""
    assert "has no table 'nope'; it has: A table" in failure(lambda: sample.tables(["nope"]))
    assert [table.name for table in sample.tables([TABLE.upper()])] == [TABLE]
    assert sample.tables([]) == []
    with sample.reader() as reader:
        assert "has no table 'nope'; it has: A table" in failure(lambda: reader.source("nope", {}))
        assert "has no column 'nope'; it has: id, Odd" in failure(lambda: reader.source(TABLE, {"nope": "BIGINT"}))
        assert "differ in case only" in failure(lambda: reader.source(TABLE, {"id": "BIGINT", "ID": "BIGINT"}))


def test_types_are_not_sql(sample: Database) -> None:
    """A type cannot smuggle SQL into the source."""
    with sample.reader() as reader:
        assert "cannot be read as" in failure(lambda: reader.source(TABLE, {"id": "BIGINT) AS id, (SELECT 1"}))


def test_sandbox(sample: Database) -> None:
    """An expression over a source reaches no file, no Python variable and no setting, and time is UTC."""
    secret = pa.table({"a": [CANARY]})
    assert secret.num_rows == 1
    with sample.reader() as reader:
        connection = reader.source(TABLE, {"id": "BIGINT"}).connection
        for forbidden in (
            "FROM read_text('/etc/hostname')",
            "COPY (SELECT 1) TO '/tmp/out.csv'",
            "ATTACH '/tmp/out.duckdb'",
            "SET enable_external_access = true",
            "LOAD httpfs",
            "FROM secret",
        ):
            with pytest.raises(duckdb.Error):
                connection.execute(forbidden)
        [(zone,)] = connection.execute("SELECT current_setting('TimeZone')").fetchall()
        assert zone.endswith("UTC")


def test_two_readers_at_once(sample: Database) -> None:
    """Readers do not disturb one another."""
    with sample.reader() as one, sample.reader() as two:
        assert by_position(one.source(TABLE, {"id": "BIGINT"})) == by_position(two.source(TABLE, {"id": "BIGINT"}))
        first, second = one.source(TABLE, {"id": "BIGINT"}), one.source(TABLE, {"x": "DOUBLE"})
        assert len(by_position(first)) == len(by_position(second)) == 4


# URLs


def test_unknown_scheme() -> None:
    """An unknown kind is refused with the known ones; what may be a password is not repeated."""
    assert "no database of kind 'oracle'; known: duckdb:///path" in failure(lambda: open_database("p", "oracle://x/y"))
    assert "no scheme" in failure(lambda: open_database("p", f"user:{CANARY}@host://x"))
    assert "must be a URL" in failure(lambda: open_database("p", "/data/x.duckdb"))
    assert "three slashes" in failure(lambda: open_database("p", "duckdb://data/x.duckdb"))
    assert "three slashes" in failure(lambda: open_database("p", "sqlite:///"))


@pytest.mark.parametrize("kind", ["postgresql", "mysql"])
@pytest.mark.parametrize(
    "authority",
    [f"u:{CANARY}@x@host/db", f"u:x/{CANARY}@host/db", f"u:{CANARY}%@host/db", f"u:{CANARY}/db", f"u:{CANARY}#@h/db"],
)
def test_malformed_server_url(kind: str, authority: str) -> None:
    """A URL that a driver would misread is refused before the driver can quote the password."""
    message = failure(lambda: open_database("p", f"{kind}://{authority}"))
    assert "malformed" in message


def test_relative_and_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three slashes are a relative path, and an absolute one where only that exists; four are always absolute."""
    in_duckdb(tmp_path / "x.duckdb", "CREATE TABLE t AS SELECT 1 AS a")
    path = str(tmp_path / "x.duckdb")
    monkeypatch.chdir(tmp_path)
    for url in ("duckdb:///x.duckdb", f"duckdb:///{path}", f"duckdb:///{path.lstrip('/')}"):
        assert [table.name for table in open_database("p", url).tables()] == ["t"]


@pytest.mark.parametrize("kind", ["duckdb", "sqlite", "parquet", "csv", "arrow"])
def test_missing_file(kind: str, tmp_path: Path) -> None:
    """A missing file or folder is said to be missing, and is not created."""
    database = open_database("shop", f"{kind}:///{tmp_path}/none")
    assert "is missing" in failure(database.tables)
    assert "is missing" in failure(lambda: database.reader().__enter__())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["duckdb", "sqlite"])
def test_no_database(kind: str, tmp_path: Path) -> None:
    """A file that is no database is said to be none."""
    (tmp_path / "junk").write_text(CANARY * 1000)
    message = failure(open_database("shop", f"{kind}:///{tmp_path}/junk").tables)
    assert "is not a " in message


@pytest.mark.parametrize("name", ["parquet", "csv", "arrow"])
def test_corrupt_file(name: str, tmp_path: Path) -> None:
    """A corrupt file is named, and nothing of it is shown."""
    (tmp_path / f"t.{name}").write_bytes(b'a,b\n1,"' + CANARY.encode() + b'\n1,2,3,4\n\xff\xfe"x"\n1\n' * 9)
    database = open_database("shop", f"{name}:///{tmp_path}")
    with database.reader() as reader:
        for message in (failure(database.tables), failure(lambda: reader.source("t", {"a": "BIGINT"}))):
            assert f"t.{name} cannot be read" in message


# DuckDB


def test_duckdb_types(tmp_path: Path) -> None:
    """DuckDB's types are published as DESCRIBE prints them; an ENUM as the text it is."""
    database = in_duckdb(
        tmp_path / "x.duckdb",
        "CREATE TABLE t (e ENUM ('b', 'a'), h HUGEINT, d DECIMAL(5,2), z TIMESTAMPTZ, s STRUCT(a INT))",
        "INSERT INTO t VALUES ('a', 7, 1.5, '2020-01-01 01:00+01', NULL)",
    )
    published = table_named(database, "t").columns
    assert list(published.values()) == [
        "VARCHAR", "HUGEINT", "DECIMAL(5,2)", "TIMESTAMP WITH TIME ZONE", "STRUCT(a INTEGER)",
    ]  # fmt: skip
    [(text, instant, _)] = read_table(database, "t", {"e": "VARCHAR", "z": "TIMESTAMP WITH TIME ZONE"})
    assert (text, instant.isoformat()) == ("a", "2020-01-01T00:00:00+00:00")


def test_duckdb_deleted_rows(tmp_path: Path) -> None:
    """After deletions positions count the rows that are left, in rowid order, whatever the filter."""
    database = in_duckdb(
        tmp_path / "x.duckdb",
        "CREATE TABLE t AS SELECT 9 - range AS a FROM range(10)",
        "DELETE FROM t WHERE a % 3 = 0",
    )
    assert read_table(database, "t", {"a": "BIGINT"}) == [(8, 0), (7, 1), (5, 2), (4, 3), (2, 4), (1, 5)]
    with database.reader() as reader:
        source = reader.source("t", {"a": "BIGINT"}, [Comparison("a", "<", (5,))])
        assert read(source, f"SELECT {POSITION} FROM {{}} WHERE a < 5 ORDER BY 1") == [(3,), (4,), (5,)]


def test_duckdb_fast_path(tmp_path: Path) -> None:
    """Without deletions a source is one scan: no window, and the caller's filter reaches the table."""
    database = in_duckdb(tmp_path / "x.duckdb", "CREATE TABLE t AS SELECT range AS a, range AS b FROM range(10)")
    with database.reader() as reader:
        source = reader.source("t", {"a": "BIGINT"})
        [(_, plan)] = source.connection.execute(f"EXPLAIN SELECT * FROM {source.sql} WHERE a = 5").fetchall()
    assert "Window" not in plan
    assert plan.count("Scan") == plan.count("Seq Scan") + plan.count("Sequential Scan")
    assert "Filters: a = 5" in plan


def test_duckdb_views_and_hidden_rowid(tmp_path: Path) -> None:
    """A view, and a table with a column called rowid, are ordered by the columns that are read."""
    database = in_duckdb(
        tmp_path / "shop.duckdb",
        "CREATE TABLE t AS SELECT 9 - range AS a, range AS rowid FROM range(3)",
        "CREATE VIEW v AS SELECT a FROM shop.main.t",
    )
    assert {table.name: table.rows for table in database.tables()} == {"t": 3, "v": 3}
    assert read_table(database, "v", {"a": "BIGINT"}) == [(7, 0), (8, 1), (9, 2)]
    assert read_table(database, "t", {"a": "BIGINT"}) == [(7, 0), (8, 1), (9, 2)]


def test_duckdb_slow_views_are_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A view that takes long has an estimate; what was found stays until the file changes."""
    monkeypatch.setattr(duckdb_file, "PATIENCE", 0.3)
    path = tmp_path / "x.duckdb"
    database = in_duckdb(
        path,
        "CREATE TABLE t AS SELECT range AS a FROM range(7)",
        "CREATE VIEW slow AS SELECT count(*) AS a FROM range(2000000) p, range(900000) q WHERE hash(p.range) < q.range",
        "CREATE VIEW quick AS SELECT a FROM t WHERE a > 2",
    )
    assert [(t.name, t.estimated) for t in database.tables()] == [("quick", False), ("slow", True), ("t", False)]
    assert [(t.name, t.rows) for t in database.tables(["T", "quick"])] == [("t", 7), ("quick", 4)]
    monkeypatch.setattr(duckdb_file, "PATIENCE", -1.0)  # nothing could be counted now
    assert [t.rows for t in database.tables(["quick"])] == [4]
    in_duckdb(path, "INSERT INTO t VALUES (8), (9)")
    monkeypatch.setattr(duckdb_file, "PATIENCE", 60.0)
    assert [t.rows for t in database.tables(["quick"])] == [6]


def test_sqlite_counts_are_kept(tmp_path: Path) -> None:
    """Rows are counted again only if the file has changed."""
    path = tmp_path / "x.db"
    database = in_sqlite(path, "CREATE TABLE t (a INTEGER)", "INSERT INTO t VALUES (1)")
    first, second = database.tables(), database.tables()
    assert second[0].columns is first[0].columns
    in_sqlite(path, "INSERT INTO t VALUES (2)")
    assert [table.rows for table in database.tables()] == [2]


def test_duckdb_view_of_a_file(tmp_path: Path) -> None:
    """A view that reads outside its file is not published, and reading it is an error without a value."""
    (tmp_path / "x.csv").write_text(f"a\n{CANARY}\n")
    database = in_duckdb(
        tmp_path / "x.duckdb", f"CREATE VIEW v AS FROM read_csv('{tmp_path}/x.csv')", "CREATE TABLE t AS SELECT 1 AS a"
    )
    assert [table.name for table in database.tables()] == ["t"]
    assert "cannot be evaluated" in failure(lambda: read_table(database, "v", {"a": "VARCHAR"}))


def test_duckdb_locked_by_another_process(tmp_path: Path) -> None:
    """A file that another process writes to is said to be locked; it can be read when that has finished."""
    path = tmp_path / "x.duckdb"
    database = in_duckdb(path, "CREATE TABLE t AS SELECT 1 AS a")
    with another_process(f"import duckdb; c = duckdb.connect({str(path)!r})"):
        message = failure(database.tables)
    assert "locked by a process that writes" in message
    assert "try again when it has finished" in message
    assert len(database.tables()) == 1


def test_duckdb_open_for_writing_here(tmp_path: Path) -> None:
    """A file that this process has open for writing is said to be so."""
    database = in_duckdb(tmp_path / "x.duckdb", "CREATE TABLE t AS SELECT 1 AS a")
    with duckdb.connect(str(tmp_path / "x.duckdb")):
        assert "open for writing in this process; close" in failure(database.tables)


def test_duckdb_read_only_and_closed(tmp_path: Path) -> None:
    """A reader cannot write, and after it writers can, even while the caller still holds a relation."""
    path = tmp_path / "x.duckdb"
    database = in_duckdb(path, "CREATE TABLE t AS SELECT 1 AS a")
    with database.reader() as reader:
        source = reader.source("t", {"a": "INTEGER"})
        with pytest.raises(duckdb.Error, match="read-only"):
            source.connection.execute("DELETE FROM t")
        held = source.connection.sql(f"FROM {source.sql}")
        assert held.fetchall() == [(1, 0)]
    in_duckdb(path, "INSERT INTO t VALUES (2)")
    assert table_named(database, "t").rows == 2
    in_duckdb(path, "INSERT INTO t VALUES (3)")


# SQLite


def test_sqlite_types(tmp_path: Path) -> None:
    """What a column holds comes out as what was declared, or as what it holds if nothing was."""
    declared = {
        "i": ("INT UNSIGNED", "BIGINT", 2**60), "r": ("FLOAT", "DOUBLE", 0.1), "t": ("NVARCHAR(5)", "VARCHAR", "😀"),
        "b": ("BOOLEAN", "BOOLEAN", 1), "d": ("DATE", "DATE", "2020-02-29"),
        "s": ("DATETIME", "TIMESTAMP", "2020-02-29 12:00:00"), "n": ("DECIMAL(10, 2)", "DECIMAL(10,2)", 12.3),
        "m": ("NUMERIC", "DOUBLE", 3), "e": ("", "BIGINT", 5),
        "u": ("UUID", "UUID", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    }  # fmt: skip
    path = tmp_path / "x.db"
    database = in_sqlite(path, f"CREATE TABLE t ({', '.join(f'{name} {d[0]}' for name, d in declared.items())})")
    connection = sqlite3.connect(path)
    connection.execute(f"INSERT INTO t VALUES ({','.join('?' * len(declared))})", [d[2] for d in declared.values()])
    connection.commit()
    connection.close()
    columns = {name: d[1] for name, d in declared.items()}
    assert table_named(database, "t").columns == columns
    [row] = read_table(database, "t", columns)
    named = zip([*columns, "position"], row, strict=True)
    assert tuple(str(value) if name in "dsnu" else value for name, value in named) == (
        2**60, 0.1, "😀", True, "2020-02-29", "2020-02-29 12:00:00", "12.30", 3.0, 5,
        "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", 0,
    )  # fmt: skip


def test_sqlite_leading_nulls(tmp_path: Path) -> None:
    """Types are those declared, though the first hundred thousand values are NULL and the rest of mixed classes."""
    database = in_sqlite(
        tmp_path / "x.db",
        "CREATE TABLE t (i INTEGER, tx TEXT, r REAL, n NUMERIC, absent TEXT)",
        "WITH RECURSIVE g(k) AS (SELECT 1 UNION ALL SELECT k + 1 FROM g WHERE k < 100000) "
        "INSERT INTO t SELECT NULL, NULL, NULL, NULL, NULL FROM g",
        "INSERT INTO t VALUES (9007199254740993, 'x', 1, 1, NULL), (2, '7', 1.5, 2.5, NULL)",
    )
    columns = {"i": "BIGINT", "tx": "VARCHAR", "r": "DOUBLE", "n": "DOUBLE", "absent": "VARCHAR"}
    rows = read_table(database, "t", columns, [Comparison("i", "is not null")])
    assert rows == [(9007199254740993, "x", 1.0, 1.0, None, 0), (2, "7", 1.5, 2.5, None, 1)]


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        ("INTEGER", f"'{CANARY}'"), ("INTEGER", "47112.5"), ("REAL", f"'{CANARY}'"), ("TEXT", "x'ff00ff'"),
        ("DATE", f"'{CANARY}'"), ("DECIMAL(4,1)", "4711200"), ("BOOLEAN", f"'{CANARY}'"), ("UUID", f"'{CANARY}'"),
        ("TIMESTAMP", "47112"), ("TEXT", "CAST(x'ff4711fe' AS TEXT)"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("rows_before", [0, 200_000])
def test_sqlite_misfit(tmp_path: Path, declared: str, value: str, rows_before: int) -> None:
    """A value that does not fit the declared type is an error that names the column and never the value."""
    database = in_sqlite(
        tmp_path / "x.db",
        f"CREATE TABLE t (good INTEGER, bad {declared})",
        f"WITH RECURSIVE g(k) AS (SELECT 1 UNION ALL SELECT k + 1 FROM g WHERE k < {rows_before}) "
        f"INSERT INTO t SELECT k, NULL FROM g WHERE {rows_before} > 0",
        f"INSERT INTO t VALUES (1, {value})",
    )
    columns = table_named(database, "t").columns
    message = failure(lambda: read_table(database, "t", columns))
    if "4711fe" not in value:  # broken text is not of another type: only the table can be named
        assert "table 't', column 'bad' is declared" in message
        assert columns["bad"] in message


def test_sqlite_unreadable_type(tmp_path: Path) -> None:
    """A column nothing can be learned from is published by its name and refused when it is read."""
    database = in_sqlite(tmp_path / "x.db", "CREATE TABLE t (b BLOB, j JSON)")
    assert table_named(database, "t").columns == {"b": "BLOB", "j": "JSON"}
    assert "type BLOB, which cannot be read" in failure(lambda: read_table(database, "t", {"b": "BLOB"}))


def test_sqlite_order(tmp_path: Path) -> None:
    """Order is rowid, after deletions too; the primary key without a rowid; for a view the read columns."""
    database = in_sqlite(
        tmp_path / "x.db",
        "CREATE TABLE t (a INTEGER, rowid TEXT)",
        "INSERT INTO t VALUES (9, 'b'), (8, 'a'), (7, 'C'), (6, 'd')",
        "CREATE TABLE gaps AS SELECT a FROM t",
        "DELETE FROM gaps WHERE a = 8",
        "CREATE TABLE keyed (b TEXT, a INTEGER, PRIMARY KEY (a, b)) WITHOUT ROWID",
        "INSERT INTO keyed VALUES ('y', 2), ('z', 1), ('x', 2)",
        "CREATE TABLE nocase (a TEXT COLLATE NOCASE)",
        "INSERT INTO nocase VALUES ('b'), ('B'), ('a')",
        "CREATE VIEW v AS SELECT a FROM nocase",
        "CREATE VIEW broken AS SELECT * FROM nowhere",
        "CREATE TABLE empty (a INTEGER)",
    )
    assert [table.name for table in database.tables()] == ["empty", "gaps", "keyed", "nocase", "t", "v"]
    assert read_table(database, "t", {"a": "BIGINT"}) == [(9, 0), (8, 1), (7, 2), (6, 3)]
    assert read_table(database, "gaps", {"a": "BIGINT"}) == [(9, 0), (7, 1), (6, 2)]
    assert read_table(database, "gaps", {"a": "BIGINT"}, [Comparison("a", "<", (8,))]) == [(7, 0), (6, 1)]
    assert read_table(database, "keyed", {"b": "VARCHAR"}) == [("z", 0), ("x", 1), ("y", 2)]
    assert read_table(database, "v", {"a": "VARCHAR"}) == [("B", 0), ("a", 1), ("b", 2)]
    assert read_table(database, "nocase", {"a": "VARCHAR"}, [Comparison("a", "=", ("b",))]) == [("b", 0)]
    assert read_table(database, "empty", {"a": "BIGINT"}) == []
    assert "SQLite cannot evaluate" in failure(lambda: read_table(database, "broken", {}))


# Writers are other processes here: Python's SQLite and the driver's, in one process, do not see each other's locks.
WRITER = "import sqlite3; c = sqlite3.connect({path!r}, isolation_level=None); c.execute({sql!r})"


@pytest.mark.parametrize("journal", ["WAL", "DELETE"])
def test_sqlite_one_moment_then_writable(tmp_path: Path, journal: str) -> None:
    """A reader sees one moment though a writer is at work beside it, and blocks nobody afterwards."""
    path = tmp_path / "odd %41?#x.db"
    database = in_sqlite(
        path, f"PRAGMA journal_mode = {journal}", "CREATE TABLE t (a INTEGER)", "INSERT INTO t VALUES (1)"
    )
    insert = WRITER.format(path=str(path), sql="INSERT INTO t VALUES (2)")
    with database.reader() as reader:
        if journal == "WAL":
            with another_process(insert):
                assert by_position(reader.source("t", {"a": "BIGINT"})) == [(1, 0)]
        else:
            assert by_position(reader.source("t", {"a": "BIGINT"})) == [(1, 0)]
    if journal == "DELETE":
        with another_process(insert):
            pass
    assert read_table(database, "t", {"a": "BIGINT"}) == [(1, 0), (2, 1)]


def test_sqlite_read_only(tmp_path: Path) -> None:
    """Reading changes nothing in the file or beside it, and a file that may only be read is enough."""
    path = tmp_path / "x.db"
    database = in_sqlite(path, "CREATE TABLE t (a INTEGER)", "INSERT INTO t VALUES (1)")
    before = path.read_bytes()
    path.chmod(0o444)
    assert read_table(database, "t", {"a": "BIGINT"}) == [(1, 0)]
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_sqlite_locked(tmp_path: Path) -> None:
    """A file under an exclusive lock is said to be locked."""
    path = tmp_path / "x.db"
    database = in_sqlite(path, "CREATE TABLE t (a INTEGER)")
    with another_process(WRITER.format(path=str(path), sql="BEGIN EXCLUSIVE")):
        assert "is locked by a process that writes" in failure(database.tables)
    assert len(database.tables()) == 1


# PostgreSQL


POSTGRES_TYPES = {
    "i2": ("int2", "SMALLINT", "7", "7"),
    "i4": ("int4", "INTEGER", "7", "7"),
    "i8": ("int8", "BIGINT", "7", "7"),
    "n": ("numeric(10,2)", "DECIMAL(10,2)", "12.3", "12.30"),
    "wide": (
        "numeric(38,10)",
        "DECIMAL(38,10)",
        "1234567890123456789012345678",
        "1234567890123456789012345678.0000000000",
    ),
    "rounded": ("numeric(3,-2)", "DECIMAL(5,0)", "12345", "12300"),
    "small": ("numeric(2,4)", "DECIMAL(4,4)", "0.0012", ".0012"),
    "free": ("numeric", "DOUBLE", "'NaN'", "nan"),
    "huge": ("numeric(50,2)", "DOUBLE", "1.5", "1.5"),
    "f4": ("float4", "FLOAT", "0.5", "0.5"),
    "f8": ("float8", "DOUBLE", "0.1", "0.1"),
    "t": ("text", "VARCHAR", "'it''s 😀\\'", "it's 😀\\"),
    "vc": ("varchar(5)", "VARCHAR", "'x '", "x "),
    "c": ("char(5)", "VARCHAR", "'ab'", "ab"),
    "b": ("bool", "BOOLEAN", "true", "true"),
    "d": ("date", "DATE", "'2020-02-29'", "2020-02-29"),
    "far": ("date", "DATE", "'infinity'", "infinity"),
    "ts": ("timestamp", "TIMESTAMP", "'2020-02-29 12:00:00.5'", "2020-02-29 12:00:00.5"),
    "never": ("timestamp", "TIMESTAMP", "'-infinity'", "-infinity"),
    "tz": ("timestamptz", "TIMESTAMP WITH TIME ZONE", "'2020-02-29 12:00+02'", "2020-02-29 10:00:00+00"),
    "u": ("uuid", "UUID", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    "m": ("mood", "VARCHAR", "'sad'", "sad"),
    "dom": ("nested", "DECIMAL(5,1)", "1.25", "1.3"),
    "js": ("json", "JSON", "'{}'", None),
    "by": ("bytea", "BLOB", "'x'", None),
    "ar": ("int[]", "INT4[]", "'{1}'", None),
    "tv": ("tsvector", "TSVECTOR", "''", None),
}


def test_postgres_types(schema_url: str) -> None:
    """Every type is published under DuckDB's name, and read as it is meant, with and without a value."""
    ddl = ", ".join(f"{name} {declared}" for name, (declared, *_) in POSTGRES_TYPES.items())
    values = ", ".join(value for _, _, value, _ in POSTGRES_TYPES.values())
    database = in_postgres(
        schema_url,
        "CREATE TYPE mood AS ENUM ('sad', 'ok')",
        "CREATE DOMAIN base AS numeric(5,1)",
        "CREATE DOMAIN nested AS base CHECK (value > 0)",
        f"CREATE TABLE t ({ddl})",
        f"INSERT INTO t VALUES ({values})",
        "INSERT INTO t VALUES (NULL)",
        "CREATE TABLE hidden AS SELECT 1 AS a",
    )
    published = table_named(database, "t").columns
    assert published == {name: type_ for name, (_, type_, _, _) in POSTGRES_TYPES.items()}
    readable = {name: published[name] for name, (*_, text) in POSTGRES_TYPES.items() if text is not None}
    with database.reader() as reader:
        source = reader.source("t", readable)
        texts = ", ".join(f"CAST({name} AS VARCHAR)" for name in readable)
        full, empty = read(source, f"SELECT {texts} FROM {{}} ORDER BY i2 NULLS LAST")
    assert dict(zip(readable, full, strict=True)) == {name: POSTGRES_TYPES[name][3] for name in readable}
    assert set(empty) == {None}
    for name in set(published) - set(readable):
        assert "cannot be read" in failure(partial(read_table, database, "t", {name: published[name]}))


def test_postgres_order(schema_url: str) -> None:
    """Order is the primary key, else all read columns with text by its bytes; filters do not change it."""
    database = in_postgres(
        schema_url,
        "CREATE TABLE keyed (b text, a int, PRIMARY KEY (a, b))",
        "INSERT INTO keyed VALUES ('y', 2), ('z', 1), ('x', 2)",
        "CREATE TABLE heap (t text, c char(3))",
        "INSERT INTO heap VALUES ('b', 'x'), ('B', 'y'), ('a', 'z'), ('a', 'z')",
        "CREATE VIEW v AS SELECT a FROM keyed",
        "CREATE TABLE parts (a int) PARTITION BY LIST (a)",
        "CREATE TABLE part1 PARTITION OF parts FOR VALUES IN (1)",
        "INSERT INTO parts VALUES (1)",
        "CREATE MATERIALIZED VIEW mv AS SELECT a FROM keyed",
    )
    tables = database.tables()
    assert {t.name: t.rows for t in tables if not t.estimated} == {"heap": 4, "keyed": 3, "mv": 3, "parts": 1}
    assert [t.name for t in tables if t.estimated] == ["v"]
    assert read_table(database, "keyed", {"b": "VARCHAR"}) == [("z", 0), ("x", 1), ("y", 2)]
    assert read_table(database, "keyed", {"b": "VARCHAR"}, [Comparison("b", "in", ("y", "z"))]) == [("z", 0), ("y", 1)]
    assert read_table(database, "heap", {"t": "VARCHAR"}) == [("B", 0), ("a", 1), ("a", 2), ("b", 3)]
    assert read_table(database, "heap", {"c": "VARCHAR"}, [Comparison("c", "in", ("x", "y"))]) == [("x", 0), ("y", 1)]
    assert read_table(database, "v", {"a": "BIGINT"}) == [(1, 0), (2, 1), (2, 2)]


def test_postgres_pushes_decimals_exactly(schema_url: str) -> None:
    """A comparison that is pushed decides as DuckDB does; quotes and backslashes in it are only text."""
    database = in_postgres(
        schema_url,
        "CREATE TABLE t (n numeric(6,2), t text)",
        r"INSERT INTO t VALUES (0.1, 'it''s \'), (0.3, 'x'), (100, NULL)",
    )
    columns = {"n": "DECIMAL(8,2)", "t": "VARCHAR"}
    assert len(read_table(database, "t", columns, [Comparison("n", "=", (0.1,))])) == 1
    assert len(read_table(database, "t", columns, [Comparison("n", "<=", (0.3,))])) == 2
    assert len(read_table(database, "t", columns, [Comparison("n", "=", (100,))])) == 1
    assert len(read_table(database, "t", columns, [Comparison("t", "=", ("it's \\",))])) == 1


def test_postgres_one_moment_read_only(schema_url: str) -> None:
    """Within one reader all tables are seen as of its opening, and its transaction cannot write."""
    database = in_postgres(schema_url, "CREATE TABLE t (a int)", "INSERT INTO t VALUES (1)", "CREATE SEQUENCE s")
    with database.reader() as reader:
        in_postgres(schema_url, "INSERT INTO t VALUES (2)")
        assert by_position(reader.source("t", {"a": "INTEGER"})) == [(1, 0)]
        assert by_position(reader.source("t", {"a": "INTEGER"})) == [(1, 0)]
    assert read_table(database, "t", {"a": "INTEGER"}) == [(1, 0), (2, 1)]
    in_postgres(schema_url, "CREATE VIEW w AS SELECT nextval('s') AS a")
    message = failure(lambda: read_table(database, "w", {"a": "BIGINT"}))
    assert "could not read it" in message
    assert ask_postgres(schema_url, "SELECT is_called FROM s") == [(False,)]
    in_postgres(schema_url, "DROP TABLE t")


def test_postgres_misfit(schema_url: str) -> None:
    """A value without a place in the published type is an error that names the column and never the value."""
    database = in_postgres(
        schema_url,
        "CREATE TABLE t (a int, n numeric(6,2))",
        "INSERT INTO t SELECT i, i FROM generate_series(1, 4000) i",
        "INSERT INTO t VALUES (1, 'NaN')",
        f"CREATE VIEW v AS SELECT ('{CANARY}' || a)::int AS a FROM t",
    )
    with database.reader() as reader:
        message = failure(lambda: reader.source("t", {"a": "BIGINT", "n": "DECIMAL(6,2)"}))
        assert "table 't', column 'n' is declared DECIMAL(6,2)" in message
        assert len(by_position(reader.source("t", {"a": "BIGINT"}))) == 4001
        message = failure(lambda: reader.source("v", {"a": "BIGINT"}))
        assert "could not read it" in message


def test_postgres_refusals(postgres_url: str) -> None:
    """A wrong password, database or host gives the server's reason and never the password."""
    guarded = postgres_url.replace("postgres:@", f"guarded:{CANARY}%40@")
    wrong = {
        "password authentication failed": guarded,
        'database "none" does not exist': postgres_url.replace("/postgres?", "/none?"),
        "Connection refused": f"postgresql://u:{CANARY}@127.0.0.1:1/db",
        "could not translate host name": f"postgres://u:{CANARY}@nowhere.invalid/db",
        "invalid URI query parameter": f"postgresql://u:{CANARY}@127.0.0.1/db?bogus=1",
    }
    for reason, url in wrong.items():
        message = failure(open_database("shop", url).tables)
        assert reason in message
    assert open_database("shop", guarded.replace(f"{CANARY}%40", "s3cret")).tables() == []
    assert CANARY not in repr(open_database("shop", guarded))


def test_postgres_no_privilege(postgres_url: str, schema_url: str) -> None:
    """A table that the user may not read is not published."""
    in_postgres(
        schema_url, "CREATE TABLE t (a int)", "CREATE TABLE mine (a int)", "GRANT USAGE ON SCHEMA test TO guarded"
    )
    in_postgres(schema_url, "GRANT SELECT ON mine TO guarded")
    guarded = open_database("shop", schema_url.replace("postgres:@", "guarded:s3cret@"))
    assert [table.name for table in guarded.tables()] == ["mine"]


# Folders


def test_folder_names(tmp_path: Path) -> None:
    """Files are found whatever characters their names have; a folder's name adds no column."""
    folder = tmp_path / "f[1]* it's" / "year=2020"
    folder.mkdir(parents=True)
    table = pa.table({"a": [1, 2], "file_row_number": [7, 6]})
    for name in ("[q]s", "qs", "a?b's", "x.y"):
        pyarrow.parquet.write_table(table.slice(0, 1) if name == "qs" else table, folder / f"{name}.parquet")
    (folder / "notes.txt").write_text("no table")
    (folder / ".hidden.parquet").write_text("no table")
    database = open_database("shop", f"parquet:///{folder}")
    found = {item.name: (list(item.columns), item.rows) for item in database.tables()}
    both = ["a", "file_row_number"]
    assert found == {"[q]s": (both, 2), "a?b's": (both, 2), "qs": (both, 1), "x.y": (both, 2)}
    assert read_table(database, "[q]s", {"file_row_number": "BIGINT"}) == [(7, 0), (6, 1)]


def test_folder_of_partitions(tmp_path: Path) -> None:
    """Folders below are columns, as DuckDB writes and reads them; a column that a file lacks is missing there."""
    for year, rows in (("2023", pa.table({"a": [1, 2]})), ("2024", pa.table({"a": [3], "b": ["x"]}))):
        (tmp_path / "orders" / f"year={year}").mkdir(parents=True)
        pyarrow.parquet.write_table(rows, tmp_path / "orders" / f"year={year}" / "0.parquet")
    (tmp_path / "orders" / "_SUCCESS").touch()
    (tmp_path / "orders" / "_temporary").mkdir()
    (tmp_path / "orders" / "_temporary" / "1.parquet").write_text("half written")
    (tmp_path / "empty").mkdir()
    database = open_database("shop", f"parquet:///{tmp_path}")
    assert database.tables() == [SourceTable("orders", {"a": "BIGINT", "b": "VARCHAR", "year": "BIGINT"}, 3)]
    expected = [(1, None, 2023, 0), (2, None, 2023, 1), (3, "x", 2024, 2)]
    assert read_table(database, "orders", {"a": "BIGINT", "b": "VARCHAR", "year": "BIGINT"}) == expected
    assert open_database("shop", f"csv:///{tmp_path}").tables() == []


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_folder_of_links(kind: str, tmp_path: Path) -> None:
    """A link in the folder is a table; other files beside it, or beside what it leads to, stay out of reach."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "folder").mkdir()
    for place in ("elsewhere/data.x", "elsewhere/other.x", "folder/notes.x"):
        pyarrow.parquet.write_table(pa.table({"a": [5], "b": [6]}), tmp_path / place)
    if kind == "csv":
        (tmp_path / "elsewhere/data.x").write_text("a,b\n5,6\n")
    (tmp_path / f"folder/t.{kind}").symlink_to(tmp_path / "elsewhere/data.x")
    with open_database("shop", f"{kind}:///{tmp_path}/folder").reader() as reader:
        source = reader.source("t", {"a": "BIGINT"})
        assert by_position(source) == [(5, 0)]
        for place in ("elsewhere/other.x", "folder/notes.x"):
            with pytest.raises(duckdb.PermissionException):
                source.connection.execute(f"FROM read_parquet('{tmp_path / place}')")


def test_parquet_projection(tmp_path: Path) -> None:
    """Only the asked columns of a Parquet file are read, and positions follow the file across row groups."""
    table = pa.table({"a": list(range(300_000, 0, -1)), "b": ["x"] * 300_000})
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet", row_group_size=1000)
    with open_database("shop", f"parquet:///{tmp_path}").reader() as reader:
        source = reader.source("t", {"a": "BIGINT"})
        [(_, plan)] = source.connection.execute(f"EXPLAIN SELECT * FROM {source.sql}").fetchall()
        assert read(source, f"SELECT count(*), bool_and(a = 300000 - {POSITION}) FROM {{}}") == [(300_000, True)]
        assert read(source, f"SELECT {POSITION} FROM {{}} WHERE a = 7") == [(299_993,)]
    assert "b" not in plan.split("Projections:")[1].split("rows")[0].replace("number", "").split()


def test_csv_types_hold_for_the_whole_file(tmp_path: Path) -> None:
    """A text after a hundred thousand integers makes the column text; order is the file's; gzip is read."""
    lines = [
        "a;it's;z;empty",
        *["1;2;2020-01-01 00:00:00+01;" for _ in range(100_000)],
        "x;2.5;2020-01-01 00:00:00Z;",
        "",
    ]
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress("\r\n".join(lines).encode()))
    database = open_database("shop", f"csv:///{tmp_path}")
    [table] = database.tables()
    assert table.columns == {
        "a": "VARCHAR", "it's": "DOUBLE", "z": "TIMESTAMP WITH TIME ZONE", "empty": "VARCHAR",
    }  # fmt: skip
    rows = read_table(database, "t", {"a": "VARCHAR", "it's": "DOUBLE", "empty": "VARCHAR"})
    assert (len(rows), rows[0], rows[-1]) == (100_001, ("1", 2.0, None, 0), ("x", 2.5, None, 100_000))
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(b"a,b\n1,2\n"))
    time.sleep(0.01)
    assert database.tables() == [SourceTable("t", {"a": "BIGINT", "b": "BIGINT"}, 1)]
    (tmp_path / "t.csv").write_text("a\n1\n")
    assert "are both table 't'; rename one" in failure(database.tables)


def test_csv_without_rows_and_with_a_bad_line(tmp_path: Path) -> None:
    """A header alone is an empty table; a line that does not parse is an error that does not quote it."""
    (tmp_path / "t.csv").write_text("a,b\n")
    database = open_database("shop", f"csv:///{tmp_path}")
    assert database.tables() == [SourceTable("t", {"a": "VARCHAR", "b": "VARCHAR"}, 0)]
    assert read_table(database, "t", {"a": "VARCHAR"}) == []
    (tmp_path / "t.csv").write_text("a,b\n" + "1,2\n" * 30_000 + f"{CANARY}\n1,2,3\n")
    message = failure(lambda: read_table(database, "t", {"a": "VARCHAR"}))
    assert "t.csv cannot be read" in message


def test_arrow_file_and_stream(tmp_path: Path) -> None:
    """Both IPC formats are read; types DuckDB has no name for keep their own and do not hinder the others."""
    table = pa.table({
        "d": pa.array(["b", "a"]).dictionary_encode(),
        "z": pa.array([0, 1], pa.timestamp("ns", "Europe/Berlin")),
        "h": pa.array([1.5, 2.5], pa.float16()),
        "n": pa.nulls(2),
        "u": pa.array([1, 2], pa.uint8()),
    })  # fmt: skip
    with pa.ipc.new_file(tmp_path / "file.arrow", table.schema) as writer:
        writer.write_table(table)
        writer.write_table(table)
    with pa.ipc.new_stream(tmp_path / "stream.ipc", table.schema) as writer:
        writer.write_table(table)
        writer.write_table(table)
    database = open_database("shop", f"arrow:///{tmp_path}")
    types = {"d": "VARCHAR", "z": "TIMESTAMP WITH TIME ZONE", "h": "HALFFLOAT", "n": "VARCHAR", "u": "UTINYINT"}
    assert database.tables() == [SourceTable("file", types, 4), SourceTable("stream", types, 4)]
    for name in ("file", "stream"):
        rows = read_table(database, name, {"n": "VARCHAR", "d": "VARCHAR", "u": "INTEGER"})
        assert rows == [(None, "b", 1, 0), (None, "a", 2, 1), (None, "b", 1, 2), (None, "a", 2, 3)]
        [(instant, _), *_] = read_table(database, name, {"z": "TIMESTAMP WITH TIME ZONE"})
        assert instant.isoformat() == "1970-01-01T00:00:00+00:00"


def test_a_file_where_a_folder_is_needed(tmp_path: Path) -> None:
    """A folder kind pointed at a file says that it takes a folder."""
    (tmp_path / "t.parquet").write_text("x")
    assert "takes a folder" in failure(open_database("shop", f"parquet:///{tmp_path}/t.parquet").tables)


def test_what_a_killed_process_has_spilled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is removed at the next start; a folder in use, a new one and one of another name stay."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    dead, new, other = tmp_path / "tablepuppet-spill-a", tmp_path / "tablepuppet-spill-b", tmp_path / "tablepuppet-c"
    for each in (dead, new, other):
        each.mkdir()
    (dead / "rows").write_text("rows")
    with sandbox("SET memory_limit = '81MB'") as connection:
        [(used,)] = connection.execute("SELECT current_setting('temp_directory')").fetchall()
        assert Path(used).parent == tmp_path
        for each in (dead, other, Path(used)):
            os.utime(each, (0, 0))
        remove_spilled()
        assert sorted(tmp_path.iterdir()) == sorted([new, other, Path(used)])


def test_spilling() -> None:
    """A locked sandbox still spills what does not fit into memory, into a folder of its own that is then removed."""
    with sandbox("SET memory_limit = '80MB'") as connection:
        [(spill,)] = connection.execute("SELECT current_setting('temp_directory')").fetchall()
        connection.execute("CREATE TEMP TABLE t AS SELECT hash(range) AS a, hash(-range) AS b FROM range(10_000_000)")
        assert list(Path(spill).iterdir())
    assert not Path(spill).exists()


def test_only_what_is_of_another_type_is_cast(tmp_path: Path) -> None:
    """Numbers of the asked type are read as they are stored; other numbers, and texts stored as ENUM, are cast."""
    with duckdb.connect(str(tmp_path / "t.duckdb")) as connection:
        connection.execute("CREATE TABLE t (x DOUBLE, n INTEGER, e ENUM ('b', 'a'))")
        connection.execute("INSERT INTO t VALUES (0.5, 3, 'a')")
    with open_database("shop", f"duckdb://{tmp_path / 't.duckdb'}").reader() as reader:
        source = reader.source("t", {"x": "DOUBLE", "n": "BIGINT", "e": "VARCHAR"})
        assert 'CAST("x"' not in source.sql
        table = source.connection.sql(f"SELECT x, n, e FROM {source.sql}").to_arrow_table()
    assert table.schema.types == [pa.float64(), pa.int64(), pa.string()]
    assert table.to_pylist() == [{"x": 0.5, "n": 3, "e": "a"}]
