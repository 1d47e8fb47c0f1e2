"""Noisy releases of a table's model: gradients and predictions, with a bound on each row's contribution.

Input: encoded rows, parameters, and Y_r, the gradient of the loss by the prediction of each row r, summed over its
joined rows. A null record (a row of missing values) and a row whose gradient is not finite add exactly zero. n is the
number of the table's rows, J_r the derivative of a row's prediction. Gradients are scaled by n, so that ``clip`` means
the same as for a single table:

    g = sum_r clip(n J_r^T Y_r) / n + noise
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tablepuppet.learn.tables.model import RowModel
from tablepuppet.party.added_noise import SumNoise
from tablepuppet.party.local_table import LocalTable
from tablepuppet.prep.encoded_table import EncodedTable, check_length
from tablepuppet.privacy.clip import blocks, clipped, zeroed

Array = NDArray[np.float64]


def noisy_gradient(
    table: LocalTable, data: EncodedTable, model: RowModel, theta: Array, rows: Array, noise: SumNoise
) -> Array:
    """g of one shard."""
    check_length("values", rows, len(data.dense))
    outputs = model.predict(theta, data.rows(slice(0))).shape[1:]  # no row is read: shapes alone decide
    if rows.shape[1:] != outputs:
        raise ValueError("values and parameters have different numbers of outputs")

    def parts() -> Iterator[Array]:
        for block in blocks(len(data.dense), max(data.dense.shape[1], model.width)):
            row_gradients = rows[block].astype(np.float64) * noise.table_rows
            yield model.clipped_sums(theta, data.rows(block), row_gradients, noise.clip) / noise.table_rows

    return table.noisy(parts, theta.shape, noise.clip / noise.table_rows, noise.multiplier, "gradient")


def noisy_predictions(
    table: LocalTable, data: EncodedTable, model: RowModel, theta: Array, bound: float, multiplier: float
) -> Array:
    """Predictions of rows, clipped to ``bound``, with noise; those of null records are zero before noise."""
    shape = (len(data.dense), *model.predict(theta, data.rows(slice(0))).shape[1:])  # shapes alone decide

    def parts() -> Iterator[Array]:
        image = np.empty(shape)
        for block in blocks(len(data.dense), model.width):
            rows = data.rows(block)
            image[block] = clipped(zeroed(model.predict(theta, rows), rows.norms() == 0), bound)
        yield image

    return table.noisy(parts, shape, bound, multiplier, "predictions").astype(table.wire)


def predicted(model: RowModel, theta: Array, table: EncodedTable) -> Array:
    """Predictions of all rows, block by block, without noise."""
    parts = [model.predict(theta, table.rows(block)) for block in blocks(len(table.dense), model.width)]
    return np.concatenate(parts) if parts else model.predict(theta, table)
