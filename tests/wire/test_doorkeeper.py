"""Connections to a party: those that never call are ended, callers stay, and nobody has too many."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import tablepuppet as tp
from tablepuppet.party.request import Request
from tablepuppet.wire.doorkeeper import Doorkeeper
from tablepuppet.wire.flight_server import FlightServer
from tablepuppet.wire.flight_transport import FlightTransport
from tests.relations import write_party
from tests.wire.services import Certificates, served

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates") / "ca")


@pytest.fixture
def server(tmp_path: Path, certificates: Certificates) -> Iterator[FlightServer]:
    url = write_party(tmp_path, "p", {"t": pa.table({"x": [1.0, 2.0]})})
    with served({"p": url}, certificates) as servers:
        yield servers["p"]


def keeper(
    server: FlightServer,
    most: int = 100,
    per_caller: int = 10,
    patience: float = 1000.0,
    reached: Callable[[str], None] = lambda limit: None,
    left: Callable[[], None] = lambda: None,
) -> Doorkeeper:
    door = Doorkeeper(server.port, most, per_caller, patience, reached, left)
    server.enter = door.enter
    return door


def idle(server: FlightServer, count: int) -> list[socket.socket]:
    return [socket.create_connection(("127.0.0.1", server.port)) for _ in range(count)]


def is_ended(line: socket.socket) -> bool:
    line.settimeout(0.05)
    try:
        while True:
            if not line.recv(1 << 16):
                return True
    except TimeoutError:
        return False
    except OSError:
        return True


def until(fact: Callable[[], bool]) -> bool:
    for _ in range(400):
        if fact():
            return True
        time.sleep(0.05)
    return False


def caller(server: FlightServer, certificates: Certificates, timeout: float = 20.0) -> FlightTransport:
    tls = certificates.client("analyst").read()
    return FlightTransport("p", f"grpc+tls://127.0.0.1:{server.port}", tls, timeout)


def seen(door: Doorkeeper, count: int) -> None:
    """Wait until so many connections are accepted."""

    def accepted() -> bool:
        door._look()
        return len(door._open) >= count

    assert until(accepted)


def test_connections_that_never_call_are_ended(server: FlightServer, certificates: Certificates) -> None:
    """Whoever has called stays connected; a socket that says nothing is ended after a while, and counted."""
    reached: list[str] = []
    door = keeper(server, reached=reached.append)
    analyst = caller(server, certificates)
    analyst.call(Request("describe"))
    lines = idle(server, 5)
    seen(door, 6)
    door.sweep()
    assert not any(map(is_ended, lines))
    door._patience = 0.0
    door.sweep()
    assert until(lambda: all(map(is_ended, lines)))
    assert door.ended == 5
    assert reached == ["connect_seconds"] * 5
    connection = analyst._connection
    analyst.call(Request("describe"))
    assert analyst._connection is connection


def test_the_oldest_go_where_there_are_too_many(server: FlightServer) -> None:
    """Beyond the number of connections the oldest that never called are ended."""
    reached: list[str] = []
    door = keeper(server, most=8, reached=reached.append)
    old = idle(server, 6)
    seen(door, 6)
    new = idle(server, 8)
    seen(door, 14)
    door.sweep()
    assert until(lambda: all(map(is_ended, old)))
    assert not any(map(is_ended, new))
    assert reached == ["connections"] * 6


def test_one_caller_has_so_many_connections(server: FlightServer, certificates: Certificates) -> None:
    """A caller's third connection is told to try again; when one is closed it is answered."""
    door = keeper(server, per_caller=2)
    first, second, third = (caller(server, certificates, timeout=0.5) for _ in range(3))
    first.call(Request("describe"))
    second.call(Request("describe"))
    # gRPC may share one connection among clients of one process
    door._look()
    door._callers = {(f"10.0.0.{number}", number): ("analyst", time.monotonic()) for number in range(2)}
    door._open = {str(n): type(next(iter(door._open.values())))(0, (f"10.0.0.{n}", n), 0.0) for n in range(2)}
    with pytest.raises(tp.PartyError, match=r"limits\.connections_per_caller"):
        third.call(Request("describe"))
    door._look()
    door._callers.clear()
    third.call(Request("describe"))


def test_other_sockets_are_left_alone(server: FlightServer) -> None:
    """Connections of this process to elsewhere, and files, are not touched."""
    door = keeper(server, most=8, patience=0.0)
    with socket.create_server(("127.0.0.1", 0)) as other, socket.create_connection(other.getsockname()) as line:
        accepted, _ = other.accept()
        door.sweep()
        accepted.sendall(b"still here")
        assert line.recv(100) == b"still here"
        accepted.close()


def test_the_door_is_cleared_without_descriptors(server: FlightServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no descriptor is left, those kept back are used to end connections."""
    reached: list[str] = []
    door = keeper(server, most=8, reached=reached.append)
    lines = idle(server, 12)
    seen(door, 12)
    listed, given = os.listdir, []

    def full(path: str) -> list[str]:
        if len(door._spare):
            raise OSError(24, "Too many open files")
        given.append(path)
        return listed(path)

    monkeypatch.setattr("tablepuppet.wire.doorkeeper.os.listdir", full)
    door.sweep()
    assert given
    assert reached[0] == "descriptors"
    assert until(lambda: sum(map(is_ended, lines)) >= 4)
    assert len(door._spare) > 0


def after_a_look(door: Doorkeeper, count: Callable[[], int]) -> int:
    """A number, after another look."""
    door.sweep()
    return count()


def test_connections_that_end_without_a_call_are_counted(server: FlightServer, certificates: Certificates) -> None:
    """Those that are no TLS or end before it; not those of callers who were answered."""
    ended: list[str] = []
    door = keeper(server, left=lambda: ended.append("left"))
    lines = idle(server, 2)
    assert until(lambda: after_a_look(door, lambda: door.open) == 2)
    lines[0].sendall(b"GET / HTTP/1.1\r\n\r\n")  # no TLS: gRPC closes it
    assert until(lambda: is_ended(lines[0]))
    lines[1].close()
    assert until(lambda: after_a_look(door, lambda: len(ended)) == 2)
    caller = FlightTransport(
        "p", f"grpc+tls://127.0.0.1:{server.port}", certificates.client("analyst").read(), timeout=30.0
    )
    caller.call(Request("describe"))
    assert until(lambda: after_a_look(door, lambda: door.open) == 1)
    caller._disconnect()
    assert until(lambda: after_a_look(door, lambda: door.open) == 0)
    assert len(ended) == 2
    door.close()
