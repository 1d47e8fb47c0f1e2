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
from typing import TYPE_CHECKING

import numpy as np

from tablepuppet.learn.block import Curvature
from tablepuppet.learn.descent import Array

if TYPE_CHECKING:
    from tablepuppet.learn.losses import Look, Loss

AUTO_RHO = 100.0  # times the mean curvature of the loss at the start


class SharingRule:
    """Ask the tables to answer the mean residual of the sharing problem."""

    def __init__(self, loss: Loss, tables: int, rho: float | str, scores: Array):
        self.loss, self.parts = loss, tables + 1
        hessian = loss.hessian(scores)
        self.rho = AUTO_RHO * max(hessian.mean(), 1e-12) if isinstance(rho, str) else rho
        self.first = hessian.on_constants()
        self.residual = loss.gradient(scores)
        self.dual = self.residual * (self.parts * len(scores) / self.rho)  # M u: where zbar is optimal

    def wanted(self, scores: Array, looks: Mapping[int, Look], before: Array | None) -> tuple[Array, Curvature]:
        """The residual times rho, by joined rows, and the mean curvature of the loss before the last step."""
        return self.residual, self.first if before is None else before

    def moved(self, part: slice, now: Array, look: Look | None) -> None:
        """The z-update and the dual update of some joined rows: then r = 2 u - (u before)."""
        rho, dual, residual = self.rho / self.parts, self.dual[part], self.residual[part]
        pulled = self.loss.at(part).pull(now + dual, rho, now, look)
        scale = rho / len(self.dual)
        np.multiply(pulled, 2 * scale, out=residual)
        dual *= scale
        residual -= dual
        dual[:] = pulled
