"""Two ways to compute the same, timed in turn."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def best(run: Callable[[], Any], other: Callable[[], Any], repeats: int) -> dict[str, float]:
    """Seconds of both, the best of so many turns, and their ratio; that of processor seconds too, which other work on
    the machine changes less.
    """
    seconds: list[list[float]] = [[], []]
    worked: list[list[float]] = [[], []]
    for _ in range(repeats):
        for place, each in enumerate((run, other)):
            began, before = time.perf_counter(), time.process_time()
            each()
            seconds[place].append(time.perf_counter() - began)
            worked[place].append(time.process_time() - before)
    ours, theirs = (min(each) for each in seconds)
    mine, other_work = (min(each) for each in worked)
    return {
        "ours": round(ours, 4), "theirs": round(theirs, 4), "ratio": round(ours / theirs, 3),
        "processor ratio": round(mine / other_work, 3) if other_work else 0.0,
    }  # fmt: skip
