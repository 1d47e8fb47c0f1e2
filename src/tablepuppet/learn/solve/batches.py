"""The one loop over mini-batches of joined rows: what SGD of sums, networks across parties and pretraining share.

An exchange takes the steps of tables and returns their outputs for the next batch, predictions or embeddings; a batch
head is what stands between these outputs and the loss, with the parameters that it has itself. So a batch costs one
trip, and one more where shards of a table add up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from tablepuppet.arrays import Floats
from tablepuppet.errors import LearnError
from tablepuppet.learn.loss.joined_loss import JoinedLoss
from tablepuppet.mapping.batches import Batch, batches_of_epochs
from tablepuppet.mapping.joined_rows import JoinedRows

ByTable = Mapping[str, Floats]
"""Of the distinct base rows of a batch, by alias."""


class Exchange(Protocol):
    """Takes the steps of tables."""

    tables: list[str]  # those that learn

    def __call__(self, done: Batch | None, gradients: ByTable, following: Batch | None, lr: float) -> ByTable:
        """Take the steps of the batch that is ``done``; return the outputs of tables for the ``following`` one."""
        ...


class BatchHead(Protocol):
    """Computes scores and loss of a batch from the outputs of tables."""

    def learn(self, batch: Batch, outputs: ByTable, lr: float) -> ByTable:
        """Take its own step for a batch; the gradient of the mean loss by the outputs of tables."""
        ...


def run_batches(
    exchange: Exchange, head: BatchHead, rows: JoinedRows, rates: Sequence[float], size: int, seed: int,
    ends: Callable[[int], bool], secured: Iterable[str] = (),
) -> None:  # fmt: skip
    """One epoch for each learning rate, until ``ends`` says so after one; of ``secured`` tables shards mask sums."""
    upcoming = batches_of_epochs(rows, exchange.tables, size, seed, len(rates), secured)
    batch: Batch | None = next(upcoming)
    outputs = exchange(None, {}, batch, rates[0])
    while batch is not None:
        following, lr = next(upcoming, None), rates[batch.epoch - 1]
        outputs = exchange(batch, head.learn(batch, outputs, lr), following, lr)
        if batch.is_last and ends(batch.epoch):
            return
        batch = following


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
