"""Joined rows, a piece at a time: what is made of a piece stays in the cache, and every core has one to work on."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import count
from typing import TypeVar

PIECE = 1 << 17  # numbers at a time: with fewer, threads mostly wait for Python
Item = TypeVar("Item")
Found = TypeVar("Found")


@cache
def _others() -> ThreadPoolExecutor:
    """Threads that help the one that asks; kept, since a pass over the rows takes only milliseconds."""
    return ThreadPoolExecutor(max_workers=max(1, _cores() - 1))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_others.cache_clear)  # threads do not survive a fork


def _cores() -> int:
    return os.cpu_count() or 1


def on_all_cores(work: Callable[[Item], Found], items: Sequence[Item]) -> list[Found]:
    """What ``work`` makes of each item, in order; it must not call this function itself.

    >>> on_all_cores(lambda item: item * 2, [1, 2, 3])
    [2, 4, 6]
    """
    found: dict[int, Found] = {}
    turns = count()

    def take_turns() -> None:
        while (turn := next(turns)) < len(items):
            found[turn] = work(items[turn])

    helpers = [_others().submit(take_turns) for _ in range(min(len(items), _cores()) - 1)]
    try:
        take_turns()
    finally:
        for helper in helpers:
            helper.cancel()
        failed = [error for helper in helpers if not helper.cancelled() and (error := helper.exception())]
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
