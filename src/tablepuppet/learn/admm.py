"""RFL-ADMM in the sharing form of Boyd et al., section 7.3 (solver="admm").

The update as printed in Eq. 9 lets every table answer the whole residual at once and diverges on correlated tables; the
sharing form lets each answer the mean residual, with the same messages. M counts the tables and the intercept.

    theta_i: ridge solve of  rho / (2N) |T_i (theta_i - theta_i^t) + r|^2 + l2 / 2 |theta_i|^2,  r = mean(h) - zbar + u
    zbar   = argmin of  loss(M zbar) / N + M rho / (2N) |zbar - mean(h) - u|^2                       (Eq. 7)
    u      = u + mean(h) - zbar                                                                      (Eq. 8)

Over-relaxation is replaced by the plane search of `descent`, which picks the best step: most values of rho then do.
"""

from __future__ import annotations

import numpy as np

from tablepuppet.learn.descent import Array
from tablepuppet.learn.losses import Loss
from tablepuppet.pieces import over_pieces

AUTO_RHO = 100.0  # times the mean curvature of the loss at the start


class SharingRule:
    """Ask the tables to answer the mean residual of the sharing problem."""

    def __init__(self, loss: Loss, tables: int, rho: float | str, scores: Array):
        self.loss, self.parts = loss, tables + 1
        self.rho = AUTO_RHO * max(loss.hessian(scores).mean(), 1e-12) if isinstance(rho, str) else rho
        self.residual = loss.gradient(scores)
        self.dual = self.residual * (self.parts * len(scores) / self.rho)  # M u: where zbar is optimal

    def wanted(self, scores: Array) -> tuple[Array, float]:
        """The residual times rho, by joined rows; the ridge solves have curvature rho."""
        return self.residual, self.rho

    def moved(self, scores: Array) -> None:
        """The z-update and the dual update: then r = 2 u - (u before)."""
        rho = self.rho / self.parts

        def update(part: slice) -> None:
            now, dual, residual = scores[part], self.dual[part], self.residual[part]
            target = now + dual
            target -= self.loss.at(part).proximal(target, rho, now)
            np.subtract(2 * target, dual, out=residual)
            residual *= rho / len(scores)
            dual[:] = target

        over_pieces(update, len(scores), self.loss.outputs)
