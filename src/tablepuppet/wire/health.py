"""Whether a party can do its work now: whether its database answers, and how fast.

Output: a yes or no and seconds, for the operator's monitoring; nothing of why, which is in the log.
"""

from __future__ import annotations

import logging
import threading
import time

from tablepuppet.errors import TablePuppetError
from tablepuppet.party.metrics import Metrics
from tablepuppet.party.service import Party

log = logging.getLogger("tablepuppet.party")
FRESH = 5.0  # seconds for which an answer is not asked for again, however many look


class Health:
    """Asks the database when somebody looks, at most once every few seconds."""

    def __init__(self, party: Party):
        self._party, self._lock = party, threading.Lock()
        self._asked, self._seconds, self._up = -FRESH, 0.0, True

    def database(self) -> tuple[bool, float]:
        """Whether the database could be opened, and the seconds that this took."""
        with self._lock:
            if time.monotonic() - self._asked >= FRESH:
                self._ask()
            return self._up, self._seconds

    def _ask(self) -> None:
        start, was = time.monotonic(), self._up
        try:
            self._party.reach_database()
            self._up = True
        except TablePuppetError as error:
            self._up = False
            if was:
                log.error("the database does not answer: %s", error)
        if self._up and not was:
            log.info("the database answers again")
        self._asked = time.monotonic()
        self._seconds = self._asked - start

    def measure(self, metrics: Metrics) -> None:
        """Have metrics read it."""
        up, seconds = "Whether the database can be opened now: 1 or 0.", "Seconds that opening the database took."
        metrics.gauge("database_up", up, lambda: [((), float(self.database()[0]))])
        metrics.gauge("database_seconds", seconds, lambda: [((), self.database()[1])])
