"""RFL-ADMM in the sharing form of Boyd et al., section 7.3 (solver="admm").

In Eq. 9 as printed, every table fits the whole residual at once, which diverges on correlated tables. In the sharing
form each fits the mean residual, with the same messages. h are the predictions of tables, zbar the mean score, u the
scaled dual variable, N the joined rows; M counts the tables and the intercept.

    theta_i: ridge solve of  rho / (2N) |T_i (theta_i - theta_i^t) + r|^2 + l2 / 2 |theta_i|^2,  r = mean(h) - zbar + u
    zbar   = argmin of  loss(M zbar) / N + M rho / (2N) |zbar - mean(h) - u|^2                       (Eq. 7)
    u      = u + mean(h) - zbar                                                                      (Eq. 8)

Over-relaxation is replaced by the plane search of `descent`, which finds the best step, so most values of rho work.
Since it also finds the length of the step, tables solve with the curvature C of the loss instead of rho: then the L2
penalty has its correct weight, and consensus works on parameters of about the right length.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tablepuppet.arrays import Array
from tablepuppet.learn.linear.ridge import Curvature
from tablepuppet.learn.loss.joined_loss import JoinedLoss, evaluation
from tablepuppet.learn.loss.losses import Loss
from tablepuppet.mapping.joined_rows import SCORES, Block, Column

AUTO_RHO = 100.0  # times the mean curvature of the loss at the start
DUAL, RESIDUAL = "dual", "residual"  # columns: M u, and the residual times rho / N


@dataclass(frozen=True)
class DualUpdate:
    """The z-update and the dual update of a block: the new dual variable is the target minus its proximal point."""

    loss: Loss
    rho: float

    def __call__(self, block: Block, is_evaluated: bool) -> None:
        """Update the dual variable; ``is_evaluated``: whether the evaluation at the scores is stored."""
        known = evaluation(block, self.loss) if is_evaluated else None
        self.loss.proximal_step(block[SCORES], block[DUAL], self.rho, block.labels, known)


class Sharing:
    """The sharing problem over joined rows; the dual variable M u is a column of theirs."""

    def __init__(self, loss: JoinedLoss, tables: int, rho: float | str):
        self.loss, self.parts, self._asked = loss, tables + 1, rho
        self.rho = self.scale = 0.0

    def begin(self) -> None:
        """Set the dual variable such that zbar is optimal at the scores, where the loss has been evaluated."""
        rows = self.loss.rows
        self.rho = auto_rho(self.loss, self._asked, AUTO_RHO)
        self.scale = self.rho / self.parts / len(rows)  # of M u, to be a gradient of the mean loss
        rows.reserve(DUAL)
        rows.each(_begin, self.loss.pointwise, self.scale * len(rows))

    def after_step(self) -> DualUpdate:
        """What a step of the tables is followed by in every block."""
        return DualUpdate(self.loss.pointwise, self.rho / self.parts)


class SharingRule(Sharing):
    """The right-hand side is the mean residual of the sharing problem."""

    before: Mapping[str, Array] | None = None  # sums of the dual variable at base rows, one round ago
    curvature: Array

    def begin(self) -> None:
        """Set the dual variable, and the mean curvature of the loss."""
        super().begin()
        self.curvature = self.loss.curvature_matrix()

    def values(self, room: Column, before: Array | None) -> tuple[Column, Curvature]:
        """The dual variable, and the mean curvature of the loss before the last step."""
        return DUAL, self.curvature if before is None else before

    def right_hand_side(self, sums: Mapping[str, Array]) -> Mapping[str, Array]:
        """The residual times rho, at base rows: r = 2 u - (u before)."""
        before, self.before = self.before or sums, sums
        return {alias: self.scale * (2 * now - before[alias]) for alias, now in sums.items()}


class SharingResidual(Sharing):
    """The mean residual of the sharing problem, as a column of the joined rows."""

    def begin(self) -> None:
        """Set the dual variable, and the residual of the first round."""
        super().begin()
        self.loss.rows.reserve(RESIDUAL)
        self.loss.rows.each(_first_residual, self.scale)

    def update(self) -> None:
        """Update dual variable and residual after the tables' steps changed the scores."""
        self.loss.rows.each(_update, self.after_step(), self.scale)


# What is computed in a block of the joined rows.


def _begin(block: Block, loss: Loss, scale: float) -> None:
    np.divide(evaluation(block, loss).gradient, scale, out=block[DUAL])


def _first_residual(block: Block, scale: float) -> None:
    np.multiply(scale, block[DUAL], out=block[RESIDUAL])


def _update(block: Block, update: DualUpdate, scale: float) -> None:
    residual, dual = block[RESIDUAL], block[DUAL]
    residual[:] = dual  # before
    update(block, is_evaluated=False)
    np.subtract(2 * dual, residual, out=residual)
    residual *= scale


def auto_rho(loss: JoinedLoss, rho: float | str, times: float) -> float:
    """The given rho; for "auto", ``times`` the mean curvature of the loss at its last evaluation."""
    return times * max(loss.mean_curvature(), 1e-12) if isinstance(rho, str) else rho
