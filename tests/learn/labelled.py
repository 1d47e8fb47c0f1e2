"""A loss together with the labels of some rows, as the tests of losses and solvers need it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.learn.loss.joined_loss import JoinedLoss
from tablepuppet.learn.loss.losses import Evaluation, Loss
from tablepuppet.mapping.joined_rows import JoinedRows
from tablepuppet.mapping.table_mapping import TableMapping

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Labelled:
    """A loss of scores against these labels."""

    loss: Loss
    labels: NDArray[Any]

    @property
    def outputs(self) -> int:
        """Scores per row."""
        return self.loss.outputs

    def evaluate(self, scores: Array) -> Evaluation:
        """Value and derivatives, summed over rows."""
        return self.loss.evaluate(scores, self.labels)

    def value(self, scores: Array) -> float:
        """The mean loss."""
        return self.loss.value(scores, self.labels)

    def gradient(self, scores: Array) -> Array:
        """The gradient of the mean loss."""
        return self.loss.gradient(scores, self.labels)

    def best_constant(self) -> Array:
        """The constant scores with the least loss."""
        return self.loss.best_constant(self.loss.label_sums(self.labels), len(self.labels))

    def at(self, rows: NDArray[np.intp]) -> Labelled:
        """The loss of some rows."""
        return Labelled(self.loss, self.labels[rows])

    def joined(self) -> JoinedLoss:
        """The loss over joined rows that no table is mapped to."""
        rows = JoinedRows(TableMapping({}, len(self.labels)), self.outputs, self.labels)
        return JoinedLoss(self.loss, rows)
