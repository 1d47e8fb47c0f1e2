"""MySQL and MariaDB: a real MariaDB, read through `open_database`."""

from __future__ import annotations

import socket
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tablepuppet.errors import ConfigError, PartyError
from tablepuppet.party.database import POSITION, Database, Reader
from tablepuppet.party.databases.urls import open_database
from tablepuppet.sql.query import Comparison
from tests import mariadb_server

CANARY = "canary-4711"


@pytest.fixture
def url(mariadb_url: str) -> Iterator[str]:
    """A database of the test's own."""
    with mariadb_server.new_database(mariadb_url, "shop") as url:
        yield url


def stored(url: str, *statements: str) -> Database:
    """The database after some statements."""
    mariadb_server.execute(url, *statements)
    return open_database("shop", url)


def seen(
    reader: Reader, table: str, columns: Mapping[str, str], where: Sequence[Comparison] = ()
) -> list[tuple[Any, ...]]:
    """Rows by position, which comes last."""
    source = reader.source(table, columns, where)
    read = source.connection.sql(f"SELECT * FROM {source.sql} ORDER BY {POSITION}").to_arrow_table()
    return list(zip(*(column.to_pylist() for column in read.columns), strict=True))


def rows(
    database: Database, table: str, columns: Mapping[str, str], where: Sequence[Comparison] = ()
) -> list[tuple[Any, ...]]:
    """The same in a reader of its own."""
    with database.reader() as reader:
        return seen(reader, table, columns, where)


def failure(action: Callable[[], object]) -> str:
    """What the error says that ``action`` must raise; its whole traceback holds no canary."""
    with pytest.raises((PartyError, ConfigError)) as caught:
        action()
    assert CANARY not in "".join(traceback.format_exception(caught.value))
    return str(caught.value)


# column: declared, DuckDB's type, inserted, what DuckDB makes of it as text (None: cannot be read)
TYPES = {
    "flag": ("bool", "BOOLEAN", "true", "true"),
    "bit1": ("bit(1)", "BOOLEAN", "b'0'", "false"),
    "bit9": ("bit(9)", "UBIGINT", "b'100000001'", "257"),
    "i1": ("tinyint", "TINYINT", "-128", "-128"),
    "u1": ("tinyint unsigned", "UTINYINT", "255", "255"),
    "i2": ("smallint", "SMALLINT", "-32768", "-32768"),
    "u2": ("smallint unsigned", "USMALLINT", "65535", "65535"),
    "i3": ("mediumint", "INTEGER", "-8388608", "-8388608"),
    "u3": ("mediumint unsigned", "UINTEGER", "16777215", "16777215"),
    "i4": ("int", "INTEGER", "-2147483648", "-2147483648"),
    "u4": ("int unsigned", "UINTEGER", "4294967295", "4294967295"),
    "z4": ("int(8) zerofill", "UINTEGER", "42", "42"),
    "i8": ("bigint", "BIGINT", "-9223372036854775808", "-9223372036854775808"),
    "u8": ("bigint unsigned", "UBIGINT", "18446744073709551615", "18446744073709551615"),
    "dec": ("decimal(20,3)", "DECIMAL(20,3)", "12345678901234567.125", "12345678901234567.125"),
    "fine": ("decimal(38,30)", "DECIMAL(38,30)", "-1e-30", "-0.000000000000000000000000000001"),
    "wide": ("decimal(65,2)", "DOUBLE", "1.5", "1.5"),
    "f4": ("float", "FLOAT", "16777217.5", "16777218.0"),
    "f8": ("double", "DOUBLE", "0.30000000000000004", "0.30000000000000004"),
    "tiny": ("double", "DOUBLE", "2.2250738585072014e-308", "2.2250738585072014e-308"),
    "m8": ("double(12,2)", "DOUBLE", "1234567890.126", "1234567890.13"),
    "year": ("year", "SMALLINT", "1999", "1999"),
    "day": ("date", "DATE", "'2020-02-29'", "2020-02-29"),
    "dt": ("datetime", "TIMESTAMP", "'9999-12-31 23:59:59'", "9999-12-31 23:59:59"),
    "dt6": ("datetime(6)", "TIMESTAMP", "'2020-02-29 12:00:00.000001'", "2020-02-29 12:00:00.000001"),
    "ts": ("timestamp(3) null", "TIMESTAMP WITH TIME ZONE", "'2020-02-29 12:00:00.5'", "2020-02-29 10:00:00.5+00"),
    "c": ("char(5)", "VARCHAR", "'ab '", "ab"),
    "vc": ("varchar(5)", "VARCHAR", "'x '", "x "),
    "latin": ("varchar(5) character set latin1", "VARCHAR", "'é'", "é"),
    "long": ("longtext", "VARCHAR", "'it''s 😀\\\\'", "it's 😀\\"),
    "mood": ("enum('sad','ok')", "VARCHAR", "'ok'", "ok"),
    "tags": ("set('p','q')", "VARCHAR", "'q,p'", "p,q"),
    "json": ("json", "VARCHAR", "'{}'", "{}"),  # MariaDB's is a text; MySQL's would be refused
    "uuid": ("uuid", "UUID", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    "bin": ("varbinary(5)", "BLOB", "'x'", None),
    "blob": ("blob", "BLOB", "'x'", None),
    "time": ("time", "TIME", "'-800:00:00'", None),
    "point": ("point", "POINT", "point(1, 2)", None),
    "ip": ("inet6", "INET6", "'::1'", None),
}


def test_types(url: str) -> None:
    """Every type is published under DuckDB's name, and read as it is meant, with and without a value."""
    ddl = ", ".join(f'"{name}" {declared}' for name, (declared, *_) in TYPES.items())
    values = ", ".join(value for _, _, value, _ in TYPES.values())
    inserts = (f"INSERT INTO t VALUES ({values})", "INSERT INTO t (flag) VALUES (NULL)")
    database = stored(url, "SET time_zone = '+02:00'", f"CREATE TABLE t ({ddl})", *inserts)
    [table] = database.tables()
    assert table.columns == {name: type_ for name, (_, type_, _, _) in TYPES.items()}
    readable = {name: table.columns[name] for name, (*_, text) in TYPES.items() if text is not None}
    with database.reader() as reader:
        source = reader.source("t", readable)
        texts = ", ".join(f'CAST("{name}" AS VARCHAR)' for name in readable)
        sql = f"SELECT {texts} FROM {source.sql} ORDER BY flag NULLS LAST"
        full, empty = source.connection.sql(sql).fetchall()
        for name in set(table.columns) - set(readable):
            asked = {name: table.columns[name]}
            assert "cannot be read" in failure(lambda asked=asked: reader.source("t", asked))  # type: ignore[misc]
    assert dict(zip(readable, full, strict=True)) == {name: TYPES[name][3] for name in readable}
    assert set(empty) == {None}


def test_zero_dates_are_missing(url: str) -> None:
    """The zero date is missing, also for a pushed IS NULL; a date that is partly zero is an error."""
    database = stored(
        url,
        "SET sql_mode = ''",
        "CREATE TABLE t (id int PRIMARY KEY, d date NOT NULL, s datetime(3), z timestamp NULL)",
        "INSERT INTO t VALUES (1, '0000-00-00', '0000-00-00', '0000-00-00'), (2, '2020-01-02', NULL, NULL)",
        "CREATE TABLE partly (d date)",
        "INSERT INTO partly VALUES ('2020-02-00')",
    )
    columns = {"id": "INTEGER", "d": "DATE", "s": "TIMESTAMP", "z": "TIMESTAMP WITH TIME ZONE"}
    [zero, second] = rows(database, "t", columns)
    assert zero == (1, None, None, None, 0)
    assert second[0] == 2
    assert second[1] is not None
    for column in ("d", "s", "z"):
        assert zero in rows(database, "t", columns, [Comparison(column, "is null")])
    assert second in rows(database, "t", columns, [Comparison("d", "is not null")])
    assert "column 'd' is declared DATE" in failure(lambda: rows(database, "partly", {"d": "DATE"}))


def test_only_0_and_1_are_booleans(url: str) -> None:
    """A tinyint(1) that holds another number is an error, not a truth; a view reads it as a number."""
    database = stored(
        url,
        "CREATE TABLE t (b tinyint(1))",
        "INSERT INTO t VALUES (0), (1), (47)",
        "CREATE VIEW v AS SELECT CAST(b AS SIGNED) AS b FROM t",
    )
    message = failure(lambda: rows(database, "t", {"b": "BOOLEAN"}))
    assert "table 't', column 'b' is declared BOOLEAN but holds a value" in message
    assert rows(database, "v", {"b": "BIGINT"}) == [(0, 0), (1, 1), (47, 2)]


def test_order(url: str) -> None:
    """Order is the primary key, else all read columns with text by its bytes; filters do not change it."""
    database = stored(
        url,
        "CREATE TABLE keyed (b varchar(9), a int, c1 int, PRIMARY KEY (a, b))",
        "INSERT INTO keyed VALUES ('y', 2, 7), ('z', 1, 9), ('x', 2, 8)",
        "CREATE TABLE heap (t text, c char(3), p int, c0 int)",
        "INSERT INTO heap VALUES ('b', 'x', 1, 9), ('B', 'y', 2, 8), ('a', 'z', 3, 7), ('a', 'z', 4, 6)",
        "CREATE VIEW v AS SELECT a FROM keyed",
        "CREATE SEQUENCE numbers",
    )
    assert {table.name: table.rows for table in database.tables()} == {"heap": 4, "keyed": 3, "v": 3}
    assert rows(database, "keyed", {"b": "VARCHAR"}) == [("z", 0), ("x", 1), ("y", 2)]
    assert rows(database, "keyed", {"b": "VARCHAR"}, [Comparison("b", "in", ("y", "z"))]) == [("z", 0), ("y", 1)]
    assert rows(database, "heap", {"t": "VARCHAR"}) == [("B", 0), ("a", 1), ("a", 2), ("b", 3)]
    assert rows(database, "heap", {"t": "VARCHAR"}, [Comparison("t", "=", ("b",))]) == [("b", 0)]
    assert rows(database, "heap", {"p": "INTEGER", "c0": "INTEGER"})[0] == (4, 6, 0)
    assert rows(database, "heap", {"p": "INTEGER", "c0": "INTEGER"}, [Comparison("p", ">", (3,))]) == [(4, 6, 0)]
    assert rows(database, "v", {"a": "BIGINT"}) == [(1, 0), (2, 1), (2, 2)]


def test_long_texts_have_one_order(url: str) -> None:
    """Texts that are alike for longer than the server sorts are in the same order with and without a filter."""
    database = stored(url, "CREATE TABLE t (t text)")
    values = ", ".join(f"(concat(repeat('x', 2000), {(7 * i) % 50}))" for i in range(50))
    mariadb_server.execute(url, f"INSERT INTO t VALUES {values}")
    everything = rows(database, "t", {"t": "VARCHAR"})
    mariadb_server.execute(url, "CREATE TABLE u LIKE t", "INSERT INTO u SELECT * FROM t ORDER BY reverse(t) DESC")
    assert len({text for text, _ in everything}) == 50
    assert rows(database, "u", {"t": "VARCHAR"}) == everything
    assert rows(database, "u", {"t": "VARCHAR"}, [Comparison("t", "is not null")]) == everything


def test_text_compares_by_its_bytes(url: str) -> None:
    """Neither case, nor accents, nor spaces at the end, nor a foreign character set lose a row that DuckDB keeps."""
    database = stored(
        url,
        r"CREATE TABLE t (t varchar(9), l varchar(9) character set latin1)",
        r"INSERT INTO t VALUES ('a', 'é'), ('A', 'E'), ('a ', 'e'), ('á', 'é '), ('it''s \\', NULL), (NULL, '')",
    )

    def found(column: str, operator: Any, *values: str) -> set[str]:
        read = rows(database, "t", {column: "VARCHAR"}, [Comparison(column, operator, values)])
        return {text for text, _ in read}

    assert found("t", "=", "a") == {"a"}
    assert found("t", "<>", "a") == {"A", "a ", "á", "it's \\"}
    assert found("t", "in", "a ", "it's \\") == {"a ", "it's \\"}
    assert found("l", "=", "é") == {"é"}
    assert found("l", "<>", "é") == {"E", "e", "é ", ""}


def test_numbers_compare_as_in_duckdb(url: str) -> None:
    """Pushed comparisons with unsigned and exact numbers decide as DuckDB does; a year is no abbreviation."""
    database = stored(
        url,
        "CREATE TABLE t (u bigint unsigned, n decimal(6,2), x double, f float, y year)",
        "INSERT INTO t VALUES (0, 0.1, 0.1, 0.1, 2020), (18446744073709551615, 0.3, 0.3, 0.3, 1999), "
        "(9007199254740993, 100, 100, 100, 1920)",
    )
    columns = {"u": "UBIGINT", "n": "DECIMAL(6,2)", "x": "DOUBLE", "f": "FLOAT", "y": "SMALLINT"}

    def left(column: str, operator: Any, *values: int | float) -> int:
        return len(rows(database, "t", columns, [Comparison(column, operator, values)]))

    assert left("u", ">", -1) == 3
    assert left("u", ">", 0.5) == 2
    assert left("u", "=", 9007199254740993) == 1
    assert left("n", "=", 0.1) == 1
    assert left("n", "<=", 0.3) == 2
    assert left("n", "in", 100, 0.3) == 2
    assert left("x", "=", 0.1) == 1
    assert left("x", "<", 1e300) == 3
    assert left("f", "=", 0.1) == 3
    assert left("y", "=", 20) == 3


def test_one_moment_read_only(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """Within one reader all tables are seen as of its opening; a view that would write is not read."""
    database = stored(
        url,
        "CREATE TABLE t (a int)",
        "INSERT INTO t VALUES (1)",
        "CREATE TABLE log (a int)",
        "CREATE FUNCTION noted() RETURNS int BEGIN INSERT INTO log VALUES (1); RETURN 1; END",
        "CREATE VIEW w AS SELECT noted() AS a FROM t",
    )
    with database.reader() as reader:
        mariadb_server.execute(url, "INSERT INTO t VALUES (2)", "INSERT INTO log VALUES (7)")
        assert seen(reader, "t", {"a": "INTEGER"}) == [(1, 0)]
        assert seen(reader, "log", {"a": "INTEGER"}) == []
        assert "has no table 'w'" in failure(lambda: reader.source("w", {"a": "INTEGER"}))
        assert seen(reader, "t", {"a": "INTEGER"}) == [(1, 0)]
    assert rows(database, "t", {"a": "INTEGER"}) == [(1, 0), (2, 1)]
    assert [table.name for table in database.tables()] == ["log", "t"]
    assert "'w' cannot be read and is not published" in caplog.text
    assert mariadb_server.execute(url, "SELECT * FROM log") == [(7,)]


def test_many_rows(url: str) -> None:
    """More rows than travel at once keep their positions and values."""
    database = stored(url, "CREATE TABLE t (id int PRIMARY KEY) AS SELECT seq * 2 AS id FROM seq_1_to_150000")
    with database.reader() as reader:
        source = reader.source("t", {"id": "BIGINT"})
        check = f"SELECT count(*), bool_and(id = 2 * ({POSITION} + 1)) FROM {source.sql}"
        assert source.connection.execute(check).fetchall() == [(150_000, True)]


def test_a_view_that_fails_is_left_out(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """A view whose table is gone is not published, and the log says so; one that fails in a row holds no value."""
    database = stored(
        url,
        "CREATE TABLE t (a bigint, s text)",
        f"INSERT INTO t VALUES (9223372036854775807, '{CANARY}')",
        "CREATE TABLE gone (a int)",
        "CREATE VIEW stale AS SELECT a FROM gone",
        'CREATE VIEW "over" AS SELECT a + length(s) AS a FROM t',
        "DROP TABLE gone",
    )
    assert [table.name for table in database.tables()] == ["over", "t"]
    assert "'stale' cannot be read and is not published" in caplog.text
    message = failure(lambda: rows(database, "over", {"a": "BIGINT"}))
    assert "table 'over': its database could not read it" in message


def test_a_lost_connection(url: str) -> None:
    """A connection that the server ends between two tables is an error of the party."""
    database = stored(url, "CREATE TABLE t (a int)")
    with database.reader() as reader:
        mine = "SELECT id FROM information_schema.processlist WHERE db = 'shop' AND id <> CONNECTION_ID()"
        for (connection,) in mariadb_server.execute(url, mine):
            mariadb_server.execute(url, f"KILL {connection}")
        assert "table 't': its database could not read it" in failure(lambda: reader.source("t", {"a": "INTEGER"}))


def test_refusals(mariadb_url: str) -> None:
    """A wrong password, database, host or certificate gives the server's reason and never the password."""
    wrong = {
        "Access denied for user 'tester'": mariadb_url.replace("s3cret", f"{CANARY}%40"),
        "Unknown database 'none'": mariadb_url.removesuffix("test") + "none",
        "Connection refused": f"mysql://u:{CANARY}@127.0.0.1:1/db",
        "Can't connect to MySQL server on 'nowhere.invalid'": f"mariadb://u:{CANARY}@nowhere.invalid/db",
        "ssl_key is missing": f"{mariadb_url}?ssl_ca=/nowhere/ca.pem",
    }
    for reason, url in wrong.items():
        message = failure(open_database("shop", url).tables)
        assert message.startswith("Party 'shop': MySQL: ")
        assert reason in message
        assert CANARY not in repr(open_database("shop", url))
    for url in ("mysql://u@h", "mysql://u@h/", "mysql://u@h,g/db", "mysql://u@h/db?charset=x", "mysql://u@h:70000/db"):
        assert "MySQL URL" in failure(lambda url=url: open_database("shop", url))  # type: ignore[misc]


@pytest.mark.parametrize("greeting", [b"", b"SSH-2.0-x\r\n", b"\x01\0\0\0\x0a", b"\0" * 99])
def test_another_kind_of_server(greeting: bytes) -> None:
    """Whatever answers at the port in another protocol is an error of the party."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            with listener.accept()[0] as connection:
                connection.sendall(greeting)

        with ThreadPoolExecutor(1) as pool:
            pool.submit(answer)
            url = f"mysql://u:{CANARY}@127.0.0.1:{listener.getsockname()[1]}/db"
            message = failure(open_database("shop", url).tables)
    assert message.startswith("Party 'shop': MySQL: ")


def test_ways_to_the_server(mariadb_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checked certificate, a socket, the other scheme and a password outside the URL lead to the server too."""
    [(certificate, path)] = mariadb_server.execute(mariadb_url, "SELECT @@ssl_cert, @@socket")
    assert open_database("shop", f"{mariadb_url}?ssl_ca={certificate}").tables() == []
    assert open_database("shop", f"mysql://tester:s3cret@/test?unix_socket={path}").tables() == []
    assert open_database("shop", mariadb_url.replace("mysql", "mariadb")).tables() == []
    by_name = mariadb_url.replace("127.0.0.1", "localhost")
    assert "certificate verify failed" in failure(open_database("shop", f"{by_name}?ssl_ca={certificate}").tables)
    monkeypatch.setenv("MYSQL_PWD", "s3cret")
    assert open_database("shop", mariadb_url.replace(":s3cret", "")).tables() == []


def test_no_privilege(url: str) -> None:
    """What the user may not read is not published; without its key a table is ordered by what is read."""
    stored(
        url,
        "CREATE TABLE secret (a int)",
        "CREATE TABLE written (a int)",
        "CREATE TABLE mine (id int PRIMARY KEY, a int)",
        "INSERT INTO mine VALUES (1, 9), (2, 8)",
        "CREATE OR REPLACE USER guest@'%' IDENTIFIED BY 'pass'",
        "GRANT SELECT (a) ON mine TO guest@'%'",
        "GRANT INSERT ON written TO guest@'%'",
    )
    guest = open_database("shop", url.replace("tester:s3cret", "guest:pass"))
    [table] = guest.tables()
    assert (table.name, table.columns, table.rows) == ("mine", {"a": "INTEGER"}, 2)
    assert rows(guest, "mine", {"a": "INTEGER"}) == [(8, 0), (9, 1)]


def test_a_view_of_tables_that_the_user_may_not_read(url: str) -> None:
    """It is what an operator would publish. The server does not say what it expects of it, and its rows are read."""
    stored(
        url,
        "CREATE TABLE cards (id int PRIMARY KEY, pin int, x int)",
        "INSERT INTO cards VALUES (1, 9, 5), (2, 8, 6)",
        "CREATE VIEW narrow AS SELECT id, x FROM cards",
        "CREATE OR REPLACE USER guest@'%' IDENTIFIED BY 'pass'",
        "GRANT SELECT ON narrow TO guest@'%'",
    )
    guest = open_database("shop", url.replace("tester:s3cret", "guest:pass"))
    [table] = guest.tables()
    assert (table.name, table.columns, table.estimated) == ("narrow", {"id": "INTEGER", "x": "INTEGER"}, True)
    assert rows(guest, "narrow", {"x": "INTEGER"}) == [(5, 0), (6, 1)]


def test_names_that_differ_in_case_only(url: str) -> None:
    """Two tables whose names differ in case only keep their own columns and keys."""
    database = stored(url, "CREATE TABLE t (a int PRIMARY KEY)", "CREATE TABLE T (b int)")
    assert {table.name: table.columns for table in database.tables()} == {"t": {"a": "INTEGER"}, "T": {"b": "INTEGER"}}
