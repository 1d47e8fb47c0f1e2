"""The `Engine`: a router that calls parties by name, each over its own transport.

Input: requests for parties. Output: their replies, every message metered alike whatever the transport, and a
``trip`` event for each call of a trip, which names ops and sizes only. A new way to reach parties is a new `Transport`.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from tablepuppet.errors import ApprovalError
from tablepuppet.party.request import UNDECLARED, Reply, Request
from tablepuppet.runs.events import Events, TripRecord
from tablepuppet.wire.at_once import at_once
from tablepuppet.wire.protocol import LostError
from tablepuppet.wire.traffic import NOTHING, MessageSizes, Traffic, meter, names_of
from tablepuppet.wire.transport import Capabilities, Transport

Calls = Sequence[tuple[str, Request]]


class Engine:
    """Calls parties by name. ``events`` receive what every trip has cost."""

    def __init__(
        self,
        transports: Mapping[str, Transport],
        new_session: Callable[[], str] = lambda: secrets.token_hex(16),
        events: Events | None = None,
    ):
        self.transports = dict(transports)
        self.new_session = new_session  # a name for a session at all parties, which nobody can guess
        self._events = events or Events()
        self.traffic = Traffic()
        self.job = UNDECLARED  # what parties are told that sessions without tables are for
        self.keep_open = False  # sessions of services outlive this process: somebody will come back to them

    @property
    def parties(self) -> Sequence[str]:
        """The names of all parties."""
        return list(self.transports)

    def capabilities(self, party: str) -> Capabilities:
        """What can be done with a party beyond calling it."""
        return self.transports[party].capabilities

    def is_service(self, party: str) -> bool:
        """Whether somebody runs the party as a service, rather than this federation having opened a database."""
        return self.capabilities(party).is_service

    def call(self, party: str, request: Request, patience: float | None = None) -> Reply:
        """One request, one reply, metered both ways; see `Transport.call`."""
        return self.measured(party, request, patience)[0]

    def measured(self, party: str, request: Request, patience: float | None = None) -> tuple[Reply, MessageSizes]:
        """The reply to a request, and the bytes of both."""
        if request.verb == "close" and self.keep_open and self.is_service(party):
            return [{}], NOTHING
        reply = self.transports[party].call(request, patience)
        return reply, meter(self.traffic, party, request, reply)

    def drop_losses(self, party: str, losses: int) -> None:
        """Drop the last ``losses`` losses of a party from its record, if there is one: the run ends because of them."""
        drop = self.capabilities(party).drop_losses
        if drop is not None:
            drop(losses)

    def trip(
        self, calls: Calls, patience: float | None = None, answered: Callable[[int], None] | None = None
    ) -> list[Reply | BaseException]:
        """Calls at the same time: the reply or the error of each, in their order.

        ``answered`` receives how many have answered, each time one does.
        """
        if not calls:
            return []
        number = self.traffic.add_trip()
        made: list[_Made] = at_once(  # type: ignore[assignment] # they raise nothing
            [partial(self._timed, party, request, patience) for party, request in calls], answered
        )
        if self._events.wants_trips:  # here and not in a call: readers are called by one thread
            for (party, request), each in zip(calls, made, strict=True):
                self._events.emit_trip(each.record(number, party, request))
        return [each.outcome for each in made]

    def _timed(self, party: str, request: Request, patience: float | None) -> _Made:
        began = time.perf_counter()
        outcome: Reply | BaseException
        try:
            outcome, sizes = self.measured(party, request, patience)
        except BaseException as error:
            outcome, sizes = error, NOTHING
        return _Made(outcome, sizes, time.perf_counter() - began)


class _Made(NamedTuple):
    """A call that has ended."""

    outcome: Reply | BaseException
    sizes: MessageSizes
    seconds: float

    def record(self, number: int, party: str, request: Request) -> TripRecord:
        """What an event may say of it: sizes and names of ops, no values."""
        return TripRecord(
            trip=number,
            party=party,
            ops=names_of(request),
            bytes_up=self.sizes.up,
            bytes_down=self.sizes.down,
            released=dict(self.sizes.released),
            seconds=self.seconds,
            answered=not isinstance(self.outcome, BaseException),
        )


def call_all(engine: Engine, calls: Calls, answered: Callable[[int], None] | None = None) -> list[Reply]:
    """Many calls at the same time, one trip; replies in the order of the calls.

    ``answered`` receives how many have answered, each time one does. If calls fail, the first of their errors is
    raised after all have ended; jobs that wait for approval at several parties are all in it.
    """
    outcomes = engine.trip(calls, answered=answered)
    waiting = [outcome for outcome in outcomes if isinstance(outcome, ApprovalError)]
    failed = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    if len(waiting) > 1 and len(waiting) == len(failed):
        raise ApprovalError("\n".join(map(str, waiting)), rule=waiting[0].rule) from waiting[0]
    if failed:
        raise failed[0]
    return outcomes  # type: ignore[return-value] # none of them is an error


def try_all(engine: Engine, calls: Calls, patience: float | None = None) -> list[Reply | LostError]:
    """Like `call_all`, but a party that is lost has its error in the place of its reply; see `Transport.call`."""
    outcomes = engine.trip(calls, patience)
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, LostError):
            raise outcome
    return outcomes  # type: ignore[return-value] # no other errors are left
