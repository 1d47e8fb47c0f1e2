"""RFL-LBFGS: limited-memory descent by the gradient of the loss (solver="lbfgs", and what "auto" picks).

Each table applies its own ridge solve to the gradient: a block preconditioner. L-BFGS would choose one point of the
plane of direction and earlier steps by its two-loop formula. `descent` minimises over the whole plane instead: this
needed as many rounds or fewer on every relation tried, and no inner products of gradients need to be sent. For squared
loss it is the preconditioned conjugate gradient method.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tablepuppet.arrays import Array
from tablepuppet.learn.linear.ridge import Curvature
from tablepuppet.learn.loss.joined_loss import JoinedLoss, evaluation
from tablepuppet.learn.loss.losses import Loss
from tablepuppet.mapping.joined_rows import Block, Column


@dataclass(frozen=True)
class GradientRule:
    """The right-hand side is the gradient of the loss, the curvature its mean curvature at the scores."""

    loss: JoinedLoss

    def begin(self) -> None:
        """Nothing to prepare."""

    def values(self, room: Column, before: Array | None) -> tuple[Column, Curvature]:
        """The gradient of the mean loss by scores, and the mean curvature by pairs of outputs."""
        rows = self.loss.rows
        parts = rows.each(_write_gradient, self.loss.pointwise, room, 1 / rows.joined)
        return room, np.sum(parts, axis=0) / rows.joined

    def right_hand_side(self, sums: Mapping[str, Array]) -> Mapping[str, Array]:
        """The sums of the gradient."""
        return sums

    def after_step(self) -> None:
        """Nothing to update in the blocks."""


def _write_gradient(block: Block, loss: Loss, room: Column, scale: float) -> Array:
    here = evaluation(block, loss)
    np.multiply(here.gradient, scale, out=block[room])
    return here.hessian.on_constants()
