"""The matrix of a regression, [1, X]: an intercept, then X without the first column of each category group.

The columns of a category group add up to the intercept column, so with all of them the matrix would be singular.
Programs compute with standardised columns, D = [1, (X - offsets) / scales]: coefficients of D become those of X in the
end. So no column is large or far from zero, whatever its unit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse.linalg import LinearOperator, cg, lsmr

from tablepuppet.algebra.array import LazyArray
from tablepuppet.algebra.kept import KeptArray
from tablepuppet.algebra.linalg.progress import Progress
from tablepuppet.algebra.operator import ProductOperator
from tablepuppet.algebra.products import Result
from tablepuppet.arrays import Array
from tablepuppet.errors import LearnError, PartyError, PrivacyError
from tablepuppet.wire.protocol import LostError

INTERCEPT = "intercept"
WIDEST = 2000  # columns of a Gram matrix that is solved as it is
LEAST = 1e-12  # an eigenvalue of a scaled Gram matrix that is taken for zero: its entries are exact to about 1e-15
TOLERANCE = 1e-12  # of LSMR, at float64
ROUNDED = 1e-6  # the same where products are rounded on the wire
OUT_OF_STEPS = 7  # why LSMR ended
ROUNDS = 8  # in which coefficients are found, each by what the one before has left
ENOUGH = 1e-10  # of the first gradient


def centred_gram(gram: Array) -> Array:
    """X^T X of centred columns, by [1, X]^T [1, X] of columns that are about centred: few digits are lost."""
    return np.asarray(gram[1:, 1:] - np.outer(gram[0, 1:], gram[0, 1:]) / gram[0, 0])


class Design(ProductOperator):
    """D = [1, (X - offsets) / scales] as a `LinearOperator`; ``names`` are those of its columns, ``places`` where
    these are in X.

    ``all_columns`` keeps the first columns of category groups, for what is not singular with them.
    """

    def __init__(self, matrix: LazyArray, all_columns: bool = False, places: Sequence[int] | None = None):
        if places is None:
            left_out = set() if all_columns else set(matrix.first_categories)
            places = [place for place in range(matrix.shape[1]) if place not in left_out]
        self.matrix, self.places = matrix, np.array(places, np.intp)
        self._columns, offsets, scales = matrix.standardised()
        self.offsets, self.scales = offsets[self.places], scales[self.places]
        self.names = [INTERCEPT, *(matrix.columns[place] for place in self.places)]
        super().__init__((matrix.shape[0], len(self.names)))

    def only(self, places: Sequence[int]) -> Design:
        """The intercept, and those of the columns after it that have these numbers."""
        return Design(self.matrix, places=[int(self.places[place]) for place in places])

    def expanded(self, coefficients: Array) -> Array:
        """Coefficients by the columns of X, without the intercept; those left out are zero."""
        found: Array = np.zeros((self.matrix.shape[1], *coefficients.shape[1:]))
        found[self.places] = coefficients[1:]
        return found

    def own_units(self, coefficients: Array) -> Array:
        """The coefficients of [1, X], (p,) or (p, k), of those of D."""
        slopes = coefficients[1:] / (self.scales if coefficients.ndim == 1 else self.scales[:, None])
        return np.concatenate([(coefficients[0] - self.offsets @ slopes)[None], slopes])

    def own_variances(self, inverse: Array) -> Array:
        """The diagonal of the inverse of [1, X]^T W [1, X], by that of D^T W D."""
        slopes = inverse[1:, 1:] / np.outer(self.scales, self.scales)
        crossed = inverse[0, 1:] / self.scales
        first = inverse[0, 0] - 2 * self.offsets @ crossed + self.offsets @ slopes @ self.offsets
        return np.append(first, np.diag(slopes))

    def times(self, directions: ArrayLike, exact: bool = False) -> Array:
        """D V; one trip. Rounded to the wire's precision, unless it has to be ``exact``."""
        given = np.asarray(directions, np.float64)
        return np.asarray(self._columns.ask_times(self.expanded(given), exact).read() + given[0])

    def kept_times(self, directions: Array, sums: int = 0) -> Any:
        """D V, which stays at the parties where that is the plan; an array for NumPy in either case.

        For D^T f(D V), by elementwise functions, and about so many ``sums`` (`Keeper.keeps`).
        """
        return self._columns.kept_times(self.expanded(directions), sums) + directions[0]

    def is_kept(self, sums: int) -> bool:
        """Whether `kept_times` of one vector leaves it at the parties."""
        keeper = self.matrix.source.keeper
        return keeper is not None and bool(self._columns.basis[0].tables) and keeper.keeps(1, sums)

    def transposed_times(self, values: ArrayLike | KeptArray, exact: bool = False) -> Array:
        """D^T U; one trip. U may be at the parties. For ``exact`` see `times`."""
        return self.ask_transposed_times(values, exact).read()

    def ask_transposed_times(self, values: ArrayLike | KeptArray, exact: bool = False) -> Result:
        """Ask for D^T U."""
        given = values if isinstance(values, KeptArray) else np.asarray(values, np.float64)
        sums = given.ask_sums() if isinstance(given, KeptArray) else Result(lambda: given.sum(axis=0))
        products = self._columns.ask_transposed_times(given, exact)
        return Result(lambda: np.concatenate([sums.read()[None], products.read()[self.places]]))

    def gram(self, weights: Array | None = None) -> Array:
        """D^T diag(weights) D, without weights D^T D; one trip for one table, else two."""
        columns = self._columns
        asked = columns.ask_column_sums() if weights is None else columns.ask_transposed_times(weights, exact=True)
        within = columns.gram(weights)[np.ix_(self.places, self.places)]
        total = self.shape[0] if weights is None else weights.sum()
        sums = asked.read()[self.places]
        return np.block([[np.array([[float(total)]]), sums[None]], [sums[:, None], (within + within.T) / 2]])

    def equations(self, values: Array, progress: Progress) -> tuple[Array, Array]:
        """(D^T D, D^T values), which a resumed program already has; trips as `gram`."""
        state = progress.read()
        if not state:
            asked = self.ask_transposed_times(values, exact=True)
            state = {"gram": self.gram(), "products": asked.read()}
            progress.write(**state)
        return state["gram"], state["products"]

    def inverse(self, gram: Array, program: str) -> Array:
        """The inverse of a Gram matrix of these columns; LearnError if it is singular, which names the columns."""
        scale = np.sqrt(np.diag(gram))
        scale[scale == 0] = 1.0
        values, vectors = np.linalg.eigh(gram / np.outer(scale, scale))
        null = vectors[:, values <= LEAST]
        if null.shape[1]:
            found = np.flatnonzero(np.abs(null).max(axis=1) > np.sqrt(LEAST))
            named = [self.names[place] for place in found]
            raise LearnError(
                f"{program}: these columns depend on each other linearly in these rows: {', '.join(named)}. Leave "
                f"{null.shape[1]} of them out: X[:, columns], with columns of X.columns; if they only nearly do, "
                "select their difference instead of one of them"
            )
        return np.asarray((vectors / values) @ vectors.T / np.outer(scale, scale))

    def variances(self, weights: Array | None = None) -> Array:
        """The diagonal of the inverse of [1, X]^T W [1, X], W = diag(weights), for coefficients found without it.

        NaN where it is not to be had: beyond 2,000 columns, by policies and limits of parties, or if columns depend on
        each other. Trips as `gram`.
        """
        if self.shape[1] <= WIDEST:
            try:
                return self.own_variances(self.inverse(self.gram(weights), "variances"))
            except LostError:
                raise
            except (PrivacyError, PartyError, LearnError):
                pass
        return np.full(self.shape[1], np.nan)

    @property
    def _is_rounded(self) -> bool:
        """Whether products with D are rounded on the way."""
        placement = self.matrix.source.placement
        there = [alias for alias in self._columns.basis[0].tables if alias not in placement.collected]
        return not all(map(placement.is_exact, there))

    def least_squares(
        self, values: Array, change: Callable[[Array, Array, float], Array], start: Array | None = None
    ) -> tuple[Array, Array]:
        """(the b with the least |D b - values|, values - D b), by ``change`` of (D^T residuals, residuals, to what
        share the first of these should become).

        What rounding on the wire has left in the coefficients is in the residuals, which travel exactly. So the next
        change, of the residuals, removes it: iterative refinement. Two trips a round beside those of ``change``.
        """
        found = np.zeros(self.shape[1]) if start is None else start
        left = values if start is None else values - self.times(start, exact=True)
        sizes: list[float] = []
        for _ in range(ROUNDS):
            gradient = self.transposed_times(left, exact=True)
            sizes.append(float(np.linalg.norm(gradient)))
            if sizes[-1] <= ENOUGH * sizes[0] or (len(sizes) > 2 and sizes[-1] > sizes[-2] / 2):
                break
            moved = change(gradient, left, ENOUGH * sizes[0] / sizes[-1] / 2)
            found, left = found + moved, left - self.times(moved, exact=True)
        return found, left

    def solve(
        self, right: Array, weights: Array | float = 1.0, near: Array | None = None, tol: float = 1e-10,
        keep: Callable[[Array], None] | None = None,
    ) -> Array:  # fmt: skip
        """D^T diag(weights) D b = right by conjugate gradients; ``near`` is about the matrix's inverse.

        It calls ``keep`` with each b. Two trips a step, over one table of services one. LearnError if it does not
        converge.
        """
        width = self.shape[1]

        def times(b: Array) -> Array:
            return self.transposed_times(weights * self.kept_times(b))

        operator = LinearOperator((width, width), times, dtype=np.float64)
        tol = max(tol, ROUNDED) if self._is_rounded else tol
        found, failed = cg(operator, right, rtol=tol, maxiter=10 * width, M=near, callback=keep)
        if failed:
            raise LearnError(
                f"conjugate gradients did not converge in {10 * width:,} steps; columns may depend on each other"
            )
        return np.asarray(found, np.float64)

    def solve_by_lsmr(self, values: Array) -> Array:
        """The b with the least |D b - values|, by SciPy's LSMR; two trips a step.

        LearnError if it does not converge.
        """
        tol, most = ROUNDED if self._is_rounded else TOLERANCE, 10 * self.shape[1]
        found, reason, *_ = lsmr(self, values, atol=tol, btol=tol, conlim=0, maxiter=most)
        if reason == OUT_OF_STEPS:
            raise LearnError(f"LSMR did not converge in {most:,} steps; columns may depend on each other")
        return np.asarray(found, np.float64)
