"""The `Engine` calls parties by name, all parties of a trip at the same time, each over its own `Transport`.

Input: requests for parties. Output: their replies, every message metered alike whatever the transport, and a
``trip`` event for each call of a trip, which names ops and sizes only. A new way to reach parties is a new `Transport`.
"""

from __future__ import annotations

import atexit
import os
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from functools import cache, partial
from queue import SimpleQueue
from threading import BoundedSemaphore
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from tablepuppet.errors import ApprovalError
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.request import UNDECLARED, Reply, Request
from tablepuppet.party.service import HERE, Party
from tablepuppet.pieces import cores
from tablepuppet.runs import interrupts, spans
from tablepuppet.runs.events import Events, TripRecord, current_run
from tablepuppet.wire.protocol import LostError
from tablepuppet.wire.traffic import NOTHING, MessageSizes, Stopwatch, Traffic, meter, names_of

# A `Transport` calls one party (its only method is `call`); `Capabilities` lists what else that party can do. Input: a
# request. Output: the party's reply. A party in this process is called as it is, without a server and without copies;
# `flight_transport.py` calls one elsewhere, and `record.py` keeps what another transport brought.


_CORES = BoundedSemaphore(cores())  # parties in this process share its cores; those elsewhere have their own


class CategorySecrets(Protocol):
    """A party whose secrets of categories are saved with a model, in the caller's own folder."""

    def category_secret(self, blinding: str) -> bytes:
        """The secret under which a model's categories are blinded."""
        ...

    def adopt_category_secret(self, blinding: str, secret: bytes) -> None:
        """Use the secret of a saved model."""
        ...

    def knows_categories(self, blinding: str, key: str) -> bool:
        """Whether it blinds categories by the secret of a model that was fitted under the blinding key of this mark."""
        ...


@dataclass(frozen=True)
class Capabilities:
    """What can be done with a party beyond `Transport.call`; None where it cannot. The defaults are a service's."""

    is_service: bool = True  # run by somebody: it may be lost, has a certificate, stores sessions and parts of models
    positions: Callable[[str, str, NDArray[np.int32]], NDArray[np.int64]] | None = None
    """(session, alias, row ids) -> where these rows stand in their source."""
    table: Callable[[str, str], LocalTable] | None = None
    """(session, alias) -> the table itself, for baselines that pool rows."""
    category_secrets: CategorySecrets | None = None
    drop_losses: Callable[[int], None] | None = None
    """Drop the last n losses from the record."""


class Transport(ABC):
    """Calls one party."""

    capabilities: Capabilities = Capabilities()

    @abstractmethod
    def call(self, request: Request, patience: float | None = None) -> Reply:
        """One request, one reply.

        LostError if the party is silent for its timeout; with ``patience`` it is tried once, for so many seconds.
        """


class InProcessTransport(Transport):
    """Hands requests to a party in this process, in the name of ``caller``."""

    def __init__(self, party: Party, caller: str = HERE):
        self.party, self._caller = party, caller
        self.capabilities = Capabilities(
            is_service=False, positions=self._positions, table=self._table, category_secrets=party
        )

    def call(self, request: Request, patience: float | None = None) -> Reply:
        """The party's reply. It comes at once, so ``patience`` is not used."""
        with _CORES:
            return self.party.answer(self._caller, request)

    def _table(self, session: str, alias: str) -> LocalTable:
        return self.party.table(session, alias, self._caller)

    def _positions(self, session: str, alias: str, row_ids: NDArray[np.int32]) -> NDArray[np.int64]:
        return self._table(session, alias).positions(row_ids)


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
        self.traffic, self.stopwatch = Traffic(), Stopwatch()
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
        number, run, session = self.traffic.add_trip(), current_run(), calls[0][1].session
        self.stopwatch.begin(run, session)
        with spans.of_trip(run, number) as span:
            made: list[_Made] = at_once(  # type: ignore[assignment] # they raise nothing
                [partial(self._timed, party, request, patience, span) for party, request in calls], answered
            )
        self.stopwatch.end(
            run,
            session,
            [
                (party, names_of(request), each.sizes.up, each.sizes.down, each.seconds)
                for (party, request), each in zip(calls, made, strict=True)
            ],
        )
        if self._events.wants_trips:  # here and not in a call: readers are called by one thread
            for (party, request), each in zip(calls, made, strict=True):
                self._events.emit_trip(each.record(number, party, request))
        return [each.outcome for each in made]

    def _timed(self, party: str, request: Request, patience: float | None, trip: Any) -> _Made:
        began = time.perf_counter()
        outcome: Reply | BaseException
        try:
            with spans.of_call(trip, party, names_of(request)):
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


# Makes calls at the same time, and waits until all have ended. Each has a thread of its own: in a call of the user's
# own thread an interrupt could get lost. Threads are kept, since one made anew costs as much as a call. A
# `concurrent.futures` pool would do, but takes twice as long to hand a call over and back, and most calls are short.


Result = TypeVar("Result")
MOST_THREADS = 256


class Trip(Generic[Result]):
    """Some calls at the same time, and how each has ended."""

    def __init__(self, calls: Sequence[Callable[[], Result]]):
        self.calls = calls
        self._contexts = [copy_context() for _ in calls]  # what a call emits is of its caller's run
        self.outcomes: list[Any] = [None] * len(calls)
        self._left = len(calls)
        self._lock, self._all_ended = threading.Lock(), threading.Lock()
        self._ended: SimpleQueue[int] = SimpleQueue()
        if calls:
            self._all_ended.acquire()

    def make(self, number: int) -> None:
        """Make one of the calls."""
        try:
            self.outcomes[number] = self._contexts[number].run(self.calls[number])
        except BaseException as error:
            self.outcomes[number] = error

    def count(self) -> None:
        """Count a call that has ended. Whoever waits for all is woken up by the last."""
        with self._lock:
            self._left -= 1
            self._ended.put(len(self.calls) - self._left)
            if not self._left:
                self._all_ended.release()

    def follow(self, ended: Callable[[int], None]) -> None:
        """Wait until all calls have ended; ``ended`` receives how many have, each time one does."""
        for _ in self.calls:
            ended(self._ended.get())

    def wait(self) -> None:
        """Wait until all calls have ended."""
        with self._all_ended:
            pass


Waiting = SimpleQueue[tuple[Trip[Any], int] | None]


class Threads:
    """Threads that take calls from a queue; a new one is made when none is free."""

    def __init__(self, most: int):
        self._most = most
        self._queue: Waiting = SimpleQueue()
        self._lock = threading.Lock()
        self._free = 0  # below zero: calls that wait for a thread
        self._all: list[threading.Thread] = []
        atexit.register(self._stop)  # a thread that is in a call must not outlive the interpreter

    def start(self, trip: Trip[Any]) -> None:
        """Begin the calls of a trip; where no thread can be made, make them."""
        with self._lock:
            queue: Waiting | None = self._queue
            self._free -= len(trip.calls)
            while self._free < 0 and len(self._all) < self._most and self._grow():
                self._free += 1
            if not self._all:
                self._free = 0
                queue = None
        for number in range(len(trip.calls)):
            if queue is not None:
                queue.put((trip, number))
            else:
                trip.make(number)
                trip.count()

    def _grow(self) -> bool:
        name = f"tablepuppet-call-{len(self._all)}"
        thread = threading.Thread(target=self._work, args=(self._queue,), name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system has no more, or the interpreter is about to end
            return False
        self._all.append(thread)
        return True

    def _work(self, queue: Waiting) -> None:
        while (asked := queue.get()) is not None:
            trip, number = asked
            trip.make(number)
            with self._lock:
                self._free += queue is self._queue
            trip.count()
            del asked, trip  # an idle thread keeps no reply

    def _stop(self) -> None:
        """Let all threads end; a call that comes later gets a new one, with a queue of its own."""
        with self._lock:
            ending, queue = self._all, self._queue
            self._all, self._free, self._queue = [], 0, SimpleQueue()
        for _ in ending:
            queue.put(None)
        for thread in ending:
            thread.join()


@cache
def _threads() -> Threads:
    return Threads(MOST_THREADS)


def _forget_threads() -> None:
    """Threads do not survive a fork."""
    if _threads.cache_info().currsize:
        atexit.unregister(_threads()._stop)
        _threads.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)


def at_once(
    calls: Sequence[Callable[[], Result]], ended: Callable[[int], None] | None = None
) -> list[Result | BaseException]:
    """What the calls return or raise, in their order, once all have ended.

    ``ended`` receives how many have ended, each time one does.

    >>> at_once([lambda: 1, lambda: 2])
    [1, 2]
    """
    interrupts.check()
    trip = Trip(calls)
    _threads().start(trip)
    try:
        trip.follow(ended) if ended else trip.wait()
    finally:  # also if the user interrupts it
        trip.wait()
    interrupts.check()
    return trip.outcomes
