"""Noisy releases of a table's model: gradients and predictions, with a bound on each row's contribution.

Input: encoded rows, parameters, and Y_r, the gradient of the loss by the prediction of each row r, summed over its
joined rows. A null record (a row of missing values) and a row whose gradient is not finite add exactly zero. n is the
number of the table's rows, J_r the derivative of a row's prediction. Gradients are scaled by n, so that ``clip`` means
the same as for a single table:

    g = sum_r clip(n J_r^T Y_r) / n + noise
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array, Floats
from tablepuppet.learn.tables.model import RowModel
from tablepuppet.learn.tables.parameters import TableParameters
from tablepuppet.party.allowance import check_time
from tablepuppet.party.arguments import PredictionNoise, SampleNoise, SumNoise
from tablepuppet.party.local_table import LocalTable
from tablepuppet.prep.encode.encoded_table import EncodedTable, SealedTable, check_length
from tablepuppet.privacy.clip import blocks, clipped, zeroed


def noisy_gradient(
    table: LocalTable, data: SealedTable, model: RowModel, theta: Array, rows: Floats, noise: SumNoise
) -> Array:
    """g of one shard."""
    check_length("values", rows, data.rows)
    outputs = model.predict(theta, data.empty).shape[1:]  # no row is read: shapes alone decide
    if rows.shape[1:] != outputs:
        raise ValueError("values and parameters have different numbers of outputs")

    def parts() -> Iterator[Array]:
        encoded = data.open()
        for block in blocks(data.rows, max(encoded.dense.shape[1], model.width)):
            row_gradients = rows[block].astype(np.float64) * noise.table_rows
            yield model.clipped_sums(theta, encoded.rows(block), row_gradients, noise.clip) / noise.table_rows

    return table.noisy(parts, theta.shape, noise.clip / noise.table_rows, noise.multiplier, "gradient")


def sampled_gradient(
    table: LocalTable, rows: int, theta: Array, noise: SampleNoise, given: bytes,
    parts: Callable[[NDArray[np.int64]], Iterable[Array]],
) -> Array:  # fmt: skip
    """The noisy gradient of the mean loss over a new sample of the ``rows`` of a shard.

    ``parts`` are summands of the sum over sampled rows, to which no row adds more than the clipping bound. ``given`` is
    what the sample may depend on: a request that is repeated draws the same one.
    """
    chosen = table.sample(rows, noise.sampling, given)
    noisy = table.noisy(lambda: parts(chosen), theta.shape, noise.clip, noise.multiplier, "gradient", noise.sampling)
    return np.asarray(noisy / (noise.sampling * noise.table_rows))


def take_noisy_steps(
    part: TableParameters, gradient: Callable[[Array], Array], rates: Iterable[float], momentum: float, l2: float
) -> None:
    """A step by a noisy gradient for each learning rate."""
    for rate in rates:
        check_time()
        part.descend(gradient(part.theta), float(rate), momentum, l2)


def released_predictions(
    table: LocalTable, data: SealedTable, model: RowModel, theta: Array, noise: PredictionNoise | None
) -> Array:
    """Predictions of all rows as they leave, with noise if there is any; its bound must be given."""
    if noise is None:
        with table.for_reply():
            return predicted(model, theta, data.open()).astype(table.wire)
    assert noise.bound is not None, "checked before the first step: noise is charged when it is drawn"
    return noisy_predictions(table, data, model, theta, noise.bound, noise.multiplier)


def noisy_predictions(
    table: LocalTable, data: SealedTable, model: RowModel, theta: Array, bound: float, multiplier: float
) -> Array:
    """Predictions of rows, clipped to ``bound``, with noise; those of null records are zero before noise."""
    shape = (data.rows, *model.predict(theta, data.empty).shape[1:])  # shapes alone decide

    def parts() -> Iterator[Array]:
        predictions, encoded = np.empty(shape), data.open()
        for block in blocks(data.rows, model.width):
            rows = encoded.rows(block)
            predictions[block] = clipped(zeroed(model.predict(theta, rows), rows.norms() == 0), bound)
        yield predictions

    return table.noisy(parts, shape, bound, multiplier, "predictions").astype(table.wire)


def predicted(model: RowModel, theta: Array, table: EncodedTable) -> Array:
    """Predictions of all rows, block by block, without noise."""
    parts = [model.predict(theta, table.rows(block)) for block in blocks(len(table.dense), model.width)]
    return np.concatenate(parts) if parts else model.predict(theta, table)
