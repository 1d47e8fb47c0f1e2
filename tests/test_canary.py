"""Canaries: values planted in every kind of database turn up in no message, log, event, error or output."""

from __future__ import annotations

import logging
import sqlite3
import struct
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import numpy as np
import pyarrow as pa
import pytest
from adbc_driver_postgresql import dbapi

import tablepuppet as tp
from tablepuppet.federation import PartyEntry
from tablepuppet.prep.encode.encode import apply_encoding
from tablepuppet.prep.pipelines.pipeline import DEFAULT, fit_encoding
from tablepuppet.runs.event_file import EventFile
from tests import mariadb_server
from tests.relations import Message, federation, record_wire, write_party

KINDS = ("duckdb", "sqlite", "postgresql", "mysql", "parquet", "csv", "arrow")
KEYS = (7105551990313, 7105551990427)
CELLS = (48151623.4208, 48151623.4218)
ROWS = 12
SEEN = 31415926.535  # the maximum of a public column
HIDDEN = ("id", "code", "shared", "cell", "category", "label")
LEVELS = {f"{table}.{column}": "aggregate" for table in ("t", "twin") for column in HIDDEN}


def word(kind: str, role: str) -> str:
    """A text that occurs nowhere else."""
    return f"canary-{kind}-{role}-кана́рейка"


def table(kind: str) -> pa.Table:
    """Twelve rows with planted keys, categories, numbers and labels."""
    turn = [i % 3 for i in range(ROWS)]
    return pa.table(
        {
            "id": pa.array([KEYS[t % 2] + 2 * i for i, t in enumerate(turn)], pa.int64()),
            "code": [word(kind, f"code{t}") for t in turn],
            "shared": [f"canary-shared-{t}" for t in turn],
            "cell": [CELLS[t % 2] + i for i, t in enumerate(turn)],
            "category": [None if t == 2 else word(kind, f"category{t}") for t in turn],
            "label": [word(kind, f"label{i % 2}") for i in range(ROWS)],
            "odd": [0.5] * (ROWS - 1) + [float("inf")],
            "public": [SEEN - i for i in range(ROWS)],
        }
    )


def planted(kind: str) -> dict[str, list[bytes]]:
    """All that must not be seen: texts as UTF-8, numbers as text and as eight bytes of either order."""
    rows = table(kind)
    found: dict[str, list[bytes]] = {}
    for name in ("code", "shared", "category", "label"):
        for value in set(rows[name].to_pylist()) - {None}:
            found[value] = [value.encode(), value.encode("utf-16-le")]
    for value in rows["id"].to_pylist():
        packed = [struct.pack(form, value) for form in ("<q", ">q", "<d", ">d")]
        found[str(value)] = [str(value).encode(), f"{value:,}".encode(), *packed]
    for value in rows["cell"].to_pylist():
        found[str(value)] = [str(value).encode(), *(struct.pack(form, value) for form in ("<d", ">d", "<f"))]
    return found


@dataclass
class Net:
    """Everything that could carry a value out."""

    messages: list[Message]
    events: list[tp.Event] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)  # errors, logs, output

    def try_(self, action: Callable[[], object]) -> tp.TablePuppetError | None:
        """Do something that may fail, and keep all that its error tells."""
        try:
            self.texts.append(f"{action()!s}")
        except tp.TablePuppetError as error:
            self.texts += ["".join(traceback.format_exception(error)), repr(error), repr(error.args)]
            return error
        return None

    def catch(self) -> bytes:
        """All of it as bytes."""
        parts = [text.encode() for text in self.texts]
        for message in self.messages:
            parts += flat((message.request, message.reply))
        for event in self.events:
            parts += flat((event.name, event.message, dict(event.fields)))
        return b"\0".join(parts)


def flat(value: Any) -> Iterator[bytes]:
    """A message as the bytes that would travel."""
    if isinstance(value, np.ndarray):
        yield np.ascontiguousarray(value).tobytes()
    elif is_dataclass(value) and not isinstance(value, type):
        yield from flat(asdict(value))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from flat(key)
            yield from flat(item)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from flat(item)
    elif isinstance(value, float):
        yield from (struct.pack("<d", value), repr(value).encode())
    elif isinstance(value, int) and abs(value) < 2**63:
        yield from (struct.pack("<q", value), str(value).encode())
    else:
        yield value if isinstance(value, bytes) else str(value).encode()
        yield msgspec.msgpack.encode(str(value))


def assert_unseen(caught: bytes, needles: Mapping[str, Iterable[bytes]]) -> None:
    for name, patterns in needles.items():
        for pattern in patterns:
            place = caught.find(pattern)
            assert place < 0, f"{name} is seen: {caught[max(0, place - 200) : place + 80]!r}"


@pytest.fixture
def net(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Net:
    caplog.set_level(logging.DEBUG)
    return Net(record_wire(monkeypatch))


@pytest.fixture
def mysql_url(mariadb_url: str) -> Iterator[str]:
    """A MariaDB database of the test's own."""
    with mariadb_server.new_database(mariadb_url, "planted") as url:
        yield url


def publish(request: pytest.FixtureRequest, folder: Path, kind: str) -> str:
    """The URL of a database that holds the planted rows as table ``t`` and its twin, and one that cannot be read."""
    rows = table(kind)
    tables = {"t": rows, "twin": rows}
    if kind in ("duckdb", "parquet", "arrow"):
        return write_party(folder, kind, tables, kind)
    if kind == "csv":
        (folder / kind).mkdir()
        for name in tables:
            with duckdb.connect() as connection:
                connection.register("rows", rows)
                connection.execute(f"COPY (FROM rows) TO '{folder / kind / name}.csv' (HEADER)")
        return f"csv:///{folder / kind}"
    columns = "id BIGINT, code TEXT, shared TEXT, cell FLOAT8, category TEXT, label TEXT, odd FLOAT8, public FLOAT8"
    records = [tuple(row.values()) for row in rows.to_pylist()]
    if kind == "sqlite":
        file = sqlite3.connect(folder / "x.db")
        for name in tables:
            file.execute(f"CREATE TABLE {name} ({columns})")
            file.executemany(f"INSERT INTO {name} VALUES (?, ?, ?, ?, ?, ?, ?, ?)", records)
        file.execute("CREATE TABLE wrong (id INTEGER, number INTEGER)")
        file.execute("INSERT INTO wrong VALUES (1, ?)", [word(kind, "code0")])
        file.commit()
        file.close()
        return f"sqlite:///{folder}/x.db"

    def literal(value: Any) -> str:
        missing = value is None or (kind == "mysql" and value == float("inf"))  # which MySQL has not
        return "NULL" if missing else f"'{value}'"

    values = ", ".join(f"({', '.join(map(literal, record))})" for record in records)
    if kind == "mysql":
        mysql_url: str = request.getfixturevalue("mysql_url")
        for name in tables:
            statements = (f"CREATE TABLE {name} ({columns})", f"INSERT INTO {name} VALUES {values}")
            mariadb_server.execute(mysql_url, *statements)
        wrong = "CREATE VIEW wrong AS SELECT id, id + 9223372036854775807 AS number FROM t"
        mariadb_server.execute(mysql_url, wrong)
        return mysql_url
    url: str = request.getfixturevalue("postgres_url")

    def execute(*statements: str) -> None:
        with dbapi.connect(url, autocommit=True) as pg, pg.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    execute("CREATE SCHEMA planted")
    request.addfinalizer(lambda: execute("DROP SCHEMA planted CASCADE"))
    for name in tables:
        execute(f"CREATE TABLE planted.{name} ({columns})", f"INSERT INTO planted.{name} VALUES {values}")
    execute("CREATE VIEW planted.wrong AS SELECT id, code::int AS number FROM planted.t")
    return f"{url}&options=-csearch_path%3Dplanted"


FAILING = (
    "SELECT CAST(code AS INTEGER) AS x FROM t",
    "SELECT CAST(code AS DATE) AS x FROM t",
    "SELECT CAST(category AS DECIMAL(8,2)) AS x FROM t",
    "SELECT CAST(id AS TINYINT) AS x FROM t",
    "SELECT CAST(cell AS SMALLINT) AS x FROM t",
    "SELECT id * id * id AS x FROM t",
    "SELECT strptime(code, '%Y') AS x FROM t",
    "SELECT date_trunc(code, DATE '2024-01-01') AS x FROM t",
    "SELECT make_date(id, 1, 1) AS x FROM t",
    "SELECT regexp_matches('a', code || '(') AS x FROM t",
    "SELECT CAST(code AS UUID) AS x FROM t",
    "SELECT CAST(code AS BOOLEAN) AS x FROM t",
    "SELECT cell FROM t WHERE CAST(label AS BIGINT) > 3",
    "SELECT a.cell FROM t a JOIN twin b ON CAST(a.code AS BIGINT) = b.id",
    "SELECT a.cell FROM t a JOIN twin b ON a.code = b.id",
    "SELECT a.cell FROM t a, twin b",
    "SELECT cel FROM t",
    "SELECT cell FROM ts",
    "SELECT cell FROM t LIMIT 3",
    "SELECT sum(cell) FROM t",
    "SELECT cell FROM t WHERE",
)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_planted_is_seen(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, net: Net, caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Catalog, joins, explain, describe, split, encoding and many failures let out no value of a row."""
    entry = PartyEntry(publish(request, tmp_path, kind), LEVELS)
    fed = tp.Federation({"p": entry}, memory_limit=2000)
    fed.events.subscribe(net.events.append, trips=True)
    kept = tmp_path / "events.jsonl"
    fed.events.subscribe(EventFile(kept, {}), trips=True)
    net.texts += [repr(fed), str(fed.catalog()), fed.catalog()._repr_html_(), str(fed.catalog().to_arrow().to_pylist())]
    use(net, fed)
    for sql in FAILING if kind == "duckdb" else FAILING[::4]:  # the same DuckDB evaluates them everywhere
        assert net.try_(lambda sql=sql: fed.sql(sql)), sql  # type: ignore[misc]
    huge = fed.sql("SELECT a.cell FROM t a CROSS JOIN twin b")
    assert isinstance(net.try_(lambda: len(huge)), tp.MappingError)
    odd = fed.sql("SELECT odd FROM t")
    if kind != "mysql":
        assert isinstance(net.try_(lambda: fit(odd)), tp.LearnError)
    for op, arguments in (("no.op", {}), ("statistics.numbers", {"columns": ["code"]}), ("rows.sample", {"ranks": 3})):
        request_of(net, odd, op, arguments)
    if kind in ("sqlite", "postgresql", "mysql"):
        assert net.try_(lambda: fed.sql("SELECT number FROM wrong"))
    broken(net, kind, tmp_path, fed)
    net.texts += [
        kept.read_text(),
        *capfd.readouterr(),
        caplog.text,
        *(str(record.__dict__) for record in caplog.records),
    ]
    caught = net.catch()
    assert len(net.messages) > 50
    assert b"'visible'" in caught  # what the analyst wrote may be seen: so the net holds requests
    assert struct.pack("<d", SEEN) in caught  # so may the extremes of a public column: it holds replies
    assert_unseen(caught, planted(kind) | {"any text": [b"canary-", "кана".encode()]})


def use(net: Net, fed: tp.Federation) -> None:
    """Everything an analyst does with a relation, with the planted columns as keys, features, categories, label."""
    sql = (
        "SELECT a.cell, a.category, b.code, b.id, a.label, a.public FROM t a JOIN twin b ON a.id = b.id "
        "AND a.code = b.code AND a.shared = b.shared WHERE a.code <> 'visible' AND b.label LIKE '%0%'"
    )
    relation = fed.sql(sql, label="label", categorical=["id"])
    assert len(relation) == ROWS // 2
    net.texts.append(repr(fit(fed.sql(sql, categorical=["id"])).names("a")))  # the label as a feature
    net.texts += [repr(relation), relation.explain(), str(relation.describe()), relation.describe()._repr_html_()]
    train, test = relation.split(test=0.5, seed=3)
    encoding = fit(train)
    for side in (train, test):
        apply_encoding(side.client, encoding)
        net.texts.append(str(side.rows().to_pydict()))
    net.texts += [str(fed.traffic), repr(encoding.names("a")), repr(encoding.names("b"))]


def fit(relation: tp.Relation) -> Any:
    return fit_encoding(relation.client, DEFAULT, relation.max_categories, relation.events)


def request_of(net: Net, relation: tp.Relation, op: str, arguments: dict[str, Any]) -> None:
    """An op that the party does not know, or with arguments that make no sense."""
    try:
        relation.client.ask(op, lambda alias, shard: arguments)
    except Exception as error:  # whatever it is: only what it tells matters here
        net.texts += ["".join(traceback.format_exception(error)), repr(error)]


def broken(net: Net, kind: str, folder: Path, fed: tp.Federation) -> None:
    """A database that is locked, damaged or changed while the federation is open."""

    def ask() -> tp.Relation:
        return fed.sql("SELECT cell, code FROM t")

    if kind == "duckdb":
        with duckdb.connect(str(folder / "duckdb.duckdb")) as connection:
            assert net.try_(ask)
            connection.execute("CREATE VIEW wrong AS SELECT CAST(code AS INTEGER) AS number FROM t")
        assert net.try_(lambda: fed.sql("SELECT number FROM wrong"))
    elif kind == "sqlite":
        file = folder / "x.db"
        file.write_bytes(file.read_bytes()[:5000] + b"\xff" * 9000)
        assert net.try_(ask)
    elif kind in ("parquet", "arrow"):
        file = folder / kind / f"t.{kind}"
        data = file.read_bytes()
        for damaged in (data[: len(data) // 2], data[:100] + b"\xff" * 900 + data[1000:]):
            file.write_bytes(damaged)
            net.try_(ask)
    elif kind == "csv":
        file = folder / kind / "t.csv"
        lines = file.read_text().splitlines()
        for damaged_line in (lines[3] + ',"' + word(kind, "code1"), word(kind, "code0"), lines[4].replace(",", ";")):
            file.write_text("\n".join([*lines[:6], damaged_line, *lines[6:]]))
            net.try_(ask)
        file.write_bytes(file.read_bytes().replace("é".encode(), b"\xff").replace(b"canary", b"canary\xff", 3))
        net.try_(ask)


# What the coordinator sees of keys


def told(messages: Iterable[Message], op: str) -> list[Mapping[str, Any]]:
    return [message.reply for message in messages if message.request.op == op and message.reply is not None]


def digests_of(replies: Iterable[Mapping[str, Any]]) -> list[set[bytes]]:
    """One set per key or category column of each reply."""
    return [
        {digest.tobytes() for digest in value}
        for reply in replies
        for name, value in reply.items()
        if name.startswith("digests")
    ]


def test_runs_and_classes_cannot_be_linked(tmp_path: Path, net: Net) -> None:
    """The same values in two classes, two relations, two descriptions or two federations share no digest."""
    values = list(range(40))
    rows = {name: pa.table({"k": values, "l": values, "c": [f"v{value}" for value in values]}) for name in "abc"}
    urls = {f"p{i}": write_party(tmp_path, f"p{i}", rows) for i in range(2)}
    sql = "SELECT a.c FROM a JOIN b ON a.k = b.k JOIN c ON b.l = c.l"
    for fed in (tp.Federation(urls), tp.Federation(urls)):
        for _ in range(2):
            assert len(fed.sql(sql)) == 8 * 40
    keys = digests_of(told(net.messages, "keys.blind"))
    assert [len(found) for found in keys] == [40] * len(keys)
    assert len(keys) == 4 * 8  # runs; a and c have one class of key, b has two, at two parties
    assert len(set().union(*keys)) == 4 * 2 * 40
    for _ in range(2):
        fed.sql(sql).describe()
    categories = digests_of(told(net.messages, "statistics.categories"))
    assert len(set().union(*categories)) == 2 * 40
    assert not set().union(*categories) & set().union(*keys)


def test_form_of_blinded_keys(tmp_path: Path, net: Net) -> None:
    """Digests come in digest order, so that no order of the source shows, and codes in the narrowest integers."""
    values = [*range(300), None]
    fed = federation(
        tmp_path, {"p0": {"a": pa.table({"k": values}), "b": pa.table({"k": values[:200], "x": values[:200]})}}
    )
    assert len(fed.sql("SELECT x FROM a JOIN b USING (k)")) == 200
    asked = [message for message in net.messages if message.request.op == "keys.blind"]
    for message in asked:
        reply = message.reply or {}
        width, size = {"a": (np.uint16, 300), "b": (np.uint8, 200)}[message.request.table]
        assert set(reply) == {"digests0", "codes0"}
        digests, codes = reply["digests0"], reply["codes0"]
        assert digests.shape == (size, 16)
        assert [d.tobytes() for d in digests] == sorted(d.tobytes() for d in digests)
        assert codes.dtype == width
        assert abs(np.corrcoef(codes[:200], np.arange(200))[0, 1]) < 0.3


def test_unions_tell_filters_as_bits(tmp_path: Path, net: Net) -> None:
    """Of the filters of a union only one bit per row is told."""
    fed = federation(tmp_path, {"p0": {"t": pa.table({"x": range(100)})}})
    assert len(fed.sql("SELECT x FROM t WHERE x < 10 UNION ALL SELECT x FROM t WHERE x % 2 = 0")) == 60
    [reply] = told(net.messages, "keys.blind")
    assert {name: value.dtype for name, value in reply.items()} == {"passes0": np.uint8, "passes1": np.uint8}
    assert all(value.nbytes == 7 for value in reply.values())  # 55 rows pass one or the other
