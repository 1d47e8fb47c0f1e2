"""Databases of all kinds in one relation: keys meet, awkward types keep their values, DuckDB agrees."""

from __future__ import annotations

import csv
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
from adbc_driver_postgresql import dbapi

import tablepuppet as tp
from tests import mariadb_server
from tests.relations import World, materialised, places

EAST = timezone(timedelta(hours=5, minutes=30))
NOON = datetime(2024, 2, 29, 12, tzinfo=UTC)

CUSTOMERS = pa.table(
    {
        "id": pa.array(range(1, 9), pa.decimal128(10, 0)),
        "region": ["de", "de", "fr", None, "it", "xx", "fr", ""],
        "name": [None, None, None, "Ülrich", "😀", "", "O'Hara", "\\N"],
        "since": pa.array([None, None, *([NOON] * 5), NOON.astimezone(EAST)], pa.timestamp("us", "UTC")),
        "score": pa.array([None, None, None, 0.5, 1.5, -2.25, 1e-3, 12345.678]),
        "credit": pa.array(
            [None, *map(Decimal, ("1.10", "2.20", "-3.30", "0.00", "99999999.99", "5.5", "1"))], pa.decimal128(10, 2)
        ),
        "nothing": pa.array([None] * 8, pa.string()),
    }
)
ORDERS = pa.table(
    {
        "customer": pa.array([None, None, 1, 1, 2, 3, 5, 8, 99, 7, 7], pa.int64()),
        "product": [None, "p1", "p1", "p2", "p😀", "p2", "P1", "p1", "p1", " p2", "p2"],
        "amount": pa.array(
            [None, None, *map(Decimal, ("1.5", "2", "0.01", "7.25", "-1", "3", "4", "5", "6.10"))], pa.decimal128(8, 2)
        ),
        "day": pa.array([None, *[date(2024, 1, 1 + i % 3) for i in range(10)]]),
        "open": pa.array([None, True, False, True, True, None, False, True, True, False, True]),
    }
)
PRODUCTS = pa.table({"code": ["p1", "p2", "p2", "p😀", None], "shelf": pa.array([1, 2, 3, None, 1], pa.int32())})
SHELVES = pa.table({"shelf": pa.array([1, 2, 3, 4], pa.int16()), "height": pa.array([None, 1.5, 2.5, 3.5])})
REGIONS = pa.table({"code": ["de", "fr", "it", "it"], "tax": [19, 20, 22, 4], "zone": ["a", None, "b", "a b"]})
DAYS = pa.table({"day": [date(2024, 1, 1), date(2024, 1, 2)], "rate": pa.array([0.5, None], pa.float32())})
PARTIES = {
    "p0": {"customers": CUSTOMERS},
    "p1": {"orders": ORDERS},
    "p2": {"products": PRODUCTS},
    "p3": {"shelves": SHELVES},
    "p4": {"regions": REGIONS},
    "p5": {"days": DAYS},
}


def literal(value: Any) -> str:
    """A value as PostgreSQL and MariaDB write it."""
    if value is None or isinstance(value, bool):
        return str(value).upper().replace("NONE", "NULL")
    text = value.isoformat() if isinstance(value, date) else str(value)
    return "'" + text.replace("'", "''") + "'"


def in_server(url: str, table: str, columns: str, rows: pa.Table) -> None:
    values = ", ".join(f"({', '.join(map(literal, row.values()))})" for row in rows.to_pylist())
    if url.startswith("mysql"):
        mode = "SET sql_mode = 'NO_BACKSLASH_ESCAPES', time_zone = '+00:00'"
        mariadb_server.execute(url, mode, f"CREATE TABLE {table} ({columns})", f"INSERT INTO {table} VALUES {values}")
        return
    with dbapi.connect(url, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE {table} ({columns})")
        cursor.execute(f"INSERT INTO {table} VALUES {values}")


def in_sqlite(path: Path, table: str, columns: str, rows: pa.Table) -> str:
    def plain(value: Any) -> Any:
        return value if isinstance(value, int | float | str | None) else str(value)

    connection = sqlite3.connect(path)
    connection.execute(f"CREATE TABLE {table} ({columns})")
    marks = ", ".join("?" * rows.num_columns)
    connection.executemany(
        f"INSERT INTO {table} VALUES ({marks})", [tuple(map(plain, row.values())) for row in rows.to_pylist()]
    )
    connection.commit()
    connection.close()
    return f"sqlite:///{path}"


def in_csv(folder: Path, table: str, rows: pa.Table) -> str:
    folder.mkdir()
    with (folder / f"{table}.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(rows.column_names)
        writer.writerows(["" if value is None else value for value in row.values()] for row in rows.to_pylist())
    return f"csv:///{folder}"


@pytest.fixture(scope="module")
def schema_url(postgres_url: str) -> Iterator[str]:
    """A PostgreSQL schema of this file's own."""

    def execute(sql: str) -> None:
        with dbapi.connect(postgres_url, autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute(sql)

    execute("CREATE SCHEMA together")
    yield f"{postgres_url}&options=-csearch_path%3Dtogether"
    execute("DROP SCHEMA together CASCADE")


@pytest.fixture(scope="module")
def mysql_url(mariadb_url: str) -> Iterator[str]:
    """A MariaDB database of this file's own."""
    with mariadb_server.new_database(mariadb_url, "together") as url:
        yield url


@pytest.fixture(scope="module", params=["schema_url", "mysql_url"])
def server_url(request: pytest.FixtureRequest) -> str:
    """A PostgreSQL, then a MariaDB."""
    return str(request.getfixturevalue(request.param))


@pytest.fixture(scope="module")
def fed(server_url: str, tmp_path_factory: pytest.TempPathFactory) -> tp.Federation:
    """One table in each of PostgreSQL or MariaDB, SQLite, DuckDB, Parquet, CSV and Arrow."""
    tmp_path = tmp_path_factory.mktemp("together")
    is_mysql = server_url.startswith("mysql")
    in_server(
        server_url,
        "customers",
        f"id numeric(10,0) PRIMARY KEY, region char(8), name text, "
        f"since {'timestamp NULL' if is_mysql else 'timestamptz'}, score {'double' if is_mysql else 'numeric'}, "
        f"credit numeric(10,2), nothing text",
        CUSTOMERS,
    )
    sqlite = in_sqlite(
        tmp_path / "orders.db",
        "orders",
        "customer BIGINT, product TEXT, amount DECIMAL(8,2), day DATE, open BOOLEAN",
        ORDERS,
    )
    with duckdb.connect(str(tmp_path / "products.duckdb")) as connection:
        connection.register("rows", PRODUCTS)
        connection.execute("CREATE TABLE products AS FROM rows")
    for folder in ("shelves", "days"):
        (tmp_path / folder).mkdir()
    pyarrow.parquet.write_table(SHELVES, tmp_path / "shelves" / "shelves.parquet")
    pyarrow.feather.write_feather(DAYS, tmp_path / "days" / "days.arrow")
    return tp.Federation(
        {
            "p0": server_url,
            "p1": sqlite,
            "p2": f"duckdb:///{tmp_path}/products.duckdb",
            "p3": f"parquet:///{tmp_path}/shelves",
            "p4": in_csv(tmp_path / "regions", "regions", REGIONS),
            "p5": f"arrow:///{tmp_path}/days",
        }
    )


ALL_SIX = """
    FROM orders o JOIN customers c ON o.customer = c.id JOIN products p ON o.product = p.code
    JOIN shelves s ON p.shelf = s.shelf JOIN regions r ON r.code = c.region JOIN days d ON d.day = o.day
"""


def joined(fed: tp.Federation, aliases: str, select: str, branch: str) -> tp.Relation:
    """The relation, after checking its rows against DuckDB over the same data."""
    world = World(PARTIES, (), tuple(aliases), select, (branch,), "UNION ALL")
    expected = world.expected()
    relation = fed.sql(world.sql)
    assert expected
    assert Counter(places(relation)) == Counter(expected)
    return relation


def test_six_kinds_join(fed: tp.Federation) -> None:
    """numeric meets bigint, char(8) meets CSV text, int meets smallint, SQLite's dates meet Arrow's: DuckDB's rows."""
    relation = joined(fed, "ocpsrd", "o.amount, c.score, p.code, s.height, r.tax, d.rate", ALL_SIX)
    assert relation.plan.parties == ("p1", "p0", "p2", "p3", "p4", "p5")


@pytest.mark.parametrize(
    ("aliases", "select", "branch"),
    [
        ("oc", "c.score", "FROM orders o JOIN customers c ON o.customer = c.id WHERE c.region = 'de'"),
        ("oc", "c.score", "FROM orders o JOIN customers c ON o.customer = c.id WHERE c.credit > 0 AND o.open"),
        (
            "op",
            "p.shelf",
            "FROM orders o JOIN products p ON o.product = p.code WHERE o.product LIKE 'p%' AND o.amount >= 2",
        ),
        ("cr", "r.tax", "FROM customers c JOIN regions r ON c.region = r.code AND c.id + 16 = r.tax - 1"),
        (
            "cs",
            "s.height",
            "FROM customers c JOIN shelves s ON c.id = s.shelf WHERE c.since >= TIMESTAMPTZ '2024-01-01 00:00:00+00'",
        ),
        ("od", "d.rate", "FROM orders o JOIN days d ON o.day + 1 = d.day WHERE o.amount IS NOT NULL"),
        (
            "ab",
            "a.amount",
            "FROM orders a JOIN orders b ON a.product = b.product AND a.day = b.day WHERE a.customer <> 7",
        ),
    ],
)
def test_pairs_and_filters(fed: tp.Federation, aliases: str, select: str, branch: str) -> None:
    """Filters pushed into each database, expressions as keys and composite keys keep exactly DuckDB's rows."""
    joined(fed, aliases, select, branch)


def test_awkward_values_survive(fed: tp.Federation) -> None:
    """Leading NULLs, empty columns, time zones, exact decimals and emoji have the statistics of the raw values."""
    select = "c.name, c.since, c.score, c.credit, c.nothing, o.amount, o.open, o.day, o.product"
    relation = joined(fed, "oc", select, "FROM orders o JOIN customers c ON o.customer = c.id")
    for row in relation.describe().to_arrow().to_pylist():
        values = materialised(relation, PARTIES, row["table"], row["column"])
        known = [value for value in values if value is not None]
        assert row["count"] == len(known)
        assert row["missing"] == len(values) - len(known)
        if row["column"] not in ("score",):
            assert row["distinct"] == len(set(known))
        if known and not isinstance(known[0], str | date):
            assert row["mean"] == pytest.approx(float(sum(known)) / len(known), rel=1e-12)
            assert (row["min"], row["max"]) == (float(min(known)), float(max(known)))
    told = {row["column"]: row for row in relation.describe().to_arrow().to_pylist()}
    assert told["since"]["mean"] == (NOON.replace(tzinfo=None) - datetime(1970, 1, 1)) / timedelta(days=1)
    assert told["nothing"]["count"] == 0


READINGS = [
    pa.table(
        {
            "id": pa.array(ids, pa.int32()),
            "station": stations,
            "value": pa.array(values, pa.float64()),
            "at": pa.array(
                [None if hour is None else datetime(2024, 1, 1, hour) for hour in hours], pa.timestamp("us")
            ),
            "valid": pa.array(valid, pa.bool_()),
        }
    )
    for ids, stations, values, hours, valid in (
        (
            [1, 2, 3, 4],
            ["north", "so", None, "é😀"],
            [None, 1.5, 2.5, -1.0],
            [0, None, 2, 3],
            [True, None, False, True],
        ),
        ([5, 6, 7], ["so", "north", "north"], [None, None, 4.5], [None, 4, 5], [False, True, True]),
        ([8, 9], ["é😀", "elsewhere"], [0.25, 7.0], [6, 7], [True, False]),
    )
]
STATIONS = pa.table({"station": ["north", "so", "é😀", "so"], "height": [1.0, 2.0, None, 4.0]})


def sharded(folder: Path, url: str, shards: Sequence[pa.Table]) -> tp.Federation:
    moment = "datetime" if url.startswith("mysql") else "timestamp"
    in_server(
        url, "readings", f"id int PRIMARY KEY, station char(9), value float8, at {moment}, valid boolean", shards[0]
    )
    sqlite = in_sqlite(
        folder / "x.db", "readings", "id INTEGER, station TEXT, value REAL, at TIMESTAMP, valid BOOLEAN", shards[1]
    )
    (folder / "stations").mkdir()
    pyarrow.parquet.write_table(STATIONS, folder / "stations" / "stations.parquet")
    parquet = f"parquet:///{folder}/stations"
    return tp.Federation({"p0": url, "p1": sqlite, "p2": in_csv(folder / "csv", "readings", shards[2]), "p3": parquet})


def test_one_table_over_three_kinds(server_url: str, tmp_path: Path) -> None:
    """A vertical table sharded over a server, SQLite and CSV joins, splits and is described as one table."""
    fed = sharded(tmp_path, server_url, READINGS)
    parties = {f"p{i}": {"readings": shard} for i, shard in enumerate(READINGS)} | {"p3": {"stations": STATIONS}}
    branch = "FROM readings r JOIN stations s ON r.station = s.station WHERE r.valid IS NOT NULL OR r.value > 1"
    select = "r.value, r.at, r.valid, r.station, s.height"
    world = World(parties, (), ("r", "s"), select, (branch,), "UNION ALL")
    relation = fed.sql(world.sql, label="valid")
    assert Counter(places(relation)) == Counter(world.expected())
    told = {row["column"]: row for row in relation.describe().to_arrow().to_pylist()}
    values = [value for value in materialised(relation, parties, "r", "value") if value is not None]
    assert told["value"]["mean"] == pytest.approx(sum(values) / len(values))
    stations = materialised(relation, parties, "r", "station")
    assert told["station"]["distinct"] == len(set(stations)) == 3
    assert told["station"]["top_share"] == Counter(stations).most_common(1)[0][1] / len(stations)
    train, test = relation.split(test=0.5, seed=2)
    assert Counter(places(train)) + Counter(places(test)) == Counter(places(relation))
    assert fed.catalog().table("readings").rows == 9
