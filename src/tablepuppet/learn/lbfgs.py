"""RFL-LBFGS: limited-memory descent by the gradient of the loss (solver="lbfgs", and what "auto" picks).

Tables answer the gradient with their own ridge solve, a block preconditioner. L-BFGS would pick one point of the plane
of direction and earlier steps by its two-loop formula; `descent` searches the plane itself, which needed as many rounds
or fewer on every relation tried, and no inner products of gradients need to travel. For squared loss it is the
preconditioned conjugate gradient method.
"""

from __future__ import annotations

from dataclasses import dataclass

from tablepuppet.learn.descent import Array
from tablepuppet.learn.linear import Curvature
from tablepuppet.learn.losses import Loss


@dataclass(frozen=True)
class GradientRule:
    """Ask the tables to answer the gradient, at the mean curvature of the loss where it stands."""

    loss: Loss

    def wanted(self, scores: Array) -> tuple[Array, Curvature]:
        """The gradient by scores, and the mean curvature by pairs of outputs."""
        return self.loss.gradient(scores), self.loss.hessian(scores).on_constants()

    def moved(self, scores: Array) -> None:
        """Nothing to remember."""
