"""Split learning by mini-batches of joined rows: the loop that SplitNN and what builds on it have in common.

A batch of joined rows has some distinct base rows of every table. Their embeddings, one each, are gathered to the
joined rows; the top network and the loss follow; the gradient by them is summed at base rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tablepuppet.learn.loss.divergence import Divergence
from tablepuppet.learn.loss.joined_loss import JoinedLoss
from tablepuppet.learn.rounds import Round
from tablepuppet.learn.split.exchange import Exchange
from tablepuppet.learn.split.model import Embeddings
from tablepuppet.learn.split.top import Top
from tablepuppet.learn.tables.network import need_torch
from tablepuppet.learn.threads import one_thread
from tablepuppet.mapping.batches import Batch, batches_of_epochs
from tablepuppet.mapping.joined_rows import SCORES
from tablepuppet.mapping.table_mapping import Floats

Array = NDArray[np.float64]


def learn_by_batches(
    exchange: Exchange, loss: JoinedLoss, rates: Sequence[float], size: int, seed: int,
    report: Callable[[Round], bool], fixed: Embeddings | None = None,
) -> Round:  # fmt: skip
    """Epochs of mini-batches, one for each learning rate, until ``report`` says to stop; return the last round.

    ``fixed`` are embeddings of tables that do not learn. The loss of a round is the mean over its batches, each
    measured before its step.
    """
    # parties in this process compute at the same time; what overflows is found by its loss
    with one_thread(need_torch()), np.errstate(over="ignore", invalid="ignore"):
        return _learn(exchange, loss, rates, size, seed, report, dict(fixed or {}))


def _learn(
    exchange: Exchange, loss: JoinedLoss, rates: Sequence[float], size: int, seed: int,
    report: Callable[[Round], bool], known: Embeddings,
) -> Round:  # fmt: skip
    top, l2, rows = exchange.model.top, exchange.model.l2, loss.rows
    rows.reserve(SCORES)
    divergence = Divergence(loss)
    done, total, added = Round(0, 0.0, 0.0, np.zeros(loss.outputs), converged=False), 0.0, 0.0
    upcoming = batches_of_epochs(rows, exchange.tables, size, seed, len(rates))
    batch: Batch | None = next(upcoming)
    found = exchange(None, {}, batch, rates[0])
    while batch is not None:
        following, epoch, lr = next(upcoming, None), batch.epoch, rates[batch.epoch - 1]
        value, scores, gradients = _learn_batch(top, loss, batch, found, known)
        rows.put(SCORES, batch.rows, scores)
        total += value
        divergence.check(epoch, total)
        added += top.added * len(batch.rows)
        top.step(lr, l2)
        found = exchange(batch, gradients, following, lr)
        if batch.is_last:
            objective = (total + added) / len(rows) + 0.5 * l2 * top.square()
            done = replace(done, number=epoch, objective=objective, loss=total / len(rows))
            if report(done):
                break
            total = added = 0.0
        batch = following
    return done


def _learn_batch(
    top: Top, loss: JoinedLoss, batch: Batch, found: Mapping[str, Floats], known: Embeddings
) -> tuple[float, Array, dict[str, Floats]]:
    """(Sum of losses, scores, gradients by embeddings of distinct base rows) of a batch; gradients of ``top`` too."""
    learned = {alias: values[batch.base[alias]] for alias, values in found.items()}
    scores = top.forward(
        learned | {alias: loss.rows.taken_at(batch.rows, alias, values) for alias, values in known.items()}
    ).astype(np.float64)
    plain = scores[:, 0] if scores.shape[1] == 1 else scores
    here = loss.pointwise.evaluate(plain, loss.rows.labels_of(batch.rows))
    joined = top.backward((here.gradient / len(batch.rows)).reshape(scores.shape), found)
    return here.value, plain, {alias: at_base_rows(batch, alias, values) for alias, values in joined.items()}


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
