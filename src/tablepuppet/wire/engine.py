"""The engine: how the coordinator calls parties. This one holds them in its own process.

Every engine answers the same requests with the same replies and meters every message alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from os import cpu_count
from typing import Any, Protocol

import msgspec

from tablepuppet.party.ops import find_op
from tablepuppet.party.release import Release
from tablepuppet.party.service import Party
from tablepuppet.wire.messages import Request, size_of
from tablepuppet.wire.traffic import Traffic


class Engine(Protocol):
    """Calls parties by name."""

    traffic: Traffic

    @property
    def parties(self) -> Sequence[str]:
        """The names of all parties."""
        ...

    def call(self, party: str, request: Request) -> Mapping[str, Any]:
        """One request, one reply."""
        ...

    def local(self, party: str) -> Party | None:
        """The party itself, if it lives in this process."""
        ...


def call_all(
    engine: Engine, calls: Sequence[tuple[str, Request]], answered: Callable[[int], None] = lambda _: None
) -> list[Mapping[str, Any]]:
    """Many calls at the same time; replies in the order of the calls.

    ``answered`` is told how many have answered, each time one does. If calls fail, the first of their errors is
    raised after all have ended.
    """
    with ThreadPoolExecutor(max_workers=max(1, min(len(calls), cpu_count() or 1))) as pool:
        futures = [pool.submit(engine.call, *call) for call in calls]
        for number, _ in enumerate(as_completed(futures), start=1):
            answered(number)
    return [future.result() for future in futures]


class InProcessEngine:
    """Parties in this process: no servers, no copies."""

    def __init__(self, parties: Mapping[str, Party]):
        self._parties = dict(parties)
        self.traffic = Traffic()

    @property
    def parties(self) -> Sequence[str]:
        """The names of all parties."""
        return list(self._parties)

    def local(self, party: str) -> Party | None:
        """The party itself."""
        return self._parties.get(party)

    def call(self, party: str, request: Request) -> Mapping[str, Any]:
        """Hand the request to the party, and meter both ways."""
        release = _release(request).label
        header = (request.verb, request.session, request.op, request.table)
        self.traffic.add(party, "down", release, size_of(header, _plain(request.arguments)))
        reply = self._answer(self._parties[party], request)
        self.traffic.add(party, "up", release, size_of((), _plain(reply)))
        return reply

    def _answer(self, party: Party, request: Request) -> Mapping[str, Any]:
        match request.verb:
            case "describe":
                return {"tables": party.describe()}
            case "open":
                return {"rows": party.open(request.session, **request.arguments)}
            case "run":
                return party.run(request.session, request.op, request.table, request.arguments)
            case "close":
                party.close(request.session)
                return {}


def _release(request: Request) -> Release:
    match request.verb:
        case "run":
            return find_op(request.op).releases
        case "describe":
            return Release.SCHEMA
        case _:
            return Release.COUNTS


def _plain(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Dataclasses as the plain values they travel as."""
    return {
        name: msgspec.to_builtins(value) if name in ("scans", "tables") else value for name, value in values.items()
    }
