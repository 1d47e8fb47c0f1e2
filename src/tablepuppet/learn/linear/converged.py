"""Whether SGD has converged: with learning rates that fall to zero, small steps alone do not show it.

One full-batch round computes the best step without taking it; the gain of that step shows how far the optimum is. It
costs two trips, three if a table has several shards.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tablepuppet.learn.linear.directions import Directions
from tablepuppet.learn.linear.gradient_rule import GradientRule
from tablepuppet.learn.linear.model import LinearModel
from tablepuppet.learn.linear.plane import Plane
from tablepuppet.learn.loss.joined_loss import JoinedLoss

Array = NDArray[np.float64]
CLOSE, NEAR = 2e-3, 5e-4  # gain that a step may still have: relative to the objective; absolute, for a log loss


def has_converged(model: LinearModel, loss: JoinedLoss, intercept: Array) -> bool:
    """Whether a step along the tables' ridge solves would gain next to nothing; False while a party is lost."""
    if not model.tables:
        return True
    model.predict(intercept)
    known = loss.evaluate()
    directions = Directions(loss.rows, 1)
    column, curvature = GradientRule(loss).values(directions.new(), None)
    products = model.direction(model.loj.scatter_centred(column, model.tables), curvature, column)
    if not model.is_whole:
        return False
    begin, end = Plane(loss, directions, model.l2, products).lowest(known)
    near = 0.0 if loss.quadratic else NEAR
    return bool(begin.objective - end.objective <= max(CLOSE * abs(begin.objective), near))
