"""Logistic regression for two or more classes.

    probability of class k = exp(s_k) / sum_j exp(s_j),     s = x W + b

Two classes have one score, that of the second: the first one's is zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp, softmax

from tablepuppet.algebra.array import LazyArray
from tablepuppet.algebra.linalg.linear_fit import LinearFit, Rows, by_column
from tablepuppet.algebra.linalg.newton import check_settings, minimise
from tablepuppet.algebra.linalg.program import classes_of, most_frequent, program
from tablepuppet.arrays import Array
from tablepuppet.runs.figures import beside


@dataclass(frozen=True, repr=False)
class MultiLogReg(LinearFit):
    """A logistic regression. For more than two classes, coefficients and intercepts have one number per class."""

    classes: NDArray[np.generic]  # sorted
    rows: int
    log_likelihood: float
    accuracy: float  # on the rows of the fit
    constant: float = math.nan  # that of the most frequent class

    def predict_proba(self, rows: Rows) -> Array:
        """The probability of every class, (rows, classes); one trip."""
        scores = self.scores(rows)
        return np.asarray(softmax(_all_scores(scores if scores.ndim == 2 else scores[:, None], len(self.classes)), 1))

    def predict(self, rows: Rows) -> NDArray[np.generic]:
        """The most likely class of every row of a relation; one trip."""
        return np.asarray(self.classes[np.argmax(self.predict_proba(rows), axis=1)])

    def _facts(self) -> dict[str, object]:
        """The likelihood and accuracy on the rows of the fit."""
        return {
            "observations": self.rows, "classes": len(self.classes), "log-likelihood": self.log_likelihood,
            "accuracy": beside("accuracy", self.accuracy, self.constant),
        }  # fmt: skip


@dataclass(frozen=True)
class LogLoss:
    """The loss for class numbers, (rows,)."""

    numbers: NDArray[np.intp]
    classes: int
    is_elementwise: ClassVar[bool] = False

    def value(self, scores: Array) -> float:
        """The mean of -log(probability of the class)."""
        every = _all_scores(scores, self.classes)
        of_class = np.take_along_axis(every, self.numbers[:, None], axis=1)[:, 0]
        return float(np.mean(logsumexp(every, axis=1) - of_class))

    def slopes(self, scores: Array) -> Array:
        """Probabilities, less one for the class that a row has."""
        found = softmax(_all_scores(scores, self.classes), axis=1)
        found[np.arange(len(found)), self.numbers] -= 1
        return np.asarray(found[:, -scores.shape[1] :])

    def curvature(self, scores: Array) -> Callable[[Array], Array]:
        """Of P, diag(P) - P P^T in every row."""
        chance = softmax(_all_scores(scores, self.classes), axis=1)

        def times(change: Array) -> Array:
            every = _all_scores(change, self.classes)
            return np.asarray((chance * (every - np.sum(chance * every, axis=1)[:, None]))[:, -change.shape[1] :])

        return times


def _all_scores(scores: Array, classes: int) -> Array:
    """One score per class: two classes have only that of the second."""
    return scores if scores.shape[1] == classes else np.column_stack([np.zeros(len(scores)), scores])


@program
def multilogreg(
    X: LazyArray, y: ArrayLike, l2: float = 1e-6, tol: float = 1e-6, max_iter: int = 100,
    folder: str | Path | None = None,
) -> MultiLogReg:  # fmt: skip
    """The least mean log loss plus l2/2 |W|^2: scikit-learn's LogisticRegression with C = 1 / (l2 N).

    Two trips for each step of conjugate gradients, whatever the number of classes. With a ``folder`` it continues after
    a crash: coefficients are kept there after every step of Newton's method.
    """
    check_settings("multilogreg", l2, tol, max_iter)
    classes, numbers = classes_of("multilogreg", y, X.shape[0])
    outputs, rows = 1 if len(classes) == 2 else len(classes), len(numbers)
    loss = LogLoss(numbers, len(classes))
    least = minimise("multilogreg", X, loss, numbers, outputs, l2, tol, max_iter, folder)
    right = np.argmax(_all_scores(least.scores, len(classes)), axis=1) == numbers
    of_rows = (rows, -rows * loss.value(least.scores), float(np.mean(right)), most_frequent(numbers))
    if outputs == 1:
        coef = by_column(X, least.coef[:, 0])
        return MultiLogReg(coef, float(least.intercept[0]), X.preparation, classes, *of_rows)
    coef = by_column(X, least.coef, tuple(f"class {each}" for each in classes))
    return MultiLogReg(coef, least.intercept, X.preparation, classes, *of_rows)
