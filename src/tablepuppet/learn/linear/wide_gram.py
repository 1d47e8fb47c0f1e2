"""The Gram matrix of a wide table, solved without its eigenvectors: these take as long as the cube of its width.

Input: K = T^T diag(w) T / N of columns whose numbers are centred if their means are large, and the means m of these
columns. Output: solutions p of (c (K - m m^T) + l2) p = g for some curvatures c, by conjugate gradients (Hestenes and
Stiefel 1952) over columns that are scaled to a unit diagonal. How K is held, and what prepares their steps:

- `WideGram`: sparse where the table has categories, as most of them never meet; steps are prepared by its diagonal.
- `WideGram`: all entries of a matrix of numbers, prepared by its Cholesky factor, which other curvatures share.
- `FewRows`: the rows themselves, where these are fewer than columns, prepared by the Cholesky factor of their products
  with each other (Woodbury 1950): it is smaller, and K is never made.

Where steps do not arrive, nothing is returned, and the caller needs eigenvectors: columns depend on each other, or
nearly so.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array
from tablepuppet.pieces import pieces
from tablepuppet.prep.encode.encoded_table import EncodedTable, sums_by_code

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Product = Callable[[Array], Array]
WIDE = 512  # columns: of fewer, eigenvectors are soon found
SPARSE = 0.1  # share of entries that are not zero
MOST_STEPS = 200
ARRIVED, NEAR = 1e-10, 1e-6  # of the gradient's length: where steps end, and what is taken if they end elsewhere
ALIKE = 4.0  # curvatures whose nearest power of this is the same share a preconditioner


@dataclass
class WideGram:
    """A Gram matrix that is solved by conjugate gradients: the entries of a sparse one, or all of them."""

    entries: Array
    places: tuple[NDArray[np.int32], NDArray[np.int32]] | None  # of a sparse matrix: columns, and where rows begin
    means: Array
    diagonal: Array = field(init=False)  # of the centred matrix
    _factor: tuple[float, float, Array] | None = field(default=None, init=False)  # power, l2, lower triangle

    def __post_init__(self) -> None:
        self.diagonal = np.maximum(self.matrix.diagonal() - self.means**2, 0.0)

    @classmethod
    def of_matrix(cls, gram: Array, means: Array) -> WideGram:
        """A matrix that was added up from those of shards."""
        from scipy.sparse import csr_array

        if np.count_nonzero(gram) > SPARSE * gram.size:
            return cls(gram, None, means)
        found = csr_array(gram)
        return cls(found.data, (found.indices, found.indptr), means)

    @property
    def matrix(self) -> Array | csr_array:
        """The matrix, not centred."""
        if self.places is None:
            return self.entries
        from scipy.sparse import csr_array  # loaded when it is needed, as for all of a party

        return csr_array((self.entries, *self.places), shape=(len(self.means), len(self.means)))

    def centred(self) -> Array:
        """All entries of the centred matrix."""
        matrix = self.matrix
        whole = matrix if isinstance(matrix, np.ndarray) else matrix.toarray()
        return np.asarray(whole - np.outer(self.means, self.means))

    def solve(self, gradient: Array, curvatures: Array, l2: float) -> Array | None:
        """p for each column of a gradient, (width, k), with its curvature; None if steps do not arrive."""
        matrix, means = self.matrix, self.means[:, None]
        lower = self._preconditioner(float(curvatures.max()), l2) if self.places is None else None
        if self.places is None and lower is None:
            return None
        return _conjugate_gradients(
            gradient,
            np.outer(self.diagonal, curvatures) + l2,
            lambda p: curvatures * (matrix @ p - means * (self.means @ p)) + l2 * p,
            None if lower is None else partial(_twice_solved, lower),
        )

    def _preconditioner(self, curvature: float, l2: float) -> Array | None:
        """The Cholesky factor of the matrix with the power of `ALIKE` that is next to a curvature, whatever was asked
        before; None if the matrix is singular.
        """
        power = _alike(curvature)
        if self._factor is not None and self._factor[:2] == (power, l2):
            return self._factor[2]
        lower = _cholesky(power * self.centred(), l2)
        self._factor = None if lower is None else (power, l2, lower)
        return lower


@dataclass
class FewRows:
    """The Gram matrix of a table that has fewer rows than columns, as these rows and their weights w / N."""

    data: EncodedTable
    weights: Array
    means: Array
    diagonal: Array = field(init=False)  # of the centred matrix
    _products: Array | None = field(default=None, init=False)  # of centred rows with each other, (rows, rows)
    _factor: tuple[float, Array] | None = field(default=None, init=False)  # l2 by curvature, lower triangle

    def __post_init__(self) -> None:
        self.diagonal = np.maximum(_squares(self.data, self.weights) - self.means**2, 0.0)

    def centred(self) -> Array:
        """All entries of the centred matrix."""
        return self.data.gram(self.weights) - np.outer(self.means, self.means)

    def solve(self, gradient: Array, curvatures: Array, l2: float) -> Array | None:
        """p for each column of a gradient, (width, k), with its curvature; None if steps do not arrive.

        With the centred and weighted rows A, K - m m^T = A^T A, and steps are prepared by
        (A^T A + b)^-1 r = (r - A^T (A A^T + b)^-1 A r) / b, where b is l2 by a curvature that others share.
        """
        share = l2 / _alike(float(curvatures.max()))
        lower = self._preconditioner(share) if share > 0 else None
        if lower is None:  # without a penalty there are more solutions than one
            return None
        data, weights, means = self.data, self.weights[:, None], self.means[:, None]
        roots = np.sqrt(weights)

        def times(p: Array) -> Array:
            product = data.transposed_times(weights * data.times(p))
            return curvatures * (product - means * (self.means @ p)) + l2 * p

        def prepare(r: Array) -> Array:
            solved = _twice_solved(lower, self._without_mean(roots * data.times(r)))
            return (r - data.transposed_times(roots * self._without_mean(solved))) / share

        return _conjugate_gradients(gradient, np.outer(self.diagonal, curvatures) + l2, times, prepare)

    def _preconditioner(self, share: float) -> Array | None:
        """The Cholesky factor of A A^T + ``share``; None if that is singular."""
        if self._factor is not None and self._factor[0] == share:
            return self._factor[1]
        if self._products is None:
            self._products = self._row_products()
        lower = _cholesky(self._products, share)
        self._factor = None if lower is None else (share, lower)
        return lower

    def _row_products(self) -> Array:
        """A A^T, with the rows' weights' roots s: C - s u^T - u s^T, for C = diag(s) T T^T diag(s) and some u."""
        found, roots = self.data.products_of_rows(), np.sqrt(self.weights)
        found *= roots
        found *= roots[:, None]
        roots = roots / np.linalg.norm(roots)
        crossed = found @ roots
        crossed -= 0.5 * (roots @ crossed) * roots
        for part in pieces(len(found), len(found)):  # no other matrix of this size
            found[part] -= np.outer(roots[part], crossed) + np.outer(crossed[part], roots)
        return found

    def _without_mean(self, values: Array) -> Array:
        """Weighted values of rows, (rows, k), less what they are if all rows have their mean."""
        roots = np.sqrt(self.weights / self.weights.sum())
        return values - np.outer(roots, roots @ values)


Wide = WideGram | FewRows


def wide_gram(data: EncodedTable, counts: Array, joined_rows: float, means: Array) -> Wide:
    """The Gram matrix of a table with these means, its rows weighted by ``counts``."""
    data.check_gram()  # its eigenvectors may be needed
    weights, numbers = counts / joined_rows, data.dense.shape[1]
    # Products of centred numbers are exact. Where means are small, subtracting them afterwards is so too.
    if np.any(2 * means[:numbers] ** 2 > _squares(data, weights)[:numbers]):
        data, means = data.centred(means[:numbers]), np.append(np.zeros(numbers), means[numbers:])
    if numbers < SPARSE * data.width:
        found = data.sparse_gram(weights)
        if found.nnz <= SPARSE * data.width**2:
            return WideGram(found.data, (found.indices, found.indptr), means)
        return WideGram(found.toarray(), None, means)
    if len(data.dense) < data.width:
        return FewRows(data, weights, means)
    return WideGram(data.gram(counts) / joined_rows, None, means)


def _squares(data: EncodedTable, weights: Array) -> Array:
    """The sum of squares of each column, its rows weighted."""
    squares = np.einsum("i,ij,ij->j", weights, data.dense, data.dense)
    counted = [sums_by_code(codes, size, weights) for codes, size in zip(data.codes, data.sizes, strict=True)]
    return np.concatenate([squares, *counted])


def _conjugate_gradients(gradient: Array, diagonal: Array, times: Product, prepare: Product | None) -> Array | None:
    """p with ``times`` (p) = gradient, (width, k), for a matrix with this diagonal; None if steps do not arrive."""
    scale = np.where(diagonal > 0, 1 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0)), 0.0)
    if gradient[scale == 0].any():  # without a penalty, columns that do not vary say nothing
        return None
    prepare = prepare or (lambda r: scale**2 * r)
    found, rest = np.zeros_like(gradient), gradient
    length = np.linalg.norm(scale * rest, axis=0)
    ready = prepare(rest)
    step, slope = ready, np.sum(rest * ready, axis=0)
    left = np.ones_like(length)
    for _ in range(MOST_STEPS):
        moved = times(step)
        curved = np.sum(step * moved, axis=0)
        size = np.where((curved > 0) & (left > ARRIVED), slope / np.where(curved > 0, curved, 1.0), 0.0)
        found, rest = found + size * step, rest - size * np.where(scale > 0, moved, 0.0)
        left = np.linalg.norm(scale * rest, axis=0) / np.where(length > 0, length, 1.0)
        if not (left > ARRIVED).any():
            break
        ready = prepare(rest)
        before, slope = slope, np.sum(rest * ready, axis=0)
        step = ready + np.where(before > 0, slope / np.where(before > 0, before, 1.0), 0.0) * step
    return found if (left <= NEAR).all() else None


def _alike(curvature: float) -> float:
    """The power of `ALIKE` that is next to a curvature."""
    return float(ALIKE ** round(math.log(curvature, ALIKE)))


def _cholesky(matrix: Array, more: float) -> Array | None:
    """The Cholesky factor of a matrix with more on its diagonal; None if it is singular. Its upper half is no zeros."""
    from scipy.linalg import cho_factor  # numpy's copies more, and wide matrices take long to copy

    diagonal = matrix.diagonal().copy()
    np.fill_diagonal(matrix, diagonal + more)
    try:
        return np.asarray(cho_factor(matrix.T, lower=True, check_finite=False)[0], np.float64)
    except np.linalg.LinAlgError:
        return None
    finally:
        np.fill_diagonal(matrix, diagonal)


def _twice_solved(lower: Array, values: Array) -> Array:
    """(L L^T)^-1 values."""
    from scipy.linalg import cho_solve

    return np.asarray(cho_solve((lower, True), values, check_finite=False))
