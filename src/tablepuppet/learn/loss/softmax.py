"""The log loss of several classes.

Scores come as (joined_rows, classes), with each class contiguous in memory; here they are transposed to (classes,
joined_rows), so that every pass reads memory in order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax, logsumexp, wrightomega

from tablepuppet.arrays import Array
from tablepuppet.learn.loss.losses import (
    Directions,
    Evaluation,
    Labels,
    Loss,
    Scores,
    Weights,
    outweighs,
    small_step,
    sum_of_logs,
)
from tablepuppet.privacy.label import inverse_transition, true_shares

NEWTON_STEPS = 30
LOGSUMEXP_STEPS = 200
SOME = 64  # one in 64 rows is checked to see whether most rows are still moving
TAME = 2.0**31  # up to this size, sums of exponentials need no shift, and products of many of them do not overflow


@dataclass(frozen=True)
class SoftmaxHessian:
    """diag(p) - p p^T for every row, times its weight."""

    probability: Scores  # (classes, rows)
    weights: Weights | None = None

    def times(self, directions: Directions) -> Directions:
        """p_c (d_c - sum_e p_e d_e)."""
        found: Directions = directions - np.einsum("kcm,cm->km", directions, self.probability)[:, None]
        found *= self._weighted
        return found

    def on_constants(self) -> Array:
        """The sum of diag(p) - p p^T."""
        outer: Array = self._weighted @ self.probability.T
        return np.diag(self._weighted.sum(axis=1)) - outer

    def trace(self) -> float:
        """The sum of p (1 - p) over rows and classes."""
        return float((self._weighted * (1 - self.probability)).sum())

    def diagonal(self) -> Scores:
        """p (1 - p), (rows, classes)."""
        return np.asarray((self._weighted * (1 - self.probability)).T)

    @property
    def _weighted(self) -> Scores:
        return self.probability if self.weights is None else self.probability * self.weights


@dataclass(frozen=True)
class SoftmaxEvaluation:
    """Derivatives from the probabilities."""

    value: float
    hessian: SoftmaxHessian
    loss: Softmax
    labels: Labels

    @property
    def gradient(self) -> Scores:
        """Probabilities minus the one-hot label."""
        gradient = self.hessian.probability.copy()
        self.loss.add_targets(gradient, -1.0, self.labels)
        if self.hessian.weights is not None:
            gradient *= self.hessian.weights
        return gradient.T


class Softmax(Loss):
    """Log loss of several classes; labels are class numbers; for ``keep`` see `Logistic`."""

    quadratic = False
    most_curvature = 0.5

    def __init__(self, classes: int, keep: float = 1.0):
        self.outputs = self.kept = classes
        self.keep = keep
        # targets of the labelled class and of the others; 1 and 0 for labels without noise
        self._own: float = inverse_transition(classes, keep)[0, 0] if keep < 1 else 1.0
        self._other: float = inverse_transition(classes, keep)[0, 1] if keep < 1 else 0.0

    def evaluate(
        self, scores: Scores, labels: Labels, kept: Scores | None = None, weights: Weights | None = None
    ) -> SoftmaxEvaluation:
        """Value logsumexp(z) - z_y; gradient: probabilities minus the one-hot label; Hessian from the probabilities."""
        turned, probability = scores.T, np.empty(scores.shape[::-1])
        total, highest = _exponentials(turned, probability)
        np.divide(probability, total, out=probability)
        of_labels = probability.take(_places(labels))
        if weights is None and self.keep == 1 and of_labels.min(initial=1.0) >= 1 / TAME:
            value = -sum_of_logs(of_labels)
        elif weights is None:
            value = sum_of_logs(total) + float(self._apart(turned, highest, labels).sum())
        else:
            value = float(weights @ (np.log(total) + self._apart(turned, highest, labels)))
        if kept is not None:
            kept[:] = probability
        return SoftmaxEvaluation(value, SoftmaxHessian(probability, weights), self, labels)

    def evaluated(
        self, scores: Scores, labels: Labels, kept: Scores, weights: Weights | None = None
    ) -> SoftmaxEvaluation:
        """The evaluation from its stored values."""
        return SoftmaxEvaluation(float("nan"), SoftmaxHessian(kept, weights), self, labels)

    def _apart(self, turned: Scores, highest: Scores, labels: Labels) -> Scores:
        """highest - z_y of each row: small if it is right, which the sums over rows are not."""
        apart = highest - (self._own - self._other) * turned[labels, np.arange(len(labels))]
        return np.asarray(apart - self._other * turned.sum(axis=0) if self._other else apart)

    def add_targets(self, turned: Scores, times: float, labels: Labels) -> None:
        """Add ``times`` the one-hot labels; with noisy labels, ``times`` their targets."""
        if self._other:
            turned += times * self._other
        turned.reshape(-1, copy=False)[_places(labels)] += times * (self._own - self._other)

    def proximal_step(
        self, start: Scores, away: Scores, rho: float, labels: Labels, known: Evaluation | None = None
    ) -> None:
        """Newton's method in every row, for z = high - p / rho. In the label's class high is target + 1 / rho."""
        z, gap, weight = start.T, np.subtract(-1.0, away.T, order="C"), None
        self.add_targets(gap, -1 / rho, labels)  # z - high - 1
        if not outweighs(rho, self):
            inside = np.clip(gap, -1 - 1 / rho, -1)
            z, gap = z + (inside - gap), inside
        elif isinstance(known, SoftmaxEvaluation):
            weight = known.hessian.probability + rho
            np.divide(rho, weight, out=weight)
        _newton(z, gap, rho, small_step(self, rho, z), weight)
        self.add_targets(gap, 1 / rho, labels)
        np.subtract(-1, gap, out=away.T)

    def label_sums(self, labels: Labels, weights: Weights | None = None) -> Array:
        """How many rows have each class."""
        return np.bincount(labels, weights, minlength=self.outputs).astype(np.float64)

    def best_constant(self, sums: Array, rows: int) -> NDArray[np.float64]:
        """Log shares of the classes, centred."""
        shares, least = sums / rows, 1e-300
        if self.keep < 1:
            shares, least = true_shares(shares, self.keep), 1 / (rows + 1)
        constant: NDArray[np.float64] = log_softmax(np.log(np.maximum(shares, least)))
        return np.asarray(constant - constant.mean())


def _places(labels: Labels) -> NDArray[np.intp]:
    """Where the label's class of each row is, in (classes, rows) flattened."""
    places = np.multiply(labels, len(labels), dtype=np.intp)
    places += np.arange(len(labels))
    return np.asarray(places)


def _exponentials(scores: Scores, out: Scores) -> tuple[Scores, Scores]:
    """exp(scores - highest), into ``out``: (their sums by row, the highest score by row, or zero for all of them)."""
    with np.errstate(over="ignore"):
        np.exp(scores, out=out)
    total: Scores = out.sum(axis=0)
    if total.min(initial=1.0) >= 1 / TAME and total.max(initial=1.0) <= TAME:
        return total, np.zeros(1)
    highest: Scores = scores.max(axis=0)
    np.subtract(scores, highest, out=out)
    np.exp(out, out=out)
    return out.sum(axis=0), highest


def _newton(
    z: Scores, gap: Scores, rho: float, enough: float, weight: Scores | None = None, steps: int = NEWTON_STEPS
) -> None:
    """Newton's method: move ``gap`` = z - high - 1 to the solution. ``weight`` is rho / (p + rho), if known.

    Rows where Newton's method does not converge, which may happen for a small rho, are solved for their logsumexp.
    """
    if weight is None:
        weight = np.empty(z.shape)
        total = rho * _exponentials(z, weight)[0]
        weight += total
        np.divide(total, weight, out=weight)
    step = _newton_step(gap, rho, weight)
    z = z - step
    gap -= step
    if steps and (np.abs(step[:, ::SOME]).max(axis=0) >= enough).mean() > 0.5:
        return _newton(z, gap, rho, enough, steps=steps - 1)
    moving = np.flatnonzero(np.abs(step, out=step).max(axis=0) >= enough)
    if len(moving):
        of, rest = z[:, moving], gap[:, moving]
        if steps:
            _newton(of, rest, rho, enough, steps=steps - 1)
        else:
            high = of - rest - 1
            rest = _by_logsumexp(high, rho) - high - 1
        gap[:, moving] = rest


def _newton_step(gap: Scores, rho: float, weight: Scores) -> Scores:
    """The solution of (diag(p + rho) - p p^T) step = p + rho (z - high), by the Sherman-Morrison formula.

    With w = rho / (p + rho) and u = z - high - 1, which is the gap, it is 1 + s + w (u - s), where
    s = (1 / rho + sum u (1 - w)) / sum (1 - w).
    """
    shift: Scores = 1 / rho + gap.sum(axis=0) - np.einsum("cm,cm->m", gap, weight)
    shift /= np.maximum(len(weight) - weight.sum(axis=0), np.finfo(np.float64).eps)
    step: Scores = gap - shift
    step *= weight
    shift += 1
    step += shift
    return step


def _by_logsumexp(high: Scores, rho: float) -> Scores:
    """The solution of z = high - softmax(z) / rho, with the one unknown s = logsumexp(z) of every row.

    With omega(x) + log(omega(x)) = x: softmax(z) = rho omega(high - log(rho) - s), which must add up to one.
    That sum decreases in s and is convex, so Newton's method approaches the solution from below.
    """
    s = logsumexp(high, axis=0) - 1 / rho
    for _ in range(LOGSUMEXP_STEPS):
        omega = wrightomega(high - np.log(rho) - s)
        step = (rho * omega.sum(axis=0) - 1) / (rho * (omega / (1 + omega)).sum(axis=0))
        s += step
        if np.abs(step).max(initial=0.0) < 1e-14 * (1 + np.abs(s).max(initial=0.0)):
            break
    return np.asarray(high - wrightomega(high - np.log(rho) - s))
