"""Whether learning by batches diverges: its loss is then far above that of a constant prediction."""

from __future__ import annotations

from tablepuppet.errors import LearnError
from tablepuppet.learn.loss.joined_loss import JoinedLoss

DIVERGED = 1000  # times the loss of a constant prediction


class Divergence:
    """Checks the loss of each epoch, as far as it is summed up."""

    def __init__(self, loss: JoinedLoss):
        self._most = DIVERGED * loss.constant_value()

    def check(self, epoch: int, total: float) -> None:
        """Raise LearnError if the sum of the losses of this epoch's batches so far is far too large, or no number."""
        if self._most and not total <= self._most:
            raise LearnError(
                f"learning diverged in epoch {epoch}: the loss is more than {DIVERGED:,} times that of a constant "
                "prediction; lower lr, or leave it at 'auto'. If it is small, a party sends numbers that do not fit"
            )
