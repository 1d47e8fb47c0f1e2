"""RFL-ADMM in the sharing form of Boyd et al., section 7.3 (solver="admm").

The update as printed in Eq. 9 lets every table answer the whole residual at once and diverges on correlated tables; the
sharing form lets each answer the mean residual, with the same messages. M counts the tables and the intercept.

    theta_i: ridge solve of  rho / (2N) |T_i (theta_i - theta_i^t) + r|^2 + l2 / 2 |theta_i|^2,  r = mean(h) - zbar + u
    zbar   = argmin of  loss(M zbar) / N + M rho / (2N) |zbar - mean(h) - u|^2                       (Eq. 7)
    u      = u + mean(h) - zbar                                                                      (Eq. 8)

Over-relaxation is replaced by the plane search of `descent`, which picks the best step: most values of rho then do. As
it picks the length, too, tables solve at the curvature C of the loss in place of rho: so L2 has its due share, and
shards that agree by consensus are asked for parameters of about the length that is then taken.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tablepuppet.learn.linear.ridge import Array, Curvature
from tablepuppet.learn.loss.joined_loss import JoinedLoss
from tablepuppet.operators.joined_rows import SCORES, Block, Column

AUTO_RHO = 100.0  # times the mean curvature of the loss at the start
DUAL, RESIDUAL = "dual", "residual"  # columns: M u, and the residual times rho / N


class Sharing:
    """The sharing problem over joined rows; the dual variable M u is a column of theirs."""

    def __init__(self, loss: JoinedLoss, tables: int, rho: float | str):
        self.loss, self.parts, self._asked = loss, tables + 1, rho
        self.rho = self.scale = 0.0

    def begin(self) -> None:
        """Let the dual be where zbar is optimal, at the scores; the loss was evaluated there."""
        rows = self.loss.rows
        self.rho = auto_rho(self.loss, self._asked, AUTO_RHO)
        self.scale = self.rho / self.parts / len(rows)  # of M u, to be a gradient of the mean loss
        rows.reserve(DUAL)
        rows.each(self._begin, self.scale * len(rows))

    def _begin(self, block: Block, scale: float) -> None:
        np.divide(self.loss.evaluation(block).gradient, scale, out=block[DUAL])

    def moved(self, block: Block, is_evaluated: bool) -> None:
        """The z-update and the dual update of a block: what is left of the dual is the proximal step's length."""
        known = self.loss.evaluation(block) if is_evaluated else None
        loss, rho = self.loss.pointwise, self.rho / self.parts
        loss.proximal_step(block[SCORES], block[DUAL], rho, block.labels, known)


class SharingRule(Sharing):
    """Ask the tables to answer the mean residual of the sharing problem."""

    before: Mapping[str, Array] | None = None  # sums of the dual variable at base rows, one round ago
    curvature: Array

    def begin(self) -> None:
        """The dual, and the mean curvature of the loss."""
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
    """The mean residual of the sharing problem, by joined rows: a column of theirs."""

    def begin(self) -> None:
        """The dual, and the residual of the first round."""
        super().begin()
        self.loss.rows.reserve(RESIDUAL)
        self.loss.rows.each(self._first)

    def _first(self, block: Block) -> None:
        np.multiply(self.scale, block[DUAL], out=block[RESIDUAL])

    def update(self) -> None:
        """The tables have answered: scores are new."""
        self.loss.rows.each(self._update)

    def _update(self, block: Block) -> None:
        residual, dual = block[RESIDUAL], block[DUAL]
        residual[:] = dual  # before
        self.moved(block, is_evaluated=False)
        np.subtract(2 * dual, residual, out=residual)
        residual *= self.scale


def auto_rho(loss: JoinedLoss, rho: float | str, times: float) -> float:
    """The rho that was asked for; "auto": so many times the mean curvature of the loss, which was evaluated."""
    return times * max(loss.mean_curvature(), 1e-12) if isinstance(rho, str) else rho
