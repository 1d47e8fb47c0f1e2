"""Counts trips, and turns them into seconds of communication."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tablepuppet.wire.engine import Engine
from tablepuppet.wire.traffic import communication_seconds

ROUND_OPS = ("ridge.direction", "model.gradient", "sgd.step")


@dataclass
class Trips:
    """Every set of calls that are made at the same time is one trip: what it was for, and its bytes."""

    made: list[tuple[str, int]] = field(default_factory=list)

    def since(self, start: int) -> list[tuple[str, int]]:
        """Trips after the first ``start``."""
        return self.made[start:]


@contextmanager
def counted() -> Iterator[Trips]:
    """Count trips for as long as the context lasts."""
    trips, bare = Trips(), Engine.trip

    def trip(engine: Engine, calls: Any, *rest: Any, **more: Any) -> Any:
        before = engine.traffic.bytes
        outcomes = bare(engine, calls, *rest, **more)
        if calls:
            trips.made.append((_purpose(calls), engine.traffic.bytes - before))
        return outcomes

    try:
        Engine.trip = trip  # type: ignore[method-assign, assignment]
        yield trips
    finally:
        Engine.trip = bare  # type: ignore[method-assign]


def _purpose(calls: Any) -> str:
    """The op of a round if there is one, else the verb or the last op."""
    ops: list[str] = [step.op for _, request in calls for step in request.steps] or [calls[0][1].verb]
    return next((op for op in ops if op.startswith(ROUND_OPS)), ops[-1])


def communication(trips: list[tuple[str, int]]) -> dict[str, float]:
    """Seconds that trips take between continents and within one: a latency each, and their bytes."""
    return communication_seconds(len(trips), sum(size for _, size in trips))
