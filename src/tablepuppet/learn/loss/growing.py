"""Losses for trees: absolute error, quantiles, counts (Poisson), positive numbers (gamma), shares of classes.

They are those of scikit-learn's gradient boosting. Scores of Poisson and gamma are logarithms of predictions. The
Hessian of absolute errors and quantiles is taken as 1; the values of leaves are then quantiles of what is left.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tablepuppet.arrays import Array
from tablepuppet.errors import LearnError
from tablepuppet.learn.loss.losses import EqualWeights, Evaluation, Labels, Loss, RowWeights, Scores, Weights

HIGHEST = 500.0  # a score whose exponential, and the sum of many of them, is a number


@dataclass(frozen=True)
class Pointwise:
    """Value and derivatives of a loss of single rows."""

    value: float
    slope: Scores
    curvature: Scores | None = None  # None: 1 for every row
    weights: Weights | None = None

    @property
    def gradient(self) -> Scores:
        """The derivative by each score."""
        return self.slope.copy() if self.weights is None else (self.slope.T * self.weights).T

    @property
    def hessian(self) -> EqualWeights | RowWeights:
        """The second derivative by each score."""
        if self.curvature is None:
            return EqualWeights(len(self.slope)) if self.weights is None else RowWeights(self.weights)
        return RowWeights(self.curvature if self.weights is None else self.curvature * self.weights)


class TreeLoss(Loss):
    """A loss that trees learn by."""

    outputs = 1
    quadratic = False
    most_curvature = np.inf
    kept = 0
    has_logs = False  # whether scores are logarithms of predictions

    def proximal_step(
        self, start: Scores, away: Scores, rho: float, labels: Labels, known: Evaluation | None = None
    ) -> None:
        """There is none: trees take no such step."""
        raise LearnError(f"{type(self).__name__.lower()} is a loss of trees only")

    def label_sums(self, labels: Labels, weights: Weights | None = None) -> Array:
        """The sum of labels."""
        return np.array([labels.sum(dtype=np.float64) if weights is None else weights @ labels])

    def check(self, least: float, total: float) -> str:
        """What is wrong with labels whose least number and sum these are; "" if nothing is."""
        return ""


@dataclass(frozen=True)
class Quantile(TreeLoss):
    """The pinball loss, whose best constant is a quantile; 0.5 is half the absolute error."""

    quantile: float = 0.5
    scale: float = 1.0

    def evaluate(
        self, scores: Scores, labels: Labels, kept: Scores | None = None, weights: Weights | None = None
    ) -> Pointwise:
        """quantile times what is missing, 1 - quantile times what is too much."""
        over = scores >= labels
        slope = self.scale * np.where(over, 1 - self.quantile, -self.quantile)
        losses = slope * (scores - labels)
        return Pointwise(float(losses.sum() if weights is None else weights @ losses), slope, None, weights)

    def best_constant(self, sums: Array, rows: int) -> Array:
        """It does not follow from sums: trees take the quantile of all labels."""
        raise LearnError("a quantile of labels does not follow from their sum")


class Poisson(TreeLoss):
    """Half the Poisson deviance without its constant: exp(score) - label * score."""

    has_logs = True

    def evaluate(
        self, scores: Scores, labels: Labels, kept: Scores | None = None, weights: Weights | None = None
    ) -> Pointwise:
        """The gradient is the error of the prediction, the Hessian the prediction."""
        means = np.exp(np.minimum(scores, HIGHEST))
        losses = means - labels * scores
        return Pointwise(float(losses.sum() if weights is None else weights @ losses), means - labels, means, weights)

    def best_constant(self, sums: Array, rows: int) -> Array:
        """The logarithm of the mean label."""
        return np.asarray(np.log(sums / rows))

    def check(self, least: float, total: float) -> str:
        """Counts: none is negative, and not all are zero."""
        return "" if least >= 0 and total > 0 else "loss='poisson' needs labels that are 0 or more, and not all 0"


class Gamma(Poisson):
    """Half the gamma deviance without its constant: score + label * exp(-score)."""

    def evaluate(
        self, scores: Scores, labels: Labels, kept: Scores | None = None, weights: Weights | None = None
    ) -> Pointwise:
        """The gradient is 1 minus the ratio of label and prediction, the Hessian that ratio."""
        ratios = labels * np.exp(-np.maximum(scores, -HIGHEST))
        losses = scores + ratios
        return Pointwise(float(losses.sum() if weights is None else weights @ losses), 1 - ratios, ratios, weights)

    def check(self, least: float, total: float) -> str:
        """Positive numbers."""
        return "" if least > 0 else "loss='gamma' needs labels above 0"


@dataclass(frozen=True)
class Shares(TreeLoss):
    """Half the squared error of scores as shares of classes: what is gained is the Gini impurity.

    Of two classes there is one score, the share of the second.
    """

    classes: int

    @property
    def outputs(self) -> int:  # type: ignore[override]
        """Scores per row."""
        return 1 if self.classes == 2 else self.classes

    def evaluate(
        self, scores: Scores, labels: Labels, kept: Scores | None = None, weights: Weights | None = None
    ) -> Pointwise:
        """The gradient is the error of each share."""
        wanted = labels == 1 if self.classes == 2 else labels[:, None] == np.arange(self.classes)
        slope = scores - wanted
        losses = slope**2 / 2 if slope.ndim == 1 else (slope**2).sum(axis=1) / 2
        return Pointwise(float(losses.sum() if weights is None else weights @ losses), slope, None, weights)

    def label_sums(self, labels: Labels, weights: Weights | None = None) -> Array:
        """Rows of each class."""
        return np.bincount(labels, weights, self.classes).astype(np.float64)

    def best_constant(self, sums: Array, rows: int) -> Array:
        """The share of each class."""
        return sums[1:] / rows if self.classes == 2 else sums / rows


@dataclass(frozen=True)
class ClassWeighted(Loss):
    """A loss of classes in which a row counts as much as the weight of its class."""

    loss: Loss
    by_class: tuple[float, ...]

    @property
    def outputs(self) -> int:  # type: ignore[override]
        """Scores per row."""
        return self.loss.outputs

    @property
    def most_curvature(self) -> float:  # type: ignore[override]
        """An upper bound of the second derivative by one score."""
        return max(self.by_class) * self.loss.most_curvature

    @property
    def kept(self) -> int:  # type: ignore[override]
        """Numbers per row that an evaluation stores."""
        return self.loss.kept

    quadratic = False

    def weights(self, labels: Labels, weights: Weights | None = None) -> Weights:
        """The weight of each row."""
        found = np.array(self.by_class).take(labels)
        return found if weights is None else found * weights

    def evaluate(
        self, scores: Scores, labels: Labels, kept: Scores | None = None, weights: Weights | None = None
    ) -> Evaluation:
        """That of the loss, with weights."""
        return self.loss.evaluate(scores, labels, kept, self.weights(labels, weights))

    def evaluated(self, scores: Scores, labels: Labels, kept: Scores, weights: Weights | None = None) -> Evaluation:
        """The evaluation from what it stored."""
        return self.loss.evaluated(scores, labels, kept, self.weights(labels, weights))

    def proximal_step(
        self, start: Scores, away: Scores, rho: float, labels: Labels, known: Evaluation | None = None
    ) -> None:
        """There is none: trees take no such step."""
        raise LearnError("weights of classes are for trees only")

    def label_sums(self, labels: Labels, weights: Weights | None = None) -> Array:
        """Those of the loss, and the sum of weights."""
        found = self.weights(labels, weights)
        return np.append(self.loss.label_sums(labels, found), found.sum())

    def best_constant(self, sums: Array, rows: int) -> Array:
        """That of the loss."""
        return self.loss.best_constant(sums[:-1], float(sums[-1]))  # type: ignore[arg-type]
