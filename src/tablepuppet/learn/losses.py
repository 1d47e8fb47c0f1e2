"""Losses over joined rows, as the coordinator computes them: values, gradients, curvature, proximal steps.

Scores are (joined_rows,) for one output, (joined_rows, classes) for softmax. Means are over joined rows, so
gradients carry the factor 1 / joined_rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, log_softmax, logsumexp, softmax, wrightomega

Scores = NDArray[np.float64]
NEWTON_STEPS = 30
LOGSUMEXP_STEPS = 200


class Loss(Protocol):
    """A convex loss of scores against labels."""

    @property
    def outputs(self) -> int:
        """Scores per joined row."""
        ...

    def value(self, scores: Scores) -> float:
        """The mean loss."""
        ...

    def gradient(self, scores: Scores) -> Scores:
        """The gradient of the mean loss by scores."""
        ...

    def hessian(self, scores: Scores) -> Hessian:
        """The second derivative of the mean loss at scores."""
        ...

    def proximal(self, target: Scores, rho: float, start: Scores) -> Scores:
        """argmin over z of loss(z) + rho / 2 * |z - target|^2, row by row (Eq. 7)."""
        ...

    def best_constant(self) -> NDArray[np.float64]:
        """The constant scores, (outputs,), with the least loss."""
        ...

    def at(self, rows: NDArray[np.intp]) -> Loss:
        """The loss over some of the joined rows."""
        ...

    @property
    def most_curvature(self) -> float:
        """An upper bound of the second derivative by one score."""
        ...


class Hessian(Protocol):
    """The second derivative of a mean loss, a small block per joined row."""

    def times(self, direction: Scores) -> Scores:
        """Its product with a direction."""
        ...

    def on_constants(self) -> NDArray[np.float64]:
        """(outputs, outputs): its quadratic form on directions that are the same in every row."""
        ...

    def mean(self) -> float:
        """The mean curvature over rows and outputs."""
        ...


@dataclass(frozen=True)
class RowWeights:
    """A diagonal second derivative: one weight per joined row."""

    weights: Scores

    def times(self, direction: Scores) -> Scores:
        """Weights times direction."""
        return self.weights * direction

    def on_constants(self) -> NDArray[np.float64]:
        """The sum of all weights."""
        return np.array([[self.weights.sum()]])

    def mean(self) -> float:
        """The sum of weights, which carry 1 / joined_rows."""
        return float(self.weights.sum())


class Squared:
    """Half the squared error."""

    outputs = 1
    most_curvature = 1.0

    def __init__(self, labels: Scores):
        self.labels = labels

    def at(self, rows: NDArray[np.intp]) -> Loss:
        """The loss over some of the joined rows."""
        return Squared(self.labels[rows])

    def value(self, scores: Scores) -> float:
        """Half the mean squared error."""
        error = scores - self.labels
        return 0.5 * float(error @ error) / len(error)

    def gradient(self, scores: Scores) -> Scores:
        """Error by joined rows."""
        return (scores - self.labels) / len(self.labels)

    def hessian(self, scores: Scores) -> Hessian:
        """One for every row."""
        return RowWeights(np.full(len(self.labels), 1 / len(self.labels)))

    def proximal(self, target: Scores, rho: float, start: Scores) -> Scores:
        """In closed form."""
        return (self.labels + rho * target) / (1 + rho)

    def best_constant(self) -> NDArray[np.float64]:
        """The mean label."""
        return np.array([self.labels.mean()])


class Logistic:
    """Log loss of two classes; labels are 0 and 1, the score is the log odds of class 1."""

    outputs = 1
    most_curvature = 0.25

    def __init__(self, labels: Scores):
        self.labels = labels

    def at(self, rows: NDArray[np.intp]) -> Loss:
        """The loss over some of the joined rows."""
        return Logistic(self.labels[rows])

    def value(self, scores: Scores) -> float:
        """Mean of log(1 + exp(z)) - y z."""
        return float((np.logaddexp(0, scores) - self.labels * scores).mean())

    def gradient(self, scores: Scores) -> Scores:
        """Probability minus label."""
        gradient: Scores = expit(scores)
        gradient -= self.labels
        gradient /= len(gradient)
        return gradient

    def hessian(self, scores: Scores) -> Hessian:
        """p (1 - p) for every row."""
        probability = expit(scores)
        probability *= 1 - probability
        probability /= len(probability)
        return RowWeights(probability)

    def proximal(self, target: Scores, rho: float, start: Scores) -> Scores:
        """Newton's method in every row. Steps stop at zero, where the slope bends: from there they cannot overshoot."""
        z: Scores = start
        for _ in range(NEWTON_STEPS):
            probability = expit(z)
            step = (probability - self.labels + rho * (z - target)) / (probability * (1 - probability) + rho)
            moved = z - step
            moved[z * moved < 0] = 0.0
            done = np.abs(moved - z).max(initial=0.0) < 1e-12 * (1 + np.abs(z).max(initial=0.0))
            z = moved
            if done:
                break
        return z

    def best_constant(self) -> NDArray[np.float64]:
        """The log odds of class 1."""
        share = self.labels.mean()
        return np.array([np.log(share) - np.log1p(-share)])


@dataclass(frozen=True)
class SoftmaxHessian:
    """diag(p) - p p^T for every row."""

    probability: Scores

    def times(self, direction: Scores) -> Scores:
        """p * (d - sum_c p_c d_c), by joined rows."""
        weighted = self.probability * direction
        weighted -= self.probability * weighted.sum(axis=1, keepdims=True)
        weighted /= len(weighted)
        return weighted

    def on_constants(self) -> NDArray[np.float64]:
        """Mean of diag(p) - p p^T."""
        rows = len(self.probability)
        outer: NDArray[np.float64] = self.probability.T @ self.probability
        return (np.diag(self.probability.sum(axis=0)) - outer) / rows

    def mean(self) -> float:
        """The mean of p (1 - p) over rows and classes."""
        return float((self.probability * (1 - self.probability)).mean())


def _by_logsumexp(high: Scores, rho: float) -> Scores:
    """z with z = high - softmax(z) / rho, by the one unknown s = logsumexp(z) of every row.

    With omega(x) + log(omega(x)) = x: softmax(z) = rho omega(high - log(rho) - s), which must add up to one.
    That sum falls with s and is convex, so Newton's method climbs to the solution from below.
    """
    s = logsumexp(high, axis=1, keepdims=True) - 1 / rho
    for _ in range(LOGSUMEXP_STEPS):
        omega = wrightomega(high - np.log(rho) - s)
        step = (rho * omega.sum(axis=1, keepdims=True) - 1) / (rho * (omega / (1 + omega)).sum(axis=1, keepdims=True))
        s += step
        if np.abs(step).max(initial=0.0) < 1e-14 * (1 + np.abs(s).max(initial=0.0)):
            break
    return np.asarray(high - wrightomega(high - np.log(rho) - s))


class Softmax:
    """Log loss of several classes; labels are class numbers."""

    most_curvature = 0.5

    def __init__(self, labels: NDArray[np.integer], classes: int):
        self.labels, self.outputs = labels, classes
        self._rows = np.arange(len(labels))

    def at(self, rows: NDArray[np.intp]) -> Loss:
        """The loss over some of the joined rows."""
        return Softmax(self.labels[rows], self.outputs)

    def value(self, scores: Scores) -> float:
        """Mean of logsumexp(z) - z_y."""
        return float((logsumexp(scores, axis=1) - scores[self._rows, self.labels]).mean())

    def gradient(self, scores: Scores) -> Scores:
        """Probabilities minus the label's one."""
        gradient: Scores = softmax(scores, axis=1)
        gradient[self._rows, self.labels] -= 1
        gradient /= len(gradient)
        return gradient

    def hessian(self, scores: Scores) -> Hessian:
        """From the probabilities."""
        return SoftmaxHessian(softmax(scores, axis=1))

    def proximal(self, target: Scores, rho: float, start: Scores) -> Scores:
        """Newton's method in every row: (diag(p + rho) - p p^T) is solved by the Sherman-Morrison formula.

        The solution is z = high - p / rho. Rows where Newton's method does not come to rest, as may happen for a small
        rho, are solved for their logsumexp instead.
        """
        high = target.copy()
        high[self._rows, self.labels] += 1 / rho
        z: Scores = np.clip(start, high - 1 / rho, high)
        for _ in range(NEWTON_STEPS):
            probability = softmax(z, axis=1)
            gradient = probability + rho * (z - high)
            inverse = 1 / (probability + rho)
            solved, spread = gradient * inverse, probability * inverse
            scale = (probability * solved).sum(axis=1) / (rho * inverse * probability).sum(axis=1)
            step = solved + spread * scale[:, None]
            z -= step
            length = np.abs(step).max(axis=1, initial=0.0)
            resting = length < 1e-12 * (1 + np.abs(z).max(initial=0.0))
            if resting.all():
                break
        else:
            z[~resting] = _by_logsumexp(high[~resting], rho)
        return z

    def best_constant(self) -> NDArray[np.float64]:
        """Log shares of the classes, centred."""
        shares = np.bincount(self.labels, minlength=self.outputs) / len(self.labels)
        constant: NDArray[np.float64] = log_softmax(np.log(np.maximum(shares, 1e-300)))
        return np.asarray(constant - constant.mean())
