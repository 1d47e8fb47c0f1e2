"""Bytes of requests that a party holds at the same time: all requests of a caller share the limit of one."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tablepuppet.wire.protocol import BusyError

AS_OBJECTS = 64  # bytes of memory that a byte of a header may take once it is read


class InFlight:
    """Requests that are being read or answered; those of one caller take up to ``most`` bytes."""

    def __init__(self, party: str, most: int):
        self._party, self._most = party, most
        self._held: Counter[str] = Counter()
        self._lock = threading.Lock()

    @contextmanager
    def request(self, caller: str) -> Iterator[Callable[[int], None]]:
        """One request: a function to call before so many bytes more of it are read.

        It raises BusyError if there is no room beside the caller's other requests; how large one may be is not
        decided here.
        """
        own = 0

        def grow(size: int) -> None:
            nonlocal own
            with self._lock:
                others = self._held[caller] - own
                if others and others + own + size > self._most:
                    raise BusyError(
                        f"party {self._party!r} is busy: the requests that caller {caller!r} sends at once have more "
                        f"than the {self._most:,} bytes that it reads (limits.message_bytes); try again",
                        limit="message_bytes",
                    )
                self._held[caller] += size
                own += size

        try:
            yield grow
        finally:
            with self._lock:
                self._held[caller] -= own
                if not self._held[caller]:
                    del self._held[caller]
