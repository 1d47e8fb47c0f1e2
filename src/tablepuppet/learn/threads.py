"""Limits BLAS and torch to one thread: parties in one process compute at the same time and share its cores."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from threadpoolctl import LibController, ThreadpoolController


class _OneThread:
    """Holds BLAS and torch to one thread while anybody is inside; their own settings come back after the last one."""

    def __init__(self) -> None:
        self._lock, self._inside, self._after = threading.Lock(), 0, ExitStack()
        self._libraries: list[LibController] = []
        self._modules, self._holds_torch = 0, False

    @contextmanager
    def __call__(self, torch: Any = None) -> Iterator[None]:
        with self._lock:
            self._hold_libraries()
            self._inside += 1
            if torch is not None:
                if not self._holds_torch:
                    self._after.callback(torch.set_num_threads, torch.get_num_threads())
                    self._holds_torch = True
                torch.set_num_threads(1)  # a thread that has used torch before keeps its own number
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if not self._inside:
                    self._after.close()
                    self._holds_torch = False

    def _hold_libraries(self) -> None:
        """Those that are loaded, by the first; later ones look again if modules were loaded, which may bring others."""
        is_same = self._modules == len(sys.modules)
        if is_same and self._inside:
            return
        if not is_same:
            self._libraries, self._modules = ThreadpoolController().lib_controllers, len(sys.modules)
        for library in self._libraries:
            if (threads := library.num_threads) > 1:
                self._after.callback(_set, library, threads)
                _set(library, 1)


def _set(library: LibController, threads: int) -> None:
    """Set the threads of a library, whichever thread asks: OpenBLAS' would be set by the first that did, no other."""
    if clear := getattr(library, "clear_controlling_thread", None):
        clear(force=True)
    library.set_num_threads(threads)


one_thread = _OneThread()
