"""The meter: bytes and messages per party, direction and release, and trips, counted where they are sent."""

from __future__ import annotations

import threading
from typing import Any, Literal

Direction = Literal["up", "down"]  # up: from a party to the coordinator; down: to a party


class Traffic:
    """Counts every message; figures are measured, never computed from a formula."""

    def __init__(self) -> None:
        self._totals: dict[tuple[str, Direction, str], list[int]] = {}
        self._lock = threading.Lock()
        self._trips = 0

    def add(self, party: str, direction: Direction, release: str, size: int, messages: int = 1) -> None:
        """Count one message, or a part of one: ``messages`` is 0 for all parts but one."""
        with self._lock:
            total = self._totals.setdefault((party, direction, release), [0, 0])
            total[0] += size
            total[1] += messages

    def add_trip(self) -> int:
        """Count one trip, calls of some parties at the same time; its number."""
        with self._lock:
            self._trips += 1
            return self._trips

    @property
    def trips(self) -> int:
        """How often the coordinator waited for answers."""
        return self._trips

    @property
    def bytes(self) -> int:
        """All bytes, both ways."""
        with self._lock:
            return sum(size for size, _ in self._totals.values())

    def to_list(self) -> list[dict[str, Any]]:
        """One dict per party, direction and release."""
        with self._lock:
            return [
                {"party": party, "direction": direction, "release": release, "bytes": size, "messages": messages}
                for (party, direction, release), (size, messages) in sorted(self._totals.items())
            ]
