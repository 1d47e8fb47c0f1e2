"""Naive Bayes: columns are taken as independent within a class.

    numbers      normal in each class, with its mean and variance there
    categories   shares of each class, with ``alpha`` added to every count; a missing category says nothing

Squares of numbers are needed, so columns of numbers are multiplied with unit vectors: the coordinator sees their cells.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import softmax

from tablepuppet.algebra.array import LazyArray
from tablepuppet.algebra.column_products import BLOCK
from tablepuppet.algebra.linalg.linear_fit import Rows, matrix_of
from tablepuppet.algebra.linalg.program import check_positive, classes_of, program
from tablepuppet.algebra.linalg.saved import LinalgModel
from tablepuppet.algebra.recipes import Preparation
from tablepuppet.arrays import Array
from tablepuppet.errors import PrivacyError

SMOOTHING = 1e-9  # of the largest variance, added to all


@dataclass(frozen=True, repr=False)
class NaiveBayes(LinalgModel):
    """A naive Bayes classifier; ``means`` and ``variances`` are of the columns of numbers, (classes, numbers)."""

    classes: NDArray[np.generic]  # sorted
    priors: Array  # (classes,)
    numbers: NDArray[np.intp]  # places of numbers in X.columns
    means: Array
    variances: Array
    log_shares: Array  # (columns, classes); zero for numbers
    columns: list[str]
    preparation: Preparation

    def predict_proba(self, rows: Rows) -> Array:
        """The probability of every class, (rows, classes)."""
        matrix = matrix_of(rows, self)
        scores = matrix.times(self.log_shares) + np.log(self.priors) - np.log(self.variances).sum(axis=1) / 2
        for part, cells in _cells(matrix, self.numbers):
            means, weights = self.means[:, part], 1 / self.variances[:, part]  # (classes, block)
            for place, (mean, weight) in enumerate(zip(means, weights, strict=True)):
                scores[:, place] -= (cells - mean) ** 2 @ weight / 2
        return np.asarray(softmax(scores, axis=1))

    def predict(self, rows: Rows) -> NDArray[np.generic]:
        """The most likely class of every row of a relation."""
        return np.asarray(self.classes[np.argmax(self.predict_proba(rows), axis=1)])


@program
def naive_bayes(X: LazyArray, y: ArrayLike, alpha: float = 1.0) -> NaiveBayes:
    """A naive Bayes classifier: scikit-learn's GaussianNB on numbers together with its CategoricalNB on categories.

    One trip, and one more for 32 columns of numbers. Raises LearnError unless the label has two or more classes.
    """
    check_positive("naive_bayes", "alpha", alpha)
    classes, labels = classes_of("naive_bayes", y, X.shape[0])
    sizes = np.bincount(labels).astype(np.float64)
    groups = X.category_groups
    in_group = {place for group in groups for place in range(*group)}
    numbers = np.array([place for place in range(X.shape[1]) if place not in in_group], np.intp)
    if len(numbers):
        _check_cells(X)
    asked = X.ask_sums_by(labels, len(classes))
    member = (labels[:, None] == np.arange(len(classes))).astype(np.float64)  # (rows, classes)
    means, squares = np.zeros((2, len(classes), len(numbers)))
    for part, cells in _cells(X, numbers):
        means[:, part] = member.T @ cells / sizes[:, None]
        squares[:, part] = member.T @ (cells - means[labels][:, part]) ** 2 / sizes[:, None]
    sums, log_shares = asked.read(), np.zeros((X.shape[1], len(classes)))
    for start, end in groups:
        counts = sums[start:end] + alpha
        log_shares[start:end] = np.log(counts / counts.sum(axis=0))
    middle = sizes @ means / len(labels)
    overall = sizes @ (squares + (means - middle) ** 2) / len(labels)
    variances = squares + SMOOTHING * float(overall.max(initial=0.0))
    return NaiveBayes(
        classes, sizes / len(labels), numbers, means, variances, log_shares, list(X.columns), X.preparation
    )


def _check_cells(matrix: LazyArray) -> None:
    """PrivacyError if a table has secure sums: then its cells do not leave."""
    placement = matrix.source.placement
    secured = next(filter(placement.is_secured, placement.sizes), None)
    if secured is not None:
        raise PrivacyError(
            f"naive_bayes: table {secured!r} has secure sums, and variances of numbers within classes need its cells, "
            "which do not leave then; use columns of categories only, or tp.linalg.multilogreg (rule secure_sum)",
            rule="secure_sum",
        )


def _cells(matrix: LazyArray, places: NDArray[np.intp]) -> Iterator[tuple[slice, Array]]:
    """Some columns of X, 32 at a time."""
    for start in range(0, len(places), BLOCK):
        part = slice(start, start + BLOCK)
        yield part, matrix.times(np.eye(matrix.shape[1])[:, places[part]])
