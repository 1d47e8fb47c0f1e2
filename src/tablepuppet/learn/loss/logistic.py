"""The log loss of two classes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tablepuppet.learn.loss.losses import (
    Images,
    Look,
    Loss,
    Matrix,
    Rows,
    Scores,
    WholeLook,
    outweighs,
    small_step,
    sum_of_logs,
)
from tablepuppet.privacy.label_correction import backward_targets

NEWTON_STEPS = 30


@dataclass(frozen=True)
class RowWeights:
    """A diagonal second derivative: one weight per joined row."""

    weights: Scores

    def times(self, images: Images) -> Images:
        """Weighted directions."""
        return np.asarray(images * self.weights)

    def on_constants(self) -> Matrix:
        """The sum of all weights."""
        return np.array([[self.weights.sum()]])

    def mean(self) -> float:
        """Of the weights."""
        return float(self.weights.mean())


class Logistic(Loss):
    """Log loss of two classes; labels are 0 and 1, the score is the log odds of class 1.

    Where labels are the true ones only with probability ``keep``, ``targets`` stand in for them: the mean of the loss
    over that noise is the loss of the true labels. They lie outside of 0 and 1, so that only a penalty bounds scores.
    """

    outputs = 1
    quadratic = False
    most_curvature = 0.25

    def __init__(self, labels: Scores, keep: float = 1.0):
        self.labels, self.keep = labels, keep
        self.targets = labels if keep == 1 else backward_targets(labels.astype(np.int64), 2, keep)[:, 1]

    def at(self, rows: Rows) -> Loss:
        """The loss over some of the joined rows."""
        return Logistic(self.labels[rows], self.keep)

    def look(self, scores: Scores) -> Look:
        """log(1 + exp(z)) - y z; probability minus label; p (1 - p)."""
        unlikely, whole = _unlikely(scores)
        value = sum_of_logs(whole) + float(np.maximum(scores, 0).sum()) - float(self.targets @ scores)
        gradient, weights = self._derivatives(scores, unlikely)
        return WholeLook(value, gradient, RowWeights(weights))

    def _derivatives(self, scores: Scores, unlikely: Scores) -> tuple[Scores, Scores]:
        """(probability minus label, p (1 - p)) from the probability of the less likely class, which is used up."""
        gradient = 0.5 - unlikely
        np.copysign(gradient, scores, out=gradient)
        gradient += 0.5
        gradient -= self.targets
        unlikely -= unlikely * unlikely
        return gradient, unlikely

    def pull(self, start: Scores, away: Scores, rho: float, look: Look | None = None) -> None:
        """Newton's method in every row.

        Where the loss may outweigh rho, steps stop at zero, where the slope bends: from there they cannot overshoot.
        """
        z, clipped = start, not outweighs(rho, self)
        enough = small_step(self, rho, start)
        for number in range(NEWTON_STEPS):
            if number == 0 and look is not None and isinstance(look.hessian, RowWeights):
                step, bend = look.gradient - rho * away, look.hessian.weights + rho
            else:
                step, bend = self._derivatives(z, _unlikely(z)[0])
                step -= rho * away
                bend += rho
            step /= bend
            if clipped:
                over = z * (z - step) < 0
                step[over] = z[over]
            z = z - step
            away += step
            if np.abs(step, out=step).max(initial=0.0) < enough:
                break

    def best_constant(self) -> NDArray[np.float64]:
        """The log odds of class 1."""
        share = self.targets.mean()
        if self.keep < 1:
            share = np.clip(share, 1 / (len(self.targets) + 1), 1 - 1 / (len(self.targets) + 1))
        return np.array([np.log(share) - np.log1p(-share)])


def _unlikely(scores: Scores) -> tuple[Scores, Scores]:
    """(p, 1 / (1 - p)) for the less likely of two classes."""
    small = np.copysign(scores, -1.0)
    np.exp(small, out=small)
    whole = 1 + small
    small /= whole
    return small, whole
