"""Losses of joined rows, as the coordinator computes them: values, gradients, Hessians, proximal steps.

A loss is a function of scores and labels and stores neither: the caller passes those of a block of rows
(mapping/joined_rows.py). Scores are (rows,) for one output, (rows, classes) for softmax. ``weights`` say how many
joined rows each row stands for; without them each stands for itself. The log loss of more than two
classes is in softmax.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array
from tablepuppet.privacy.label import backward_targets

Scores = NDArray[np.float64]
Weights = NDArray[np.float64]
Labels = NDArray[Any]  # numbers, or class numbers
Directions = NDArray[np.float64]  # (directions, outputs, rows)
LOGS_AT_ONCE = 32  # the product of this many numbers up to 2 ** 31 does not overflow


class Hessian(Protocol):
    """The second derivative of a summed loss, a small block per joined row."""

    def times(self, directions: Directions) -> Directions:
        """Its product with directions."""
        ...

    def on_constants(self) -> Array:
        """(outputs, outputs): its quadratic form on directions that are the same in every row."""
        ...

    def trace(self) -> float:
        """The sum of its diagonal."""
        ...

    def diagonal(self) -> Scores:
        """Its diagonal, in the shape of scores."""
        ...


class Evaluation(Protocol):
    """The loss at some scores, summed over rows, with its derivatives."""

    @property
    def value(self) -> float:
        """The sum."""
        ...

    @property
    def gradient(self) -> Scores:
        """The gradient by scores; a new array."""
        ...

    @property
    def hessian(self) -> Hessian:
        """The Hessian by scores."""
        ...


class Loss(ABC):
    """A convex loss of scores against labels."""

    outputs: int  # scores per row
    quadratic: bool  # whether the second derivative is constant
    most_curvature: float  # an upper bound of the second derivative by one score
    kept: int  # numbers per row that an evaluation stores: derivatives need them, labels and scores

    @abstractmethod
    def evaluate(
        self, scores: Scores, labels: Labels, kept: Scores | None = None, weights: Weights | None = None
    ) -> Evaluation:
        """Value and derivatives; what derivatives need is written to ``kept``, (numbers per row, rows), if given."""

    def evaluated(self, scores: Scores, labels: Labels, kept: Scores, weights: Weights | None = None) -> Evaluation:
        """The evaluation that stored ``kept`` at these scores; its value may be missing."""
        return self.evaluate(scores, labels, weights=weights)

    @abstractmethod
    def proximal_step(
        self, start: Scores, away: Scores, rho: float, labels: Labels, known: Evaluation | None = None
    ) -> None:
        """In place: replace ``away`` by the target, start + away, minus its proximal point, row by row.

        The proximal point z has the least loss(z) + rho / 2 * |z - target|^2 (Eq. 7). ``known`` is the evaluation at
        the start.
        """

    @abstractmethod
    def label_sums(self, labels: Labels, weights: Weights | None = None) -> Array:
        """The sums over labels that the best constant needs; sums of blocks can be added."""

    @abstractmethod
    def best_constant(self, sums: Array, rows: int) -> NDArray[np.float64]:
        """The constant scores, (outputs,), with the least loss, from the sums over all labels."""

    def value(self, scores: Scores, labels: Labels) -> float:
        """The mean loss."""
        return self.evaluate(scores, labels).value / len(scores)

    def gradient(self, scores: Scores, labels: Labels) -> Scores:
        """The gradient of the mean loss by scores."""
        return self.evaluate(scores, labels).gradient / len(scores)


@dataclass(frozen=True)
class EqualWeights:
    """The second derivative of half the squared error: 1 for every row."""

    rows: int

    def times(self, directions: Directions) -> Directions:
        """The directions themselves."""
        return directions

    def on_constants(self) -> Array:
        """The number of rows."""
        return np.full((1, 1), float(self.rows))

    def trace(self) -> float:
        """The number of rows."""
        return float(self.rows)

    def diagonal(self) -> Scores:
        """1 for each row."""
        return np.ones(self.rows)


@dataclass(frozen=True)
class RowWeights:
    """A diagonal second derivative: one weight per row."""

    weights: Scores

    def times(self, directions: Directions) -> Directions:
        """Weighted directions."""
        return np.asarray(directions * self.weights)

    def on_constants(self) -> Array:
        """The sum of all weights."""
        return np.array([[self.weights.sum()]])

    def trace(self) -> float:
        """The sum of all weights."""
        return float(self.weights.sum())

    def diagonal(self) -> Scores:
        """The weights."""
        return self.weights


@dataclass(frozen=True)
class SquaredEvaluation:
    """Value and derivatives from the errors."""

    error: Scores
    weights: Weights | None = None

    @property
    def value(self) -> float:
        """Half their squares."""
        return 0.5 * float(self.error @ self.gradient)

    @property
    def gradient(self) -> Scores:
        """The errors."""
        return self.error if self.weights is None else self.error * self.weights

    @property
    def hessian(self) -> EqualWeights | RowWeights:
        """One for each row."""
        return EqualWeights(len(self.error)) if self.weights is None else RowWeights(self.weights)


class Squared(Loss):
    """Half the squared error. Computing the errors again is faster than storing them."""

    outputs = 1
    quadratic = True
    most_curvature = 1.0
    kept = 0

    def evaluate(
        self, scores: Scores, labels: Labels, kept: Scores | None = None, weights: Weights | None = None
    ) -> SquaredEvaluation:
        """Value and derivatives from the errors."""
        return SquaredEvaluation(scores - labels, weights)

    def proximal_step(
        self, start: Scores, away: Scores, rho: float, labels: Labels, known: Evaluation | None = None
    ) -> None:
        """In closed form."""
        away += start
        away -= labels
        away *= 1 / (1 + rho)

    def label_sums(self, labels: Labels, weights: Weights | None = None) -> Array:
        """The sum of labels."""
        return np.array([labels.sum(dtype=np.float64) if weights is None else weights @ labels])

    def best_constant(self, sums: Array, rows: int) -> NDArray[np.float64]:
        """The mean label."""
        return np.asarray(sums / rows)


def sum_of_logs(values: Scores) -> float:
    """The sum of logarithms of numbers between 2 ** -31 and 2 ** 31; products are faster than logarithms."""
    products = np.multiply.reduceat(values, np.arange(0, len(values), LOGS_AT_ONCE))
    return float(np.log(products).sum())


def outweighs(rho: float, loss: Loss) -> bool:
    """Whether rho is large enough, compared with the loss's curvature, that Newton's method cannot overshoot."""
    return rho > 2 * loss.most_curvature


def small_step(loss: Loss, rho: float, target: Scores) -> float:
    """The length of a Newton step below which the proximal problem is solved to about 1e-12.

    An error e becomes at most e^2 / (2 rho). If rho is small, a step may be much shorter than the error.
    """
    if outweighs(rho, loss):
        return 1e-6 * float(np.sqrt(rho))
    return 1e-12 * (1 + float(np.abs(target).max(initial=0.0)))


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
