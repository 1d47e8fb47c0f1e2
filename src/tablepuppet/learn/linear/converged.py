"""Whether a linear model has converged: one test for all solvers, of the gradient in every direction.

g is the gradient of the objective by all parameters, M the preconditioner (tables' ridge solves, p = -M^-1 g), H the
Hessian. A step that is left could still lower the objective by about <g, H^-1 g> / 2:

    promised = <g, M^-1 g> / 2                 what tables promise: the decrease if they were uncorrelated
             + left                            what their ridge solves leave out, below the floor (ridge.py)
    distance = promised * max <d, M d> / <d, H d>    over all directions d of the plane: correlated tables are flatter

Scores are those of the parameters up to rounding, of the wire above all: ``noise`` is what this may hide. A solver has
converged if both distance and noise are next to nothing, relative to the objective.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tablepuppet.arrays import Array
from tablepuppet.learn.linear.ridge import Curvature

ACCURACY = 1e-12  # share of the objective that may be left: about the square of what may be wrong with coefficients
PERFECT = 1e-10  # share of the first objective below which an objective counts as zero
FLATTEST = 1e9  # directions that are flatter are not identified by the data
DEPENDENT = 1e-9  # eigenvalue of the scaled Hessian below which directions of the plane depend on each other
APART = 1e-6  # of the squares that are added up to <d, M d>: directions that depend on each other leave about 1e-12
CLOSE, NEAR = 2e-3, 5e-4  # what sgd may leave of the objective, and of any log loss, to end near the optimum


@dataclass(frozen=True)
class Distance:
    """How far the optimum may be, in units of the objective."""

    promised: float
    flatness: float  # of the flattest direction: <d, M d> / <d, H d>, at least 1
    noise: float  # what rounding may hide
    scale: float  # the objective, or what counts as zero

    def is_small(self, tol: float) -> bool:
        """Whether tables promise next to nothing."""
        return self.promised <= tol * self.scale

    def is_sound(self, tol: float) -> bool:
        """Whether rounding hides next to nothing: a tenth of what may be left, ten times that far from the optimum.

        More would show in the objective: its error is of the order of the root.
        """
        far = min(ACCURACY * self.scale, 0.1 * self.promised)
        return self.noise <= max(0.1 * max(ACCURACY, tol) * self.scale, far)

    def has_converged(self, tol: float) -> bool:
        """Whether the optimum is as near as can be asked for: the test of all full-batch solvers."""
        left = self.promised * self.flatness
        return self.is_small(tol) and self.is_sound(tol) and left <= max(ACCURACY, tol) * self.scale


def promised_decrease(slope: float, hessian: Array, curvature: Curvature, outputs: int, disagreement: float) -> float:
    """<g, p> / 2 at the true curvature: the decrease by the step if the tables were uncorrelated.

    With consensus (consensus.py), p is not yet the ridge solve: ``disagreement`` is what the shards could still gain.
    """
    asked = np.trace(curvature) if isinstance(curvature, np.ndarray) else curvature * outputs
    true = np.trace(hessian[-outputs:, -outputs:])
    return (abs(slope) / 2 + disagreement) * float(asked / max(true, 1e-12))


def flatness(hessian: Array, metric: Array, outputs: int, *, is_bounded: bool = True) -> float:
    """The largest <d, M d> / <d, H d> over the plane, from both forms' products of its directions.

    ``hessian`` has constants as its last rows: the intercept follows every direction. Unless flatness ``is_bounded``
    by a penalty, a direction that H does not tell from zero, and M does, is as flat as can be.
    """
    count = len(metric)
    across = hessian[:count, -outputs:]
    own = hessian[:count, :count] - across @ np.linalg.pinv(hessian[-outputs:, -outputs:]) @ across.T
    lengths = np.sqrt(np.maximum(np.diag(own), 1e-300))
    values, vectors = np.linalg.eigh(own / np.outer(lengths, lengths))
    kept = values > DEPENDENT * max(values.max(), 1e-300)
    scaled, lost = metric / np.outer(lengths, lengths), vectors[:, ~kept]
    left, squares = np.einsum("ij,ik,kj->j", lost, scaled, lost), np.diag(scaled) @ lost**2
    if not is_bounded and np.any(left > APART * squares):
        return FLATTEST
    whitened = vectors[:, kept] / np.sqrt(values[kept]) / lengths[:, None]
    found = np.linalg.eigvalsh(whitened.T @ metric @ whitened)
    return float(np.clip(np.nan_to_num(found.max(initial=1.0), nan=FLATTEST), 1.0, FLATTEST))
