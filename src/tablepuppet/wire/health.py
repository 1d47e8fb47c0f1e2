"""Whether a party can do its work now: whether its database answers, and how fast.

Output: a yes or no and seconds, for the operator's monitoring; nothing of why, which is in the log.
"""

from __future__ import annotations

import logging
import threading
import time

import msgspec

from tablepuppet.errors import TablePuppetError
from tablepuppet.party.allowance import Allowance, allowed
from tablepuppet.party.limits import UNLIMITED
from tablepuppet.party.metrics import Metrics
from tablepuppet.party.service import Party

log = logging.getLogger("tablepuppet.party")
FRESH = 5.0  # seconds for which an answer is not asked for again, however many look
SILENT = 2.0  # seconds after which a database that has not answered counts as down: a monitor waits for few
GIVEN_UP = msgspec.structs.replace(
    UNLIMITED, request_seconds=20.0
)  # a question to a database that hangs ends then, and is asked anew


class Health:
    """Asks the database when somebody looks, at most once every few seconds, in a thread of its own.

    A database that is frozen answers nothing, not even no: who looks is not kept waiting for it.
    """

    def __init__(self, party: Party):
        self._party, self._lock = party, threading.Lock()
        self._began, self._answered = -FRESH, threading.Event()
        self._answered.set()
        self._seconds, self._up = 0.0, True

    def database(self) -> tuple[bool, float]:
        """Whether the database could be opened, and the seconds that this took, or has taken until now."""
        with self._lock:
            if self._answered.is_set() and time.monotonic() - self._began - self._seconds >= FRESH:
                threading.Thread(target=self._ask, name="health", daemon=True).start()
                self._answered.clear()
                self._began = time.monotonic()
        if not self._answered.wait(self._began + SILENT - time.monotonic()):
            with self._lock:
                if not self._answered.is_set():
                    self._heard(f"no answer for {SILENT:g} seconds")
                    self._seconds = time.monotonic() - self._began
        return self._up, self._seconds

    def _ask(self) -> None:
        problem = ""
        try:
            with allowed(Allowance(self._party.name, GIVEN_UP)):
                self._party.reach_database()
        except TablePuppetError as error:
            problem = str(error)
        except Exception as error:  # whatever it is, the next one must be able to ask
            problem = type(error).__name__
        with self._lock:
            self._heard(problem)
            self._seconds = time.monotonic() - self._began
            self._answered.set()

    def _heard(self, problem: str) -> None:
        """Note what is wrong with the database, or that nothing is; the log gets each change."""
        was, self._up = self._up, not problem
        if was and problem:
            log.error("the database does not answer: %s", problem)
        if self._up and not was:
            log.info("the database answers again")

    def measure(self, metrics: Metrics) -> None:
        """Have metrics read it."""
        up, seconds = "Whether the database can be opened now: 1 or 0.", "Seconds that opening the database took."
        metrics.gauge("database_up", up, lambda: [((), float(self.database()[0]))])
        metrics.gauge("database_seconds", seconds, lambda: [((), self.database()[1])])
