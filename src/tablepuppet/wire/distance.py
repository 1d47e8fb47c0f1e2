"""What the same traffic would cost between distant places: a latency for every trip, and bytes at a link's speed.

The two links are those of the paper's experiments.
"""

from __future__ import annotations

# Seconds for a request and its reply, and bytes per second, between each party and the coordinator.
LINKS = {"US-UK": (0.136, 0.42e9 / 8), "US-US": (0.067, 1.15e9 / 8)}


def communication_seconds(trips: int, size: int) -> dict[str, float]:
    """Seconds of communication by link.

    >>> round(communication_seconds(trips=10, size=52_500_000)["US-UK"], 6)
    2.36
    """
    return {name: trips * latency + size / speed for name, (latency, speed) in LINKS.items()}
