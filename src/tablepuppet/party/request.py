"""What a party is asked: one of four verbs, and steps to compute one after the other.

Plain values and NumPy arrays only: never code, never SQL text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

MOST_PURPOSE = 200  # letters
Verb = Literal["describe", "open", "run", "close"]
Reply = list[Mapping[str, Any]]  # one mapping for each part of a request: the verb unless that is `run`, then the steps


class Declared(Struct, frozen=True, forbid_unknown_fields=True):
    """What a caller says that it opens a relation for; a policy may demand a purpose, and that all of it be approved.

    ``learner`` is the name of a learner, "matrix", or empty for statistics only. ``epsilon`` is the most that it spends
    of privacy on a table, at ``delta``; None: nothing.
    """

    purpose: Annotated[str, Meta(max_length=MOST_PURPOSE)] = ""
    run: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]*\Z", max_length=64)] = ""
    learner: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_]*\Z", max_length=64)] = ""
    epsilon: Annotated[float, Meta(gt=0, lt=1e9)] | None = None
    delta: Annotated[float, Meta(gt=0, lt=1)] = 1e-5


UNDECLARED = Declared()


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
