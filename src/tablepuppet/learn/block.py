"""The parameters of one table and what descent remembers of them; the same class at a party and at the coordinator.

A party holds the block of a table with one shard, the coordinator that of a table with several.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
FLOOR = 1e-10  # directions with less than this share of the largest eigenvalue are never inverted
LEAST_CURVATURE = 1e-3  # of a combination of classes, as a share of the largest: softmax has none along (1, .., 1)
Curvature = float | Array  # the same for every output, or (outputs, outputs)


@dataclass
class Block:
    """The parameters of one table, with its direction and its last steps."""

    theta: Array  # (width,) or (width, outputs)
    noisy: bool = field(default=False, kw_only=True)  # whether all that it is made of had noise: then it may be told
    direction: Array = field(init=False)
    steps: list[Array] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.direction = np.zeros_like(self.theta)

    def advance(self, mix: Array, memory: int) -> None:
        """theta += mix[0] * direction + sum_k mix[k] * (k-th last step), the newest of ``memory`` steps to remember."""
        if not len(mix):
            return
        step = mix[0] * self.direction
        for weight, earlier in zip(mix[1:], self.steps, strict=False):
            step = step + weight * earlier
        step = without_mean(step)
        self.theta = self.theta + step
        self.steps = [step, *self.steps][:memory]

    def descend(self, sums: Array, lr: float, momentum: float, l2: float) -> None:
        """One step of stochastic gradient descent (Eq. 13); the direction is the velocity."""
        self.direction = momentum * self.direction + sums + l2 * self.theta
        self.theta = self.theta - lr * self.direction

    def to_store(self, unit: float) -> tuple[Array, tuple[int, ...]]:
        """The parameters for scores ``unit`` times as large; it has no layers."""
        return self.theta * unit, ()

    def products(self) -> Array:
        """Inner products of direction, steps and parameters: all that the L2 penalty needs."""
        vectors = np.stack([v.ravel() for v in (self.direction, *self.steps, self.theta)])
        return vectors @ vectors.T


@dataclass
class RidgeBlock(Block):
    """A block with the eigenvectors of its centred Gram matrix."""

    values: Array  # eigenvalues
    vectors: Array
    largest: float  # no eigenvalue of the Gram matrix, not centred, is larger

    def turn(self, sums: Array, l2: float, curvature: Curvature) -> Array:
        """The new direction -p from T^T Y, where both the columns and the outputs are turned to their eigenvectors."""
        gradient = (sums + l2 * self.theta).reshape(len(self.theta), -1)  # (width, outputs)
        curvatures, classes = np.linalg.eigh(square_curvature(curvature, gradient.shape[1]))
        kept = self.values > FLOOR * max(self.values.max(initial=0.0), 1e-300)
        scale = np.where(kept[:, None], np.outer(self.values, curvatures) + l2, np.inf)
        turned = self.vectors @ ((self.vectors.T @ gradient @ classes) / scale) @ classes.T
        self.direction = -turned.reshape(self.theta.shape)
        return self.direction


def without_mean(values: Array) -> Array:
    """Values of several outputs less their mean: softmax does not see it, so nothing holds its rounding errors back."""
    return values if values.ndim == 1 else values - values.mean(axis=1, keepdims=True)


def square_curvature(curvature: Curvature, outputs: int) -> Array:
    """The curvature by pairs of outputs, along every combination of them above a floor."""
    square = curvature if isinstance(curvature, np.ndarray) else curvature * np.eye(outputs)
    values, vectors = np.linalg.eigh(square)
    values = np.maximum(values, max(LEAST_CURVATURE * values.max(), 1e-12))
    return np.asarray((vectors * values) @ vectors.T)


def new_block(width: int, outputs: int, *, noisy: bool = False) -> Block:
    """A block of zeros."""
    return Block(_zeros(width, outputs), noisy=noisy)


def new_ridge_block(gram: Array, means: Array, outputs: int) -> RidgeBlock:
    """A block of zeros with the eigendecomposition of its centred Gram matrix."""
    values, vectors = np.linalg.eigh(gram - np.outer(means, means))
    values = np.maximum(values, 0.0)
    largest = float(values.max(initial=0.0) + means @ means)
    return RidgeBlock(_zeros(len(gram), outputs), values, vectors, largest)


def new_noisy_block(gram: Array, noise: float, outputs: int) -> RidgeBlock:
    """A block of zeros from a Gram matrix with noise: eigenvalues below what noise alone has tell nothing."""
    values, vectors = np.linalg.eigh(gram)
    values = np.maximum(values, 2 * noise * np.sqrt(len(gram)))
    return RidgeBlock(_zeros(len(gram), outputs), values, vectors, float(values.max(initial=0.0)), noisy=True)


def _zeros(width: int, outputs: int) -> Array:
    return np.zeros(width if outputs == 1 else (width, outputs))
