"""Work on pieces of the joined rows: every piece once, results in order, errors told."""

from __future__ import annotations

import os
import resource
import signal
import threading

import numpy as np
import pytest

from tablepuppet.pieces import cores, on_all_cores, over_pieces, pieces


@pytest.mark.parametrize(("rows", "width", "size"), [(0, 1, 4), (1, 1, 4), (9, 1, 4), (9, 3, 4), (9, 100, 4)])
def test_pieces_cover_all_rows_once(rows: int, width: int, size: int) -> None:
    """The slices are the rows in order, none empty, and each holds a row at least however wide it is."""
    found = pieces(rows, width, size)
    assert [row for part in found for row in range(part.start, part.stop)] == list(range(rows))
    assert all(1 <= part.stop - part.start <= max(1, size // width) for part in found)


def test_results_come_in_order() -> None:
    """Whichever thread takes a piece, what it made stands where the piece does."""
    assert on_all_cores(lambda item: item * item, range(1000)) == [item * item for item in range(1000)]
    assert over_pieces(lambda part: part.start, 3) == [(slice(0, 3), 0)]
    assert over_pieces(lambda part: part.start, 0) == []


@pytest.mark.skipif(cores() < 2, reason="one core has one thread")
def test_errors_of_any_thread_are_raised() -> None:
    """A piece that fails fails the whole, whichever thread works on it."""
    for first in (True, False):
        threads: list[int] = []

        def fail(item: int, threads: list[int] = threads, first: bool = first) -> None:
            threads.append(threading.get_ident())
            if (threads[-1] == threads[0]) == first and item > 10:
                raise ValueError("a piece failed")
            threading.Event().wait(0.001)

        with pytest.raises(ValueError, match="a piece failed"):
            on_all_cores(fail, range(100))


def test_memory_of_a_moment_is_not_mapped_for_every_piece() -> None:
    """What a piece needs for a moment is used again by the next: it is not given back to the kernel in between."""
    rows = 1 << 22

    def work(part: slice) -> float:
        values = np.ones(part.stop - part.start)
        values += np.ones(len(values))
        return float(values.sum())

    over_pieces(work, rows)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    assert sum(found for _, found in over_pieces(work, rows)) == 2 * rows
    pages = 2 * 8 * rows / resource.getpagesize()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < pages / 2


def test_nothing_runs_after_an_interruption() -> None:
    """Who interrupts the wait gets its error once no piece is worked on any more, and the rest are left alone."""
    running, seen = threading.Event(), list[int]()

    def work(item: int) -> None:
        seen.append(item)
        running.set()
        threading.Event().wait(0.01)

    class Interruption(BaseException):
        pass

    def interrupted(*_: object) -> None:
        raise Interruption

    before = signal.signal(signal.SIGALRM, interrupted)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(Interruption):
            on_all_cores(work, range(10_000))
    finally:
        signal.signal(signal.SIGALRM, before)
    done = len(seen)
    threading.Event().wait(0.1)
    assert running.is_set()
    assert len(seen) == done < 10_000


def test_cores_are_those_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is bound to one core of many works on one."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3}, raising=False)
    assert cores() == 1
