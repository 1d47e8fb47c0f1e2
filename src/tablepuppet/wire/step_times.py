"""What requests have cost, by session: trips, bytes, seconds at parties and here, for EXPLAIN ANALYZE.

Input: every trip, as the engine makes it. Output: sums by what was asked together and of whom. Seconds at a party are
those from the request to the reply, the way included. Seconds here are those until the next trip of the same run, so
that nobody's thinking in between counts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

MOST_SESSIONS = 100  # that are remembered, the newest


@dataclass
class StepTimes:
    """What was asked together, of all parties."""

    ops: tuple[str, ...]
    trips: int = 0
    waited: float = 0.0  # for the slowest party of each trip
    here: float = 0.0
    parties: dict[str, list[float]] = field(default_factory=dict)  # requests, bytes up, bytes down, seconds

    @property
    def up(self) -> float:
        """Bytes from all parties."""
        return sum(each[1] for each in self.parties.values())

    @property
    def down(self) -> float:
        """Bytes to all parties."""
        return sum(each[2] for each in self.parties.values())


class Stopwatch:
    """Adds up what trips have cost."""

    def __init__(self) -> None:
        self._sessions: dict[str, dict[tuple[str, ...], StepTimes]] = {}
        self._last: tuple[str | None, str, StepTimes, float] | None = None
        self._lock = threading.Lock()

    def begin(self, run: str | None, session: str) -> None:
        """A trip is about to be made: since the last one of the run, time was spent here."""
        with self._lock:
            last, self._last = self._last, None
            if last is not None and run is not None and last[:2] == (run, session):
                last[2].here += time.perf_counter() - last[3]

    def end(
        self,
        run: str | None,
        session: str,
        made: Sequence[tuple[str, tuple[str, ...], int, int, float]],
    ) -> None:
        """A trip was made: party, ops, bytes up and down, seconds of each request."""
        if not session or not made:
            return
        with self._lock:
            known = self._sessions.setdefault(session, {})
            if len(self._sessions) > MOST_SESSIONS:
                del self._sessions[next(iter(self._sessions))]
            ops = tuple(dict.fromkeys(op for _, several, *_ in made for op in several))
            step = known.setdefault(ops, StepTimes(ops))
            step.trips += 1
            step.waited += max(each[4] for each in made)
            for party, _, up, down, spent in made:
                total = step.parties.setdefault(party, [0.0, 0.0, 0.0, 0.0])
                for at, value in enumerate((1, up, down, spent)):
                    total[at] += value
            self._last = run, session, step, time.perf_counter()

    def of(self, session: str) -> list[StepTimes]:
        """What a session has cost, in the order in which it was first asked for."""
        with self._lock:
            return list(self._sessions.get(session, {}).values())
