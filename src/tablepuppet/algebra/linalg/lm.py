"""Least squares with an intercept, and the statistics of its coefficients.

b     = (D^T D)^-1 D^T y          D = [1, X without the first column of each category group]
var b = s^2 (D^T D)^-1            s^2 = |y - D b|^2 / (n - p)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import fdtrc

from tablepuppet.algebra.array import LazyArray
from tablepuppet.algebra.linalg.design import WIDEST, Design
from tablepuppet.algebra.linalg.estimates import Estimates
from tablepuppet.algebra.linalg.linear_fit import EstimatedFit, by_column
from tablepuppet.algebra.linalg.program import check_choice, check_numbers, check_rows, check_varies, program
from tablepuppet.algebra.linalg.progress import Progress
from tablepuppet.arrays import Array
from tablepuppet.errors import LearnError

Solver = Literal["auto", "gram", "cg", "lsmr"]
SOLVERS: tuple[str, ...] = get_args(Solver)
NEARLY = (
    1e4  # a variance inflation factor, beyond which columns nearly depend on each other: normal equations lose digits
)


@dataclass(frozen=True, repr=False)
class LM(EstimatedFit):
    """A least-squares fit."""

    _title: ClassVar[str] = "Least squares"
    rows: int
    residual_squares: float  # |y - D b|^2
    total_squares: float  # |y - mean|^2

    @property
    def _parameters(self) -> int:
        """Coefficients, the intercept included."""
        return len(self.estimates.names)

    @property
    def r2(self) -> float:
        """The share of the variance that is explained; NaN for a label that is the same everywhere."""
        return 1 - self.residual_squares / self.total_squares if self.total_squares else math.nan

    @property
    def adjusted_r2(self) -> float:
        """R-squared, corrected for the number of coefficients."""
        return 1 - (1 - self.r2) * (self.rows - 1) / (self.rows - self._parameters)

    @property
    def f_statistic(self) -> float:
        """Explained over residual variance; NaN without columns."""
        explained, slopes = self.total_squares - self.residual_squares, self._parameters - 1
        if not slopes:
            return math.nan
        return float(np.divide(explained / slopes, self.residual_squares / (self.rows - self._parameters)))

    @property
    def log_likelihood(self) -> float:
        """Of normal residuals with the variance |y - D b|^2 / n."""
        with np.errstate(divide="ignore"):
            return float(-self.rows / 2 * (np.log(2 * np.pi * self.residual_squares / self.rows) + 1))

    @property
    def aic(self) -> float:
        """Akaike's criterion, 2 p - 2 log-likelihood, as statsmodels counts p: without the variance."""
        return 2 * self._parameters - 2 * self.log_likelihood

    @property
    def bic(self) -> float:
        """The Bayesian criterion, p log(n) - 2 log-likelihood."""
        return self._parameters * math.log(self.rows) - 2 * self.log_likelihood

    def _facts(self) -> dict[str, object]:
        """How well the columns explain the label."""
        left = self.rows - self._parameters
        return {
            "observations": self.rows, "residual df": left, "R-squared": self.r2,
            "adjusted R-squared": self.adjusted_r2, "F-statistic": self.f_statistic,
            "P(F)": float(fdtrc(max(self._parameters - 1, 1), left, self.f_statistic)),
            "residual std error": math.sqrt(self.residual_squares / left), "log-likelihood": self.log_likelihood,
            "AIC": self.aic, "BIC": self.bic,
        }  # fmt: skip


@program
def lm(X: LazyArray, y: ArrayLike, solver: Solver = "auto", folder: str | Path | None = None) -> LM:
    """Least squares of a label on the columns of X.

    ``solver="gram"`` solves the normal equations: two trips over one table, else three, and a few more if columns
    nearly depend on each other, to correct coefficients by the residuals. ``"cg"``, conjugate gradients, and
    ``"lsmr"``, SciPy's LSMR, find coefficients by products, two trips a step, and correct them by the residuals until
    what the wire has rounded is gone; standard errors then follow from the
    Gram matrix, and are NaN where that is not to be had (`Design.variances`). ``"auto"`` takes ``"cg"`` beyond 2,000
    columns. With a ``folder`` it goes on after a crash: the Gram matrix, or the coefficients of ``"cg"`` so far, are
    kept there.

    Raises LearnError for a label that does not fit or has one value only, for columns that depend on each other, and
    for a folder with ``"lsmr"``, which cannot go on from coefficients.
    """
    check_choice("lm", "solver", solver, SOLVERS)
    if solver == "lsmr" and folder is not None:
        raise LearnError("lm: solver='lsmr' keeps no state in a folder; take solver='cg', or no folder")
    design, y = Design(X), check_numbers("lm", y, X.shape[0])
    check_rows("lm", *design.shape)
    check_varies("lm", y)
    centred = y - y.mean()  # a label that is far from zero would be its mean and little else
    if solver == "lsmr":
        found, left = design.least_squares(centred, lambda _, residuals, __: design.solve_by_lsmr(residuals))
        return fit_of(design, y, found, left)
    by_products = solver == "cg" or (solver == "auto" and design.shape[1] > WIDEST)
    progress = Progress(folder, "lm", X, y, by_products=by_products)
    if by_products:
        return fit_of(design, y, *_by_conjugate_gradients(design, centred, progress))
    gram, products = design.equations(centred, progress)
    inverse = design.inverse(gram, "lm")
    found = inverse @ products
    if np.max(np.diag(inverse) * np.diag(gram)) > NEARLY:
        found, left = design.least_squares(centred, lambda gradient, *_: inverse @ gradient, found)
    else:
        left = centred - design.times(found, exact=True)
    return fit_of(design, y, found, left, inverse)


def _by_conjugate_gradients(design: Design, centred: Array, progress: Progress) -> tuple[Array, Array]:
    """(coefficients of D, residuals)."""
    start = progress.read().get("coefficients")
    so_far = np.zeros(design.shape[1]) if start is None else start

    def change(gradient: Array, _: Array, share: float) -> Array:
        nonlocal so_far
        before = so_far
        moved = design.solve(gradient, tol=share, keep=lambda b: progress.write(coefficients=before + b))
        so_far = before + moved
        return moved

    return design.least_squares(centred, change, start)


def fit_of(design: Design, y: Array, found: Array, left: Array, inverse: Array | None = None) -> LM:
    """The fit of coefficients of D for y less its mean, with the residuals ``left``; the inverse of D^T D, if known."""
    rows, parameters = design.shape
    squares = float(np.sum(left**2))
    variances = design.variances() if inverse is None else design.own_variances(inverse)
    errors, own = np.sqrt(squares / (rows - parameters) * variances), design.own_units(found)
    own[0] += y.mean()
    return LM(
        coef=by_column(design.matrix, design.expanded(own)),
        intercept=float(own[0]),
        preparation=design.matrix.preparation,
        estimates=Estimates(design.names, own, errors, rows - parameters),
        rows=rows,
        residual_squares=squares,
        total_squares=float(np.sum((y - y.mean()) ** 2)),
    )
