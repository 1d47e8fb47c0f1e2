"""A database that cannot be reached: callers of a service get a reference, the operator's log the reason."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from adbc_driver_postgresql import dbapi

import tablepuppet as tp
from benchmarks.proxy import Proxy
from tablepuppet.errors import PartyError
from tablepuppet.federation import Planned
from tablepuppet.party.config import Limits
from tablepuppet.party.database import Reader, UnavailableError
from tablepuppet.party.databases import mysql
from tablepuppet.party.databases.delivering import replace_rows
from tablepuppet.party.databases.urls import open_database
from tablepuppet.party.policy import EVERY_USE, ColumnRule, Policy, TableRule
from tests import mariadb_server
from tests.wire.services import calling, served

HOST, USER = "canary-host", "canary_user"


def _urls(folder: Path, postgres_url: str) -> dict[str, tuple[str, str]]:
    """URLs of databases that are not there, and what of them the operator must see and no caller."""
    (folder / f"{HOST}.duckdb").write_text("no database")
    asked = postgres_url.replace("postgresql://postgres:", f"postgresql://{USER}:")
    return {
        "refused": (asked, USER),
        "silent": (f"postgresql://{USER}@127.0.0.1:1/{HOST}", "127.0.0.1"),
        "mysql": (f"mysql://{USER}@127.0.0.1:1/{HOST}", "127.0.0.1"),
        "sqlite": (f"sqlite:///{folder}/{HOST}.db", HOST),
        "duckdb": (f"duckdb:///{folder}/{HOST}.duckdb", HOST),
        "parquet": (f"parquet:///{folder}/{HOST}", HOST),
    }


@pytest.mark.parametrize("kind", ["refused", "silent", "mysql", "sqlite", "duckdb", "parquet"])
def test_callers_get_a_reference(
    kind: str, tmp_path: Path, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """No host, port, user or path reaches a caller; all of it is in the log, under the reference that it got."""
    url, seen = _urls(tmp_path, postgres_url)[kind]
    with (
        caplog.at_level(logging.ERROR, "tablepuppet.party"),
        served({"bank": url}) as servers,
        pytest.raises(PartyError) as caught,
    ):
        calling(servers).sql("SELECT a FROM t")
    for secret in (HOST, USER, "127.0.0.1", str(tmp_path)):
        assert secret not in str(caught.value)
    assert seen in _logged(caught.value, caplog)


def _logged(error: Exception, caplog: pytest.LogCaptureFixture) -> str:
    """What the operator's log says under the reference that a caller got."""
    found = re.search(r"'bank': database not available, reference ([0-9a-f]{4});", str(error))
    assert found is not None, error
    [line] = [record.getMessage() for record in caplog.records if f"reference {found[1]}:" in record.getMessage()]
    return line


@pytest.fixture
def fragile(postgres_url: str) -> Iterator[tuple[str, Callable[[str], None]]]:
    """The URL of a database whose view ``t`` ends its connection while it is read, once that is switched on; and what
    executes a statement there.
    """
    with dbapi.connect(postgres_url, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA fragile")
        cursor.execute("SET search_path TO fragile")
        cursor.execute("CREATE TABLE switch AS SELECT false AS broken")
        cursor.execute(
            "CREATE VIEW t AS SELECT id, id * 1.5 AS x, id * 2.5 + coalesce((CASE WHEN (SELECT broken FROM switch) "
            "THEN pg_terminate_backend(pg_backend_pid()) END)::int, 0) AS y FROM generate_series(1, 50) AS s(id)"
        )
        yield f"{postgres_url}&options=-csearch_path%3Dfragile", cursor.execute
        cursor.execute("DROP SCHEMA fragile CASCADE")


@pytest.mark.parametrize("phase", ["reading", "a later op"])
def test_a_connection_that_is_lost_after_opening(
    phase: str, fragile: tuple[str, Callable[[str], None]], caplog: pytest.LogCaptureFixture
) -> None:
    """Whenever the database goes away, callers get a reference, and the log the reason; when it is back, work goes
    on.
    """
    url, execute = fragile
    policy = Policy(others=TableRule(others=ColumnRule(EVERY_USE)))
    with caplog.at_level(logging.ERROR, "tablepuppet.party"), served({"bank": url}, policy=policy) as servers:
        fed = calling(servers)
        planned = fed.plan("SELECT x, y FROM t", "y")
        relation = fed.open(planned)
        model = tp.LinearRegression().fit(relation)
        opening = fed._describe()[1]  # before it breaks
        asked: dict[str, Callable[[], object]] = {
            "reading": lambda: fed.open(Planned(planned.plan, 256, [opening])),
            "a later op": lambda: model.predict(relation, ids=["id"]),
        }
        execute("UPDATE switch SET broken = true")
        with pytest.raises(PartyError) as caught:
            asked[phase]()
        assert "PostgreSQL: " in _logged(caught.value, caplog)
        execute("UPDATE switch SET broken = false")
        assert len(fed.sql("SELECT x, y FROM t")) == 50


def test_a_connection_to_mariadb_that_is_lost(mariadb_url: str) -> None:
    """Killed between the catalog and the rows."""
    with mariadb_server.new_database(mariadb_url, "fragile") as url:
        mariadb_server.execute(url, "CREATE TABLE t AS SELECT seq AS id FROM seq_1_to_50")
        database = open_database("bank", url)
        with (
            pytest.raises(UnavailableError, match=r"MySQL: the connection to 127\.0\.0\.1:\d+ was lost"),
            database.reader() as reader,
        ):
            _read_when_killed(url, reader)
        with database.reader() as reader:
            found = reader.source("t", {"id": "UBIGINT"})
            assert found.connection.execute(f"SELECT count(*) FROM {found.sql}").fetchall() == [(50,)]


@pytest.mark.parametrize("how", ["lost", "silent"])
def test_an_outage_of_mariadb(
    how: str, mariadb_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes away, or falls silent, while rows are read: the request ends, at the latest with its time, and callers
    get a reference. What a party has in memory is answered meanwhile, and when the server is back all of it.
    """
    monkeypatch.setattr(mysql, "CANCEL", 1.0)
    limits, port = Limits(request_seconds=4.0), urlsplit(mariadb_url).port
    policy = Policy(limits=limits, others=TableRule(others=ColumnRule(EVERY_USE)))
    assert port is not None
    with ExitStack() as stack:
        direct = stack.enter_context(mariadb_server.new_database(mariadb_url, "outage"))
        stack.enter_context(caplog.at_level(logging.ERROR, "tablepuppet.party"))
        mariadb_server.execute(
            direct,
            "CREATE TABLE t AS SELECT seq AS id, seq * 1.5 AS x, seq * 2.5 AS y FROM seq_1_to_50",
            "CREATE VIEW slow AS SELECT x FROM t JOIN seq_1_to_20 WHERE sleep(0.01) = 0",
        )
        proxy = stack.enter_context(Proxy("127.0.0.1", port))
        url = direct.replace(f":{port}/", f":{proxy.port}/")
        fed = calling(stack.enter_context(served({"bank": url}, policy=policy, limits=limits)), timeout=20.0)
        relation = fed.sql("SELECT x, y FROM t", "y")
        model = tp.LinearRegression().fit(relation)
        pool = stack.enter_context(ThreadPoolExecutor(1))
        asked = pool.submit(fed.sql, "SELECT x FROM slow")
        reads = "SELECT count(*) FROM information_schema.processlist WHERE info LIKE '/* tablepuppet/bank */%'"
        while mariadb_server.execute(direct, reads) == [(0,)]:
            time.sleep(0.05)
        proxy.cut() if how == "lost" else proxy.stall()
        error = asked.exception(60)
        assert isinstance(error, PartyError)
        assert "MySQL: the connection to 127.0.0.1" in _logged(error, caplog)
        assert len(model.predict(relation)) == 50
        if how == "lost":
            with pytest.raises(PartyError, match="database not available, reference"):
                model.predict(relation, ids=["id"])
        proxy.restore()
        assert len(model.predict(relation, ids=["id"])) == 50
        assert len(fed.sql("SELECT x FROM t")) == 50


def test_a_mariadb_that_is_frozen(mariadb_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine accepts connections, and nobody answers: it is not available after a few seconds, as at the start of
    a party and for its health. A server that lets somebody in may be silent for longer, over a long statement.
    """
    port = urlsplit(mariadb_url).port
    assert port is not None
    with mariadb_server.new_database(mariadb_url, "frozen") as direct, Proxy("127.0.0.1", port) as proxy:
        mariadb_server.execute(direct, "CREATE VIEW slow AS SELECT sleep(3) AS x")
        database = open_database("bank", direct.replace(f":{port}/", f":{proxy.port}/"))
        monkeypatch.setattr(mysql, "GREETING", 1.0)
        with database.reader() as reader:
            found = reader.source("slow", {"x": "INTEGER"})
            assert found.connection.execute(f"SELECT count(*) FROM {found.sql}").fetchall() == [(1,)]
        proxy.stall()
        began = time.monotonic()
        with pytest.raises(UnavailableError, match="MySQL"):
            database.tables()
        assert time.monotonic() - began < 60  # of 600 for a long statement
        proxy.restore()
        assert [table.name for table in database.tables()] == ["slow"]


def _read_when_killed(url: str, reader: Reader) -> None:
    own = "SELECT id FROM information_schema.processlist WHERE db = 'fragile' AND id <> connection_id()"
    [(number,)] = mariadb_server.execute(url, own)
    mariadb_server.execute(url, f"KILL {number}")
    reader.source("t", {"id": "UBIGINT"})


def test_delivering_to_a_database_that_is_lost(fragile: tuple[str, Callable[[str], None]]) -> None:
    """A server that is not there, or that ends the connection while predictions are written, is not taken for one that
    forbids it.
    """
    url, execute = fragile
    rows = pa.table({"id": [1, 2], "prediction": [0.5, 1.5], "run": ["r", "r"]})
    for gone in (f"postgresql://{USER}@127.0.0.1:1/{HOST}", f"mysql://{USER}@127.0.0.1:1/{HOST}"):
        with pytest.raises(UnavailableError, match=r"127\.0\.0\.1"):
            replace_rows("bank", gone, "found", rows, "r")
    execute("CREATE TABLE found (id bigint, prediction float8, run text)")
    execute(
        "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM "
        "pg_terminate_backend(pg_backend_pid()); RETURN NEW; END $$"
    )
    execute("CREATE TRIGGER fails BEFORE INSERT ON found FOR EACH ROW EXECUTE FUNCTION fail()")
    with pytest.raises(UnavailableError, match="the connection was lost while predictions were written"):
        replace_rows("bank", url, "found", rows, "r")
    execute("DROP TRIGGER fails ON found")
    replace_rows("bank", url, "found", rows, "r")


def test_in_process_parties_say_why(tmp_path: Path) -> None:
    """In the analyst's own process the reason is the error."""
    with pytest.raises(PartyError, match=HOST):
        tp.Federation({"bank": f"sqlite:///{tmp_path}/{HOST}.db"}).sql("SELECT a FROM t")
