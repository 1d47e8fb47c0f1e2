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

from tablepuppet.learn.linear.ridge import Array, Curvature
from tablepuppet.learn.loss.losses import Look, Loss
from tablepuppet.pieces import over_pieces

AUTO_RHO = 100.0  # times the mean curvature of the loss at the start


class Sharing:
    """The dual variable of the sharing problem, M u, by joined rows."""

    def __init__(self, loss: Loss, tables: int, rho: float | str, scores: Array):
        look, self.parts = loss.look(scores), tables + 1
        self.loss = loss
        self.rho = AUTO_RHO * max(look.hessian.mean(), 1e-12) if isinstance(rho, str) else rho
        self.curvature = look.hessian.on_constants() / len(scores)
        self.scale = self.rho / self.parts / len(scores)  # of M u, to be a gradient of the mean loss
        self.dual = look.gradient / (self.scale * len(scores))  # where zbar is optimal

    def moved(self, part: slice, now: Array, look: Look | None) -> None:
        """The z-update and the dual update of some joined rows, which leave the loss's pull."""
        self.loss.at(part).pull(now, self.dual[part], self.rho / self.parts, look)


class SharingRule(Sharing):
    """Ask the tables to answer the mean residual of the sharing problem."""

    before: Mapping[str, Array] | None = None  # sums of the dual variable at base rows, one round ago

    def wanted(self, scores: Array, looks: Mapping[int, Look], before: Array | None) -> tuple[Array, Curvature]:
        """The dual variable, and the mean curvature of the loss before the last step."""
        return self.dual, self.curvature if before is None else before

    def asked(self, sums: Mapping[str, Array]) -> Mapping[str, Array]:
        """The residual times rho, at base rows: r = 2 u - (u before)."""
        before, self.before = self.before or sums, sums
        return {alias: self.scale * (2 * now - before[alias]) for alias, now in sums.items()}


class SharingResidual(Sharing):
    """The mean residual of the sharing problem, by joined rows."""

    def __init__(self, loss: Loss, tables: int, rho: float | str, scores: Array):
        super().__init__(loss, tables, rho, scores)
        self.residual = self.scale * self.dual

    def update(self, scores: Array) -> None:
        """The tables have answered: scores are now these."""
        before = self.dual.copy(order="K")
        over_pieces(lambda part: self.moved(part, scores[part], None), len(scores), self.loss.outputs)
        self.residual = self.scale * (2 * self.dual - before)
