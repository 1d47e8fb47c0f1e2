"""Joined rows, a piece at a time: what is made of a piece stays in the cache, and every core has one to work on.

Also what the machine has for that: its cores, and the memory that is free.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from itertools import count
from pathlib import Path
from threading import Event
from typing import TypeVar

PIECE = 1 << 17  # numbers at a time: with fewer, threads mostly wait for Python
Item = TypeVar("Item")
Found = TypeVar("Found")


@cache
def _workers() -> ThreadPoolExecutor:
    """One thread for each core; kept, since a pass over the rows takes only milliseconds."""
    return ThreadPoolExecutor(max_workers=cores())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_workers.cache_clear)  # threads do not survive a fork


def cores() -> int:
    """The cores that this process may use, which may be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def available_memory() -> int:
    """Bytes that this process can still take without swapping, within its control group."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):
        return free
    return free if limit == "max" else min(free, int(limit) - used)


def on_all_cores(work: Callable[[Item], Found], items: Sequence[Item]) -> list[Found]:
    """What ``work`` makes of each item, in order; it must not call this function itself.

    >>> on_all_cores(lambda item: item * 2, [1, 2, 3])
    [2, 4, 6]
    """
    if len(items) < 2:
        return [work(item) for item in items]
    found: dict[int, Found] = {}
    turns, stopped = count(), Event()

    def take_turns() -> None:
        while (turn := next(turns)) < len(items) and not stopped.is_set():
            found[turn] = work(items[turn])

    # Not on the thread that asks: glibc gives memory that the main thread frees back to the kernel at once, and what a
    # piece needs for a moment would have to be mapped again for every piece.
    workers = [_workers().submit(take_turns) for _ in range(min(len(items), cores()))]
    try:
        wait(workers)
    except BaseException:  # who interrupts the wait may change what the pieces are made of
        stopped.set()
        wait(workers)
        raise
    failed = [error for worker in workers if (error := worker.exception())]
    if failed:
        raise failed[0]
    return [found[turn] for turn in range(len(items))]


def pieces(rows: int, width: int = 1, size: int = PIECE) -> list[slice]:
    """Slices of the rows with about ``size`` numbers each, where a row has ``width`` of them.

    >>> pieces(5, size=2)
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    step = max(1, size // width)
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]


def over_pieces(work: Callable[[slice], Found], rows: int, width: int = 1) -> list[tuple[slice, Found]]:
    """Each piece of the rows with what ``work`` makes of it, in order."""
    parts = pieces(rows, width)
    return list(zip(parts, on_all_cores(work, parts), strict=True))
