"""Calls at the same time: all are made, in threads that are kept, and none is left behind."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from tablepuppet.wire.engine import Threads, Trip, at_once


@pytest.mark.parametrize("is_told", [False, True])
def test_calls_are_made_at_the_same_time(is_told: bool) -> None:
    """Calls that wait for each other all end; outcomes are in the order of the calls, and errors are among them."""
    together = threading.Barrier(3)
    heard: list[int] = []

    def call(number: int) -> int:
        together.wait(timeout=30)
        if number == 1:
            raise ValueError("one")
        return number

    outcomes = at_once([lambda n=n: call(n) for n in range(3)], heard.append if is_told else None)  # type: ignore[misc]
    assert [outcomes[0], outcomes[2]] == [0, 2]
    assert isinstance(outcomes[1], ValueError)
    assert heard == ([1, 2, 3] if is_told else [])


def test_a_call_that_returns_nothing_ends_too() -> None:
    """None is an outcome like others, and no calls are no outcomes."""
    assert at_once([lambda: None, lambda: None]) == [None, None]
    assert at_once([]) == []


def test_an_interrupt_waits_for_calls_under_way() -> None:
    """Whoever is interrupted while waiting goes on with it once no call is left."""
    ended: list[bool] = []

    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    def slow() -> None:
        slept.wait(0.2)
        ended.append(True)

    slept = threading.Event()
    with pytest.raises(KeyboardInterrupt):
        at_once([lambda: None, slow, slow], interrupted)
    assert ended == [True, True]


def test_threads_are_kept_and_bounded() -> None:
    """Trips one after the other take the same threads; calls beyond the bound wait for one that is free."""
    threads, seen = Threads(most=2), set()

    def call() -> None:
        seen.add(threading.current_thread().name)

    for _ in range(20):
        trip = Trip([call] * 5)
        threads.start(trip)
        trip.wait()
        assert trip.outcomes == [None] * 5
    assert 1 <= len(seen) <= 2


def test_a_process_ends_after_its_calls() -> None:
    """A process whose main thread is done waits for calls under way, and ends though threads are kept."""
    script = (
        "import threading, time; from tablepuppet.wire.engine import at_once\n"
        "def call(): time.sleep(0.5); print('ended')\n"
        "threading.Thread(target=at_once, args=([lambda: None, call],), daemon=True).start()\n"
        "time.sleep(0.1)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "ended\n")


def test_a_fork_has_threads_of_its_own() -> None:
    """A process that is forked after calls were made can make calls."""
    code = (
        "import os, sys, time; from tablepuppet.wire.engine import at_once\n"
        "at_once([lambda: time.sleep(0.01)] * 3)\n"
        "child = os.fork()\n"
        "if not child: os._exit(at_once([lambda: 1] * 3).count(1))\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 3)"
    )
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", code], timeout=60, check=False).returncode == 0


def test_calls_after_all_threads_were_told_to_end() -> None:
    """Threads that end while a call is under way are not counted on later: a new one is made."""
    threads, go, under_way = Threads(4), threading.Event(), threading.Event()

    def slow() -> None:
        under_way.set()
        go.wait(timeout=30)

    first: Trip[None] = Trip([slow])
    threads.start(first)
    under_way.wait(timeout=30)
    ending = threading.Thread(target=threads._stop)
    ending.start()
    while threads._all:
        pass
    go.set()
    ending.join(timeout=30)
    later = Trip([lambda: 7])
    threads.start(later)
    later.wait()
    assert later.outcomes == [7]
    threads._stop()


def test_no_thread_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls are then made by whoever asks for them."""
    monkeypatch.setattr(threading.Thread, "start", lambda _: (_ for _ in ()).throw(RuntimeError("no more")))
    threads, trip = Threads(4), Trip([lambda: 1, lambda: 2])
    threads.start(trip)
    trip.wait()
    assert trip.outcomes == [1, 2]
