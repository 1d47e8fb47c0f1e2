"""The engine: how the coordinator calls parties. This one holds them in its own process.

Every engine answers the same requests with the same replies and meters every message alike.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from os import cpu_count
from threading import BoundedSemaphore
from typing import Protocol

from tablepuppet.party.request import Reply, Request
from tablepuppet.party.service import HERE, Party
from tablepuppet.wire.at_once import at_once
from tablepuppet.wire.messages import meter
from tablepuppet.wire.protocol import LostError
from tablepuppet.wire.traffic import Traffic

_CORES = BoundedSemaphore(cpu_count() or 1)  # parties in this process share its cores; those elsewhere have their own


class Remote(Protocol):
    """A party in another process."""

    def call(self, request: Request, patience: float | None = None) -> Reply:
        """One request, one reply; LostError if it is silent for its timeout, or tried once for ``patience`` seconds."""
        ...

    def take_back(self, losses: int) -> None:
        """Take the last losses off the record, if there is one."""
        ...


class Engine(Protocol):
    """Calls parties by name."""

    traffic: Traffic

    @property
    def parties(self) -> Sequence[str]:
        """The names of all parties."""
        ...

    def call(self, party: str, request: Request, patience: float | None = None) -> Reply:
        """One request, one reply; a party elsewhere is tried once for ``patience`` seconds, if that is given."""
        ...

    def take_back(self, party: str, losses: int) -> None:
        """Forget that a party was lost, so many times: the run ends because of it."""
        ...

    def local(self, party: str) -> Party | None:
        """The party itself, if it lives in this process."""
        ...

    def new_session(self) -> str:
        """A name for a session at all parties, which nobody can guess."""
        ...


def call_all(
    engine: Engine, calls: Sequence[tuple[str, Request]], answered: Callable[[int], None] | None = None
) -> list[Reply]:
    """Many calls at the same time, one trip; replies in the order of the calls.

    ``answered`` is told how many have answered, each time one does. If calls fail, the first of their errors is
    raised after all have ended.
    """
    return [_reply(outcome) for outcome in _outcomes(engine, calls, None, answered)]


def try_all(
    engine: Engine, calls: Sequence[tuple[str, Request]], patience: float | None = None
) -> list[Reply | LostError]:
    """The same, where a party that is lost has its error in the place of its reply; see `Engine.call`."""
    outcomes = _outcomes(engine, calls, patience)
    return [outcome if isinstance(outcome, LostError) else _reply(outcome) for outcome in outcomes]


def _outcomes(
    engine: Engine,
    calls: Sequence[tuple[str, Request]],
    patience: float | None,
    answered: Callable[[int], None] | None = None,
) -> list[Reply | BaseException]:
    if calls:
        engine.traffic.add_trip()
    settings = [] if patience is None else [patience]
    return at_once([partial(engine.call, *call, *settings) for call in calls], answered)


def _reply(outcome: Reply | BaseException) -> Reply:
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


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

    def take_back(self, party: str, losses: int) -> None:
        """Take the last losses of a party off its record."""
        self._remote[party].take_back(losses)

    def local(self, party: str) -> Party | None:
        """The party itself."""
        return self._parties.get(party)

    def call(self, party: str, request: Request, patience: float | None = None) -> Reply:
        """Hand the request to the party, and meter both ways."""
        remote = self._remote.get(party)
        if request.verb == "close" and remote is not None and self.keep_open:
            return [{}]
        if remote is not None:
            reply = remote.call(request, patience)
        else:
            with _CORES:
                reply = self._parties[party].answer(HERE, request)
        meter(self.traffic, party, request, reply)
        return reply
