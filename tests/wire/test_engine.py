"""The engine: requests reach their party, replies keep their order, and every message is metered."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import tablepuppet as tp
from tablepuppet.party.request import Reply, Request
from tablepuppet.wire.engine import Capabilities, Engine, Transport, call_all
from tablepuppet.wire.flight_transport import FlightTransport
from tablepuppet.wire.record import Record
from tablepuppet.wire.traffic import Traffic, size_of
from tests.learn.materialised import ALL, JOIN, shop
from tests.relations import Message, collect_garbage, federation, record_wire

PARTIES = {
    "p0": {"t": pa.table({"k": [1, 2, 2], "x": [0.5, 1.5, 2.5]})},
    "p1": {"t": pa.table({"k": [2], "x": [3.5]}), "u": pa.table({"k": [1, 2], "y": [1, 2]})},
}
SQL = "SELECT t.x, u.y FROM t JOIN u USING (k)"


def test_size_counts_arrays_and_header() -> None:
    """A message is as large as its arrays and a small header; a wider array is larger by exactly its bytes."""
    narrow, wide = (size_of(("run",), {"values": np.zeros(1000, dtype)}) for dtype in (np.uint8, np.float64))
    assert 1000 < narrow < 1100
    assert wide - narrow in range(7000, 7010)
    assert size_of((), {}) < 10


def test_traffic_adds_up() -> None:
    """Bytes and messages are counted by party, direction and release, from many threads."""
    traffic = Traffic()

    def send() -> None:
        for _ in range(1000):
            traffic.add("p", "COUNTS", 2, 3)

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    traffic.add("p", "COUNTS", 5, 0)
    assert traffic.to_list() == [
        {"party": "p", "direction": "down", "release": "COUNTS", "bytes": 8005, "messages": 4001},
        {"party": "p", "direction": "up", "release": "COUNTS", "bytes": 12000, "messages": 4001},
    ]


def test_replies_keep_the_order_of_calls() -> None:
    """Many calls at once are answered in the order in which they were made; an error of one is raised."""

    class Echo(Transport):
        def __init__(self, name: str):
            self.name = name

        def call(self, request: Request, patience: float | None = None) -> Reply:
            if self.name == "bad":
                raise tp.PartyError("party 'bad' does not answer")
            return [{"party": self.name}]

    names = [f"p{i}" for i in range(50)]
    engine = Engine({name: Echo(name) for name in (*names, "bad")})
    assert [reply[0]["party"] for reply in call_all(engine, [(name, Request("describe")) for name in names])] == names
    assert call_all(engine, []) == []
    with pytest.raises(tp.PartyError, match="'bad'"):
        call_all(engine, [(name, Request("describe")) for name in ("p0", "bad", "p1")])


def test_trips_are_counted(tmp_path: Path) -> None:
    """Calls made at the same time are one trip, however many; none is no trip. Bytes are those of the list."""
    fed = federation(tmp_path, PARTIES)
    call_all(fed.engine, [])
    assert fed.engine.traffic.trips == 0
    relation = fed.sql(SQL)
    assert fed.engine.traffic.trips == 2  # the catalog; tables and keys
    relation.describe()
    assert fed.engine.traffic.trips == 3
    assert fed.engine.traffic.bytes == sum(entry["bytes"] for entry in fed.traffic)


def test_every_message_is_metered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Traffic is the sum over what was really sent: messages by number, arrays by their bytes."""
    collect_garbage()  # sessions of other tests would be closed meanwhile
    messages = record_wire(monkeypatch)
    fed = federation(tmp_path, PARTIES)
    relation = fed.sql(SQL)
    relation.describe()
    relation.split(test=0.5)
    traffic = fed.traffic
    assert sum(entry["messages"] for entry in traffic) == 2 * sum(message.last for message in messages)
    for party in PARTIES:
        for direction in ("up", "down"):
            here = [entry for entry in traffic if (entry["party"], entry["direction"]) == (party, direction)]
            arrays = sum(nbytes(message, direction) for message in messages if message.party == party)
            headers = 2000 * sum(message.party == party for message in messages)
            assert arrays < sum(entry["bytes"] for entry in here) < arrays + headers
    assert {entry["release"] for entry in traffic} == {
        "SCHEMA", "COUNTS", "KEY_DIGESTS", "STATISTICS", "KEY_DIGESTS|HISTOGRAMS", "STATISTICS|HISTOGRAMS",
    }  # fmt: skip


def nbytes(message: Message, direction: str) -> int:
    values = message.request.arguments if direction == "down" else message.reply or {}
    return sum(value.nbytes for value in values.values() if isinstance(value, np.ndarray))


def test_nothing_of_the_length_of_the_join_travels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many rows are joined, no message is longer than a party's own table."""
    messages = record_wire(monkeypatch)
    rows = pa.table({"k": [1] * 200, "x": np.arange(200.0)})
    relation = federation(tmp_path, {"p0": {"t": rows}, "p1": {"u": rows}}).sql("SELECT t.x FROM t JOIN u USING (k)")
    assert len(relation) == 40_000
    relation.describe()
    relation.split()
    longest = max(nbytes(message, way) for message in messages for way in ("up", "down"))
    assert longest <= 200 * 32  # a value, a count and a cell for each base row; 40,000 bytes and more for joined rows


def test_capabilities_are_those_of_the_transport(tmp_path: Path) -> None:
    """A party in this process tells positions and secrets; a service does neither; a record adds what it can do."""
    fed = federation(tmp_path, PARTIES)
    engine = Engine(
        {"here": fed.engine.transports["p0"], "there": FlightTransport("there", "grpc://127.0.0.1:1", None, 1.0)}
    )
    assert (engine.is_service("here"), engine.is_service("there")) == (False, True)
    here, there = engine.capabilities("here"), engine.capabilities("there")
    assert None not in (here.positions, here.table, here.category_secrets)
    assert there == Capabilities()
    recorded = Record(tmp_path / "record").of("there", engine.transports["there"]).capabilities
    assert recorded.drop_losses is not None
    assert replace(recorded, drop_losses=None) == there


class Doubled(Transport):
    """A new way to a party: it asks another transport, and remembers what for."""

    def __init__(self, other: Transport):
        self._other, self.capabilities, self.verbs = other, other.capabilities, list[str]()

    def call(self, request: Request, patience: float | None = None) -> Reply:
        self.verbs.append(request.verb)
        return self._other.call(request, patience)


def test_a_transport_is_one_method(tmp_path: Path) -> None:
    """Whatever answers requests is a party to learn from: nothing else of the engine is needed."""
    found = []
    for name in ("usual", "new"):
        (tmp_path / name).mkdir()
        fed = federation(tmp_path / name, shop(1))
        new = {party: Doubled(transport) for party, transport in fed.engine.transports.items()}
        if name == "new":
            fed.engine = Engine(new)
        relation = fed.sql(f"SELECT {ALL}, o.returned {JOIN}", label="returned")
        model = tp.LogisticRegression().fit(relation)
        found.append((model.coef_, fed.traffic, relation.rows()))
    assert {verb for transport in new.values() for verb in transport.verbs} >= {"describe", "open", "run"}
    assert found[0][1:] == found[1][1:]
    for name, value in found[0][0].items():
        np.testing.assert_array_equal(found[1][0][name], value)
