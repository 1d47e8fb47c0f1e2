"""The best that a linear learner can reach on a matrix, in float64, and what it did reach.

The objective is the mean loss, half the squared error or the log loss, plus l2 / 2 |theta|^2, not on the intercept.
Columns are centred and scaled to one length before anything is solved, so that neither a large mean nor a large scale
costs digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logsumexp, softmax

from .scenes import Array

MOST_STEPS = 60  # of Newton's method
STILL = 2  # of them in a row that gain nothing


def mean_loss(scores: Array, labels: NDArray[Any], classes: int) -> float:
    """Half the mean squared error without classes, else the log loss of class numbers."""
    if not classes:
        return 0.5 * float(np.mean((scores - labels) ** 2))
    if classes == 2:
        return float(np.mean(np.logaddexp(0, scores) - labels * scores))
    return float(np.mean(logsumexp(scores, axis=1) - scores[np.arange(len(scores)), labels]))


def centred(matrix: Array) -> tuple[Array, Array]:
    """(columns without their mean, the means): a mean of 1e9 is taken off before it is multiplied with anything."""
    first = matrix[:1]
    means = first + (matrix - first).mean(axis=0)
    return matrix - means, means[0]


def condition(matrix: Array) -> float:
    """The condition number of centred columns of one length, those that are constant left out; of exact dependencies,
    as those of 0/1 columns with the intercept, nothing is said.
    """
    less, _ = centred(matrix)
    lengths = np.sqrt((less**2).sum(axis=0))
    values = np.linalg.svd(less[:, lengths > 0] / lengths[lengths > 0], compute_uv=False)
    some = values[values > 1e-12 * values.max(initial=0.0)]
    return float(some.max() / some.min()) if len(some) else 1.0


def objective_of(model: Any, names: Sequence[str], matrix: Array, labels: NDArray[Any], classes: int = 0) -> float:
    """The objective of a fitted learner, by its own coefficients and intercept."""
    known = model.coef_  # asked for once: it may be at parties
    theta = np.array([np.asarray(known[name], float).reshape(-1) for name in names]).reshape(matrix.shape[1], -1)
    less, means = centred(matrix)
    scores = less @ theta + (means @ theta + np.atleast_1d(model.intercept_))
    if scores.shape[1] == 1:
        scores = scores[:, 0]
    return mean_loss(scores, labels, classes) + 0.5 * float(model.l2) * float(np.sum(theta**2))


def least_squares(matrix: Array, labels: Array, l2: float) -> float:
    """The least objective of ridge regression."""
    less, _ = centred(matrix)
    right = labels - labels[0]
    right = right - right.mean()
    rows, width = less.shape
    lengths = np.sqrt((less**2).mean(axis=0) + l2)
    lengths[lengths == 0] = 1.0
    stacked = np.concatenate([less / lengths / np.sqrt(rows), np.diag(np.sqrt(l2) / lengths)])
    wanted = np.concatenate([right / np.sqrt(rows), np.zeros(width)])
    scaled = np.linalg.lstsq(stacked, wanted, rcond=1e-14)[0]
    return 0.5 * float(np.sum((stacked @ scaled - wanted) ** 2))


def logistic(matrix: Array, labels: NDArray[np.integer[Any]], classes: int, l2: float) -> float:
    """The least objective of logistic regression, by Newton's method with halved steps."""
    less, _ = centred(matrix)
    lengths = np.sqrt((less**2).mean(axis=0))
    lengths[lengths == 0] = 1.0
    wide = np.concatenate([less / lengths, np.ones((len(less), 1))], axis=1)
    penalty = np.append(l2 / lengths**2, 0.0)
    outputs = 1 if classes == 2 else classes
    wanted = (labels == 1).astype(float)[:, None] if outputs == 1 else np.eye(classes)[labels]
    point = np.zeros((wide.shape[1], outputs))

    def value(at: Array) -> float:
        scores = wide @ at
        loss = mean_loss(scores[:, 0] if outputs == 1 else scores, labels, classes)
        return loss + 0.5 * float(np.sum(penalty[:, None] * at**2))

    best, still, damping = value(point), 0, 0.0
    for _ in range(MOST_STEPS):
        if still == STILL or damping > 1:
            break
        scores = wide @ point
        chance = expit(scores) if outputs == 1 else softmax(scores, axis=1)
        slope = wide.T @ (chance - wanted) / len(wide) + penalty[:, None] * point
        hessian = _hessian(wide, chance, penalty)
        moves = np.linalg.lstsq(hessian + damping * np.eye(len(hessian)), slope.T.ravel(), rcond=1e-15)[0]
        lengths_tried = 0.5 ** np.arange(12)
        values = [value(point - length * moves.reshape(outputs, -1).T) for length in lengths_tried]
        place = int(np.argmin(values))
        if values[place] >= best:
            damping = max(10 * damping, 1e-14)
            continue
        point = point - lengths_tried[place] * moves.reshape(outputs, -1).T
        before, best, damping = best, values[place], damping / 10
        still = still + 1 if before - best <= 1e-13 * before else 0
    return best


def _hessian(wide: Array, chance: Array, penalty: Array) -> Array:
    outputs, width = chance.shape[1], wide.shape[1]
    found = np.zeros((outputs, width, outputs, width))
    for i in range(outputs):
        for j in range(i + 1):
            weight = chance[:, i] * (float(i == j) - chance[:, j]) / len(wide)
            found[i, :, j, :] = found[j, :, i, :] = wide.T @ (weight[:, None] * wide)
        found[i, :, i, :] += np.diag(penalty)
    return found.reshape(outputs * width, outputs * width)
