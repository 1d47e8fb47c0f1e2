"""Losses over joined rows, as the coordinator computes them: values, gradients, curvature, proximal steps.

Scores are (joined_rows,) for one output, (joined_rows, classes) for softmax. `Logistic` and `Softmax` have modules of
their own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float64]
Rows = NDArray[np.intp] | slice
Images = NDArray[np.float64]  # (directions, outputs, joined_rows)
Matrix = NDArray[np.float64]
LOGS_AT_ONCE = 32  # numbers up to 2 ** 31 whose product is still a number


class Hessian(Protocol):
    """The second derivative of a summed loss, a small block per joined row."""

    def times(self, images: Images) -> Images:
        """Its product with directions."""
        ...

    def on_constants(self) -> Matrix:
        """(outputs, outputs): its quadratic form on directions that are the same in every row."""
        ...

    def mean(self) -> float:
        """The mean curvature over rows and outputs."""
        ...


class Look(Protocol):
    """The loss at some scores, summed over joined rows, with its derivatives."""

    @property
    def value(self) -> float:
        """The sum."""
        ...

    @property
    def gradient(self) -> Scores:
        """By scores."""
        ...

    @property
    def hessian(self) -> Hessian:
        """By pairs of scores."""
        ...


class Loss(ABC):
    """A convex loss of scores against labels."""

    outputs: int  # scores per joined row
    labels: NDArray[Any]  # numbers, or class numbers, of the joined rows
    quadratic: bool  # whether the second derivative is the same everywhere
    most_curvature: float  # an upper bound of the second derivative by one score

    @abstractmethod
    def look(self, scores: Scores) -> Look:
        """Value, gradient and hessian from one pass."""

    @abstractmethod
    def pull(self, start: Scores, away: Scores, rho: float, look: Look | None = None) -> None:
        """Turn ``away`` into how far the loss pulls scores from their target, start + away, row by row.

        It is target - z for the z with the least loss(z) + rho / 2 * |z - target|^2 (Eq. 7). ``look`` is that at the
        start.
        """

    @abstractmethod
    def best_constant(self) -> NDArray[np.float64]:
        """The constant scores, (outputs,), with the least loss."""

    @abstractmethod
    def at(self, rows: Rows) -> Loss:
        """The loss over some of the joined rows."""

    def value(self, scores: Scores) -> float:
        """The mean loss."""
        return self.look(scores).value / len(scores)

    def gradient(self, scores: Scores) -> Scores:
        """The gradient of the mean loss by scores."""
        return self.look(scores).gradient / len(scores)


@dataclass(frozen=True)
class EqualWeights:
    """The second derivative of half the squares: one for each."""

    rows: int

    def times(self, images: Images) -> Images:
        """The same."""
        return images

    def on_constants(self) -> Matrix:
        """As many as there are rows."""
        return np.full((1, 1), float(self.rows))

    def mean(self) -> float:
        """One."""
        return 1.0


@dataclass(frozen=True)
class WholeLook:
    """A look that holds all there is to see."""

    value: float
    gradient: Scores
    hessian: Hessian


class Squared(Loss):
    """Half the squared error."""

    outputs = 1
    quadratic = True
    most_curvature = 1.0

    def __init__(self, labels: Scores):
        self.labels = labels

    def at(self, rows: Rows) -> Loss:
        """The loss over some of the joined rows."""
        return Squared(self.labels[rows])

    def look(self, scores: Scores) -> Look:
        """From the errors."""
        error = scores - self.labels
        return WholeLook(0.5 * float(error @ error), error, EqualWeights(len(error)))

    def pull(self, start: Scores, away: Scores, rho: float, look: Look | None = None) -> None:
        """In closed form."""
        away += start
        away -= self.labels
        away *= 1 / (1 + rho)

    def best_constant(self) -> NDArray[np.float64]:
        """The mean label."""
        return np.array([self.labels.mean()])


def sum_of_logs(values: Scores) -> float:
    """Of numbers between 2 ** -31 and 2 ** 31; a product takes less time than a logarithm."""
    products = np.multiply.reduceat(values, np.arange(0, len(values), LOGS_AT_ONCE))
    return float(np.log(products).sum())


def outweighs(rho: float, loss: Loss) -> bool:
    """Whether a proximal problem is so much bent by its rho that Newton's method cannot overshoot."""
    return rho > 2 * loss.most_curvature


def small_step(loss: Loss, rho: float, target: Scores) -> float:
    """The step of a proximal problem's Newton method after which it is solved to about 1e-12.

    An error e becomes at most e^2 / (2 rho). If rho does not outweigh the loss, a step may be far from the error.
    """
    if outweighs(rho, loss):
        return 1e-6 * float(np.sqrt(rho))
    return 1e-12 * (1 + float(np.abs(target).max(initial=0.0)))
