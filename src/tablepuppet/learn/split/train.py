"""Split learning by mini-batches of joined rows: the loop that SplitNN and what builds on it have in common.

A batch of joined rows has some distinct base rows of every table. Their embeddings, one each, are gathered to the
joined rows; the top network and the loss follow; the gradient by them is summed at base rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from tablepuppet.arrays import Floats
from tablepuppet.learn.loss.joined_loss import JoinedLoss
from tablepuppet.learn.rounds import Round
from tablepuppet.learn.solve.batches import Divergence, run_batches
from tablepuppet.learn.split.exchange import Exchange
from tablepuppet.learn.split.model import Embeddings
from tablepuppet.learn.split.top import Top
from tablepuppet.learn.threads import need_torch, one_thread
from tablepuppet.mapping.batches import Batch
from tablepuppet.mapping.joined_rows import SCORES


def learn_by_batches(
    exchange: Exchange, loss: JoinedLoss, rates: Sequence[float], size: int, seed: int,
    report: Callable[[Round], bool], fixed: Embeddings | None = None,
) -> Round:  # fmt: skip
    """Epochs of mini-batches, one for each learning rate, until ``report`` says to stop; return the last round.

    ``fixed`` are embeddings of tables that do not learn. The loss of a round is the mean over its batches, each
    measured before its step.
    """
    head = BatchTop(exchange.model.top, exchange.model.l2, loss, dict(fixed or {}))
    # parties in this process compute at the same time; what overflows is found by its loss
    with one_thread(need_torch()), np.errstate(over="ignore", invalid="ignore"):
        run_batches(exchange, head, loss.rows, rates, size, seed, lambda epoch: report(head.round(epoch)))
    return head.done


class BatchTop:
    """Scores of a batch by a top network, from embeddings of tables that learn and of those that do not (``known``)."""

    def __init__(self, top: Top, l2: float, loss: JoinedLoss, known: Embeddings):
        self.top, self.l2, self.loss, self.known, self._divergence = top, l2, loss, known, Divergence(loss)
        self._total = self._added = 0.0
        self.done = Round(0, 0.0, 0.0, np.zeros(loss.outputs), converged=False)  # the last epoch
        loss.rows.reserve(SCORES)

    def learn(self, batch: Batch, outputs: Mapping[str, Floats], lr: float) -> dict[str, Floats]:
        """The step of the top network; gradients by embeddings, summed at distinct base rows."""
        top, rows = self.top, self.loss.rows
        learned = {alias: values[batch.base[alias]] for alias, values in outputs.items()}
        fixed = {alias: rows.taken_at(batch.rows, alias, values) for alias, values in self.known.items()}
        scores = top.forward(learned | fixed).astype(np.float64)
        plain = scores[:, 0] if scores.shape[1] == 1 else scores
        here = self.loss.pointwise.evaluate(plain, rows.labels_of(batch.rows))
        joined = top.backward((here.gradient / len(batch.rows)).reshape(scores.shape), outputs)
        gradients = {alias: at_base_rows(batch, alias, values) for alias, values in joined.items()}
        rows.put(SCORES, batch.rows, plain)
        self._total += here.value
        self._divergence.check(batch.epoch, self._total)
        self._added += top.added * len(batch.rows)
        top.step(lr, self.l2)
        return gradients

    def round(self, epoch: int) -> Round:
        """The epoch that has ended."""
        rows, total, added = len(self.loss.rows), self._total, self._added
        self._total = self._added = 0.0
        objective = (total + added) / rows + 0.5 * self.l2 * self.top.square()
        self.done = replace(self.done, number=epoch, objective=objective, loss=total / rows)
        return self.done


def at_base_rows(batch: Batch, alias: str, values: Floats) -> Floats:
    """Values of the joined rows of a batch, (rows, width), summed at their base rows."""
    index, rows = batch.base[alias], len(batch.places[alias])
    sums = np.zeros((rows, values.shape[1]), values.dtype)
    if rows == len(index):  # each base row once
        sums[index] = values
        return sums
    torch = need_torch()
    torch.from_numpy(sums).index_add_(0, torch.from_numpy(index), torch.from_numpy(values))
    return sums
