"""A loss over joined rows: every method is a pass over their blocks, and returns a few numbers at most.

What is computed in a block is a function of the block and of the loss of a single row, which holds no rows.

Labels and scores are columns of the rows (mapping/joined_rows.py). An evaluation stores what its derivatives need in
the column `EVALUATION` until the next evaluation, so gradient and Hessian need no further exponentials.

Labels are learned as y / std(y) by networks, whose parameters then are of size 1, and as y - mean(y) by linear models:
scores as large as the mean would be rounded like it. What is reported is in the label's own unit again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array
from tablepuppet.learn.loss.losses import Evaluation, Loss, Squared
from tablepuppet.learn.rounds import Round
from tablepuppet.mapping.joined_rows import SCORES, Block, JoinedRows

EVALUATION, GRADIENT = "evaluation", "gradient"


@dataclass(frozen=True)
class JoinedLoss:
    """The mean loss of the rows' scores against their labels."""

    pointwise: Loss
    rows: JoinedRows

    @property
    def outputs(self) -> int:
        """Scores per joined row."""
        return self.pointwise.outputs

    @property
    def quadratic(self) -> bool:
        """Whether the second derivative is constant."""
        return self.pointwise.quadratic

    @property
    def most_curvature(self) -> float:
        """An upper bound of the second derivative by one score."""
        return self.pointwise.most_curvature

    def best_constant(self) -> Array:
        """The constant scores, (outputs,), with the least loss."""
        sums = self.rows.total(_label_sums, self.pointwise)
        return self.pointwise.best_constant(np.atleast_1d(sums), self.rows.joined)

    def constant_value(self) -> float:
        """The sum over the joined rows of the least loss that constant scores have; no column is written."""
        return float(self.rows.total(_constant_value, self.pointwise, self.best_constant()))

    def set_constant(self, constant: Array) -> None:
        """Set the scores of all rows to the same values."""
        self.rows.reserve(SCORES)
        self.rows.each(_fill, constant)

    # Evaluation.

    def evaluate(self) -> float:
        """The mean loss at the scores; the evaluation is stored."""
        self.reserve()
        return float(self.rows.total(_value, self.pointwise)) / self.rows.joined

    def reserve(self) -> None:
        """Reserve memory for evaluations."""
        self.rows.reserve(EVALUATION, self.pointwise.kept)

    # Derivatives of the last evaluation.

    def write_gradient(self) -> Array:
        """Write the gradient of the mean loss by scores into the column `GRADIENT`; its sum over rows, (outputs,)."""
        self.rows.reserve(GRADIENT)
        return np.atleast_1d(self.rows.total(_write_gradient, self.pointwise, self.rows.joined))

    def gradient_sum(self) -> Array:
        """The sum over rows of the gradient of the mean loss, (outputs,)."""
        return np.atleast_1d(self.rows.total(_gradient_sum, self.pointwise, self.rows.joined))

    def mean_curvature(self) -> float:
        """The mean of the Hessian's diagonal over rows and outputs."""
        trace: float = self.rows.total(_trace, self.pointwise)
        return trace / (self.rows.joined * self.outputs)

    def curvature_matrix(self) -> Array:
        """The mean Hessian of a row, (outputs, outputs)."""
        return np.asarray(self.rows.total(_curvature, self.pointwise) / self.rows.joined)


# What is computed in a block of the joined rows.


def evaluate_at(block: Block, loss: Loss, scores: Array) -> Evaluation:
    """Evaluate a block at these scores; the evaluation is stored."""
    return loss.evaluate(scores, block.labels, block.stored[EVALUATION], block.weights)


def evaluation(block: Block, loss: Loss) -> Evaluation:
    """The stored evaluation of a block, without its value.

    A quadratic loss stores nothing: it is evaluated again at the scores.
    """
    return loss.evaluated(block[SCORES], block.labels, block.stored[EVALUATION], block.weights)


def _label_sums(block: Block, loss: Loss) -> Array | float:
    return loss.label_sums(block.labels, block.weights)


def _constant_value(block: Block, loss: Loss, constant: Array) -> float:
    scores = np.full(block.rows, constant[0]) if loss.outputs == 1 else np.tile(constant, (block.rows, 1))
    return float(loss.evaluate(scores, block.labels, weights=block.weights).value)


def _fill(block: Block, constant: Array) -> None:
    block.stored[SCORES][:] = constant[:, None]


def _value(block: Block, loss: Loss) -> float:
    return evaluate_at(block, loss, block[SCORES]).value


def _write_gradient(block: Block, loss: Loss, joined: int) -> Array:
    gradient = block[GRADIENT]
    np.divide(evaluation(block, loss).gradient, joined, out=gradient)
    return np.asarray(gradient.sum(axis=0))


def _gradient_sum(block: Block, loss: Loss, joined: int) -> Array:
    return np.asarray((evaluation(block, loss).gradient / joined).sum(axis=0))


def _trace(block: Block, loss: Loss) -> float:
    return evaluation(block, loss).hessian.trace()


def _curvature(block: Block, loss: Loss) -> Array:
    return evaluation(block, loss).hessian.on_constants()


FAR = 1e3  # standard deviations between mean and zero, beyond which digits of errors are lost


def in_units(loss: JoinedLoss) -> tuple[JoinedLoss, float]:
    """The loss of labels in units of their standard deviation, and the unit."""
    if not isinstance(loss.pointwise, Squared):
        return loss, 1.0
    unit = label_deviation(loss.rows) or 1.0
    return JoinedLoss(loss.pointwise, loss.rows.with_labels(_in_units, unit)), unit


def _in_units(block: Block, unit: float) -> NDArray[np.float64]:
    return np.asarray(block.labels / unit)


def around_mean(loss: JoinedLoss) -> tuple[JoinedLoss, float]:
    """The loss of labels minus their mean, and the mean; the same loss and 0 if the mean is not far from zero."""
    if not isinstance(loss.pointwise, Squared):
        return loss, 0.0
    mean = float(loss.best_constant()[0])
    if abs(mean) <= FAR * label_deviation(loss.rows):
        return loss, 0.0
    return JoinedLoss(loss.pointwise, loss.rows.with_labels(_around, mean)), mean


def _around(block: Block, mean: float) -> NDArray[np.float64]:
    return np.asarray(block.labels - mean)


def label_deviation(rows: JoinedRows) -> float:
    """The standard deviation of labels over joined rows."""
    mean = float(JoinedLoss(Squared(), rows).best_constant()[0])
    return math.sqrt(rows.total(_squares_around, mean) / rows.joined)


def _squares_around(block: Block, mean: float) -> float:
    away = block.labels - mean
    return float(away @ away if block.weights is None else block.weights @ (away * away))


def out_of_units(done: Round, unit: float) -> Round:
    """The result of a round, in the label's own units."""
    if unit == 1.0:
        return done
    square = unit**2
    return replace(done, objective=done.objective * square, loss=done.loss * square, intercept=done.intercept * unit)
