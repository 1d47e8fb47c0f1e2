"""Limits BLAS and torch to one thread: parties in one process compute at the same time and share its cores."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from threadpoolctl import ThreadpoolController


class _OneThread:
    """Holds BLAS and torch to one thread while anybody is inside; their own settings come back after the last one."""

    def __init__(self) -> None:
        self._lock, self._inside, self._after = threading.Lock(), 0, ExitStack()
        self._controller: ThreadpoolController | None = None

    @contextmanager
    def __call__(self, torch: Any = None) -> Iterator[None]:
        with self._lock:
            if not self._inside:
                self._controller = self._controller or ThreadpoolController()
                for library in self._controller.lib_controllers:
                    if (threads := library.num_threads) > 1:
                        self._after.callback(library.set_num_threads, threads)
                        library.set_num_threads(1)
                if torch is not None:
                    self._after.callback(torch.set_num_threads, torch.get_num_threads())
            self._inside += 1
            if torch is not None:
                torch.set_num_threads(1)  # a thread that has used torch before keeps its own number
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if not self._inside:
                    self._after.close()


one_thread = _OneThread()
