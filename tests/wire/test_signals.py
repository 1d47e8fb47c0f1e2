"""Signals to a party's process arrive, whatever its main thread is doing."""

from __future__ import annotations

import signal
import sys

from tests import warm

STORM = """
import random, signal
from tablepuppet.wire.serve import Signals

signals = Signals(signal.SIGALRM, signal.SIGTERM)
for _ in range(2000):
    signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 3e-4))
    while (number := signals.wait(1e-6)) is None:
        pass
    assert number == signal.SIGALRM
signal.raise_signal(signal.SIGTERM)
print(signals.wait(60.0))
"""


def test_a_signal_is_never_lost_and_never_waits() -> None:
    """Signals at any instruction of a thread that waits: each is seen (an Event that they set hangs within seconds)."""
    done = warm.run([sys.executable, "-c", STORM], timeout=300)
    assert (done.returncode, done.stdout.strip()) == (0, str(int(signal.SIGTERM))), done.stderr


def test_signals_that_are_ignored_stay_ignored() -> None:
    """As under nohup; but for the one that a party reads its file again on, which says that it was ignored."""
    code = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
    code += "from tablepuppet.wire.serve import Signals; Signals(signal.SIGHUP, signal.SIGTERM)\n"
    code += "print(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN, callable(signal.getsignal(signal.SIGTERM)))"
    assert warm.run([sys.executable, "-c", code], timeout=300).stdout.split() == ["True", "True"]
    code = code.replace("Signals(signal.SIGHUP, signal.SIGTERM)", "s = Signals(signal.SIGHUP, always=signal.SIGHUP)")
    code = (
        code.partition("print")[0]
        + "signal.raise_signal(signal.SIGHUP); print(s.wait(60.0), signal.SIGHUP in s.ignored)"
    )
    assert warm.run([sys.executable, "-c", code], timeout=300).stdout.split() == ["1", "True"]
