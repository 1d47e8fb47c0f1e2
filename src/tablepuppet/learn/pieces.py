"""Joined rows, a piece at a time: what is made of a piece stays in the cache, and every core has one to work on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from os import cpu_count
from typing import TypeVar

PIECE = 1 << 17  # numbers at a time: with fewer, threads would mostly wait for Python
Found = TypeVar("Found")


def over_pieces(work: Callable[[slice], Found], rows: int, width: int = 1) -> Iterator[tuple[slice, Found]]:
    """Each piece of the rows with what ``work`` makes of it, in order; ``width`` is how many numbers a row has."""
    size = max(1, PIECE // width)
    pieces = [slice(start, min(start + size, rows)) for start in range(0, rows, size)]
    if len(pieces) == 1:
        yield pieces[0], work(pieces[0])
        return
    with ThreadPoolExecutor(max_workers=cpu_count() or 1) as pool:
        yield from zip(pieces, pool.map(work, pieces), strict=True)


def change_pieces(work: Callable[[slice], None], rows: int, width: int = 1) -> None:
    """The same for work that changes arrays in place."""
    for _ in over_pieces(work, rows, width):
        pass
