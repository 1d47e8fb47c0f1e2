"""What a party is asked: one of four verbs, and steps to compute one after the other.

Plain values and NumPy arrays only: never code, never SQL text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct, field

Verb = Literal["describe", "open", "run", "close"]
Reply = list[Mapping[str, Any]]  # one mapping for each part of a request: the verb unless that is `run`, then the steps


class Step(Struct, frozen=True):
    """One op on one table of a session."""

    op: str
    table: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


class Request(Struct, frozen=True):
    """One call of a party. ``arguments`` belong to the verb; `open` and `run` may carry steps."""

    verb: Verb
    session: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()
    sequence: int = 0  # counts the requests of a session to one party: a repeat is not computed again
