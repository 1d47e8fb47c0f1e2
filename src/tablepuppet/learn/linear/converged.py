"""Whether stochastic descent has come to the optimum: learning rates that fall to nothing would stop anywhere.

One round of full-batch descent is asked for, its best step found and not taken: what it would gain tells how much is
left. It costs two trips, three where a table has several shards.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tablepuppet.learn.linear.gradient_rule import GradientRule
from tablepuppet.learn.linear.images import Images
from tablepuppet.learn.linear.model import LinearModel
from tablepuppet.learn.linear.plane import Plane
from tablepuppet.learn.loss.losses import Loss

Array = NDArray[np.float64]
CLOSE, NEAR = 2e-3, 5e-4  # what a step may still gain: of the objective; of a log loss at all


def has_converged(model: LinearModel, loss: Loss, intercept: Array) -> bool:
    """Whether a step along the tables' ridge solves would gain next to nothing; False while a party is lost."""
    if not model.tables:
        return True
    scores = np.asarray(model.predictions() + intercept, order="F")
    wanted, curvature = GradientRule(loss).wanted(scores, {}, None)
    images = Images.of(1, loss.outputs, len(scores))
    _, products = model.direction(model.loj.scatter_centred(wanted, model.tables), curvature, out=images.new())
    if not model.is_whole:
        return False
    begin, end = Plane(loss, scores, images, model.l2, products, None).lowest({}, 0.0)
    near = 0.0 if loss.quadratic else NEAR
    return bool(begin.objective - end.objective <= max(CLOSE * abs(begin.objective), near))
