"""A network that can be dialled in: a TCP proxy on loopback that delays, throttles, cuts, stalls and corrupts.

Tests and benchmarks put it between two real programs. Each direction is a `Link`: chunks are delayed side by side, as
on a long cable, and all connections of the proxy share its bandwidth. A new connection waits one round trip more, as
for TCP's handshake. Not modelled: TCP's slow start and lost packets.

    with Proxy("127.0.0.1", party_port, **US_UK) as proxy:
        client = flight.connect(f"grpc://127.0.0.1:{proxy.port}")
        proxy.stall()  # from any thread
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Coroutine
from typing import Any, Self, TypedDict

CHUNK = 1 << 17
LINE = 1024  # chunks under way in one direction of a connection; then the sender has to wait
BUFFER = 0.05  # seconds of bandwidth that a link takes ahead, as a router does


class Network(TypedDict):
    """Settings of a proxy: one-way latency in seconds, bandwidth in bytes per second."""

    latency: float
    bandwidth: float


US_UK = Network(latency=0.136 / 2, bandwidth=0.42e9 / 8)
US_US = Network(latency=0.067 / 2, bandwidth=1.15e9 / 8)

Line = asyncio.Queue[tuple[float, bytes]]  # (when it arrives, chunk); an empty chunk ends the stream


class Link:
    """One direction of the network: a delay line for each connection, one bandwidth for all."""

    def __init__(self, latency: float = 0.0, bandwidth: float | None = None):
        self.latency = latency
        self.bandwidth = bandwidth
        self.delivered = 0  # bytes
        self.to_corrupt = 0  # chunks
        self._free_at = 0.0  # when the last byte taken so far has left

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flowing: asyncio.Event) -> None:
        """Forward a stream to its end; nothing is delivered while ``flowing`` is not set."""
        line: Line = asyncio.Queue(LINE)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._take(reader, line))
            tasks.create_task(self._deliver(line, writer, flowing))

    async def _take(self, reader: asyncio.StreamReader, line: Line) -> None:
        now = asyncio.get_running_loop().time
        chunk = b"any"
        while chunk:
            await asyncio.sleep(self._free_at - now() - BUFFER)
            chunk = await reader.read(CHUNK)
            self._free_at = max(now(), self._free_at) + (len(chunk) / self.bandwidth if self.bandwidth else 0.0)
            await line.put((self._free_at + self.latency, chunk))

    async def _deliver(self, line: Line, writer: asyncio.StreamWriter, flowing: asyncio.Event) -> None:
        while True:
            due, chunk = await line.get()
            await asyncio.sleep(due - asyncio.get_running_loop().time())
            await flowing.wait()
            if not chunk:
                writer.write_eof()
                return
            self.delivered += len(chunk)  # before the other end can see it
            writer.write(self._spoiled(chunk))
            await writer.drain()

    def _spoiled(self, chunk: bytes) -> bytes:
        """The chunk, with its middle byte inverted if it is to be corrupted."""
        if not self.to_corrupt:
            return chunk
        self.to_corrupt -= 1
        middle = len(chunk) // 2
        return chunk[:middle] + bytes([chunk[middle] ^ 0xFF]) + chunk[middle + 1 :]


class Proxy:
    """Listens on a free port of 127.0.0.1 and forwards to a target, within a ``with`` block.

    ``latency`` is one way, in seconds, for each direction; ``bandwidth`` in bytes per second, or None for no limit.
    *Up* is towards the target. The controls act before they return.
    """

    def __init__(self, target_host: str, target_port: int, latency: float = 0.0, bandwidth: float | None = None):
        if latency < 0 or (bandwidth is not None and bandwidth <= 0):
            raise ValueError("a latency may not be negative, and a bandwidth must be above 0")
        self._target = (target_host, target_port)
        self._up, self._down = Link(latency, bandwidth), Link(latency, bandwidth)
        self._socket = _bound(0)
        self.port: int = self._socket.getsockname()[1]
        self.accepted = 0  # connections since the start
        self._listening = False
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._tasks: set[asyncio.Task[None]] = set()  # one per open connection
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._do(self._restore())
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._cut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._socket.close()

    @property
    def bytes_up(self) -> int:
        """Bytes delivered to the target."""
        return self._up.delivered

    @property
    def bytes_down(self) -> int:
        """Bytes delivered from the target."""
        return self._down.delivered

    @property
    def connections(self) -> int:
        """Connections that are open now."""
        return len(self._tasks)

    def cut(self) -> None:
        """Reset all connections, and refuse new ones until `restore`."""
        self._do(self._cut())

    def stall(self) -> None:
        """Accept connections and deliver nothing until `restore`, which delivers what was held."""
        self._do(self._stall())

    def restore(self) -> None:
        """Undo `cut` and `stall`."""
        self._do(self._restore())

    def corrupt(self, count: int = 1, *, up: bool = True, down: bool = True) -> None:
        """Invert a byte in each of the next ``count`` chunks delivered in each chosen direction."""
        self._do(self._corrupt(count if up else 0, count if down else 0))

    def _do(self, action: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(action, self._loop).result()

    async def _stall(self) -> None:
        self._flowing.clear()

    async def _restore(self) -> None:
        self._flowing.set()
        if not self._listening:
            self._listening = True
            self._socket.listen(128)
            self._loop.add_reader(self._socket, self._accept)

    async def _cut(self) -> None:
        if self._listening:
            self._listening = False
            self._loop.remove_reader(self._socket)
            self._socket.close()
            self._socket = _bound(self.port)  # bound and not listening: refuses, and keeps the port ours
        await asyncio.sleep(0)  # a task cancelled before its first step would not close its connection
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # an aborted transport closes its socket in the loop's next turn

    async def _corrupt(self, up: int, down: int) -> None:
        self._up.to_corrupt += up
        self._down.to_corrupt += down

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionError):  # the caller may be gone again
            connection, _ = self._socket.accept()
            connection.setblocking(False)
            self.accepted += 1
            task = self._loop.create_task(self._serve(connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, connection: socket.socket) -> None:
        _reset_on_close(connection, True)
        writers = []
        try:
            near_reader, near_writer = await asyncio.open_connection(sock=connection, limit=CHUNK)
            writers.append(near_writer)
            await asyncio.sleep(2 * self._up.latency)
            far_reader, far_writer = await asyncio.open_connection(*self._target, limit=CHUNK)
            writers.append(far_writer)
            _reset_on_close(far_writer.get_extra_info("socket"), True)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._up.carry(near_reader, far_writer, self._flowing))
                tasks.create_task(self._down.carry(far_reader, near_writer, self._flowing))
            for writer in writers:
                _reset_on_close(writer.get_extra_info("socket"), False)
                writer.close()
        except* OSError:
            pass  # one end is gone: the other is told by a reset
        finally:
            for writer in writers:
                if not writer.is_closing():
                    writer.transport.abort()


def _bound(port: int) -> socket.socket:
    """A socket that has the port and does not listen yet."""
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.setblocking(False)
    bound.bind(("127.0.0.1", port))
    return bound


def _reset_on_close(connection: socket.socket, reset: bool) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", reset, 0))
