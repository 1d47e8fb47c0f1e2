"""Fewer trips: what is asked before an answer is read travels together.

`ask` only puts a step down. When the first answer is read, every party gets all its steps in one request, and all
parties at the same time. So what nobody waits for, such as telling a party to encode its rows, costs no trip.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any

from tablepuppet.errors import TablePuppetError
from tablepuppet.party.request import Request, Step
from tablepuppet.wire.engine import Engine, call_all


class Answer:
    """What a step will be answered with; reading it sends what waits."""

    def __init__(self, outbox: Outbox):
        self._outbox = outbox
        self._values: Mapping[str, Any] | None = None
        self._error: BaseException | None = None

    def read(self) -> Mapping[str, Any]:
        """The answer; raises what went wrong on its trip."""
        if self._values is None and self._error is None:
            self._outbox.send()
        if self._error is not None:
            raise self._error
        assert self._values is not None, "a sent step is answered or has failed"
        return self._values

    def settle(self, values: Mapping[str, Any] | None, error: BaseException | None) -> None:
        """What came back."""
        self._values, self._error = values, error


class Outbox:
    """The steps of one session that wait for the next trip, by party."""

    def __init__(self, engine: Engine, session: str):
        self._engine, self.session = engine, session
        self._waiting: dict[str, list[tuple[Step, Answer]]] = {}
        self._names = itertools.count()
        self._sent: Counter[str] = Counter()
        self._lock = threading.RLock()

    def new_name(self) -> str:
        """A name for something of this session: no other session has it."""
        return f"{self.session}.{next(self._names)}"

    def ask(self, party: str, step: Step) -> Answer:
        """Put a step down for a party."""
        answer = Answer(self)
        with self._lock:
            self._waiting.setdefault(party, []).append((step, answer))
        return answer

    def send(self) -> None:
        """One trip with everything that waits. What failed is told to whoever reads an answer of this trip."""
        with self._lock:
            waiting, self._waiting = self._waiting, {}
            self._sent.update(waiting.keys())
            calls = [
                (party, Request("run", self.session, {}, tuple(step for step, _ in asked), self._sent[party]))
                for party, asked in waiting.items()
            ]
            try:
                replies = call_all(self._engine, calls)
            except (TablePuppetError, KeyboardInterrupt) as error:
                for _, answer in (each for asked in waiting.values() for each in asked):
                    answer.settle(None, error)
                raise
            for asked, reply in zip(waiting.values(), replies, strict=True):
                for (_, answer), values in zip(asked, reply, strict=True):
                    answer.settle(values, None)
