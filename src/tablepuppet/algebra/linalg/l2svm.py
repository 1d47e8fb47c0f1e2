"""A support vector machine with the squared hinge loss.

loss of a row = max(0, 1 - y s)^2 / 2,     s = x w + b, y = -1 or 1
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tablepuppet.algebra.array import LazyArray
from tablepuppet.algebra.linalg.linear_fit import LinearFit, Rows, by_column
from tablepuppet.algebra.linalg.newton import check_settings, minimise
from tablepuppet.algebra.linalg.program import classes_of, most_frequent, program
from tablepuppet.arrays import Array
from tablepuppet.errors import LearnError
from tablepuppet.runs.figures import beside


@dataclass(frozen=True, repr=False)
class L2SVM(LinearFit):
    """A support vector machine for two classes."""

    classes: NDArray[np.generic]  # sorted; scores above zero are the second
    rows: int
    objective: float  # mean loss and penalty
    accuracy: float  # on the rows of the fit
    support: int  # rows within the margin
    constant: float = math.nan  # the accuracy of the most frequent class

    def predict(self, rows: Rows) -> NDArray[np.generic]:
        """The class of every row of a relation; one trip."""
        return np.asarray(self.classes[(self.scores(rows) > 0).astype(int)])

    def _facts(self) -> dict[str, object]:
        """How well the fit separates its own rows."""
        return {
            "observations": self.rows, "class above zero": str(self.classes[1]), "objective": self.objective,
            "accuracy": beside("accuracy", self.accuracy, self.constant), "rows within the margin": self.support,
        }  # fmt: skip


@dataclass(frozen=True)
class SquaredHinge:
    """The loss for signs -1 and 1, (rows, 1)."""

    signs: Array
    is_elementwise: ClassVar[bool] = True

    def value(self, scores: Any) -> float:
        return float(np.mean(np.maximum(1 - self.signs * scores, 0) ** 2)) / 2

    def slopes(self, scores: Any) -> Any:
        return -self.signs * np.maximum(1 - self.signs * scores, 0)

    def curvature(self, scores: Any) -> Callable[[Array], Array]:
        within = self.signs * scores < 1
        return lambda change: within * change


@program
def l2svm(
    X: LazyArray, y: ArrayLike, l2: float = 1e-3, tol: float = 1e-6, max_iter: int = 100,
    folder: str | Path | None = None,
) -> L2SVM:  # fmt: skip
    """The least mean loss plus l2/2 |w|^2; scikit-learn's LinearSVC has C = 1 / (2 l2 N), and penalises its intercept.

    Two trips for each step of conjugate gradients, over one table of services one. With ``plan="parties"`` also one for
    every loss that is tried on the way. With a ``folder`` it continues after a crash: coefficients are stored there
    after each step of Newton's method. Raises LearnError unless the label has two classes.
    """
    check_settings("l2svm", l2, tol, max_iter)
    classes, numbers = classes_of("l2svm", y, X.shape[0])
    if len(classes) > 2:
        raise LearnError(f"l2svm: y has {len(classes):,} classes; it takes two, multilogreg takes more")
    signs = np.where(numbers == 1, 1.0, -1.0)[:, None]
    least = minimise("l2svm", X, SquaredHinge(signs), numbers, 1, l2, tol, max_iter, folder)
    right = np.mean(signs * (2 * (least.scores > 0) - 1) > 0)  # means and sums, since scores may be at the parties
    return L2SVM(
        by_column(X, least.coef[:, 0]), float(least.intercept[0]), X.preparation, classes, len(signs),
        least.objective, float(right), round(float(np.sum(signs * least.scores < 1))), most_frequent(numbers),
    )  # fmt: skip
