"""RFL-LBFGS: limited-memory descent by the gradient of the loss (solver="lbfgs", and what "auto" picks).

Tables answer the gradient with their own ridge solve, a block preconditioner. L-BFGS would pick one point of the plane
of direction and earlier steps by its two-loop formula; `descent` searches the plane itself, which needed as many rounds
or fewer on every relation tried, and no inner products of gradients need to travel. For squared loss it is the
preconditioned conjugate gradient method.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tablepuppet.learn.linear.ridge import Array, Curvature
from tablepuppet.learn.loss.losses import Look, Loss
from tablepuppet.pieces import over_pieces


@dataclass(frozen=True)
class GradientRule:
    """Ask the tables to answer the gradient, at the mean curvature of the loss where it stands."""

    loss: Loss

    def wanted(self, scores: Array, looks: Mapping[int, Look], before: Array | None) -> tuple[Array, Curvature]:
        """The gradient of the mean loss by scores, and the mean curvature by pairs of outputs."""
        gradient, rows = np.empty_like(scores), len(scores)

        def look(part: slice) -> Array:
            found = looks.get(part.start) or self.loss.at(part).look(scores[part])
            np.multiply(found.gradient, 1 / rows, out=gradient[part])
            return found.hessian.on_constants()

        parts = [curvature for _, curvature in over_pieces(look, rows, self.loss.outputs)]
        return gradient, np.sum(parts, axis=0) / rows

    def asked(self, sums: Mapping[str, Array]) -> Mapping[str, Array]:
        """The gradient's sums."""
        return sums

    def moved(self, part: slice, now: Array, look: Look | None) -> None:
        """Nothing to remember."""
