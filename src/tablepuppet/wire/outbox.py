"""The outbox of a session: batches steps into trips, and continues while a party is lost.

`ask` only queues a step. When the first answer is read, every party gets all its queued steps in one request, and all
parties at the same time. So a step whose answer nobody reads, such as one to encode rows, costs no trip.

A step may have a substitute for its answer, used if the party is lost. Such a party is tried again with every trip,
briefly. When it answers again, it first gets the request that it has not answered, then the steps without substitute.
A party that is `needed` has none: when it is lost, the session is over.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Literal

from tablepuppet.errors import PrivacyError
from tablepuppet.party.ops import REGISTRY
from tablepuppet.party.request import Reply, Request, Step
from tablepuppet.wire.engine import Engine, try_all
from tablepuppet.wire.protocol import LostError

Values = Mapping[str, Any]
StandIn = Literal["cache", "zeros"]
BRIEFLY = 1.0  # seconds to try a party that is lost
LONGEST_REST = 10  # trips without a try


@dataclass(eq=False)
class Answer:
    """The reply to one step, once there is one; only `read` makes a trip."""

    _outbox: Outbox
    _party: str
    _instead: Callable[[], Values] | None = None
    _check: Callable[[Values], None] | None = None
    asked_by: int = field(default_factory=threading.get_ident)
    values: Values | None = None
    error: BaseException | None = None
    is_open: bool = True  # nothing has come back yet
    missed: bool = False  # whether a substitute stands in for the answer

    def read(self) -> Values:
        """The answer, or its substitute; raises what went wrong on its trip. Sends what waits unless it is there."""
        if self.is_open and self._outbox.let_others is not None:
            self._outbox.let_others()
        if self.is_open:
            self._outbox.fetch(self, self._party)
        if self.is_open:
            raise self._outbox.lost[self._party]
        if self.error is not None:
            raise self.error
        assert self.values is not None, "a sent step is answered, has failed, or its party is lost"
        return self.values

    def resolve(self, values: Values) -> None:
        """Store the reply; one that this step cannot have is an error to whoever reads it."""
        try:
            if self._check is not None:
                self._check(values)
            self.values, self.is_open = values, False
        except Exception as error:  # whatever it is: the other answers of the trip must be read too
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Store why there is no reply."""
        self.error, self.is_open = error, False

    def substitute(self) -> bool:
        """Use the substitute of the answer; false if there is none."""
        if self._instead is None:
            return False
        self.values, self.missed, self.is_open = self._instead(), True, False
        return True


Asked = list[tuple[Step, Answer]]


@dataclass
class LostParty:
    """A party that is lost: the request that it has not answered, and how long it is left alone."""

    request: Request
    asked: Asked
    error: LostError
    tries: int = 0
    rest: int = 0  # trips until it is tried again

    def has_just_lost(self, answer: Answer) -> bool:
        """Whether the answer is one of the request that it has not answered, and it was not tried since."""
        return not self.tries and any(answer is each for _, each in self.asked)

    def answered(self, reply: Reply) -> None:
        """It answers again; substitutes that were used stay."""
        for (_, answer), values in zip(self.asked, reply, strict=True):
            if answer.is_open:
                answer.resolve(values)

    def failed_again(self) -> None:
        """A retry failed; a retry may take a second, so the next ones are less frequent."""
        self.tries += 1
        self.rest = min(self.tries - 1, LONGEST_REST)


@dataclass(frozen=True)
class WhenLost:
    """What stands in for a party that stays silent (None: the run ends).

    ``notify`` is called with a party and how it was lost, and with None when it is back.
    """

    stand_in: StandIn | None = None
    timeout: float = 60.0
    notify: Callable[[str, LostError | None], None] = lambda party, error: None


class Outbox:
    """The steps of one session that wait for the next trip, by party."""

    def __init__(self, engine: Engine, session: str, when_lost: WhenLost | None = None):
        self._engine, self.session, self.when_lost = engine, session, when_lost or WhenLost()
        self._waiting: dict[str, Asked] = {}
        self._lost: dict[str, LostParty] = {}
        self._missed: set[str] = set()
        self._losses: Counter[str] = Counter()  # calls in vain
        self.changes = 0  # how often a party was lost or came back
        self.needed: dict[str, str] = {}  # parties without which the session is over, and why
        self._over: PrivacyError | None = None
        self._names = itertools.count()
        self._sent: Counter[str] = Counter()
        self.replies: Counter[tuple[str, str]] = Counter()  # by party and alias: asked for, of those a policy counts
        self.let_others: Callable[[], None] | None = None  # lets those that share trips ask too, before one is made
        self._patience: float | None = None  # seconds of a call, while parties are hurried
        self._lock = threading.RLock()

    def new_name(self) -> str:
        """A name for something of this session: no other session has it."""
        return f"{self.session}.{next(self._names)}"

    def ask(
        self,
        party: str,
        step: Step,
        instead: Callable[[], Values] | None = None,
        check: Callable[[Values], None] | None = None,
    ) -> Answer:
        """Queue a step for a party; ``instead`` gives the substitute of its answer if the party is lost.

        ``check`` raises if an answer is none that the step can have.
        """
        answer = Answer(self, party, instead, check)
        with self._lock:
            self.replies[party, step.table] += step.op in REGISTRY and REGISTRY[step.op].is_round
            self._waiting.setdefault(party, []).append((step, answer))
        return answer

    @contextmanager
    def withdrawn_if_it_fails(self) -> Iterator[None]:
        """If the block raises, withdraw the steps about models that it has queued: nobody will have these models.

        They would fail with the next request, whoever makes it. Other steps stay: what they prepare at the parties may
        be used by others. Fits that share trips have a thread each.
        """
        with self._lock:
            before = [answer for asked in self._waiting.values() for _, answer in asked]
        try:
            yield
        except BaseException as error:
            thread = threading.get_ident()
            with self._lock:
                for party, asked in list(self._waiting.items()):
                    kept = []
                    for step, answer in asked:
                        if answer in before or answer.asked_by != thread or "model" not in step.arguments:
                            kept.append((step, answer))
                        else:
                            self.replies[party, step.table] -= step.op in REGISTRY and REGISTRY[step.op].is_round
                            answer.fail(error)
                    self._waiting[party] = kept
                self._waiting = {party: asked for party, asked in self._waiting.items() if asked}
            raise

    @property
    def lost(self) -> dict[str, LostError]:
        """The parties that are lost now, and how."""
        return {party: lost.error for party, lost in self._lost.items()}

    def take_missed(self) -> set[str]:
        """The parties that are lost, or were since this was last asked."""
        with self._lock:
            missed, self._missed = self._missed | set(self._lost), set()
        return missed

    def fetch(self, answer: Answer, party: str) -> None:
        """Send what waits. If the answer of a party that was lost before has no substitute, it has one more timeout."""
        with self._lock:
            lost, losses = self._lost.get(party), self._losses[party]
            if lost is not None and lost.has_just_lost(answer):
                losses -= 1  # another reader has sent it
            else:
                self.send()
                if lost is not None and answer.is_open and self._wait(lambda: party not in self._lost):
                    self.send()
            if answer.is_open:
                self._engine.drop_losses(party, self._losses[party] - losses)
                self._lost[party].tries += 1  # a loss is dropped once

    @contextmanager
    def hurried(self, seconds: float) -> Iterator[None]:
        """Inside, a service has so many seconds to answer; then it counts as lost, and substitutes are used.

        It gets what it has not answered again with the trips that follow, also outside. Databases in this process
        answer when they are done.
        """
        before, self._patience = self._patience, seconds
        try:
            yield
        finally:
            self._patience = before

    def leave_lost(self) -> None:
        """Do not try parties that are lost again until somebody needs them: each try may take a second."""
        with self._lock:
            for lost in self._lost.values():
                lost.rest = 1 << 40

    def wait_for_all(self) -> bool:
        """Give parties that are lost one more timeout; whether all are here."""
        with self._lock:
            return self._wait(lambda: not self._lost)

    def _wait(self, enough: Callable[[], bool]) -> bool:
        """Try parties that are lost for a timeout. Tries are counted: a run that is repeated from its record has as
        many.
        """
        pause = min(BRIEFLY, self.when_lost.timeout / 4)
        for _ in range(math.ceil(self.when_lost.timeout / pause)):
            if enough():
                break
            began = time.monotonic()
            for lost in self._lost.values():
                lost.rest = 0
            self._retry_lost()
            if not enough():
                time.sleep(max(0.0, pause - (time.monotonic() - began)))
        return enough()

    def send(self) -> None:
        """Send all queued steps in one trip. An error is raised again for every reader of an answer of this trip.

        Of whatever kind it is: a step that was sent is never sent again, so an answer left open would stay so.
        """
        with self._lock:
            if self._lost:
                self._retry_lost()
            ready, self._waiting = self._waiting, {}
            for party in ready.keys() & self._lost.keys():
                self._waiting[party] = ready.pop(party)
            try:
                for party, asked in self._waiting.items():  # it waits on, unless its answer has a substitute
                    self._waiting[party] = [(step, answer) for step, answer in asked if not answer.substitute()]
                self._sent.update(ready.keys())
                calls = []
                for party, asked in ready.items():
                    steps = tuple(map(itemgetter(0), asked))
                    calls.append((party, Request("run", self.session, {}, steps, self._sent[party])))
                for (party, request), reply in zip(calls, self._replies(calls), strict=True):
                    if isinstance(reply, LostError):
                        self._losses[party] += 1
                        self._lost[party] = LostParty(request, ready[party], reply)
                        for _, answer in ready[party]:
                            answer.substitute()
                        self._changed(party, reply)
                    else:
                        for (_, answer), values in zip(ready[party], reply, strict=True):
                            answer.resolve(values)
            except BaseException as error:
                for _, answer in itertools.chain.from_iterable(ready.values()):
                    if answer.is_open:
                        answer.fail(error)
                raise

    def _replies(self, calls: list[tuple[str, Request]]) -> list[Reply | LostError]:
        if self._over is not None:
            raise self._over
        replies = try_all(self._engine, calls, self._patience)
        losses = {}
        for (party, _), reply in zip(calls, replies, strict=True):
            if isinstance(reply, LostError):
                losses[party] = reply
        for party in losses.keys() & self.needed.keys():
            self._over = PrivacyError(f"{losses[party]}. {self.needed[party]}")
            raise self._over from losses[party]
        if losses and self.when_lost.stand_in is None and self._patience is None:
            raise next(iter(losses.values()))
        return replies

    def _changed(self, party: str, error: LostError | None) -> None:
        self._missed.add(party)
        self.changes += 1
        self.when_lost.notify(party, error)

    def _retry_lost(self) -> None:
        """Try parties that are lost. The request that one has not answered must come first: it may have arrived."""
        due = []
        for party, lost in self._lost.items():
            if not lost.rest:
                due.append(party)
            lost.rest = max(lost.rest - 1, 0)
        replies = try_all(self._engine, [(party, self._lost[party].request) for party in due], BRIEFLY) if due else []
        for party, reply in zip(due, replies, strict=True):
            if isinstance(reply, LostError):
                self._losses[party] += 1
                self._lost[party].failed_again()
            else:
                self._lost.pop(party).answered(reply)
                self._changed(party, None)
