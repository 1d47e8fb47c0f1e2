"""Calls at the same time, for whoever waits until all have ended.

Each has a thread of its own, but for one that the waiting thread can make itself. Threads are kept, since one made anew
costs as much as a call. A `concurrent.futures` pool would do, but takes twice as long to hand a call over and back, and
most calls are short.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")
MOST_THREADS = 256
_NONE_YET = object()


class Trip(Generic[Result]):
    """Some calls at the same time, and how each has ended."""

    def __init__(self, calls: Sequence[Callable[[], Result]]):
        self.calls = calls
        self.outcomes: list[Any] = [_NONE_YET] * len(calls)
        self._ended: SimpleQueue[None] = SimpleQueue()

    def make(self, number: int) -> None:
        """Make one of the calls."""
        try:
            self.outcomes[number] = self.calls[number]()
        except BaseException as error:
            self.outcomes[number] = error

    def tell(self) -> None:
        """Tell who waits that a call of another thread has ended."""
        self._ended.put(None)

    def wait(self, told: Callable[[int], None]) -> None:
        """Wait for all, each in a thread of its own; ``told`` hears how many have ended, each time one does."""
        for number in range(len(self.calls)):
            self._ended.get()
            told(number + 1)

    def end(self) -> None:
        """Wait for those that have not ended: each of them will tell yet."""
        while any(outcome is _NONE_YET for outcome in self.outcomes):
            self._ended.get()


class Threads:
    """Threads that take calls from a queue; a new one is made when none is free."""

    def __init__(self, most: int):
        self._most = most
        self._queue: SimpleQueue[tuple[Trip[Any], int] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._free = 0  # below zero: calls that wait for a thread
        self._all: list[threading.Thread] = []
        atexit.register(self._stop)  # a thread that is in a call must not outlive the interpreter

    def start(self, trip: Trip[Any], numbers: Sequence[int]) -> None:
        """Begin some calls of a trip."""
        with self._lock:
            self._free -= len(numbers)
            while self._free < 0 and len(self._all) < self._most:
                thread = threading.Thread(target=self._work, name=f"tablepuppet-call-{len(self._all)}", daemon=True)
                thread.start()
                self._all.append(thread)
                self._free += 1
        for number in numbers:
            self._queue.put((trip, number))

    def _work(self) -> None:
        while (asked := self._queue.get()) is not None:
            trip, number = asked
            trip.make(number)
            with self._lock:
                self._free += 1
            trip.tell()
            del asked, trip  # an idle thread keeps no reply

    def _stop(self) -> None:
        """Let all threads end; a call that comes later gets a new one."""
        with self._lock:
            ending, self._all, self._free = self._all, [], 0
        for _ in ending:
            self._queue.put(None)
        for thread in ending:
            thread.join()


_THREADS = Threads(MOST_THREADS)


def at_once(
    calls: Sequence[Callable[[], Result]], told: Callable[[int], None] | None = None
) -> list[Result | BaseException]:
    """What the calls return or raise, in their order, once all have ended.

    ``told`` hears how many have ended, each time one does. Without it the first call is made in this thread.

    >>> at_once([lambda: 1, lambda: 2])
    [1, 2]
    """
    trip, numbers = Trip(calls), range(len(calls))
    _THREADS.start(trip, numbers if told else numbers[1:])
    try:
        if told:
            trip.wait(told)
        elif calls:
            trip.make(0)
    finally:  # also if the user interrupts it
        trip.end()
    return trip.outcomes
