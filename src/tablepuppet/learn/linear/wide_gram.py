"""The Gram matrix of a wide table, solved without its eigenvectors: these take as long as the cube of its width.

Input: K = T^T diag(w) T / N of columns whose numbers are centred, sparse where the table has categories, as most of
them never meet, and the means m of these columns: shares of categories, and 0 for numbers. Output: solutions p of
(c (K - m m^T) + l2) p = g for some curvatures c, by conjugate gradients (Hestenes and Stiefel 1952). Columns are first
scaled to a unit diagonal; of a matrix of numbers, its Cholesky factor then is the preconditioner, which other
curvatures share. Where they do not arrive, nothing is returned, and the caller needs eigenvectors: columns depend on
each other, or nearly so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tablepuppet.prep.encode.encoded_table import EncodedTable

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Array = NDArray[np.float64]
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
    def of(cls, data: EncodedTable, counts: Array, joined_rows: float, means: Array) -> WideGram:
        """The Gram matrix of a table, its rows weighted by ``counts``."""
        data.check_gram()  # its eigenvectors may be needed
        if data.dense.shape[1] < SPARSE * data.width:
            found = data.sparse_gram(counts / joined_rows)
            if found.nnz <= SPARSE * data.width**2:
                return cls(found.data, (found.indices, found.indptr), means)
            return cls(found.toarray(), None, means)
        return cls(data.gram(counts) / joined_rows, None, means)

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

        def times(p: Array) -> Array:
            return curvatures * (matrix @ p - means * (self.means @ p)) + l2 * p

        diagonal = np.outer(self.diagonal, curvatures) + l2
        scale = np.where(diagonal > 0, 1 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0)), 0.0)
        lower = self._preconditioner(float(curvatures.max()), l2) if self.places is None else None
        if self.places is None and lower is None:
            return None

        def prepare(r: Array) -> Array:
            return scale**2 * r if lower is None else _twice_solved(lower, r)

        if gradient[scale == 0].any():  # without a penalty, columns that do not vary say nothing
            return None
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

    def _preconditioner(self, curvature: float, l2: float) -> Array | None:
        """The Cholesky factor of the matrix with the power of `ALIKE` that is next to a curvature, whatever was asked
        before; None if the matrix is singular.
        """
        power = ALIKE ** round(math.log(curvature, ALIKE))
        if self._factor is not None and self._factor[:2] == (power, l2):
            return self._factor[2]
        whole = power * self.centred()
        whole[np.diag_indices_from(whole)] += l2
        try:
            lower = np.asarray(np.linalg.cholesky(whole), np.float64)
        except np.linalg.LinAlgError:
            return None
        self._factor = power, l2, lower
        return lower


def _twice_solved(lower: Array, values: Array) -> Array:
    """(L L^T)^-1 values."""
    from scipy.linalg import solve_triangular

    half = solve_triangular(lower, values, lower=True, check_finite=False)
    return np.asarray(solve_triangular(lower, half, lower=True, trans="T", check_finite=False))
