"""The result of one round of a solver."""

from __future__ import annotations

from dataclasses import dataclass

from tablepuppet.arrays import Array


@dataclass(frozen=True)
class Round:
    """The result of one round of a solver."""

    number: int
    objective: float  # loss and penalty
    loss: float
    intercept: Array
    converged: bool
    is_stuck: bool = False  # no step gains anything, though the optimum is not near
