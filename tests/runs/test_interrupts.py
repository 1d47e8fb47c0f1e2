"""Requests to stop: remembered, raised again where they got lost, and left alone where they are on their way."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from tablepuppet.runs import interrupts
from tablepuppet.runs.events import Events
from tablepuppet.wire.engine import at_once

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Swallows:
    """Its finalizer is interrupted: Python throws away what is raised there."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test has received is no concern of the next."""
    monkeypatch.setattr(interrupts, "_received", None)


@pytest.fixture
def lost() -> Iterator[None]:
    """A signal that came and got lost."""
    with interrupts.watched():
        Swallows()
        assert interrupts.received() == signal.SIGINT
        yield
    interrupts.check()  # nothing is stopped when the work has ended


@pytest.mark.usefixtures("lost")
def test_a_lost_signal_is_raised_by_the_next_event_and_trip() -> None:
    """Whichever comes first, and every time until the work ends."""
    with pytest.raises(interrupts.Stopped, match="SIGINT"):
        Events().emit("info", "opened", "")
    with pytest.raises(KeyboardInterrupt):
        at_once([lambda: 1])


def test_a_signal_during_a_trip() -> None:
    """All calls of the trip end first, then it is raised, though a call in between swallowed it."""
    ended: list[int] = []

    def swallow(_: int) -> None:
        Swallows()

    with interrupts.watched(), pytest.raises(interrupts.Stopped):
        at_once([lambda: ended.append(1), lambda: ended.append(2)], swallow)
    assert sorted(ended) == [1, 2]


def close_last() -> None:
    """A call to parties on the way out."""
    try:
        interrupts.check()
    finally:
        assert at_once([lambda: 1]) == [1]


def fail_instead() -> None:
    """The same, where another error has come of it."""
    try:
        interrupts.check()
    except KeyboardInterrupt:
        try:
            raise ValueError("other")
        finally:
            assert at_once([lambda: 1]) == [1]


@pytest.mark.usefixtures("lost")
def test_what_ends_a_run_can_still_ask_parties() -> None:
    """While the exception is on its way up, also as the cause of another, sessions are closed undisturbed."""
    with pytest.raises(interrupts.Stopped):
        close_last()
    with pytest.raises(ValueError, match="other"):
        fail_instead()


@pytest.mark.usefixtures("lost")
def test_other_threads_are_not_stopped() -> None:
    """Only the main thread is interrupted, as by Python itself."""
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.extend(at_once([lambda: 1])))
    thread.start()
    thread.join()
    assert found == [1]


def test_signals_that_are_ignored_stay_so() -> None:
    """A run in the background, for which the shell ignores a signal, is not stopped by it; handlers come back."""
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with interrupts.watched():
            os.kill(os.getpid(), signal.SIGTERM)
            interrupts.check()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


def test_nothing_is_watched_elsewhere() -> None:
    """In a program or a notebook signals are Python's own affair."""
    handler = signal.getsignal(signal.SIGINT)
    interrupts.check()
    Events().emit("info", "opened", "")
    assert signal.getsignal(signal.SIGINT) is handler
