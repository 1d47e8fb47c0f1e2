"""The matrix of a regression, [1, X]: an intercept, then X without the first column of each category group.

The columns of a category group add up to the intercept column, so with all of them the matrix would be singular.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse.linalg import LinearOperator, cg, lsmr

from tablepuppet.algebra.array import LazyArray
from tablepuppet.algebra.kept import KeptArray
from tablepuppet.algebra.linalg.progress import Progress
from tablepuppet.algebra.operator import ProductOperator
from tablepuppet.algebra.products import Result
from tablepuppet.errors import LearnError, PartyError, PrivacyError
from tablepuppet.wire.protocol import LostError

Array = NDArray[np.float64]
INTERCEPT = "intercept"
WIDEST = 2000  # columns of a Gram matrix that is solved as it is
LEAST = 1e-12  # an eigenvalue of a scaled Gram matrix that is taken for zero, at float64
TOLERANCE = 1e-12  # of LSMR, at float64
OUT_OF_STEPS = 7  # why LSMR ended


class Design(ProductOperator):
    """[1, X] as a `LinearOperator`; ``names`` are those of its columns, ``kept`` their places in X.

    ``all_columns`` keeps the first columns of category groups, for what is not singular with them.
    """

    def __init__(self, matrix: LazyArray, all_columns: bool = False, kept: Sequence[int] | None = None):
        if kept is None:
            left_out = set() if all_columns else set(matrix.first_categories)
            kept = [place for place in range(matrix.shape[1]) if place not in left_out]
        self.matrix, self.kept = matrix, np.array(kept, np.intp)
        self.names = [INTERCEPT, *(matrix.columns[place] for place in self.kept)]
        super().__init__((matrix.shape[0], len(self.names)))

    def only(self, places: Sequence[int]) -> Design:
        """The intercept, and those of the columns after it that have these numbers."""
        return Design(self.matrix, kept=[int(self.kept[place]) for place in places])

    def expanded(self, coefficients: Array) -> Array:
        """Coefficients by the columns of X, without the intercept; those left out are zero."""
        found: Array = np.zeros((self.matrix.shape[1], *coefficients.shape[1:]))
        found[self.kept] = coefficients[1:]
        return found

    def times(self, directions: ArrayLike) -> Array:
        """[1, X] V; one trip."""
        given = np.asarray(directions, np.float64)
        return np.asarray(self.matrix.times(self.expanded(given)) + given[0])

    def kept_times(self, directions: Array, sums: int = 0) -> Any:
        """[1, X] V, which stays at the parties where that is the plan; an array for NumPy in either case.

        For [1, X]^T f([1, X] V), by elementwise functions, and about so many ``sums`` (`Keeper.keeps`).
        """
        return self.matrix.kept_times(self.expanded(directions), sums) + directions[0]

    def transposed_times(self, values: ArrayLike | KeptArray) -> Array:
        """[1, X]^T U; one trip. U may be at the parties."""
        return self.ask_transposed_times(values).read()

    def ask_transposed_times(self, values: ArrayLike | KeptArray) -> Result:
        """Ask for [1, X]^T U."""
        given = values if isinstance(values, KeptArray) else np.asarray(values, np.float64)
        sums = given.ask_sums() if isinstance(given, KeptArray) else Result(lambda: given.sum(axis=0))
        products = self.matrix.ask_transposed_times(given)
        return Result(lambda: np.concatenate([sums.read()[None], products.read()[self.kept]]))

    def gram(self, weights: Array | None = None) -> Array:
        """[1, X]^T diag(weights) [1, X], without weights [1, X]^T [1, X]; one trip for one table, else two."""
        asked = self.matrix.ask_column_sums() if weights is None else self.matrix.ask_transposed_times(weights)
        within = self.matrix.gram(weights)[np.ix_(self.kept, self.kept)]
        total = self.shape[0] if weights is None else weights.sum()
        sums = asked.read()[self.kept]
        return np.block([[np.array([[float(total)]]), sums[None]], [sums[:, None], (within + within.T) / 2]])

    def equations(self, values: Array, progress: Progress) -> tuple[Array, Array]:
        """([1, X]^T [1, X], [1, X]^T values), which a resumed program already has; trips as `gram`."""
        state = progress.read()
        if not state:
            asked = self.ask_transposed_times(values)
            state = {"gram": self.gram(), "products": asked.read()}
            progress.write(**state)
        return state["gram"], state["products"]

    def inverse(self, gram: Array, program: str) -> Array:
        """The inverse of a Gram matrix of these columns; LearnError if it is singular, which names the columns."""
        scale = np.sqrt(np.diag(gram))
        scale[scale == 0] = 1.0
        values, vectors = np.linalg.eigh(gram / np.outer(scale, scale))
        least = max(LEAST, len(gram) * float(np.finfo(self.matrix.wire).eps))
        null = vectors[:, values <= least]
        if null.shape[1]:
            found = np.flatnonzero(np.abs(null).max(axis=1) > np.sqrt(least))
            named = [self.names[place] for place in found]
            raise LearnError(
                f"{program}: these columns depend on each other linearly in these rows: {', '.join(named)}. Leave "
                f"{null.shape[1]} of them out: X[:, columns], with columns of X.columns"
            )
        return np.asarray((vectors / values) @ vectors.T / np.outer(scale, scale))

    def variances(self, weights: Array | None = None) -> Array:
        """The diagonal of the inverse of [1, X]^T diag(weights) [1, X], for coefficients that were found without it.

        NaN where it is not to be had: beyond 2,000 columns, by policies and limits of parties, or if columns depend on
        each other. Trips as `gram`.
        """
        if self.shape[1] <= WIDEST:
            try:
                return np.diag(self.inverse(self.gram(weights), "variances"))
            except LostError:
                raise
            except (PrivacyError, PartyError, LearnError):
                pass
        return np.full(self.shape[1], np.nan)

    def solve(
        self, right: Array, weights: Array | float = 1.0, near: Array | None = None, tol: float = 1e-10,
        start: Array | None = None, keep: Callable[[Array], None] | None = None,
    ) -> Array:  # fmt: skip
        """[1, X]^T diag(weights) [1, X] b = right by conjugate gradients; ``near`` is about the matrix's inverse.

        It begins at ``start``, and calls ``keep`` with each b. Two trips a step, over one table of services one.
        LearnError if it does not converge.
        """
        width = self.shape[1]

        def times(b: Array) -> Array:
            return self.transposed_times(weights * self.kept_times(b))

        operator = LinearOperator((width, width), times, dtype=np.float64)
        found, failed = cg(operator, right, start, rtol=tol, maxiter=10 * width, M=near, callback=keep)
        if failed:
            raise LearnError(
                f"conjugate gradients did not converge in {10 * width:,} steps; columns may depend on each other"
            )
        return np.asarray(found, np.float64)

    def solve_by_lsmr(self, values: Array) -> Array:
        """The b with the least |[1, X] b - values|, by SciPy's LSMR; two trips a step.

        LearnError if it does not converge.
        """
        tol, most = max(TOLERANCE, float(np.finfo(self.matrix.wire).eps)), 10 * self.shape[1]
        found, reason, *_ = lsmr(self, values, atol=tol, btol=tol, conlim=0, maxiter=most)
        if reason == OUT_OF_STEPS:
            raise LearnError(f"LSMR did not converge in {most:,} steps; columns may depend on each other")
        return np.asarray(found, np.float64)
