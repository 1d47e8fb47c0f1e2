"""Functions that share their trips: each runs until it needs an answer, then the next one runs.

Fits of several folds ask the same parties, one round after another. In step, the questions of all fits leave in one
trip, so that many fits take no more trips than one. Only one function runs at a time, always in the same order, so the
result is that of running them one after another, and nothing that they share needs a lock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextvars import copy_context

from tablepuppet.wire.outbox import Outbox

_waited = threading.local()  # seconds that a thread has waited for its turns


def own_clock() -> float:
    """Seconds of a clock that stands still while this thread waits for its turn."""
    return time.perf_counter() - float(getattr(_waited, "seconds", 0.0))


class _Stopped(BaseException):
    """Ends a function, since another one has failed or the user has interrupted all."""


class _Turns:
    """Whose turn it is among some threads: that thread runs, all others wait."""

    def __init__(self, threads: int):
        self._changed = threading.Condition()
        self._now = 0
        self._waiting: set[int] = set()  # those that need an answer of the next trip
        self._running = set(range(threads))  # those that have not ended
        self._numbers: dict[int, int] = {}  # by thread
        self.is_stopped = False

    def begin(self, number: int) -> None:
        """Wait for the first turn of this thread, which gets a number."""
        with self._changed:
            self._numbers[threading.get_ident()] = number
            self._wait(number)

    def let_others(self) -> None:
        """Called by a thread that needs an answer: let all others run until each needs one, or has ended."""
        number = self._numbers.get(threading.get_ident())
        if number is None:
            return
        with self._changed:
            self._waiting.add(number)
            self._pass_on(number)
            self._wait(number)

    def end(self, number: int) -> None:
        """This thread has ended."""
        with self._changed:
            self._numbers.pop(threading.get_ident(), None)  # a later thread may get the same id
            self._running.discard(number)
            self._waiting.discard(number)
            self._pass_on(number)

    def stop(self) -> None:
        """Let each thread end when it next needs an answer."""
        with self._changed:
            self.is_stopped = True

    def _wait(self, number: int) -> None:
        began = time.perf_counter()
        self._changed.wait_for(lambda: self._now == number)
        _waited.seconds = getattr(_waited, "seconds", 0.0) + time.perf_counter() - began
        if self.is_stopped:
            raise _Stopped

    def _pass_on(self, number: int) -> None:
        """Give the turn to the next thread that needs no answer; if all do, to this one or the next, for a trip."""
        after = sorted(self._running, key=lambda each: (each <= number, each))
        ready = [each for each in after if each not in self._waiting]
        if not ready:
            ready = [number] if number in self._running else after
            self._waiting.clear()
        if ready:
            self._now = ready[0]
            self._changed.notify_all()


def in_step(outbox: Outbox, works: Sequence[Callable[[], None]]) -> None:
    """Run functions over one session, whose trips are shared; the first error ends all of them, and is raised."""
    if len(works) == 1:
        works[0]()
        return
    turns, errors = _Turns(len(works)), list[BaseException]()

    def run(number: int) -> None:
        try:
            turns.begin(number)
            works[number]()
        except _Stopped:
            pass
        except BaseException as error:
            errors.append(error)
            turns.stop()
        finally:
            turns.end(number)

    threads = [
        threading.Thread(target=copy_context().run, args=(run, number), name=f"in-step-{number}")
        for number in range(len(works))
    ]
    outbox.let_others = turns.let_others
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException:  # the user interrupts
        turns.stop()
        for thread in threads:
            thread.join()
        raise
    finally:
        outbox.let_others = None
    if errors:
        raise errors[0]
