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
from numpy.typing import ArrayLike, NDArray
from scipy.special import fdtrc

from tablepuppet.algebra.array import LazyArray
from tablepuppet.algebra.linalg.design import WIDEST, Design
from tablepuppet.algebra.linalg.estimates import Estimates
from tablepuppet.algebra.linalg.linear_fit import EstimatedFit, by_column
from tablepuppet.algebra.linalg.program import check_choice, check_numbers, check_rows, check_varies, program
from tablepuppet.algebra.linalg.progress import Progress
from tablepuppet.errors import LearnError

Array = NDArray[np.float64]
Solver = Literal["auto", "gram", "cg", "lsmr"]
SOLVERS: tuple[str, ...] = get_args(Solver)


@dataclass(frozen=True, repr=False)
class LM(EstimatedFit):
    """A least-squares fit."""

    title: ClassVar[str] = "Least squares"
    rows: int
    residual_squares: float  # |y - D b|^2
    total_squares: float  # |y - mean|^2

    @property
    def parameters(self) -> int:
        """Coefficients, the intercept included."""
        return len(self.estimates.names)

    @property
    def r2(self) -> float:
        """The share of the variance that is explained; NaN for a label that is the same everywhere."""
        return 1 - self.residual_squares / self.total_squares if self.total_squares else math.nan

    @property
    def adjusted_r2(self) -> float:
        """The same, corrected for the number of coefficients."""
        return 1 - (1 - self.r2) * (self.rows - 1) / (self.rows - self.parameters)

    @property
    def f_statistic(self) -> float:
        """Explained over residual variance; NaN without columns."""
        explained, slopes = self.total_squares - self.residual_squares, self.parameters - 1
        if not slopes:
            return math.nan
        return float(np.divide(explained / slopes, self.residual_squares / (self.rows - self.parameters)))

    @property
    def log_likelihood(self) -> float:
        """Of normal residuals with the variance |y - D b|^2 / n."""
        with np.errstate(divide="ignore"):
            return float(-self.rows / 2 * (np.log(2 * np.pi * self.residual_squares / self.rows) + 1))

    @property
    def aic(self) -> float:
        """Akaike's criterion, 2 p - 2 log-likelihood, as statsmodels counts p: without the variance."""
        return 2 * self.parameters - 2 * self.log_likelihood

    @property
    def bic(self) -> float:
        """The Bayesian criterion, p log(n) - 2 log-likelihood."""
        return self.parameters * math.log(self.rows) - 2 * self.log_likelihood

    def facts(self) -> dict[str, object]:
        """How well the columns explain the label."""
        left = self.rows - self.parameters
        return {
            "observations": self.rows, "residual df": left, "R-squared": self.r2,
            "adjusted R-squared": self.adjusted_r2, "F-statistic": self.f_statistic,
            "P(F)": float(fdtrc(max(self.parameters - 1, 1), left, self.f_statistic)),
            "residual std error": math.sqrt(self.residual_squares / left), "log-likelihood": self.log_likelihood,
            "AIC": self.aic, "BIC": self.bic,
        }  # fmt: skip


@program
def lm(X: LazyArray, y: ArrayLike, solver: Solver = "auto", folder: str | Path | None = None) -> LM:
    """Least squares of a label on the columns of X.

    ``solver="gram"`` solves the normal equations: two trips over one table, else three. ``"cg"``, conjugate gradients,
    and ``"lsmr"``, SciPy's LSMR, find coefficients by products, two trips a step; standard errors then follow from the
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
    if solver == "lsmr":
        return least_squares(design, y, design.solve_by_lsmr(y))
    by_products = solver == "cg" or (solver == "auto" and design.shape[1] > WIDEST)
    progress = Progress(folder, "lm", X, y, by_products=by_products)
    if by_products:
        start = progress.read().get("coefficients")
        right = design.transposed_times(y)
        found = design.solve(right, start=start, keep=lambda b: progress.write(coefficients=b))
        return least_squares(design, y, found)
    gram, products = design.equations(y, progress)
    inverse = design.inverse(gram, "lm")
    return least_squares(design, y, inverse @ products, np.diag(inverse))


def least_squares(design: Design, y: Array, found: Array, variances: Array | None = None) -> LM:
    """The fit of some coefficients; ``variances`` is the diagonal of the inverse Gram matrix, if it is known."""
    rows, parameters = design.shape
    squares = float(np.sum((y - design.times(found)) ** 2))
    variances = design.variances() if variances is None else variances
    errors = np.sqrt(squares / (rows - parameters) * variances)
    return LM(
        coef=by_column(design.matrix, design.expanded(found)),
        intercept=float(found[0]),
        preparation=design.matrix.preparation,
        estimates=Estimates(design.names, found, errors, rows - parameters),
        rows=rows,
        residual_squares=squares,
        total_squares=float(np.sum((y - y.mean()) ** 2)),
    )
