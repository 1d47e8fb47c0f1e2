"""A loss over joined rows: every method is a pass over their blocks, and returns a few numbers at most.

Labels and scores are columns of the rows (operators/joined_rows.py). An evaluation stores what its derivatives need in
the column `EVALUATION` until the next evaluation, so gradient and Hessian need no further exponentials.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tablepuppet.learn.loss.losses import Evaluation, Loss
from tablepuppet.operators.joined_rows import SCORES, Block, JoinedRows

Array = NDArray[np.float64]
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
        sums = self.rows.total(lambda block: self.pointwise.label_sums(block.labels, block.weights))
        return self.pointwise.best_constant(np.atleast_1d(sums), self.rows.joined)

    def constant_value(self) -> float:
        """The sum over the joined rows of the least loss that constant scores have; no column is written."""
        constant = self.best_constant()

        def value(block: Block) -> float:
            scores = np.full(len(block), constant[0]) if self.outputs == 1 else np.tile(constant, (len(block), 1))
            return float(self.pointwise.evaluate(scores, block.labels, weights=block.weights).value)

        return float(self.rows.total(value))

    def set_constant(self, constant: Array) -> None:
        """Set the scores of all rows to the same values."""
        self.rows.reserve(SCORES)
        self.rows.each(_fill, constant)

    # Evaluation.

    def evaluate(self) -> float:
        """The mean loss at the scores; the evaluation is stored."""
        self.reserve()
        return float(self.rows.total(lambda block: self.evaluate_at(block, block[SCORES]).value)) / self.rows.joined

    def reserve(self) -> None:
        """Reserve memory for evaluations."""
        self.rows.reserve(EVALUATION, self.pointwise.kept)

    def evaluate_at(self, block: Block, scores: Array) -> Evaluation:
        """Evaluate a block at these scores; the evaluation is stored."""
        return self.pointwise.evaluate(scores, block.labels, block.stored(EVALUATION), block.weights)

    def evaluation(self, block: Block) -> Evaluation:
        """The stored evaluation of a block, without its value.

        A quadratic loss stores nothing: it is evaluated again at the scores.
        """
        return self.pointwise.evaluated(block[SCORES], block.labels, block.stored(EVALUATION), block.weights)

    # Derivatives of the last evaluation.

    def write_gradient(self) -> Array:
        """Write the gradient of the mean loss by scores into the column `GRADIENT`; its sum over rows, (outputs,)."""
        self.rows.reserve(GRADIENT)
        return np.atleast_1d(self.rows.total(self._write_gradient))

    def _write_gradient(self, block: Block) -> Array:
        gradient = block[GRADIENT]
        np.divide(self.evaluation(block).gradient, self.rows.joined, out=gradient)
        return np.asarray(gradient.sum(axis=0))

    def gradient_sum(self) -> Array:
        """The sum over rows of the gradient of the mean loss, (outputs,)."""
        return np.atleast_1d(
            self.rows.total(lambda block: (self.evaluation(block).gradient / self.rows.joined).sum(axis=0))
        )

    def mean_curvature(self) -> float:
        """The mean of the Hessian's diagonal over rows and outputs."""
        trace: float = self.rows.total(lambda block: self.evaluation(block).hessian.trace())
        return trace / (self.rows.joined * self.outputs)

    def curvature_matrix(self) -> Array:
        """The mean Hessian of a row, (outputs, outputs)."""
        return np.asarray(
            self.rows.total(lambda block: self.evaluation(block).hessian.on_constants()) / self.rows.joined
        )


def _fill(block: Block, constant: Array) -> None:
    block.stored(SCORES)[:] = constant[:, None]
