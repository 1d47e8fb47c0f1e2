"""Principal components of the joined rows: eigenvectors of their covariance matrix, which tables compute in blocks."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral

import numpy as np

from tablepuppet.algebra.array import LazyArray
from tablepuppet.algebra.linalg.design import Design, centred_gram
from tablepuppet.algebra.linalg.linear_fit import Rows, matrix_of
from tablepuppet.algebra.linalg.program import program
from tablepuppet.algebra.linalg.saved import LinalgModel
from tablepuppet.algebra.recipes import Preparation
from tablepuppet.arrays import Array, upright
from tablepuppet.errors import LearnError

USUAL = 10  # components


@dataclass(frozen=True, repr=False)
class PCA(LinalgModel):
    """Principal components, the one that explains most first."""

    components: Array  # (k, columns), of length 1 each; the largest number of each is above zero
    explained_variance: Array  # (k,), divided by n - 1, as in scikit-learn
    explained_variance_ratio: Array  # (k,), shares of the variance of all columns
    mean: Array  # (columns,)
    columns: list[str]
    preparation: Preparation

    def transform(self, rows: Rows) -> Array:
        """The joined rows of a relation, or of its matrix, along the components, (rows, k); one trip."""
        return np.asarray((matrix_of(rows, self) - self.mean).times(self.components.T))


@program
def pca(X: LazyArray, components: int | None = None) -> PCA:
    """The first principal components of X, ten or all if there are fewer; one trip over one table, else two.

    The covariance matrix is (X - m)^T (X - m) / (n - 1), with m the means of columns. LearnError unless there are so
    many components: at most one per column, and fewer than joined rows.
    """
    rows, width = X.shape
    most = min(rows - 1, width)
    if most < 1:
        raise LearnError(
            f"pca needs a column and two joined rows, and X has {rows:,} joined rows and {width:,} columns"
        )
    components = min(USUAL, most) if components is None else components
    if not isinstance(components, Integral) or isinstance(components, bool) or not 1 <= components <= most:
        raise LearnError(
            f"components is a whole number from 1 to {most:,}, since X has {rows:,} joined rows and {width:,} columns, "
            f"not {components!r}"
        )
    design = Design(X, all_columns=True)
    gram, scales = design.gram(), design.scales
    mean = design.offsets + scales * gram[0, 1:] / rows
    values, vectors = np.linalg.eigh(centred_gram(gram) * np.outer(scales, scales) / (rows - 1))
    values, vectors = np.maximum(values[::-1], 0.0), vectors[:, ::-1]
    chosen = upright(vectors[:, :components]).T
    total = values.sum() or 1.0
    variances = values[:components]
    return PCA(chosen, variances, variances / total, mean, list(X.columns), X.preparation)
