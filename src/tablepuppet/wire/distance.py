"""What the same traffic would cost between distant places: a latency for every trip, and bytes at a link's speed.

The two links are those of the paper's experiments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class PartyLink:
    """The connection of every party with the coordinator."""

    latency: float  # seconds for a request and its reply
    speed: float  # bytes per second

    def seconds(self, trips: int, size: int) -> float:
        """How long so many trips with so many bytes in all take."""
        return trips * self.latency + size / self.speed


LINKS: Mapping[str, PartyLink] = {"US-UK": PartyLink(0.136, 0.42e9 / 8), "US-US": PartyLink(0.067, 1.15e9 / 8)}


def communication_seconds(trips: int, size: int) -> dict[str, float]:
    """Seconds of communication by link.

    >>> round(communication_seconds(trips=10, size=52_500_000)["US-UK"], 6)
    2.36
    """
    return {name: link.seconds(trips, size) for name, link in LINKS.items()}
