"""Paths of the lasso and the elastic net: least squares with a penalty that sets coefficients to zero.

    |y - X b - a|^2 / (2 n) + alpha * (l1_ratio |b|_1 + (1 - l1_ratio) / 2 |b|^2)

It is coordinate descent over the Gram matrix of centred columns; once this matrix is known, no trip is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tablepuppet.algebra.array import LazyArray
from tablepuppet.algebra.linalg.design import LEAST, Design, centred_gram
from tablepuppet.algebra.linalg.linear_fit import LinearFit, Rows, by_column
from tablepuppet.algebra.linalg.program import check_numbers, check_positive, program
from tablepuppet.algebra.linalg.progress import Progress
from tablepuppet.algebra.linalg.saved import LinalgModel
from tablepuppet.algebra.recipes import Preparation
from tablepuppet.arrays import Array
from tablepuppet.errors import LearnError

SWEEPS = 10_000


@dataclass(frozen=True, repr=False)
class Lasso(LinearFit):
    """The model of one penalty."""

    alpha: float

    def _facts(self) -> dict[str, object]:
        """Its penalty, and how many columns it left."""
        return {"alpha": self.alpha, "coefficients that are not zero": int(np.count_nonzero(np.asarray(self.coef)))}


@dataclass(frozen=True, repr=False)
class LassoPath(LinalgModel):
    """The models of falling penalties, the largest first."""

    alphas: Array  # (penalties,)
    coefs: Array  # (penalties, columns)
    intercepts: Array  # (penalties,)
    columns: list[str]
    preparation: Preparation
    models: list[Lasso]

    def predict(self, rows: Rows) -> NoReturn:
        """A path has many models."""
        raise LearnError("a path has a model for each penalty: path.at(alpha).predict(rel)")

    def at(self, alpha: float) -> Lasso:
        """The model whose penalty is nearest, by its logarithm; LearnError for one outside of the path."""
        check_positive("at", "alpha", alpha)
        least, largest = self.alphas[-1], self.alphas[0]
        if not least * (1 - 1e-9) <= alpha <= largest * (1 + 1e-9):
            raise LearnError(
                f"at: the path has penalties from {least:.6g} to {largest:.6g}, not {alpha:.6g}; "
                "give it to lasso, alphas=[...]"
            )
        return self.models[int(np.argmin(np.abs(np.log(self.alphas) - np.log(alpha))))]


@program
def lasso(
    X: LazyArray,
    y: ArrayLike,
    alphas: Sequence[float] | int = 100,
    l1_ratio: float = 1.0,
    eps: float = 1e-3,
    tol: float = 1e-8,
    folder: str | Path | None = None,
) -> LassoPath:
    """The lasso for falling penalties; with ``l1_ratio`` below 1 the elastic net. One trip over one table, else two.

    ``alphas`` are penalties, or how many: then from the least one that sets all coefficients to zero down to ``eps``
    of it. Coordinates are changed until none moves by more than ``tol``, in standard deviations of the label.
    With a ``folder`` it continues after a crash: the Gram matrix, from which everything is computed, is stored there.
    """
    for name, value in (("l1_ratio", l1_ratio), ("eps", eps), ("tol", tol)):
        check_positive("lasso", name, value)
    if l1_ratio > 1 or eps >= 1:
        raise LearnError(f"lasso: l1_ratio is at most 1 and eps below 1, not {l1_ratio!r} and {eps!r}")
    design, y = Design(X, all_columns=True), check_numbers("lasso", y, X.shape[0])
    rows = len(y)
    if rows < 2:
        raise LearnError(f"lasso: two joined rows or more are needed, and X has {rows:,}")
    gram, products = design.equations(y - y.mean(), Progress(folder, "lasso", X, y))
    scales, spreads = design.scales, np.diag(gram)[1:]
    means = design.offsets + scales * gram[0, 1:] / rows
    centred, products = centred_gram(gram) / rows, products[1:] * scales / rows
    varies = rows * np.diag(centred) > LEAST * spreads
    centred *= np.outer(scales, scales)  # penalties are of coefficients in the units of X
    penalties = _penalties(alphas, float(np.abs(products).max(initial=0.0)) / l1_ratio, eps)
    found, start = [], np.zeros(len(products))
    # Where |product| equals its penalty, as it does for both of two opposite categories, rounding of the product leaves
    # a coefficient of its size over the column's variance, which is zero.
    known_to = LEAST * scales * np.sqrt(spreads / rows) * y.std()
    for alpha in penalties:
        l1, l2 = alpha * l1_ratio, alpha * (1 - l1_ratio)
        start = _descend(centred, products, np.flatnonzero(varies), start, l1, l2, tol * float(y.std()))
        found.append(np.where(np.abs(start) * np.diag(centred) <= known_to, 0.0, start))
    coefs = np.array(found)
    intercepts = y.mean() - coefs @ means
    models = [
        Lasso(by_column(X, coef), float(intercept), X.preparation, float(alpha))
        for alpha, coef, intercept in zip(penalties, coefs, intercepts, strict=True)
    ]
    return LassoPath(penalties, coefs, intercepts, list(X.columns), X.preparation, models)


def _penalties(alphas: Sequence[float] | int, largest: float, eps: float) -> Array:
    """Falling penalties."""
    if isinstance(alphas, (int, np.integer)) and not isinstance(alphas, bool) and alphas >= 1:
        if not largest:
            raise LearnError("lasso: no column has to do with y, so that penalties have no scale; give alphas")
        return np.geomspace(largest, eps * largest, int(alphas))
    given = np.atleast_1d(np.asarray(alphas))
    if (
        given.dtype.kind not in "iuf"
        or given.ndim != 1
        or not given.size
        or not np.all(np.isfinite(given) & (given > 0))
    ):
        raise LearnError("lasso: alphas are numbers above 0, or how many there should be, from 1")
    return np.sort(given.astype(np.float64))[::-1]


def _descend(
    gram: Array, products: Array, columns: NDArray[np.intp], start: Array, l1: float, l2: float, tol: float
) -> Array:  # fmt: skip
    """Coefficients of some columns with the least penalised loss, from those of a penalty nearby.

    ``left`` holds the products of columns with the residuals.
    """
    found, left, spread = start.copy(), products - gram @ start, np.diag(gram)
    active = columns
    for _ in range(SWEEPS):
        moved = 0.0
        for place in active:
            slope = left[place] + spread[place] * found[place]
            new = np.sign(slope) * max(abs(slope) - l1, 0.0) / (spread[place] + l2)
            change = new - found[place]
            if change:
                found[place] = new
                left -= change * gram[:, place]
                moved = max(moved, abs(change) * float(np.sqrt(spread[place])))
        if moved > tol:
            active = np.flatnonzero(found)  # coefficients at zero are checked again when the others have converged
        elif active is columns:
            return found
        else:
            active = columns
    raise LearnError(f"lasso: coefficients still change after {SWEEPS:,} sweeps; raise tol or the least penalty")
