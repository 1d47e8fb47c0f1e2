"""A matrix that is known by its products, as SciPy's solvers and `@` take it."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse.linalg import LinearOperator

from tablepuppet.errors import LearnError

Array = NDArray[np.float64]


class ProductOperator(LinearOperator):  # type: ignore[misc] # SciPy has no types
    """A `LinearOperator` by two methods: `times` for A V, `transposed_times` for A^T U; both check what they are given.

    `@` multiplies. `*` by a number scales; `*` by an array and `**` are elementwise in NumPy and products in SciPy, so
    they are refused.
    """

    shape: tuple[int, int]

    def __init__(self, shape: tuple[int, int]):
        super().__init__(np.dtype(np.float64), shape)

    def times(self, directions: ArrayLike) -> Array:
        """A V."""
        raise NotImplementedError

    def transposed_times(self, values: ArrayLike) -> Array:
        """A^T U."""
        raise NotImplementedError

    def matvec(self, x: ArrayLike) -> Array:
        """A x."""
        return self.times(x)

    def matmat(self, X: ArrayLike) -> Array:
        """A X."""
        return self.times(X)

    def rmatvec(self, x: ArrayLike) -> Array:
        """A^T x."""
        return self.transposed_times(x)

    def rmatmat(self, X: ArrayLike) -> Array:
        """A^T X."""
        return self.transposed_times(X)

    _matvec, _matmat, _rmatvec, _rmatmat = matvec, matmat, rmatvec, rmatmat  # as operators made of others call them

    def _transpose(self) -> ProductOperator:
        return Transposed(self)

    _adjoint = _transpose  # numbers are real

    def __matmul__(self, other: Any) -> Any:
        return super().__matmul__(other) if np.isscalar(other) else self.dot(other)

    def __rmatmul__(self, other: Any) -> Any:
        return super().__rmatmul__(other) if np.isscalar(other) else self.T.dot(np.transpose(other)).T

    def __mul__(self, other: Any) -> Any:
        return super().__mul__(other) if np.isscalar(other) else _refuse("*")

    def __rmul__(self, other: Any) -> Any:
        return super().__rmul__(other) if np.isscalar(other) else _refuse("*")

    def __pow__(self, other: Any) -> NoReturn:
        _refuse("**")


class Transposed(ProductOperator):
    """A^T; A^T @ A is an array where A has `gram`."""

    def __init__(self, operator: ProductOperator):
        super().__init__(operator.shape[::-1])
        self._operator = operator

    def times(self, directions: ArrayLike) -> Array:
        """A^T V."""
        return self._operator.transposed_times(directions)

    def transposed_times(self, values: ArrayLike) -> Array:
        """A U."""
        return self._operator.times(values)

    def _transpose(self) -> ProductOperator:
        return self._operator

    _adjoint = _transpose

    def dot(self, x: Any) -> Any:
        """A^T x, with an array, a number or an operator."""
        if x is self._operator and hasattr(x, "gram"):
            return x.gram()
        return super().dot(x)


def _refuse(sign: str) -> NoReturn:
    raise LearnError(
        f"X {sign} other would be elementwise, which a matrix that is not built has not; write X @ other for the "
        "product, and transform columns in SELECT"
    )
