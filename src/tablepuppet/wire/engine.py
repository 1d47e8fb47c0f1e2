"""The engine: how the coordinator calls parties. This one holds them in its own process.

Every engine answers the same requests with the same replies and meters every message alike.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from os import cpu_count
from threading import BoundedSemaphore
from typing import Protocol

from tablepuppet.party.request import Reply, Request
from tablepuppet.party.service import HERE, Party
from tablepuppet.wire.messages import meter
from tablepuppet.wire.traffic import Traffic

_CALLS = ThreadPoolExecutor(256, thread_name_prefix="tablepuppet-call")  # threads made anew cost as much as a call
_CORES = BoundedSemaphore(cpu_count() or 1)  # parties in this process share its cores; those elsewhere have their own


class Remote(Protocol):
    """A party in another process."""

    def call(self, request: Request) -> Reply:
        """One request, one reply."""
        ...


class Engine(Protocol):
    """Calls parties by name."""

    traffic: Traffic

    @property
    def parties(self) -> Sequence[str]:
        """The names of all parties."""
        ...

    def call(self, party: str, request: Request) -> Reply:
        """One request, one reply."""
        ...

    def local(self, party: str) -> Party | None:
        """The party itself, if it lives in this process."""
        ...

    def new_session(self) -> str:
        """A name for a session at all parties, which nobody can guess."""
        ...


def call_all(
    engine: Engine, calls: Sequence[tuple[str, Request]], answered: Callable[[int], None] = lambda _: None
) -> list[Reply]:
    """Many calls at the same time, one trip; replies in the order of the calls.

    ``answered`` is told how many have answered, each time one does. If calls fail, the first of their errors is
    raised after all have ended.
    """
    if calls:
        engine.traffic.add_trip()
    futures = [_CALLS.submit(engine.call, *call) for call in calls]
    try:
        for number, _ in enumerate(as_completed(futures), start=1):
            answered(number)
    finally:
        wait(futures)
    return [future.result() for future in futures]


class InProcessEngine:
    """Parties in this process, with no servers and no copies; `remote` ones live elsewhere."""

    def __init__(
        self,
        parties: Mapping[str, Party],
        remote: Mapping[str, Remote] | None = None,
        new_session: Callable[[], str] = lambda: secrets.token_hex(16),
    ):
        self._parties, self._remote = dict(parties), dict(remote or {})
        self.new_session = new_session
        self.traffic = Traffic()
        self.keep_open = False  # sessions elsewhere outlive this process: somebody will come back to them

    @property
    def parties(self) -> Sequence[str]:
        """The names of all parties."""
        return [*self._parties, *self._remote]

    def local(self, party: str) -> Party | None:
        """The party itself."""
        return self._parties.get(party)

    def call(self, party: str, request: Request) -> Reply:
        """Hand the request to the party, and meter both ways."""
        remote = self._remote.get(party)
        if request.verb == "close" and remote is not None and self.keep_open:
            return [{}]
        if remote is not None:
            reply = remote.call(request)
        else:
            with _CORES:
                reply = self._parties[party].answer(HERE, request)
        meter(self.traffic, party, request, reply)
        return reply
