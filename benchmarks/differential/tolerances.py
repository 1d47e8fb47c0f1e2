"""How far two right answers may be apart, and why. Every check takes its tolerance from here."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

EPSILON = float(np.finfo(np.float64).eps)

OBJECTIVE = 1e-6
"""Of the optimum: what learners and programs promise for any `wire`. A coefficient's error in standard errors is then
below ``sqrt(2e-6 * rows)``."""

CONSTANT_OBJECTIVE = 1e-10
"""Of the objective of the best constant, beside `OBJECTIVE`: where labels have no noise the optimum is 0, and a
prediction in float32 is off by 1e-7 of itself, which is 1e-14 of its square."""

COEFFICIENT = 1e-3
"""Of a coefficient's standard error: what `OBJECTIVE` leaves over a row, and nobody reads more digits."""

CONDITION = 1e6
"""Of columns that are centred and have one length: above it a Gram matrix in float64 has no digits left for
`OBJECTIVE`, so that nothing is asked of fits."""

PROGRAM = 1e-4
"""Of the optimum, of programs that stop by a derivative below ``tol`` (1e-6 unless it is set)."""

SPREAD = 1e-9
"""Of a column's standard deviation: sums over a thousand rows in float64, centred first."""

PRODUCT = 1e-9
"""Of the sum of absolute terms of a product: sums over a thousand rows in float64, in any order."""

WIRE = {"float64": PRODUCT, "float32": 2e-6}
"""Of the same over services: a vector that travels is rounded to this, several times."""

SCORE = 1e-6
"""Of a metric or a predicted probability: the objective is within `OBJECTIVE`, and flat at the optimum."""


def shift(values: NDArray[np.float64]) -> float:
    """How far a mean may be off, in standard deviations: `SPREAD`, and what float64 has left beside a large mean."""
    known = values[~np.isnan(values)]
    spread = float(np.std(known - known[0])) if len(known) else 0.0
    largest = float(np.abs(known).max(initial=0.0))
    return SPREAD + (64 * EPSILON * largest / spread if spread else 0.0)
