"""Calls at the same time, for whoever waits until all have ended.

Each has a thread of its own, but for one that the waiting thread can make itself. Threads are kept, since one made anew
costs as much as a call. A `concurrent.futures` pool would do, but takes twice as long to hand a call over and back, and
most calls are short.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Sequence
from functools import cache
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")
MOST_THREADS = 256


class Trip(Generic[Result]):
    """Some calls at the same time, and how each has ended; the first ``own`` are made by whoever waits."""

    def __init__(self, calls: Sequence[Callable[[], Result]], own: int = 0):
        self.calls = calls
        self.outcomes: list[Any] = [None] * len(calls)
        self.others = range(own, len(calls))
        self._left = len(self.others)
        self._lock, self._all_ended = threading.Lock(), threading.Lock()
        self._told: SimpleQueue[int] = SimpleQueue()
        if self.others:
            self._all_ended.acquire()

    def make(self, number: int) -> None:
        """Make one of the calls."""
        try:
            self.outcomes[number] = self.calls[number]()
        except BaseException as error:
            self.outcomes[number] = error

    def tell(self) -> None:
        """Tell that a call of another thread has ended. Whoever waits for all is woken up by the last."""
        with self._lock:
            self._left -= 1
            self._told.put(len(self.calls) - self._left)
            if not self._left:
                self._all_ended.release()

    def follow(self, told: Callable[[int], None]) -> None:
        """Wait until all calls of other threads have ended; ``told`` hears how many have, each time one does."""
        for _ in self.others:
            told(self._told.get())

    def wait(self) -> None:
        """Wait until all calls of other threads have ended."""
        with self._all_ended:
            pass


class Threads:
    """Threads that take calls from a queue; a new one is made when none is free."""

    def __init__(self, most: int):
        self._most = most
        self._queue: SimpleQueue[tuple[Trip[Any], int] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._free = 0  # below zero: calls that wait for a thread
        self._all: list[threading.Thread] = []
        atexit.register(self._stop)  # a thread that is in a call must not outlive the interpreter

    def start(self, trip: Trip[Any]) -> None:
        """Begin the calls of a trip that other threads make."""
        with self._lock:
            self._free -= len(trip.others)
            while self._free < 0 and len(self._all) < self._most:
                thread = threading.Thread(target=self._work, name=f"tablepuppet-call-{len(self._all)}", daemon=True)
                thread.start()
                self._all.append(thread)
                self._free += 1
        for number in trip.others:
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


@cache
def _threads() -> Threads:
    return Threads(MOST_THREADS)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_threads.cache_clear)  # threads do not survive a fork


def at_once(
    calls: Sequence[Callable[[], Result]], told: Callable[[int], None] | None = None
) -> list[Result | BaseException]:
    """What the calls return or raise, in their order, once all have ended.

    ``told`` hears how many have ended, each time one does. Without it the first call is made in this thread.

    >>> at_once([lambda: 1, lambda: 2])
    [1, 2]
    """
    trip = Trip(calls, own=0 if told else 1)
    _threads().start(trip)
    try:
        if told:
            trip.follow(told)
        elif calls:
            trip.make(0)
    finally:  # also if the user interrupts it
        trip.wait()
    return trip.outcomes
