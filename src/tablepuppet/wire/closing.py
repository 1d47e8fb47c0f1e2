"""Sessions that nobody refers to any more are closed by a thread of their own.

Python calls finalizers at any point, also while a lock is held that closing needs. So a finalizer only queues what is
to be closed.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable
from functools import cache
from queue import SimpleQueue

log = logging.getLogger(__name__)
Close = Callable[[], object]


class Closer:
    """A thread that closes sessions, one after the other."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Close | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="tablepuppet-close", daemon=True)
        self._thread.start()
        self._ended, self._process = False, os.getpid()
        atexit.register(self._end)

    def later(self, close: Close) -> None:
        """Close something soon. A finalizer may call this at any time."""
        if os.getpid() != self._process:  # a fork does not close what its parent uses
            return
        if self._ended:  # the interpreter ends, in its last thread: no lock is held
            _try(close)
        else:
            self._queue.put(close)

    def wait(self) -> None:
        """Wait until all is closed that was given so far."""
        if not self._ended:
            done = threading.Event()
            self._queue.put(done.set)
            done.wait()

    def _work(self) -> None:
        while (close := self._queue.get()) is not None:
            _try(close)
            del close

    def _end(self) -> None:
        if os.getpid() != self._process:
            return
        self._queue.put(None)
        self._thread.join()
        self._ended = True
        while not self._queue.empty():  # found since
            if close := self._queue.get():
                _try(close)


def _try(close: Close) -> None:
    try:
        close()
    except Exception as error:  # nobody is there to hear it, and the next is to be closed all the same
        log.warning("a session could not be closed (%s)", type(error).__name__)


@cache
def closer() -> Closer:
    """The closer of this process."""
    return Closer()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=closer.cache_clear)  # threads do not survive a fork
