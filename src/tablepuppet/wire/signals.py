"""Signals to a party's process, as something that its main thread waits for.

A handler runs in the main thread between any two of its instructions, so it must take no lock: `threading.Event.set`
in a handler waits for ever if the main thread is just inside the event's `wait`. Here a handler writes one byte into a
socket, and waiting is waiting for that byte.
"""

from __future__ import annotations

import select
import signal
import socket
from contextlib import suppress
from types import FrameType


class Signals:
    """The signals of a process that has taken them over; those that are ignored stay so, except for ``always``."""

    def __init__(self, *numbers: int, always: int | None = None):
        self._ours, self._theirs = socket.socketpair()
        self._theirs.setblocking(False)
        self.ignored = {number for number in numbers if signal.getsignal(number) is signal.SIG_IGN}  # as under nohup
        for number in numbers:
            if number not in self.ignored or number == always:
                signal.signal(number, self._came)

    def _came(self, number: int, _: FrameType | None) -> None:
        with suppress(OSError):  # thousands that nobody has read yet: one more says nothing new
            self._theirs.send(bytes([number]))

    def wait(self, seconds: float) -> int | None:
        """The next signal's number, or None if none comes for so many seconds."""
        ready, _, _ = select.select([self._ours], [], [], seconds)
        return self._ours.recv(1)[0] if ready else None
