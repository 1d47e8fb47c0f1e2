"""What is one for the whole process: torch, if it is installed, its random state, and the threads of BLAS and torch.

Parties in one process compute at the same time and share its cores, so BLAS and torch get one thread each.
"""

from __future__ import annotations

import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from threadpoolctl import LibController, ThreadpoolController

from tablepuppet.errors import LearnError

if TYPE_CHECKING:
    from torch import nn

_BUILDING = threading.Lock()  # torch has one random state for the whole process


def need_torch() -> Any:
    """The module torch, imported on first use; LearnError if it is not installed."""
    try:
        import torch
    except ImportError as error:
        raise LearnError("networks of torch need the extra: pip install 'tablepuppet[deep]'") from error
    return torch


def seeded(seed: int, name: str, build: Callable[[], nn.Module]) -> nn.Module:
    """A module whose first parameters follow from a seed and a name; torch's own random state does not change."""
    torch = need_torch()
    with _BUILDING, torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(np.random.default_rng([seed, zlib.crc32(name.encode())]).integers(2**63)))
        return build()


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
