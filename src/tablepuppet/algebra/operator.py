"""A matrix that is known by its products, in the form that SciPy's solvers and `@` take.

What NumPy's arrays have and such a matrix has not, since cells stay at parties, is an error that says what to write
instead.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse.linalg import LinearOperator

from tablepuppet.algebra.kept import KeptArray
from tablepuppet.arrays import Array
from tablepuppet.errors import LearnError

KEYWORDS = {"where": True, "out": None, "casting": "same_kind", "order": "K", "subok": True, "dtype": None}
NEED_CELLS = frozenset(
    {name for name in dir(np.ndarray) if not name.startswith("_")} | {"toarray", "todense", "to_numpy"}
)
CELLS = "X @ np.eye(X.shape[1])"
"""All cells as an array of NumPy's, where parties send them."""
INSTEAD = {
    **dict.fromkeys(
        ("median", "quantile", "percentile", "nanmedian"),
        "needs cells in order, which are not here: write rel.quantile(0.5), or another share, in the units of the "
        f"data; or take it of {CELLS}, all cells",
    ),
    **dict.fromkeys(
        ("unique", "sort", "argsort", "bincount"),
        f"needs the cells, which are not here: take it of {CELLS}, all cells; rel.quantile has numbers in order",
    ),
    "cov": "is not built: write D = X - X.mean(axis=0), then D.T @ D / (len(X) - 1); rel.covariance() is that of the "
    "selected numbers",
    "corrcoef": "is not built: write tp.linalg.cor(X), for its columns",
    "svd": "needs all cells, which are not here: write scipy.sparse.linalg.svds(X, k=...)",
    "svdvals": "needs all cells, which are not here: write np.sqrt(np.linalg.svdvals(X.T @ X))",
    "matrix_rank": "needs all cells, which are not here: write np.linalg.matrix_rank(X.T @ X)",
    "pinv": "needs all cells, which are not here: write np.linalg.pinv(X.T @ X) @ (X.T @ y) for its product with y",
    "qr": "needs all cells, which are not here: write np.linalg.cholesky(X.T @ X).T for R, whose signs may differ",
    "lstsq": "needs all cells, which are not here: write scipy.sparse.linalg.lsqr(X, y)[0]; tp.linalg.lm(X, y) has an "
    "intercept too",
    "histogram": "is not built: write rel.histogram(column), whose edges are in the units of the data",
}


class NoArrayError(LearnError, AttributeError):
    """NumPy's arrays have this, but it needs cells; an AttributeError, so that `hasattr` is false."""


def check_settings(name: str, settings: dict[str, Any]) -> None:
    """LearnError for settings of a NumPy function other than those that X takes."""
    strange = set()
    for key, value in settings.items():
        is_default = value is KEYWORDS.get(key, np._NoValue) or value is np._NoValue
        if key not in ("axis", "keepdims") and not (is_default or (key == "where" and value is True)):
            strange.add(key)
    if strange == {"out"}:
        raise LearnError(f"X is not changed in place: write X = np.{name}(...), or X = X * 2 for X *= 2")
    if strange:
        raise LearnError(f"np.{name} of X takes no {', '.join(sorted(strange))}")


def refuse(what: str, instead: str) -> NoReturn:
    """LearnError for what cannot be computed without the cells."""
    raise LearnError(
        f"{what} would need something as long as the joined rows at a party, or all cells here; write {instead}"
    )


class ProductOperator(LinearOperator):  # type: ignore[misc] # SciPy has no types
    """A `LinearOperator` by two methods: `times` for A V, `transposed_times` for A^T U; both check what they are given.

    `@` multiplies. `*` by a number scales; `*` by an array and `**` are elementwise in NumPy and products in SciPy, so
    they are refused where they are not elementwise.
    """

    shape: tuple[int, int]

    def __init__(self, shape: tuple[int, int]):
        super().__init__(np.dtype(np.float64), shape)

    def times(self, directions: ArrayLike) -> Array:
        raise NotImplementedError

    def transposed_times(self, values: ArrayLike) -> Array:
        raise NotImplementedError

    def matvec(self, x: ArrayLike) -> Array:
        return self.times(x)

    def matmat(self, X: ArrayLike) -> Array:
        return self.times(X)

    def rmatvec(self, x: ArrayLike) -> Array:
        return self.transposed_times(x)

    def rmatmat(self, X: ArrayLike) -> Array:
        return self.transposed_times(X)

    _matvec, _matmat, _rmatvec, _rmatmat = matvec, matmat, rmatvec, rmatmat  # as operators made of others call them

    def _transpose(self) -> ProductOperator:
        return Transposed(self)

    _adjoint = _transpose  # numbers are real

    def __matmul__(self, other: Any) -> Any:
        return _refuse_number("A @ other") if np.isscalar(other) else self.dot(other)

    def __rmatmul__(self, other: Any) -> Any:
        return _refuse_number("other @ A") if np.isscalar(other) else self.T.dot(np.transpose(other)).T

    def __mul__(self, other: Any) -> Any:
        return super().__mul__(other) if np.isscalar(other) else _refuse_elementwise("*")

    def __rmul__(self, other: Any) -> Any:
        return super().__rmul__(other) if np.isscalar(other) else _refuse_elementwise("*")

    def __pow__(self, other: Any) -> Any:
        _refuse_elementwise("**")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **settings: Any) -> Any:
        """np.matmul, and np.multiply with a number; other functions are a LearnError."""
        if method == "__call__" and ufunc in (np.matmul, np.multiply):
            left, right = inputs
            if ufunc is np.matmul:
                return self.__matmul__(right) if left is self else self.__rmatmul__(left)
            return self.__mul__(right) if left is self else self.__rmul__(left)
        raise LearnError(
            f"np.{ufunc.__name__} of an operator that has products only, as X.T and w[:, None] * X: apply it to X "
            "before, as in np.exp(X).T"
        )


class Transposed(ProductOperator):
    """A^T; A^T @ B is an array where A and B are made of the same rows."""

    def __init__(self, operator: ProductOperator):
        super().__init__(operator.shape[::-1])
        self._operator = operator

    def times(self, directions: ArrayLike) -> Array:
        return self._operator.transposed_times(directions)

    def transposed_times(self, values: ArrayLike) -> Array:
        return self._operator.times(values)

    def _transpose(self) -> ProductOperator:
        return self._operator

    _adjoint = _transpose

    def __getitem__(self, key: Any) -> Any:
        raise LearnError("X.T has products only; choose columns before: X[:, columns].T")

    def __getattr__(self, name: str) -> Any:
        if hasattr(np.ndarray, name) and not name.startswith("_"):
            raise AttributeError(
                f"X.T has products only, no {name}: write it with X, whose axes are the other way round"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)

    def dot(self, x: Any) -> Any:
        """A^T x, with an array, a number or an operator."""
        if isinstance(x, LinearOperator) and x.shape[0] != self.shape[1]:
            raise LearnError(
                f"X.T @ other: X.T is {self.shape} and other {x.shape}; other has a row for each of the "
                f"{self.shape[1]:,} rows of X. X.T @ X is the Gram matrix"
            )
        left, weights = self._operator, None
        if isinstance(left, RowScaled):
            left, weights = left.operator, left.weights
        if isinstance(x, RowScaled):
            weights = x.weights if weights is None else weights * x.weights
            x = x.operator
        if isinstance(x, KeptArray) and weights is None:
            return left.transposed_times(x)
        if hasattr(left, "gram_with") and hasattr(x, "gram_with"):
            return left.gram_with(x, weights)
        return super().dot(x)


class RowScaled(ProductOperator):
    """diag(weights) A, with a number per row of A, (N,): ``w[:, None] * X``."""

    def __init__(self, operator: ProductOperator, weights: Array):
        super().__init__(operator.shape)
        self.operator, self.weights = operator, weights

    def times(self, directions: ArrayLike) -> Array:
        found = self.operator.times(directions)
        return np.asarray(found * (self.weights if found.ndim == 1 else self.weights[:, None]))

    def transposed_times(self, values: ArrayLike) -> Array:
        given = np.asarray(values, np.float64)
        if len(given) != self.shape[0]:
            return self.operator.transposed_times(given)  # which says what does not fit
        return self.operator.transposed_times(given * (self.weights if given.ndim == 1 else self.weights[:, None]))

    def __array_function__(self, function: Any, *_: Any) -> NoReturn:
        raise NoArrayError(f"w[:, None] * X has products only, no np.{function.__name__}")

    def __getattr__(self, name: str) -> NoReturn:
        raise NoArrayError(
            f"w[:, None] * X has products only, no {name}: write X.T @ w for its sums of columns, w * X.sum(axis=1) "
            "for those of rows"
        )


def _refuse_number(product: str) -> Any:
    raise LearnError(f"{product}: other is a vector or several, not a number or a text; A * number scales")


def _refuse_elementwise(sign: str) -> Any:
    raise LearnError(
        f"A {sign} other would be elementwise, which an operator of products has not; write A @ other for the product, "
        "(X * row).T for a transposed array"
    )
