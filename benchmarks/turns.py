"""Two ways to compute the same, timed in turn."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def best(run: Callable[[], Any], other: Callable[[], Any], repeats: int) -> dict[str, float]:
    """Seconds of both, the best of so many turns, and their ratio.

    ``..._processor`` are seconds of all cores in this process: other work on the machine changes them less.
    """
    seconds: list[list[float]] = [[], []]
    processor: list[list[float]] = [[], []]
    for _ in range(repeats):
        for place, each in enumerate((run, other)):
            began, used = time.perf_counter(), time.process_time()
            each()
            seconds[place].append(time.perf_counter() - began)
            processor[place].append(time.process_time() - used)
    ours, theirs = (min(each) for each in seconds)
    found = {"ours": round(ours, 4), "theirs": round(theirs, 4), "ratio": round(ours / theirs, 3)}
    return found | {
        f"{name}_processor": round(min(each), 4) for name, each in zip(("ours", "theirs"), processor, strict=True)
    }
