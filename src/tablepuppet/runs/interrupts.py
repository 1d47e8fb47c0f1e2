"""Ctrl-C and other requests to stop, remembered, so that none gets lost.

A signal raises `Stopped` in the main thread, wherever that is. But Python calls some code in passing, such as
finalizers and callbacks of weak references (every import has one), and throws away what is raised there; C libraries do
the same, or raise something else instead. So the signal is written down too: the next event or trip raises again, and
the command line ends with its number. Only the command line watches signals; elsewhere nothing here does anything.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

_received: int | None = None
_watching = False


class Stopped(KeyboardInterrupt):
    """A signal asks to stop."""


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Let signals that ask to stop raise `Stopped`, and remember them; those that are ignored stay so."""
    global _received, _watching
    if threading.current_thread() is not threading.main_thread():  # signals are not for other threads
        yield
        return
    names = ("SIGINT", "SIGTERM", "SIGHUP")
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers}
    _received, _watching = None, True
    report = sys.unraisablehook
    sys.unraisablehook = lambda lost: None if isinstance(lost.exc_value, Stopped) else report(lost)
    for number in numbers:
        if before[number] is not signal.SIG_IGN:
            signal.signal(number, _stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _watching, sys.unraisablehook = False, report


def _stop(number: int, _: FrameType | None) -> None:
    global _received
    _received = number
    raise Stopped(signal.Signals(number).name)


def received() -> int | None:
    """The signal that asked to stop, if one did: also later, for threads that the end of the process waits for."""
    return _received


def check() -> None:
    """Raise `Stopped` if a signal came and was lost: in the main thread, and not while it is on its way up already."""
    if not _watching or _received is None or threading.current_thread() is not threading.main_thread():
        return
    error = sys.exception()
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    if error is None:
        raise Stopped(signal.Signals(_received).name)
