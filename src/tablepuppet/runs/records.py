"""What a round and a call of a party have cost, as values: the fields of `fit` and `trip` events are made from them.

They hold figures and names of parties and ops, never a value of a row.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.structs import asdict


class RoundRecord(Struct, frozen=True, kw_only=True):
    """One round of a fit; `history_` is a list of these as dicts."""

    round: int
    seconds: float
    loss: float
    objective: float  # loss and penalty
    metric: float
    validation_loss: float | None = None
    validation_metric: float | None = None
    bytes_up: int = 0  # from parties
    bytes_down: int = 0  # to parties
    messages: int = 0
    epsilon: float | None = None  # spent until then; None without feature privacy
    solver: str | None  # None: the learner has none
    converged: bool
    lost: list[str] = []  # parties that were lost in this round

    def to_dict(self) -> dict[str, Any]:
        """The entry of `history_`."""
        return asdict(self)


class TripRecord(Struct, frozen=True, kw_only=True):
    """One party's part of a trip: a request, and what came of it."""

    trip: int  # calls made at the same time have the same number
    party: str
    ops: tuple[str, ...]  # of the request, each once; a verb other than `run` comes first
    bytes_up: int  # from the party
    bytes_down: int  # to the party
    seconds: float
    answered: bool  # no: the party was lost, or refused; bytes are not counted then

    def to_dict(self) -> dict[str, Any]:
        """The fields of the event."""
        return asdict(self)
