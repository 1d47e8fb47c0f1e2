"""What a production database notices of a party, by its own statistics and lists of processes."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adbc_driver_postgresql import dbapi

import tablepuppet as tp
from tablepuppet.errors import PartyError, PrivacyError
from tablepuppet.party.allowance import Allowance, allowed
from tablepuppet.party.config import Limits, PartyFile
from tablepuppet.party.database import POSITION, Database, UnavailableError
from tablepuppet.party.databases import mysql, servers
from tablepuppet.party.databases.urls import open_database
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.policy import Policy
from tablepuppet.party.published import Published, PublishedTable, open_published
from tablepuppet.party.request import Request
from tablepuppet.party.service import HERE, Party
from tablepuppet.sql.catalog import Catalog, Shard
from tablepuppet.sql.parse import parse
from tablepuppet.sql.plan import Scan, plan, pushable
from tablepuppet.wire import desk as desk_module
from tablepuppet.wire.desk import Desk
from tests import mariadb_server
from tests.wire.services import calling, served

LARGE = 200_000  # rows of a table that is not counted
ASK = {
    "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tablepuppet/shop'",
    "mariadb": "SELECT count(*) FROM information_schema.processlist WHERE info LIKE '/* tablepuppet/shop */%'",
}
SLOW = {  # a view that takes minutes, row by row
    "postgresql": "CREATE VIEW slow AS SELECT i AS a, pg_sleep(0.01)::text AS b FROM generate_series(1, 60000) i",
    "mariadb": "CREATE VIEW slow AS SELECT CAST(seq AS SIGNED) AS a FROM seq_1_to_60000 WHERE sleep(0.01) = 0",
}


def in_postgres(url: str, *statements: str) -> list[tuple[Any, ...]]:
    """Run statements; the rows of the last one."""
    with dbapi.connect(url, autocommit=True) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        return list(cursor.fetchall()) if cursor.description else []


@pytest.fixture
def postgres(postgres_url: str) -> Iterator[str]:
    """A schema of the test's own."""
    in_postgres(postgres_url, "CREATE SCHEMA busy")
    yield f"{postgres_url}&options=-csearch_path%3Dbusy%20-cwork_mem%3D64kB"
    in_postgres(postgres_url, "DROP SCHEMA busy CASCADE")


@pytest.fixture
def mariadb(mariadb_url: str) -> Iterator[str]:
    """A database of the test's own."""
    with mariadb_server.new_database(mariadb_url, "busy") as url:
        yield url


@pytest.fixture(params=["postgresql", "mariadb"])
def server(request: pytest.FixtureRequest) -> tuple[str, str, Callable[..., list[tuple[Any, ...]]]]:
    """A kind of server, the URL of an empty database there, and a function that runs statements in it."""
    if request.param == "postgresql":
        url: str = request.getfixturevalue("postgres")
        return request.param, url, lambda *statements: in_postgres(url, *statements)
    url = request.getfixturevalue("mariadb")
    return request.param, url, lambda *statements: mariadb_server.execute(url, *statements)


def large(postgres: str) -> None:
    """A table of more bytes than are counted, in another order than that of its key."""
    in_postgres(
        postgres,
        f"CREATE TABLE orders AS SELECT (i * 7919::bigint) % {LARGE} AS id, i % 7 AS x, 'n' || i AS name "
        f"FROM generate_series(0, {LARGE - 1}) i",
        "ALTER TABLE orders ADD PRIMARY KEY (id)",
        "ANALYZE orders",
        "SELECT pg_stat_force_next_flush()",
    )


def settled(postgres: str) -> None:
    """Wait for the end of a party's connections: then the server has counted what they did."""
    assert until(lambda: in_postgres(postgres, ASK["postgresql"]) == [(0,)])


def scans(postgres: str, table: str) -> int:
    """How often the server has read a table from its beginning to its end."""
    settled(postgres)
    [(found,)] = in_postgres(postgres, f"SELECT seq_scan FROM pg_stat_user_tables WHERE relname = '{table}'")
    return int(found)


def until(check: Callable[[], bool]) -> bool:
    """Whether something is so within a minute."""
    end = time.monotonic() + 60
    while not (found := check()) and time.monotonic() < end:
        time.sleep(0.05)
    return found


def published(url: str, **tables: tuple[str, ...]) -> Published:
    """Some tables of a database."""
    return Published("shop", open_database("shop", url), [PublishedTable(*each) for each in tables.items()])


def scan_of(table: str, sql: str, columns: dict[str, str]) -> tuple[Scan, ...]:
    """What a query reads of a table whose rows nobody has counted."""
    catalog = Catalog([Shard("shop", table, columns, 1)])
    return plan(parse(sql, catalog), catalog).scans


def test_nothing_unpublished_is_touched_or_named(postgres: str) -> None:
    """A catalog reads no table that is not published, evaluates no view, and names neither."""
    in_postgres(
        postgres,
        "CREATE TABLE orders (id int PRIMARY KEY, x int)",
        "INSERT INTO orders VALUES (1, 1), (2, 2)",
        "CREATE TABLE hidden AS SELECT 1 AS id",
        "CREATE VIEW failing AS SELECT id / 0 AS y FROM hidden",
        SLOW["postgresql"],
    )
    before = scans(postgres, "hidden")
    party = Party("shop", published(postgres, orders=("id", "x")), b"key", Policy())
    assert [(shard.name, shard.rows, shard.estimated) for shard in party.describe(HERE)] == [("orders", 2, False)]
    assert len(party.open(HERE, "s", scan_of("orders", "SELECT x FROM orders", {"id": "INTEGER", "x": "INTEGER"}))) == 1
    assert scans(postgres, "hidden") == before
    with pytest.raises(PartyError) as caught:
        published(postgres, orders=("id",), lost=("id",)).tables()
    assert "hidden" not in str(caught.value)
    assert "failing" not in str(caught.value)


def test_everything_is_published_without_evaluating_it(server: Any) -> None:
    """A database that is opened by its URL lists views too, with the rows that its server expects."""
    kind, url, run = server
    run("CREATE TABLE orders (id int PRIMARY KEY, x int)", "INSERT INTO orders VALUES (1, 1), (2, 2)", SLOW[kind])
    [orders, slow] = open_database("shop", url).tables()
    assert (orders.name, orders.rows, orders.estimated) == ("orders", 2, False)
    assert (slow.name, slow.estimated) == ("slow", True)
    assert slow.rows > 1000
    catalog = tp.Federation({"shop": url}).catalog()
    assert re.search(rf"slow +. shop +. +~{slow.rows:,} ", str(catalog).replace("│", "."))
    assert catalog.to_arrow().filter(catalog.to_arrow()["table"].to_numpy() == "slow")["rows"][0].as_py() == slow.rows


def test_a_large_table_is_not_counted(postgres: str) -> None:
    """Its rows are the planner's estimate, then as many as were read; nothing reads it for the catalog."""
    large(postgres)
    before = scans(postgres, "orders")
    fed = tp.Federation({"shop": postgres})
    shard = fed.catalog().table("orders").shards[0]
    assert shard.estimated
    assert shard.rows == pytest.approx(LARGE, rel=0.2)
    assert scans(postgres, "orders") == before
    in_postgres(postgres, "UPDATE pg_class SET reltuples = 1000 WHERE relname = 'orders'")  # an estimate may be bad
    assert len(fed.sql("SELECT x FROM orders")) == LARGE
    assert fed.catalog().table("orders").counted == f"~{LARGE:,}"


def test_filters_reach_the_index(postgres: str) -> None:
    """Of a large table an index finds the few rows that are asked for, by number or text; `rows` knows their places."""
    large(postgres)
    in_postgres(postgres, "CREATE INDEX ON orders (name)", "ANALYZE orders")
    before = scans(postgres, "orders")
    fed = tp.Federation({"shop": postgres})
    few = fed.sql("SELECT id, x FROM orders WHERE id BETWEEN 100 AND 109")
    assert len(few) == 10
    assert len(fed.sql("SELECT x FROM orders WHERE name IN ('n5', 'n7')")) == 2
    assert scans(postgres, "orders") == before
    assert few.rows()["orders.row"].to_pylist() == list(range(100, 110))
    in_postgres(postgres, "DELETE FROM orders WHERE id = 105")
    with pytest.raises(PartyError, match="has changed since the relation was opened"):
        few.rows()


def test_mariadb_finds_few_rows_by_an_index(mariadb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server does not go through a table for some rows of it, nor to say how large it is."""
    mariadb_server.execute(
        mariadb,
        "CREATE TABLE orders (id int PRIMARY KEY, x int, name varchar(20), KEY (name))",
        "INSERT INTO orders SELECT seq, seq % 7, concat('n', seq) FROM seq_1_to_100000",
        "ANALYZE TABLE orders",
    )
    monkeypatch.setattr(mysql, "MOST_COUNTED", 0)
    rows = "SELECT sum(variable_value) FROM information_schema.global_status WHERE variable_name IN "
    rows += "('Handler_read_rnd_next', 'Handler_read_next')"
    [(before,)] = mariadb_server.execute(mariadb, rows)
    fed = tp.Federation({"shop": mariadb})
    shard = fed.catalog().table("orders").shards[0]
    assert (len(fed.sql("SELECT x FROM orders WHERE id < 10")), shard.estimated) == (9, True)
    assert len(fed.sql("SELECT x FROM orders WHERE name = 'n77'")) == 1
    assert mariadb_server.execute(mariadb, rows)[0][0] - before < 50_000
    assert shard.rows == pytest.approx(100_000, rel=0.5)


def test_days_are_compared_at_the_server(server: Any) -> None:
    """As DuckDB does, whatever is written; a zero date of MariaDB, which is missing here, is never lost or found."""
    kind, url, execute = server
    days = ["'2024-01-01'", "'2024-02-29'", "'2024-03-01'", "NULL", "'infinity'" if kind == "postgresql" else "0"]
    mode = [] if kind == "postgresql" else ["SET SESSION sql_mode = ''"]
    values = ", ".join(f"({number}, {day})" for number, day in enumerate(days, 1))
    execute("CREATE TABLE visits (id int PRIMARY KEY, day date)", *mode, f"INSERT INTO visits VALUES {values}")
    fed = tp.Federation({"shop": url})
    infinite = {5} if kind == "postgresql" else set[int]()
    expected = {
        "day = DATE '2024-02-29'": {2},
        "day >= '2024-02-29'": {2, 3} | infinite,
        "day < CAST('2024-03-01' AS DATE)": {1, 2},
        "day <> DATE '2024-01-01'": {2, 3} | infinite,
        "day IN (DATE '2024-01-01', DATE '2024-03-01')": {1, 3},
        "day BETWEEN DATE '2024-01-02' AND DATE '2024-12-31'": {2, 3},
        "day IS NULL": {4, 5} - infinite,
    }
    for condition, ids in expected.items():
        found = fed.sql(f"SELECT day FROM visits WHERE {condition}")
        assert {place + 1 for place in found.rows()["visits.row"].to_pylist()} == ids, condition
        with open_database("shop", url).reader() as reader:
            pushed = pushable(condition, {"day": "DATE"})
            sent = reader.source("visits", {"id": "INTEGER", "day": "DATE"}, pushed)
            [rows] = sent.connection.execute(f"SELECT list(id) FROM {sent.sql}").fetchall()
            assert ids <= set(rows[0]), condition  # and DuckDB filters again
            assert len(rows[0]) < 5 or not pushed, condition


def opened(postgres: str, *queries: str, **limits: int) -> tuple[Party, list[LocalTable]]:
    """A party over the table of orders, and what it has read for some queries of a caller elsewhere."""
    policy = Policy(limits=Limits(**limits))
    party = Party("shop", open_database("shop", postgres), b"key", policy, b"secret of rows")
    tables = []
    for number, sql in enumerate(queries):
        asked = scan_of("orders", sql, {"id": "INTEGER", "x": "INTEGER"})
        party.open("analyst", f"s{number}", asked, again=True)
        tables.append(party.table(f"s{number}", "orders", "analyst"))
    return party, tables


def small(postgres: str) -> None:
    """A table of twenty orders."""
    in_postgres(
        postgres,
        "CREATE TABLE orders (id int PRIMARY KEY, x int)",
        "INSERT INTO orders SELECT i, i * i FROM generate_series(1, 20) i",
    )


def test_noise_of_a_label_knows_its_row(postgres: str) -> None:
    """A row has one place in the state that noise is drawn from, whatever filter its database has used."""
    small(postgres)
    _, tables = opened(
        postgres, "SELECT x FROM orders", "SELECT x FROM orders WHERE id > 10", "SELECT x FROM orders WHERE id >= 15"
    )
    assert [table.snapshot.is_located for table in tables] == [True, False, False]
    states = [table.state_of("x") for table in tables]
    assert len({state.fingerprint for state in states}) == 1
    assert [state.positions.tolist() for state in states] == [
        list(range(20)),
        list(range(10, 20)),
        list(range(14, 20)),
    ]
    in_postgres(postgres, "UPDATE orders SET x = 0 WHERE id = 20")
    assert tables[1].state_of("x").fingerprint != tables[2].state_of("x").fingerprint != states[0].fingerprint


def test_splits_of_different_rows_are_counted(postgres: str) -> None:
    """Equal choices among the rows of two filters are two splits; the same one again is none."""
    small(postgres)
    party, tables = opened(
        postgres, "SELECT x FROM orders WHERE id > 10", "SELECT x FROM orders WHERE id <= 10", max_splits=1
    )
    for number, _ in enumerate(tables):
        rows = {"view": "v", "chosen": None, "counts": np.ones(10, np.int64)}
        party.run("analyst", f"s{number}", "rows.use", "orders", rows)
    ranks = {"view": "v", "ranks": np.arange(3)}
    first = party.run("analyst", "s0", "rows.sample", "orders", ranks)
    assert party.run("analyst", "s0", "rows.sample", "orders", ranks).keys() == first.keys()
    with pytest.raises(PrivacyError, match="max_splits"):
        party.run("analyst", "s1", "rows.sample", "orders", ranks)


def test_an_estimate_is_no_new_allowance_of_splits(postgres: str) -> None:
    """Rows that are changed in place have the same order: what the server expects is another number all the same."""
    large(postgres)
    in_postgres(postgres, "ALTER TABLE orders ALTER id TYPE int", "ANALYZE orders")
    party, [table] = opened(postgres, "SELECT x FROM orders WHERE id < 20", max_splits=1)
    rows = {"view": "v", "chosen": None, "counts": np.ones(table.snapshot.rows, np.int64)}
    party.run("analyst", "s0", "rows.use", "orders", rows)
    [before] = party._readings.database.tables(["orders"])
    party.run("analyst", "s0", "rows.sample", "orders", {"view": "v", "ranks": np.arange(3)})
    in_postgres(postgres, f"UPDATE orders SET x = x + 0 WHERE id < {LARGE // 2}")
    [after] = party._readings.database.tables(["orders"])
    assert (before.estimated, after.estimated, before.rows == after.rows) == (True, True, False)
    party.describe("analyst")
    with pytest.raises(PrivacyError, match="max_splits"):
        party.run("analyst", "s0", "rows.sample", "orders", {"view": "v", "ranks": np.arange(4)})


def test_a_select_over_a_large_table_is_not_evaluated(postgres: str) -> None:
    """Its columns follow from types, and its rows are estimated by those of its largest table."""
    large(postgres)
    before = scans(postgres, "orders")
    select = PublishedTable("sums", ("x", "ids"), "SELECT x, sum(id) AS ids FROM orders GROUP BY x")
    database = Published("shop", open_database("shop", postgres), [select])
    [found] = database.tables()
    assert (found.name, dict(found.columns), found.aggregates) == ("sums", {"x": "INTEGER", "ids": "HUGEINT"}, True)
    assert found.estimated
    assert found.rows == pytest.approx(LARGE, rel=0.2)
    assert scans(postgres, "orders") == before
    with database.reader() as reader:
        source = reader.source("sums", {"x": "INTEGER"})
        assert source.connection.execute(f"SELECT count(*) FROM {source.sql}").fetchall() == [(7,)]


@pytest.mark.parametrize("key", ["id", "name", None])
def test_no_temporary_space(postgres: str, key: str | None) -> None:
    """All rows of a table come in the order of its key, of whatever type, and the server sorts nothing on its disk."""
    large(postgres)
    in_postgres(postgres, "ALTER TABLE orders DROP CONSTRAINT orders_pkey")
    if key is not None:
        in_postgres(postgres, f"ALTER TABLE orders ADD PRIMARY KEY ({key})", "ANALYZE orders")
    spilled = "SELECT temp_files FROM pg_stat_database WHERE datname = current_database()"
    before = in_postgres(postgres, "SELECT pg_stat_force_next_flush()", spilled)
    with open_database("shop", postgres).reader() as reader:
        source = reader.source("orders", {"id": "BIGINT"})
        found = source.connection.execute(f"SELECT id FROM {source.sql} ORDER BY {POSITION}").fetchall()
    settled(postgres)
    assert in_postgres(postgres, spilled) == before
    assert found == in_postgres(postgres, f"SELECT id FROM orders ORDER BY {key or 'id'}")


def test_a_request_ends_at_the_server_too(server: Any) -> None:
    """When the time of a request is up, its statement is not among the server's any more."""
    kind, url, run = server
    run(SLOW[kind])
    party = Party("shop", published(url, slow=("a",)), b"key", Policy(limits=Limits(request_seconds=1.0)))
    limited = allowed(Allowance("shop", party._guard.policy.limits))
    with pytest.raises(PartyError, match="request_seconds"), limited:
        party.open(HERE, "s", scan_of("slow", "SELECT a FROM slow WHERE a < 50000.5", {"a": "BIGINT"}))
    assert until(lambda: run(ASK[kind]) == [(0,)])


def test_the_server_has_a_limit_of_its_own(server: Any) -> None:
    """A server ends by itself what a party that hangs would not: a second after the request's limit, or its own."""
    kind, url, run = server
    if kind == "postgresql":
        run("CREATE VIEW mine AS SELECT setting::float8 / 1000 AS s FROM pg_settings WHERE name = 'statement_timeout'")
    else:
        run(
            "CREATE FUNCTION mine() RETURNS double RETURN @@max_statement_time",
            "CREATE VIEW mine AS SELECT mine() AS s",
        )

    def limit(database: Database) -> float:
        with database.reader() as reader:
            source = reader.source("mine", {"s": "DOUBLE"})
            [(found,)] = source.connection.execute(f"SELECT s FROM {source.sql}").fetchall()
            return float(found)

    database = open_database("shop", url)
    assert limit(database) == 0
    with allowed(Allowance("shop", Limits(request_seconds=300.0))):
        assert 200 < limit(database) <= 301
        if kind == "postgresql":
            assert limit(open_database("shop", f"{url}%20-cstatement_timeout%3D7000")) == 7


def test_an_operator_sees_who_asks(postgres: str) -> None:
    """A party's connections have its name; a URL may give another."""
    name = "SELECT DISTINCT application_name FROM pg_stat_activity WHERE application_name LIKE '%shop%'"
    with open_database("my shop", postgres).reader():
        assert in_postgres(postgres, name) == [("tablepuppet/my_shop",)]
    with open_database("shop", f"{postgres}&application_name=shopping").reader():
        assert in_postgres(postgres, name) == [("shopping",)]


def test_few_connections(postgres: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """All databases of a party file together open no more connections than it allows; others wait."""
    in_postgres(postgres, "CREATE TABLE t AS SELECT 1 AS a, pg_sleep(0)::text AS b")
    (tmp_path / "party.toml").write_text(
        f'name = "shop"\nlisten = "127.0.0.1:0"\ndatabase = "{postgres}"\nblinding_key = "k"\nallow = ["a"]\n'
        '[limits]\ndatabase_connections = 1\n[tables.t.columns]\na = "feature"\n'
    )
    settings = PartyFile.load(tmp_path / "party.toml")
    one, two = open_published(settings), open_published(settings, with_keys=True)
    monkeypatch.setattr(servers, "PATIENCE", 0.1)
    with one.reader(), pytest.raises(UnavailableError, match="database_connections"):
        two.tables()
    with one.reader():
        Party("shop", two, b"key").reach_database()  # a server that is busy is not down
    done = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        with one.reader(), allowed(Allowance("shop")):
            waiting = pool.submit(_in_request, two, done)
            assert not done.wait(1.0)
        assert [table.rows for table in waiting.result(60)] == [1]


def _in_request(database: Database, done: threading.Event) -> list[Any]:
    with allowed(Allowance("shop")):
        found = database.tables()
    done.set()
    return found


def test_what_nobody_waits_for_ends(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that goes away, and does not come back, leaves no statement at the server."""
    kind, url, run = server
    run(SLOW[kind])
    monkeypatch.setattr(desk_module, "RETURN", 0.5)
    party, gone = Party("shop", open_database("shop", url), b"key", row_secret=b"rows"), threading.Event()
    nonce = party.answer("analyst", Request("describe"))[0]["nonce"]
    asked = scan_of("slow", "SELECT a FROM slow WHERE a < 50000.5", {"a": "BIGINT"})
    request = Request("open", "s", {"scans": asked, "wire": "float64", "nonces": (nonce,)})
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(Desk(party, Limits()).answer, "analyst", request, gone.is_set)
        assert until(lambda: run(ASK[kind]) == [(1,)])
        gone.set()
        assert b"the caller went away" in answer.result(60).header
    assert until(lambda: run(ASK[kind]) == [(0,)])


def test_a_service_knows_that_its_caller_has_gone(postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a call ends before its reply, what it asked for ends at the server of the database."""
    in_postgres(postgres, SLOW["postgresql"])
    monkeypatch.setattr(desk_module, "RETURN", 0.5)
    with served({"shop": postgres}) as servers, ThreadPoolExecutor(1) as pool:
        seen = pool.submit(until, lambda: in_postgres(postgres, ASK["postgresql"]) == [(1,)])
        with pytest.raises(PartyError, match="does not answer within 10 s"):
            len(calling(servers, timeout=10.0).sql("SELECT a FROM slow WHERE a < 50000.5"))
        assert seen.result()
        assert until(lambda: in_postgres(postgres, ASK["postgresql"]) == [(0,)])


def test_a_caller_that_comes_back_finds_its_request() -> None:
    """A request goes on for as long as one of the calls that ask for it lives, and for a while after the last."""
    line = desk_module.Line(calls=[lambda: True, lambda: False])
    line.seen -= 2 * desk_module.RETURN
    assert not line.is_abandoned()
    line.calls.pop()
    assert not line.is_abandoned()
    line.seen -= 2 * desk_module.RETURN
    assert line.is_abandoned()
