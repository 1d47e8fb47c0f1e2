"""Two ways to compute the same, timed in turn."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def best(run: Callable[[], Any], other: Callable[[], Any], repeats: int) -> dict[str, float]:
    """Seconds of both, the best of so many turns, and their ratio."""
    seconds: list[list[float]] = [[], []]
    for _ in range(repeats):
        for place, each in enumerate((run, other)):
            began = time.perf_counter()
            each()
            seconds[place].append(time.perf_counter() - began)
    ours, theirs = (min(each) for each in seconds)
    return {"ours": round(ours, 4), "theirs": round(theirs, 4), "ratio": round(ours / theirs, 3)}
