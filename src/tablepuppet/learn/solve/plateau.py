"""Whether a network has stopped learning: its objective hardly falls.

Networks often have a plateau in their first rounds, so this is not checked before round `EARLY`. Solvers themselves
handle single rounds with almost no gain.

What counts is how much the network has learned, not the objective alone: where labels are mostly noise, nearly all of
the objective stays whatever is learned, and a small share of it may be much of what there is to learn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

EARLY = 100
WINDOW = 10  # rounds
STRICT = 1e-6  # share of the objective that counts as no change
LEARNED = 3  # times what was learned so far is what a share counts of, if that is less than the objective
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
    """Records the objective of every round; it is flat if it falls by less than the share ``tol`` per round.

    A share of the objective, or of `LEARNED` times how far it is below the loss of a ``constant``: whichever is less.
    """

    def __init__(self, tol: float, constant: float):
        self.tol, self.strict, self.constant = tol, min(tol, STRICT), constant
        self._best: list[float] = []

    def is_flat(self, objective: float) -> bool:
        """Record the objective of a round; return whether it is flat."""
        self._best.append(min([objective, *self._best[-1:]]))
        if len(self._best) < max(EARLY, WINDOW + 1):
            return False
        size = abs(self._best[-1])
        learned = LEARNED * (self.constant - self._best[-1])
        allowed = WINDOW * max(self.tol * min(size, learned), self.strict * size)
        return self._best[-1 - WINDOW] - self._best[-1] <= allowed and objective - self._best[-1] <= allowed
