"""Makes calls at the same time, and waits until all have ended.

Each has a thread of its own: in a call of the user's own thread an interrupt could get lost. Threads are kept, since
one made anew costs as much as a call. A `concurrent.futures` pool would do, but takes twice as long to hand a call over
and back, and most calls are short.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Sequence
from contextvars import copy_context
from functools import cache
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from tablepuppet.runs import interrupts

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


Calls = SimpleQueue[tuple[Trip[Any], int] | None]


class Threads:
    """Threads that take calls from a queue; a new one is made when none is free."""

    def __init__(self, most: int):
        self._most = most
        self._queue: Calls = SimpleQueue()
        self._lock = threading.Lock()
        self._free = 0  # below zero: calls that wait for a thread
        self._all: list[threading.Thread] = []
        atexit.register(self._stop)  # a thread that is in a call must not outlive the interpreter

    def start(self, trip: Trip[Any]) -> None:
        """Begin the calls of a trip; where no thread can be made, make them."""
        with self._lock:
            queue: Calls | None = self._queue
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

    def _work(self, queue: Calls) -> None:
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
