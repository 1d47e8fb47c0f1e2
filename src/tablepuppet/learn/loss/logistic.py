"""The log loss of two classes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array
from tablepuppet.learn.loss.losses import (
    Evaluation,
    Labels,
    Loss,
    RowWeights,
    Scores,
    Weights,
    outweighs,
    small_step,
    sum_of_logs,
)
from tablepuppet.privacy.label import backward_targets

NEWTON_STEPS = 30


@dataclass(frozen=True)
class LogisticEvaluation:
    """Derivatives from the probability of the less likely class, with the sign of the score."""

    value: float
    signed: Scores
    targets: Scores
    weights: Weights | None = None

    @property
    def gradient(self) -> Scores:
        """Probability of class 1 minus target."""
        gradient = np.abs(self.signed)
        np.subtract(0.5, gradient, out=gradient)
        np.copysign(gradient, self.signed, out=gradient)
        gradient += 0.5
        gradient -= self.targets
        if self.weights is not None:
            gradient *= self.weights
        return gradient

    @property
    def hessian(self) -> RowWeights:
        """p (1 - p)."""
        weights = np.abs(self.signed)
        weights -= self.signed * self.signed
        if self.weights is not None:
            weights *= self.weights
        return RowWeights(weights)


class Logistic(Loss):
    """Log loss of two classes; labels are 0 and 1, the score is the log odds of class 1.

    If labels are true only with probability ``keep``, they are replaced by targets such that the expected loss over the
    noise is the loss of the true labels. Targets lie outside of [0, 1], so only a penalty bounds the scores.
    """

    outputs = 1
    quadratic = False
    most_curvature = 0.25
    kept = 1

    def __init__(self, keep: float = 1.0):
        self.keep = keep
        self._targets = backward_targets(np.arange(2), 2, keep)[:, 1] if keep < 1 else np.arange(2.0)

    def targets(self, labels: Labels) -> Scores:
        """The target of each label."""
        return np.asarray(self._targets.take(labels) if self.keep < 1 else labels.astype(np.float64, copy=False))

    def evaluate(
        self, scores: Scores, labels: Labels, kept: Scores | None = None, weights: Weights | None = None
    ) -> LogisticEvaluation:
        """log(1 + exp(z)) - y z; probability minus label; p (1 - p).

        max(z, 0) - y z is small in every row that is right, but not its two sums: they are subtracted row by row.
        """
        signed = np.empty_like(scores) if kept is None else kept[0]
        whole, targets = _unlikely(scores, signed), self.targets(labels)
        logs = sum_of_logs(whole) if weights is None else weights @ np.log(whole)
        apart = np.maximum(scores, 0, out=whole)
        apart -= targets * scores
        value = logs + (apart.sum() if weights is None else weights @ apart)
        np.copysign(signed, scores, out=signed)
        return LogisticEvaluation(float(value), signed, targets, weights)

    def evaluated(
        self, scores: Scores, labels: Labels, kept: Scores, weights: Weights | None = None
    ) -> LogisticEvaluation:
        """The evaluation from its stored values."""
        return LogisticEvaluation(float("nan"), kept[0], self.targets(labels), weights)

    def proximal_step(
        self, start: Scores, away: Scores, rho: float, labels: Labels, known: Evaluation | None = None
    ) -> None:
        """Newton's method in every row.

        If the loss may have more curvature than rho, steps stop at score zero, the inflection point of the gradient:
        from there Newton's method cannot overshoot.
        """
        z, clipped, targets = start, not outweighs(rho, self), self.targets(labels)
        enough, signed = small_step(self, rho, start), np.empty_like(start)
        for _ in range(NEWTON_STEPS):
            if known is None:
                _unlikely(z, signed)
                known = LogisticEvaluation(float("nan"), np.copysign(signed, z, out=signed), targets)
            step, curvature = known.gradient, known.hessian
            assert isinstance(curvature, RowWeights), "of this loss"
            step -= rho * away
            step /= curvature.weights + rho
            if clipped:
                over = z * (z - step) < 0
                step[over] = z[over]
            z = z - step
            away += step
            if np.abs(step, out=step).max(initial=0.0) < enough:
                break
            known = None

    def label_sums(self, labels: Labels, weights: Weights | None = None) -> Array:
        """The sum of targets."""
        targets = self.targets(labels)
        return np.array([targets.sum() if weights is None else weights @ targets])

    def best_constant(self, sums: Array, rows: int) -> NDArray[np.float64]:
        """The log odds of class 1."""
        share = float(sums[0]) / rows
        if self.keep < 1:
            share = float(np.clip(share, 1 / (rows + 1), 1 - 1 / (rows + 1)))
        return np.array([np.log(share) - np.log1p(-share)])


def _unlikely(scores: Scores, out: Scores) -> Scores:
    """1 / (1 - p) for the less likely of two classes, whose probability p is written to ``out``."""
    np.copysign(scores, -1.0, out=out)
    np.exp(out, out=out)
    whole = 1 + out
    np.divide(out, whole, out=out)
    return np.asarray(whole)
