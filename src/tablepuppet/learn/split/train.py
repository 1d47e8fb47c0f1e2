"""Split learning by mini-batches of joined rows: the loop that SplitNN and what builds on it have in common.

A batch of joined rows has some distinct base rows of every table. Their embeddings, one each, are gathered to the
joined rows; the top network and the loss follow; the gradient by them is summed at base rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tablepuppet.learn.loss.divergence import Divergence
from tablepuppet.learn.loss.joined_loss import JoinedLoss
from tablepuppet.learn.rounds import Round
from tablepuppet.learn.split.exchange import Exchange, Numbered
from tablepuppet.learn.split.model import Embeddings
from tablepuppet.learn.split.top import Top
from tablepuppet.learn.tables.network import need_torch
from tablepuppet.learn.threads import one_thread
from tablepuppet.mapping.table_mapping import Floats, TableMapping
from tablepuppet.operators.batches import Batch, batches
from tablepuppet.operators.joined_rows import SCORES

Array = NDArray[np.float64]


def learn_by_batches(
    exchange: Exchange, loss: JoinedLoss, rates: Sequence[float], size: int, seed: int,
    report: Callable[[Round], bool], fixed: Embeddings | None = None,
) -> None:  # fmt: skip
    """Epochs of mini-batches, one for each learning rate, until ``report`` says to stop.

    ``fixed`` are embeddings of tables that do not learn. The loss of a round is the mean over its batches, each
    measured before its step.
    """
    # parties in this process compute at the same time; what overflows is found by its loss
    with one_thread(need_torch()), np.errstate(over="ignore", invalid="ignore"):
        _learn(exchange, loss, rates, size, seed, report, dict(fixed or {}))


def _learn(
    exchange: Exchange, loss: JoinedLoss, rates: Sequence[float], size: int, seed: int,
    report: Callable[[Round], bool], known: Embeddings,
) -> None:  # fmt: skip
    top, l2, rows = exchange.model.top, exchange.model.l2, loss.rows
    rows.reserve(SCORES)
    divergence = Divergence(loss)
    total = added = 0.0
    upcoming = numbered_batches(rows.mapping, exchange.tables, size, seed, len(rates))
    epoch, current, is_last = next(upcoming)
    batch: Numbered | None = current
    found = exchange(None, {}, batch, rates[0])
    while batch is not None:
        number, following, ends = next(upcoming, (epoch, None, True))
        lr, here = rates[epoch - 1], batch.batch
        value, scores, gradients = _learn_batch(top, loss, here, found, known)
        rows.put(SCORES, here.rows, scores)
        total += value
        divergence.check(epoch, total)
        added += top.added * len(here.rows)
        top.step(lr, l2)
        found = exchange(batch, gradients, following, lr)
        if is_last:
            objective = (total + added) / len(rows) + 0.5 * l2 * top.square()
            if report(Round(epoch, objective, total / len(rows), np.zeros(loss.outputs), converged=False)):
                break
            total = added = 0.0
        epoch, batch, is_last = number, following, ends


def _learn_batch(
    top: Top, loss: JoinedLoss, batch: Batch, found: Mapping[str, Floats], known: Embeddings
) -> tuple[float, Array, dict[str, Floats]]:
    """(Sum of losses, scores, gradients by embeddings of distinct base rows) of a batch; gradients of ``top`` too."""
    gathered = {alias: values[batch.index[alias]] for alias, values in found.items()}
    for alias, values in known.items():
        table = loss.rows.mapping.tables[alias]
        gathered[alias] = values[batch.rows if table.is_identity else table.index[batch.rows]]
    scores = top.forward(gathered).astype(np.float64)
    plain = scores[:, 0] if scores.shape[1] == 1 else scores
    here = loss.pointwise.evaluate(plain, loss.rows.labels_of(batch.rows))
    joined = top.backward((here.gradient / len(batch.rows)).reshape(scores.shape), found)
    return here.value, plain, {alias: at_base_rows(batch, alias, values) for alias, values in joined.items()}


def at_base_rows(batch: Batch, alias: str, values: Floats) -> Floats:
    """Values of the joined rows of a batch, (rows, width), summed at their base rows."""
    index, rows = batch.index[alias], len(batch.places[alias])
    sums = np.zeros((rows, values.shape[1]), values.dtype)
    if rows == len(index):  # each base row once
        sums[index] = values
        return sums
    torch = need_torch()
    torch.from_numpy(sums).index_add_(0, torch.from_numpy(index), torch.from_numpy(values))
    return sums


def numbered_batches(
    mapping: TableMapping, tables: list[str], size: int, seed: int, epochs: int
) -> Iterator[tuple[int, Numbered | None, bool]]:
    """The batches of all epochs: (number of the epoch, the batch, whether it is the epoch's last)."""
    number = 0
    for epoch in range(1, epochs + 1):
        order = batches(mapping, tables, size, seed, epoch)
        batch = next(order)
        for following in order:
            yield epoch, Numbered(number, batch), False
            number, batch = number + 1, following
        yield epoch, Numbered(number, batch), True
        number += 1
