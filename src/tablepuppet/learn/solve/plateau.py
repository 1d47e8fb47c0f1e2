"""Whether a network has stopped learning: its objective hardly falls any more.

Networks often pause in their first rounds, so that says nothing before round `EARLY`; a round that gains next to
nothing is another matter, and left to the solvers.
"""

from __future__ import annotations

EARLY = 100
WINDOW = 10  # rounds
STRICT = 1e-6  # a share of the objective that is next to nothing


class Plateau:
    """Looks at the objective of every round: flat if it falls by less than ``tol`` of itself in a round, on average."""

    def __init__(self, tol: float):
        self.tol, self.strict = tol, min(tol, STRICT)
        self._best: list[float] = []

    def is_flat(self, objective: float) -> bool:
        """Whether there is little to gain after this round."""
        self._best.append(min([objective, *self._best[-1:]]))
        if len(self._best) < max(EARLY, WINDOW + 1):
            return False
        allowed = WINDOW * self.tol * abs(self._best[-1])
        return self._best[-1 - WINDOW] - self._best[-1] <= allowed and objective - self._best[-1] <= allowed
