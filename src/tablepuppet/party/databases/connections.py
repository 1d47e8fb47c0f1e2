"""How a party meets the server of its database: under a name, with few connections, and never longer than a request.

Whatever reads one database in this process shares its connections, however often the party file is read again.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakValueDictionary

from tablepuppet.party.allowance import WATCH, check_time, current
from tablepuppet.party.database import UnavailableError

PATIENCE = 5.0  # seconds to wait for a connection outside of a request
GRACE = 1.0  # seconds after which the server ends by itself what a party should have ended


class AllInUseError(UnavailableError):
    """The server answers, but the party has as many connections to it as it may."""


class Connections:
    """As many connections to one server as a party may have open at once; None: any number."""

    def __init__(self, most: int | None):
        self.most = most
        self._free = None if most is None else threading.BoundedSemaphore(most)

    @contextmanager
    def one(self, party: str) -> Iterator[None]:
        """Wait for a connection that is free, for as long as the request may take."""
        if self._free is None:
            yield
            return
        until = math.inf if current() is not None else time.monotonic() + PATIENCE
        while not self._free.acquire(timeout=WATCH):
            check_time()
            if time.monotonic() > until:
                raise AllInUseError(
                    f"Party {party!r}: all of its {self.most} connections to the database are in use "
                    "(limits.database_connections); try again"
                )
        try:
            yield
        finally:
            self._free.release()


_shared: WeakValueDictionary[tuple[str, int | None], Connections] = WeakValueDictionary()
_lock = threading.Lock()


def connections_to(url: str, most: int | None) -> Connections:
    """The connections that all share who read the database of this URL."""
    with _lock:
        found = _shared.get((url, most))
        if found is None:
            found = _shared[url, most] = Connections(most)
        return found


def application(party: str) -> str:
    """The name under which a server's operator sees a party."""
    plain = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "_-") else "_" for letter in party)
    return f"tablepuppet/{plain}"[:63]


def seconds_left() -> float | None:
    """The seconds after which the server ends a statement by itself; None: never."""
    allowance = current()
    return None if allowance is None or allowance.left is None else max(allowance.left, 0.0) + GRACE
