"""What descent stores for a linear table: the eigenvectors of its Gram matrix, its direction, its last steps.

The party stores it if the table has one shard, the coordinator if it has several.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from tablepuppet.arrays import Array
from tablepuppet.errors import PartyError
from tablepuppet.learn.linear.wide_gram import WIDE, Wide, WideGram
from tablepuppet.learn.tables.linear import Linear
from tablepuppet.learn.tables.parameters import TableParameters

FLOOR = 1e-13  # eigenvalues below this share of the largest one are rounding errors, and are not inverted
SPREAD = 1e6  # ratio of the columns' variances above which they are scaled before eigenvectors are computed
STILL = 64 * float(np.finfo(np.float64).eps)  # of a mean: a column that deviates less does not vary, but by rounding
LEAST_CURVATURE = 1e-3  # smallest share of the largest curvature over outputs: softmax has none along (1, .., 1)
SMALLEST, LARGEST = 1e-60, 1e60  # bounds of predictions
LARGE = 2.0  # times the usual size of predictions: larger ones are clipped
Curvature = float | Array  # the same for every output, or (outputs, outputs)


@dataclass
class Ridge:
    """Eigenvalues and eigenvectors of a table's Gram matrix, the current direction and the last steps.

    If the columns are of very different scale, they are those of the Gram matrix of columns divided by ``scale``: the
    largest column's rounding errors would exceed the eigenvalues of the smallest.
    """

    values: Array  # eigenvalues
    vectors: Array | None  # eigenvectors; None: the identity
    means: Array | None  # (width,) means of the columns over joined rows; None: not known
    direction: Array
    scale: Array | None = None  # (width,)
    sizes: Array | None = None  # (width,) root mean squares of the columns; None: not known
    wide: Wide | None = None  # the Gram matrix, while its eigenvectors are not needed
    left: float = field(default=0.0, init=False)  # decrease that the gradient promises where nothing is inverted
    steps: list[Array] = field(default_factory=list, init=False)  # the newest first

    def turn(self, theta: Array, sums: Array, l2: float, curvature: Curvature) -> Array:
        """The new direction -p from T^T Y, solved in the eigenvectors of the columns and of the outputs.

        The sums are of centred columns. A direction below the floor is left out, and ``left`` is what the gradient
        promises along it: next to nothing if the columns depend on each other.
        """
        outputs = math.prod(theta.shape[1:])
        gradient = (sums + l2 * theta).reshape(len(theta), outputs)  # (width, outputs)
        curvatures, classes = np.linalg.eigh(square_curvature(curvature, outputs))
        solved = None if self.wide is None else self.wide.solve(gradient @ classes, curvatures, l2)
        if solved is None:
            solved = self._solved(gradient @ classes, curvatures, l2)
        else:
            self.left = 0.0  # conjugate gradients leave nothing out
        self.direction = without_mean(-(solved @ classes.T).reshape(theta.shape))
        return self.direction

    def _solved(self, gradient: Array, curvatures: Array, l2: float) -> Array:
        """p for each column of a gradient, (width, k), with its curvature."""
        self._find_vectors(l2)
        assert self.vectors is not None, "made by ridge_parameters or noisy_ridge_parameters"
        hessian = np.outer(self.values, curvatures) + self._penalties(l2)[:, None]
        floor = FLOOR * max(self.values.max(initial=0.0), 1e-300) * curvatures[None, :]
        kept = hessian > floor
        turned = self.vectors.T @ self._scaled(gradient)
        self.left = 0.5 * float(np.sum(np.where(kept, 0.0, turned**2 / floor)))
        return self._scaled(self.vectors @ (turned / np.where(kept, hessian, np.inf)))

    def _find_vectors(self, l2: float) -> None:
        """The eigenvectors of a wide table, from here on."""
        if self.wide is not None:
            self.values, self.vectors, self.scale = _decomposed(self.wide.centred(), l2)
            self.wide = None

    def _scaled(self, values: Array) -> Array:
        """Values divided by the scales of columns: a gradient by scaled parameters, or these in their own units."""
        return values if self.scale is None else values / self.scale.reshape(-1, *[1] * (values.ndim - 1))

    def _penalties(self, l2: float) -> Array:
        """The L2 penalty of each eigenvector. If columns are scaled, that is its diagonal only: a preconditioner."""
        assert self.vectors is not None, "its callers know"
        if self.scale is None:
            return np.full(len(self.values), l2)
        return np.asarray(l2 * (self.vectors**2).T @ self.scale**-2)

    def advance(self, theta: Array, mix: Array, memory: int) -> Array:
        """theta + mix[0] * direction + sum_k mix[k] * (k-th last step); store it as the newest of ``memory`` steps."""
        if not len(mix):
            return theta
        step = mix[0] * self.direction
        for weight, earlier in zip(mix[1:], self.steps, strict=False):
            step = step + weight * earlier
        step = without_mean(step)
        self.steps = [step, *self.steps][:memory]
        return theta + step

    def products(self, theta: Array, known: int = 0) -> Array:
        """Inner products of direction, steps and parameters: all that the L2 penalty needs.

        The ``known`` oldest steps are columns, but not rows: their products with each other were returned before.
        """
        vectors = np.stack([v.ravel() for v in (self.direction, *self.steps, theta)])
        oldest = max(len(self.steps) - known, 0) + 1
        return np.delete(vectors, np.s_[oldest:-1], axis=0) @ vectors.T

    def descended(
        self, theta: Array, sums: Array, total: Array, lr: float, momentum: float, l2: float, curvature: float,
        damping: float,
    ) -> Array:  # fmt: skip
        """theta after a step of SGD by the gradient of centred columns; the direction is the velocity.

        ``total`` is the sum of Y over all rows, ``curvature`` a bound of the loss's second derivative by one score.
        """
        step = self._conditioned(self.centred(sums, total) + l2 * theta, lr, l2, curvature, damping)
        self.direction = momentum * self.direction + step
        return theta - without_mean(self.direction)

    def _conditioned(self, gradient: Array, lr: float, l2: float, curvature: float, damping: float) -> Array:
        """The gradient, preconditioned so that one learning rate fits every column.

        With eigenvalues k and learning rate r, the gradient along an eigenvector is divided by
        curvature * k / r + damping * curvature * sum(k). The first term alone would give r times a Newton step. The
        second damps columns that few rows of a batch have, such as rare categories.
        """
        self._find_vectors(l2)
        penalties = l2 if self.vectors is None else self._penalties(l2)
        scale = (curvature * self.values + penalties) / max(lr, 1e-300)
        scale = scale + damping * curvature * self.values.sum()
        floor = 0.0 if self.vectors is None else FLOOR * self.values.max(initial=0.0)
        kept = (self.values > floor) & (scale > 0)
        scale = np.where(kept, scale, np.inf).reshape(-1, *[1] * (gradient.ndim - 1))
        if self.vectors is None:
            return np.asarray(gradient / scale)
        return self._scaled(self.vectors @ ((self.vectors.T @ self._scaled(gradient)) / scale))

    def magnitude(self, theta: Array) -> float:
        """About the size of the summands of T theta: their sum is known to the rounding errors of these."""
        return 0.0 if self.sizes is None else float(np.linalg.norm(self.sizes @ np.abs(theta)))

    def centre(self, theta: Array) -> Array:
        """The mean prediction over joined rows, (outputs,)."""
        return np.atleast_1d(self._centres @ theta)

    def centred(self, sums: Array, total: Array) -> Array:
        """T^T Y of centred columns; ``total`` is the sum of Y over all rows."""
        return sums - np.multiply.outer(self._centres, total).reshape(sums.shape)

    @property
    def is_centred(self) -> bool:
        """Whether the means of columns are known; with noise they are not."""
        return self.means is not None

    @property
    def _centres(self) -> Array:
        if self.means is None:
            raise PartyError("this model was started by another solver; fit it again")
        return self.means

    def size(self, theta: Array) -> float:
        """The root mean square of T theta, from the Gram matrix; always positive."""
        assert self.vectors is not None, "made by noisy_ridge_parameters"
        turned = self.vectors.T @ theta
        return float(np.sqrt(np.sum(self.values @ turned**2))) or 1e-12

    def bound(self, theta: Array) -> float:
        """The clipping bound of noisy predictions: `LARGE` times their usual size, always a finite positive number."""
        return float(np.clip(np.nan_to_num(LARGE * self.size(theta), nan=SMALLEST), SMALLEST, LARGEST))


def ridge_of(part: TableParameters) -> Ridge:
    """What descent stores with a table's parameters."""
    return part.remembered(Ridge)


def without_mean(values: Array) -> Array:
    """Subtract the mean over outputs: softmax does not depend on it, so its rounding errors would grow unnoticed.

    A direction is without it before T p is computed: a step that only then loses it has not moved the scores alike.
    """
    return values if values.ndim == 1 else values - values.mean(axis=1, keepdims=True)


def square_curvature(curvature: Curvature, outputs: int) -> Array:
    """The curvature as an (outputs, outputs) matrix whose eigenvalues are at least a floor."""
    square = curvature if isinstance(curvature, np.ndarray) else curvature * np.eye(outputs)
    values, vectors = np.linalg.eigh(square)
    values = np.maximum(values, max(LEAST_CURVATURE * values.max(), 1e-12))
    return np.asarray((vectors * values) @ vectors.T)


def diagonal_ridge_parameters(means: Array, squares: Array, outputs: int) -> TableParameters:
    """Zero parameters with a diagonal preconditioner: ``squares`` are bounds of the columns' second moments."""
    return _zeros(len(means), outputs, squares, None, means, sizes=np.sqrt(squares))


def ridge_parameters(gram: Array, shares: Array, means: Array, outputs: int, l2: float) -> TableParameters:
    """Zero parameters, with the eigendecomposition of the Gram matrix of centred columns.

    In ``gram`` numbers are centred, and columns of 0 and 1 are not: ``shares`` are their means, and 0 for numbers.
    """
    if len(gram) >= WIDE:
        return wide_ridge_parameters(WideGram.of_matrix(gram, shares), means, outputs)
    centred = gram - np.outer(shares, shares)
    still = np.diag(centred) <= (STILL * means) ** 2 + STILL * shares**2
    centred[still], centred[:, still] = 0.0, 0.0  # scaled to the size of others, its rounding errors would be a column
    values, vectors, scale = _decomposed(centred, l2)
    return _zeros(len(gram), outputs, values, vectors, means, scale, _sizes(np.diag(centred), means))


def _sizes(variances: Array, means: Array) -> Array:
    """Root mean squares of columns."""
    return np.asarray(np.sqrt(np.maximum(variances, 0.0) + means**2))


def _decomposed(centred: Array, l2: float) -> tuple[Array, Array, Array | None]:
    """Eigenvalues and eigenvectors of a Gram matrix of columns, and what these were divided by before."""
    scale = column_scale(np.diag(centred), l2)
    values, vectors = np.linalg.eigh(centred if scale is None else centred / np.outer(scale, scale))
    return np.maximum(values, 0.0), vectors, scale


def column_scale(variances: Array, l2: float) -> Array | None:
    """What to divide columns by before their Gram matrix is decomposed; None if that gains nothing.

    The L2 penalty counts as variance: where it is larger, it decides the step. If it lifts all eigenvalues above the
    floor and scales are alike, columns stay as they are: then their eigenvectors are those of the penalty too.
    """
    sizes = variances + l2
    known = sizes[sizes > 0]
    if not len(known) or (known.max() <= SPREAD * known.min() and l2 > FLOOR * known.max()):
        return None
    return np.sqrt(np.where(sizes > 0, sizes, 1.0))


def wide_ridge_parameters(gram: Wide, means: Array, outputs: int) -> TableParameters:
    """The parameters of a ridge solve over a wide table, whose eigenvectors are computed only if they are needed."""
    part = _zeros(len(means), outputs, gram.diagonal, None, means, sizes=_sizes(gram.diagonal, means))
    part.remembered(Ridge).wide = gram
    return part


def noisy_ridge_parameters(gram: Array, noise: float, outputs: int) -> TableParameters:
    """The parameters of a ridge solve with a noisy Gram matrix: eigenvalues below those of noise carry nothing."""
    values, vectors = np.linalg.eigh(gram)
    values = np.maximum(values, 2 * noise * np.sqrt(len(gram)))
    return _zeros(len(gram), outputs, values, vectors, None)


def _zeros(
    width: int, outputs: int, values: Array, vectors: Array | None, means: Array | None, scale: Array | None = None,
    sizes: Array | None = None,
) -> TableParameters:  # fmt: skip
    model = Linear(outputs).over(width)
    theta = model.start(0, "", width)
    return TableParameters(model, theta, memory=Ridge(values, vectors, means, np.zeros_like(theta), scale, sizes))
