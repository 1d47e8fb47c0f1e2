"""Counts the open connections of a party, and closes those that are idle or too many.

gRPC accepts whatever connects and leaves it open; a caller is known only once it has shown a certificate and called.
Here connections that never call are ended after a while, the oldest first where there are too many, and one caller gets
so many at once. So sockets that somebody opens cannot use up the file descriptors of the party. Connections that ended
without a call are counted, for whatever reason: TLS that failed is among them, but gRPC reports it to its own log only,
and what comes and goes between two looks is not seen. Looks at this process only (`/proc/self/fd`, Linux); elsewhere
nothing is ended, and the operating system's own limit holds.
"""

from __future__ import annotations

import errno
import ipaddress
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import unquote

log = logging.getLogger("tablepuppet.party")
FDS = "/proc/self/fd"
SPARE = 8  # descriptors kept back, so that the door can be cleared when there are no others
OTHER_FILES = 256  # descriptors that are no connections: databases, logs, journals
MOST_NOTES = 60.0  # seconds between lines of the log about the same thing

Address = tuple[str, int]


@dataclass
class Connection:
    """An open connection: where it comes from, and since when it is known."""

    descriptor: int
    address: Address
    since: float


def raise_descriptor_limit() -> None:
    """Let this process have as many file descriptors as it may."""
    import resource  # not on every system that a coordinator runs on

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def descriptor_limit() -> int:
    """How many file descriptors this process may have."""
    import resource

    found = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1 << 20 if found == resource.RLIM_INFINITY else found


class Doorkeeper:
    """Ends connections to ``port`` that do not call within ``patience`` seconds, and those beyond ``most``."""

    def __init__(
        self,
        port: int,
        most: int,
        per_caller: int,
        patience: float,
        reached: Callable[[str], None] = lambda limit: None,
        left: Callable[[], None] = lambda: None,
    ):
        self._port, self._most, self._per_caller, self._patience = port, most, per_caller, patience
        raise_descriptor_limit()
        self._open: dict[str, Connection] = {}  # by the inode of the socket
        self._callers: dict[Address, tuple[str, float]] = {}
        self._lock = threading.Lock()
        self._spare = [os.open(os.devnull, os.O_RDONLY) for _ in range(SPARE)]
        self._noted: dict[str, float] = {}
        self._reached = reached  # called with the name of a limit that was reached
        self._left = left  # called for each connection that ended without a call
        self.ended = 0  # connections that were hung up on, so far

    def enter(self, peer: str, caller: str) -> bool:
        """Note that a caller has called from ``peer``; False if it has as many connections as it may, without it."""
        address = _address_of(peer)
        with self._lock:
            if address in self._callers:
                return True
            here = {connection.address for connection in self._open.values()}
            mine = sum(1 for known, (name, _) in self._callers.items() if name == caller and known in here)
            if mine >= self._per_caller:
                return False
            self._callers[address] = (caller, time.monotonic())
            return True

    def sweep(self) -> None:
        """Look at all connections, and close those that are idle or too many."""
        try:
            self._look()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                return  # no such folder: not Linux
            self._note("descriptors", "no file descriptors are left; connections that never called are ended")
            self._reached("descriptors")
            self._give_back()
            self._look()
        try:
            self._end(*self._to_end())
        finally:
            self._take_spare()

    def _end(self, late: list[str], many: list[str]) -> None:
        ended = 0
        for limit, inodes in (("connect_seconds", late), ("connections", many)):
            for inode in inodes:
                if self._hang_up(inode):
                    ended += 1
                    self._reached(limit)
        self.ended += ended
        if ended:
            self._note("ended", f"{self.ended:,} connections that did not call, or were too many, are ended so far")

    def close(self) -> None:
        """Give descriptors back."""
        self._give_back()

    @property
    def open(self) -> int:
        """Connections that were open at the last look."""
        return len(self._open)

    @property
    def most(self) -> int:
        """Connections that may be open: as many as are allowed, and leave descriptors for all else."""
        limit = descriptor_limit()
        return max(8, min(self._most, max(limit - OTHER_FILES, limit // 2)))

    def _give_back(self) -> None:
        while self._spare:
            os.close(self._spare.pop())

    def _take_spare(self) -> None:
        with suppress(OSError):
            while len(self._spare) < SPARE:
                self._spare.append(os.open(os.devnull, os.O_RDONLY))

    def _look(self) -> None:
        """Learn which connections are open now."""
        now, found = time.monotonic(), {}
        for descriptor, inode in _sockets():
            known = self._open.get(inode)
            if known is not None and known.descriptor == descriptor:
                found[inode] = known
            elif (address := self._caller_of(descriptor)) is not None:
                found[inode] = Connection(descriptor, address, now)
        with self._lock:
            for inode, each in self._open.items():
                if inode not in found and each.address not in self._callers:
                    self._left()
            self._open = found
            here = {connection.address for connection in found.values()}
            self._callers = {a: known for a, known in self._callers.items() if a in here or known[1] > now - 5.0}

    def _caller_of(self, descriptor: int) -> Address | None:
        """Where a connection of this port comes from; None for every other socket."""
        with suppress(OSError, ValueError, TypeError), _duplicate(descriptor) as line:
            if line.family in (socket.AF_INET, socket.AF_INET6) and line.getsockname()[1] == self._port:
                host, port, *_ = line.getpeername()
                return _plain(host), port
        return None

    def _to_end(self) -> tuple[list[str], list[str]]:
        """Connections that never called and should end: those that had their time, and those that are too many."""
        now = time.monotonic()
        strangers = [inode for inode, each in self._open.items() if each.address not in self._callers]
        strangers.sort(key=lambda inode: self._open[inode].since)
        late = [inode for inode in strangers if self._open[inode].since < now - self._patience]
        return late, strangers[len(late) : max(len(late), len(self._open) - self.most)]

    def _hang_up(self, inode: str) -> bool:
        """End a connection. gRPC, which owns its descriptor, then closes that by itself."""
        each = self._open[inode]
        with suppress(OSError), _duplicate(each.descriptor) as line:
            if os.readlink(f"{FDS}/{line.fileno()}") == inode:  # not another that has the number now
                line.shutdown(socket.SHUT_RDWR)
                return True
        return False

    def _note(self, what: str, message: str) -> None:
        """Tell the operator, but not every second."""
        now = time.monotonic()
        if now - self._noted.get(what, -MOST_NOTES) >= MOST_NOTES:
            self._noted[what] = now
            log.warning("%s", message)


def _sockets() -> Iterator[tuple[int, str]]:
    """Descriptor and identity of every socket of this process."""
    for name in os.listdir(FDS):
        with suppress(OSError):  # closed since
            identity = os.readlink(f"{FDS}/{name}")
            if identity.startswith("socket:"):
                yield int(name), identity


def _duplicate(descriptor: int) -> socket.socket:
    """The socket under a descriptor of one's own: whatever happens to the other, this one stays the same."""
    own = os.dup(descriptor)
    try:
        return socket.socket(fileno=own)
    except OSError:
        os.close(own)
        raise


def _address_of(peer: str) -> Address:
    """What gRPC calls the other end, such as ``ipv4:127.0.0.1:5`` or ``ipv6:%5B::1%5D:5``.

    >>> _address_of("ipv6:%5B::ffff:127.0.0.1%5D:5")
    ('127.0.0.1', 5)
    """
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    return _plain(host.strip("[]")), int(port) if port.isdigit() else 0


def _plain(host: str) -> str:
    try:
        found = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped or found)
