"""Two ways to compute the same, timed in turn."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def best(run: Callable[[], Any], other: Callable[[], Any], repeats: int) -> dict[str, float]:
    """Seconds of both, the best of so many turns, and their ratio; the same of processor seconds of all cores in this
    process, which other work on the machine changes less.
    """
    seconds: list[list[float]] = [[], []]
    processor: list[list[float]] = [[], []]
    for _ in range(repeats):
        for place, each in enumerate((run, other)):
            began, used = time.perf_counter(), time.process_time()
            each()
            seconds[place].append(time.perf_counter() - began)
            processor[place].append(time.process_time() - used)
    (ours, theirs), (our_work, their_work) = (map(min, each) for each in (seconds, processor))
    return {
        "ours": round(ours, 4), "theirs": round(theirs, 4), "ratio": round(ours / theirs, 3),
        "ours_processor": round(our_work, 4), "theirs_processor": round(their_work, 4),
        "processor ratio": round(our_work / their_work, 3) if their_work else 0.0,
    }  # fmt: skip
