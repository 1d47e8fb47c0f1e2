"""Delivered predictions as a table of a database: DuckDB, SQLite, PostgreSQL and MariaDB, each for real."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from adbc_driver_postgresql import dbapi

from tablepuppet.errors import PartyError
from tablepuppet.party.databases.delivering import replace_rows
from tests import mariadb_server

Rows = Callable[[str], list[tuple[Any, ...]]]
Place = tuple[str, Rows]  # URL, and what a statement finds there


def _duckdb(folder: Path) -> Iterator[Place]:
    path = folder / "shop.duckdb"

    def rows(sql: str) -> list[tuple[Any, ...]]:
        with duckdb.connect(str(path)) as connection:
            return connection.execute(sql).fetchall()

    rows("CREATE TABLE other AS SELECT 1 AS k")
    yield f"duckdb:///{path}", rows


def _sqlite(folder: Path) -> Iterator[Place]:
    path = folder / "shop.sqlite"

    def rows(sql: str) -> list[tuple[Any, ...]]:
        with sqlite3.connect(path) as connection:
            return connection.execute(sql).fetchall()

    rows("CREATE TABLE other AS SELECT 1 AS k")
    yield f"sqlite:///{path}", rows


def _postgresql(url: str) -> Iterator[Place]:
    def rows(sql: str) -> list[tuple[Any, ...]]:
        with dbapi.connect(url, autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute(sql)
            return [tuple(row) for row in cursor.fetchall()] if cursor.description else []

    rows("DROP TABLE IF EXISTS home")
    rows("DROP TABLE IF EXISTS other")
    rows("CREATE TABLE other AS SELECT 1 AS k")
    yield url, rows


def _mysql(server: str) -> Iterator[Place]:
    import pymysql

    from tablepuppet.party.databases.servers import connection_options

    with mariadb_server.new_database(server, "shop") as url:

        def rows(sql: str) -> list[tuple[Any, ...]]:
            options = connection_options("shop", url)
            with pymysql.connect(**options, autocommit=True) as connection, connection.cursor() as cursor:
                cursor.execute("SET sql_mode = 'ANSI_QUOTES'")
                cursor.execute(sql)
                return list(cursor.fetchall())

        rows("CREATE TABLE other AS SELECT 1 AS k")
        yield url, rows


@pytest.fixture(params=["duckdb", "sqlite", "postgresql", "mysql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A database of each kind."""
    match request.param:
        case "duckdb":
            yield from _duckdb(tmp_path)
        case "sqlite":
            yield from _sqlite(tmp_path)
        case "postgresql":
            yield from _postgresql(request.getfixturevalue("postgres_url"))
        case _:
            yield from _mysql(request.getfixturevalue("mariadb_url"))


def delivered(run: str, classes: tuple[str, ...] = ("no", "y%s")) -> pa.Table:
    """Rows with keys of every kind, NULLs among them."""
    return pa.table(
        {
            "k": pa.array([2**40, -1, None], pa.int64()),
            "Text Key": ["a'b\"c\\", "é%s", None],
            "day": pa.array([date(2024, 1, 2), None, date(1999, 1, 1)]),
            "moment": pa.array([datetime(2024, 1, 2, 3, 4, 5, 678), None, datetime(1999, 1, 1)], pa.timestamp("us")),
            "amount": pa.array([Decimal("1.50"), None, Decimal("-2.25")], pa.decimal128(12, 2)),
            "gift": pa.array([True, None, False]),
            "prediction": pa.array([0.125, -1e300, 3.0]),
            **{f"probability={name}": pa.array([0.25, 0.5, 1.0]) for name in classes},
            "run": [run] * 3,
        }
    )


def test_a_delivery_replaces_the_last(place: Place) -> None:
    """A table is made, filled, and later emptied and filled again; the same run again changes nothing."""
    url, rows = place
    replace_rows("shop", url, "home", delivered("one"), "one")
    assert rows("SELECT count(*), min(run), max(run) FROM home") == [(3, "one", "one")]
    [found] = rows('SELECT "Text Key", day, moment, amount, gift, prediction, "probability=y%s" FROM home WHERE k > 0')

    text, day, moment, amount, gift, prediction, probability = found
    assert text == "a'b\"c\\"
    assert str(day) == "2024-01-02"
    assert str(moment).startswith("2024-01-02 03:04:05.000678")
    assert (float(amount), bool(gift), prediction, probability) == (1.5, True, 0.125, 0.25)
    assert rows('SELECT count(*) FROM home WHERE k IS NULL AND "Text Key" IS NULL') == [(1,)]
    replace_rows("shop", url, "home", delivered("two").slice(0, 2), "two")
    replace_rows("shop", url, "home", delivered("two"), "two")
    assert rows("SELECT count(*), min(run), max(run) FROM home") == [(2, "two", "two")]


def test_a_table_of_something_else_is_left_alone(place: Place) -> None:
    """A table with other columns keeps its rows; so does one of predictions for other classes."""
    url, rows = place
    with pytest.raises(PartyError, match="table 'other' has other columns than these predictions"):
        replace_rows("shop", url, "other", delivered("one"), "one")
    assert rows("SELECT * FROM other") == [(1,)]
    replace_rows("shop", url, "home", delivered("one"), "one")
    with pytest.raises(PartyError, match="has other columns"):
        replace_rows("shop", url, "home", delivered("two", ("a", "b")), "two")
    assert rows("SELECT min(run), count(*) FROM home") == [("one", 3)]


def test_all_or_nothing(place: Place) -> None:
    """Rows that do not all fit change nothing, and the error quotes no value."""
    url, rows = place
    columns = ", ".join(f'"{name}" VARCHAR(20)' for name in delivered("one").column_names if name != "k")
    rows(f"CREATE TABLE home (k INTEGER PRIMARY KEY, {columns})")
    few = delivered("one").slice(1, 1)
    replace_rows("shop", url, "home", few, "one")
    twice = pa.concat_tables([few, few])
    with pytest.raises(PartyError, match="cannot write predictions into table 'home'") as failed:
        replace_rows("shop", url, "home", twice, "two")
    assert "é" not in str(failed.value)
    assert failed.value.__cause__ is None
    assert rows("SELECT count(*) FROM home") == [(1,)]


@pytest.mark.parametrize("classes", [("a" * 60, "b"), ("x", "X")])
def test_names_that_no_column_can_have(tmp_path: Path, classes: tuple[str, ...]) -> None:
    """Classes that databases would cut, or take for each other, are refused."""
    with pytest.raises(PartyError, match="too long, or differ in case only"):
        replace_rows("shop", "sqlite:///x", "home", delivered("one", classes), "one")
    with pytest.raises(PartyError, match="a database of files has no table"):
        replace_rows("shop", "parquet:///x", "home", delivered("one"), "one")
