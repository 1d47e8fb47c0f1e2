"""The network of tests and benchmarks: its clock exactly, and its faults with real programs at both ends."""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import socket
import socketserver
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

from benchmarks.proxy import US_UK, US_US, Link, Proxy
from tablepuppet.privacy.certificates import issue, new_authority

Arrival = tuple[float, int]  # (seconds, bytes)


class JumpingSelector(selectors.DefaultSelector):
    """Instead of waiting, moves the clock on."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.clock += timeout or 0.0
        return super().select(0)


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop in which time passes only while all tasks sleep: what happens when is exact."""

    def __init__(self) -> None:
        self.jumping = JumpingSelector()
        super().__init__(self.jumping)

    def time(self) -> float:
        return self.jumping.clock


class Recorder:
    """The writing end of a stream; remembers when how many bytes came."""

    def __init__(self) -> None:
        self.arrivals: list[Arrival] = []

    def write(self, chunk: bytes) -> None:
        self.arrivals.append((round(asyncio.get_running_loop().time(), 6), len(chunk)))

    def write_eof(self) -> None:
        self.write(b"")

    async def drain(self) -> None: ...


async def carried(link: Link, sends: list[Arrival]) -> list[Arrival]:
    """What comes out of a link if chunks go in at the given times; the last is the end of the stream."""
    reader, writer, flowing = asyncio.StreamReader(), Recorder(), asyncio.Event()
    flowing.set()
    for when, size in sends:
        asyncio.get_running_loop().call_at(when, reader.feed_data, bytes(size))
    asyncio.get_running_loop().call_at(sends[-1][0] + 1e-7, reader.feed_eof)
    await link.carry(reader, writer, flowing)  # type: ignore[arg-type]
    return writer.arrivals


def in_jumping_time(work: Coroutine[Any, Any, list[Arrival]]) -> list[Arrival]:
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(work)


def test_latency_is_a_delay_line() -> None:
    """Chunks sent every 10 ms over 100 ms arrive every 10 ms, each 100 ms after it was sent."""
    sends = [(0.01 * i, 5) for i in range(1, 21)]
    arrivals = in_jumping_time(carried(Link(latency=0.1), sends))
    assert [when for when, _ in arrivals] == pytest.approx([when + 0.1 for when, _ in sends] + [0.3])
    assert [size for _, size in arrivals] == [5] * 20 + [0]


def test_bandwidth_limits_throughput() -> None:
    """Half a megabyte sent at once over 1 MB/s is there after half a second and one latency, not before."""
    size = 1 << 19
    arrivals = in_jumping_time(carried(Link(latency=0.1, bandwidth=1e6), [(0.0, size)]))
    assert sum(count for _, count in arrivals) == size
    passed = np.cumsum([count for _, count in arrivals])
    for (when, _), total in zip(arrivals, passed, strict=True):
        assert when == pytest.approx(0.1 + total / 1e6)


def test_an_idle_link_saves_no_bandwidth() -> None:
    """After a pause a chunk takes its full time again."""
    arrivals = in_jumping_time(carried(Link(bandwidth=1e3), [(0.0, 100), (5.0, 100)]))
    assert arrivals[:2] == [(0.1, 100), (5.1, 100)]


def test_two_connections_share_a_link() -> None:
    """Two streams of 100 kB over 1 MB/s are both there after 0.2 s: each alone would need 0.1 s."""

    async def both() -> list[Arrival]:
        link = Link(bandwidth=1e6)
        found = await asyncio.gather(*(carried(link, [(0.0, 100_000)]) for _ in range(2)))
        return sorted(arrival for arrivals in found for arrival in arrivals if arrival[1])

    arrivals = in_jumping_time(both())
    assert arrivals[-1][0] == pytest.approx(0.2)
    assert sum(count for _, count in arrivals) == 200_000


def test_named_networks() -> None:
    """The published figures are round trips and bits; a proxy takes one way and bytes."""
    assert US_UK == {"latency": 0.068, "bandwidth": 52.5e6}
    assert US_US == {"latency": 0.0335, "bandwidth": 143.75e6}


@pytest.mark.parametrize(("latency", "bandwidth"), [(-1.0, None), (0.0, 0.0), (0.0, -5.0)])
def test_impossible_networks_are_refused(latency: float, bandwidth: float | None) -> None:
    """Time does not run backwards, and no bandwidth is a stall."""
    with pytest.raises(ValueError, match="bandwidth must be above 0"):
        Proxy("127.0.0.1", 1, latency, bandwidth)


class Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):
            while data := self.request.recv(1 << 16):
                self.request.sendall(data)


class EchoServer(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of a server that sends everything back."""
    with EchoServer(("127.0.0.1", 0), Echo) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def connect(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=30)


def exchange(connection: socket.socket, data: bytes) -> bytes:
    """Send, and receive as much."""
    sender = threading.Thread(target=connection.sendall, args=(data,))
    sender.start()
    received = bytearray()
    while len(received) < len(data) and (part := connection.recv(1 << 16)):
        received += part
    sender.join()
    return bytes(received)


@pytest.mark.parametrize("network", [{}, {"latency": 0.01, "bandwidth": 50e6}], ids=["open", "slow"])
def test_bytes_pass_unchanged_and_are_counted(echo: int, network: dict[str, float]) -> None:
    """What is sent comes back, also when the sender closes its half first; both directions are counted."""
    data = np.random.default_rng(0).bytes(3_000_001)
    with Proxy("127.0.0.1", echo, **network) as proxy, connect(proxy) as first, connect(proxy) as second:
        assert exchange(first, data) == data
        assert exchange(second, b"x") == b"x"
        assert proxy.bytes_up == proxy.bytes_down == len(data) + 1
        assert proxy.accepted == proxy.connections == 2
        first.sendall(b"last words")
        first.shutdown(socket.SHUT_WR)
        assert b"".join(iter(lambda: first.recv(100), b"")) == b"last words"


def test_a_cut_resets_and_refuses_until_restored(echo: int) -> None:
    """Open connections end at once, new ones are refused, and the port is the same afterwards."""
    with Proxy("127.0.0.1", echo) as proxy:
        with connect(proxy) as connection:
            assert exchange(connection, b"before") == b"before"
            proxy.cut()
            assert proxy.connections == 0
            with pytest.raises(ConnectionResetError):
                connection.recv(1)
        for _ in range(2):  # to cut what is cut changes nothing
            with pytest.raises(ConnectionRefusedError):
                connect(proxy)
            proxy.cut()
        proxy.restore()
        with connect(proxy) as connection:
            assert exchange(connection, b"after") == b"after"


def test_a_stall_holds_everything_back(echo: int) -> None:
    """Connections are accepted and silent; what was sent meanwhile arrives after the stall."""
    with Proxy("127.0.0.1", echo) as proxy, connect(proxy) as old:
        assert exchange(old, b"before") == b"before"
        proxy.stall()
        with connect(proxy) as new:
            for connection in (old, new):
                connection.sendall(b"during")
                connection.settimeout(0.1)
                with pytest.raises(TimeoutError):
                    connection.recv(1)
            assert proxy.bytes_up == len(b"before")
            proxy.restore()
            for connection in (old, new):
                connection.settimeout(30)
                assert connection.recv(100) == b"during"


def test_a_corrupt_chunk_differs_in_one_byte(echo: int) -> None:
    """As many chunks as asked for, in the chosen direction, then none."""
    data = bytes(range(100))
    with Proxy("127.0.0.1", echo) as proxy, connect(proxy) as connection:
        proxy.corrupt(2, down=False)
        wrong = data[:50] + bytes([data[50] ^ 0xFF]) + data[51:]
        assert [exchange(connection, data) for _ in range(3)] == [wrong, wrong, data]
        proxy.corrupt()  # up and down: the second inversion undoes the first
        assert exchange(connection, data) == data
        proxy.corrupt(up=False)
        assert exchange(connection, data) == wrong


def test_a_dead_target_resets_the_caller() -> None:
    """Nobody listens behind the proxy: the connection is made and then reset."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # bound and not listening
        target = free.getsockname()[1]
        with Proxy("127.0.0.1", target) as proxy, pytest.raises(ConnectionResetError), connect(proxy) as connection:
            connection.recv(1)


def test_leaving_the_block_ends_all(echo: int) -> None:
    """No thread and no open connection outlive the proxy, stalled or not."""
    with Proxy("127.0.0.1", echo, latency=5.0) as slow, connect(slow) as waiting:
        waiting.sendall(b"never delivered")
    with Proxy("127.0.0.1", echo) as proxy:
        proxy.stall()
        connection = connect(proxy)
    with connection, pytest.raises(ConnectionResetError):
        connection.recv(1)
    with pytest.raises(ConnectionRefusedError):
        connect(proxy)
    assert not any(thread.name == "proxy" for thread in threading.enumerate())


class FlightEcho(flight.FlightServerBase):  # type: ignore[misc]
    """Answers an action with its own body, after the name of whoever calls."""

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> Iterator[flight.Result]:
        yield flight.Result(pa.py_buffer(context.peer_identity()))
        yield flight.Result(action.body)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, a party's certificate and an analyst's."""
    folder = tmp_path_factory.mktemp("certs")
    new_authority(folder)
    issue(folder, "bank_east")
    issue(folder, "analyst")
    return folder


@pytest.fixture
def bank(folder: Path) -> Iterator[int]:
    """The port of a Flight server that wants certificates of its callers."""
    pair = ((folder / "bank_east.crt").read_bytes(), (folder / "bank_east.key").read_bytes())
    authority = (folder / "ca.crt").read_bytes()
    with FlightEcho(
        "grpc+tls://127.0.0.1:0", tls_certificates=[pair], verify_client=True, root_certificates=authority
    ) as server:
        yield server.port


def client_of(proxy: Proxy, folder: Path) -> flight.FlightClient:
    return flight.FlightClient(
        f"grpc+tls://127.0.0.1:{proxy.port}",
        tls_root_certs=(folder / "ca.crt").read_bytes(),
        cert_chain=(folder / "analyst.crt").read_bytes(),
        private_key=(folder / "analyst.key").read_bytes(),
    )


def ask(client: flight.FlightClient, data: bytes, timeout: float = 30.0) -> list[bytes]:
    results = client.do_action(flight.Action("echo", data), flight.FlightCallOptions(timeout=timeout))
    return [result.body.to_pybytes() for result in results]


def until_it_works(call: Callable[[], list[bytes]]) -> list[bytes]:
    """gRPC waits a second or so before it connects again, and fails calls meanwhile."""
    for _ in range(300):
        with contextlib.suppress(flight.FlightError):
            return call()
        threading.Event().wait(0.1)
    raise AssertionError("the connection did not come back")


@pytest.mark.parametrize("network", [{}, US_US], ids=["open", "us-us"])
def test_flight_with_mutual_tls_passes(bank: int, folder: Path, network: dict[str, float]) -> None:
    """Two megabytes there and back over one connection; the server knows its caller by name."""
    data = np.random.default_rng(1).bytes(2_000_000)
    with Proxy("127.0.0.1", bank, **network) as proxy, client_of(proxy, folder) as client:
        for _ in range(2):
            assert ask(client, data) == [b"analyst", data]
        assert proxy.accepted == 1
        assert 2 * len(data) < proxy.bytes_up < 2.1 * len(data)
        assert 2 * len(data) < proxy.bytes_down < 2.1 * len(data)


def test_flight_survives_a_cut(bank: int, folder: Path) -> None:
    """A call fails as unavailable while the network is cut; the same client works again afterwards."""
    with Proxy("127.0.0.1", bank) as proxy, client_of(proxy, folder) as client:
        assert ask(client, b"1")[1] == b"1"
        proxy.cut()
        with pytest.raises(flight.FlightUnavailableError):
            ask(client, b"2")
        proxy.restore()
        assert until_it_works(lambda: ask(client, b"3"))[1] == b"3"


def test_flight_survives_a_stall(bank: int, folder: Path) -> None:
    """A call ends at its deadline while the network is silent; later calls use the same connection."""
    with Proxy("127.0.0.1", bank) as proxy, client_of(proxy, folder) as client:
        assert ask(client, b"1")[1] == b"1"
        proxy.stall()
        with pytest.raises(flight.FlightTimedOutError):
            ask(client, b"2", timeout=0.2)
        proxy.restore()
        assert ask(client, b"3")[1] == b"3"
        assert proxy.accepted == 1


@pytest.mark.parametrize("direction", ["up", "down"])
def test_tls_notices_a_corrupt_byte(bank: int, folder: Path, direction: str) -> None:
    """A byte inverted on the way breaks the connection and never changes an answer; the client connects again."""
    with Proxy("127.0.0.1", bank) as proxy, client_of(proxy, folder) as client:
        assert ask(client, b"1")[1] == b"1"
        proxy.corrupt(up=direction == "up", down=direction == "down")
        with contextlib.suppress(flight.FlightError):  # none if the byte was of gRPC's own messages between calls
            assert ask(client, b"2")[1] == b"2"
        assert until_it_works(lambda: ask(client, b"3"))[1] == b"3"
        assert proxy.accepted >= 2
