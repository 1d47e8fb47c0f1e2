"""Whether a network has stopped learning: its objective hardly falls.

Networks often have a plateau in their first rounds, so this is not checked before round `EARLY`. Solvers themselves
handle single rounds with almost no gain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

EARLY = 100
WINDOW = 10  # rounds
STRICT = 1e-6  # share of the objective that counts as no change
FLAT = 0.01  # share of the objective: mini-batch training has converged if its last quarter of epochs gained less


def ended_flat(history: Sequence[Mapping[str, Any]], epochs: int) -> bool:
    """Whether training ran for all ``epochs``, and the objective gained less than `FLAT` in the last quarter of them.

    A shorter window would not do: learning rates fall to zero, so the last epochs always gain little.
    """
    objectives = [entry["objective"] for entry in history]
    last = len(objectives) // 4
    return (
        last > 0 and len(objectives) == epochs and objectives[-1 - last] - objectives[-1] <= FLAT * abs(objectives[-1])
    )


class Plateau:
    """Records the objective of every round; it is flat if it falls by less than the share ``tol`` per round."""

    def __init__(self, tol: float):
        self.tol, self.strict = tol, min(tol, STRICT)
        self._best: list[float] = []

    def is_flat(self, objective: float) -> bool:
        """Record the objective of a round; return whether it is flat."""
        self._best.append(min([objective, *self._best[-1:]]))
        if len(self._best) < max(EARLY, WINDOW + 1):
            return False
        allowed = WINDOW * self.tol * abs(self._best[-1])
        return self._best[-1 - WINDOW] - self._best[-1] <= allowed and objective - self._best[-1] <= allowed
