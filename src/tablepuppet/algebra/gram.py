"""The Gram matrix X^T X of a matrix [S_1 T_1, ..., S_M T_M] that is never built, from the products of products.py.

X^T X  = [T_i^T (S_i^T S_j) T_j]_ij       S_i^T S_j counts how often two base rows are joined with each other
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array

from tablepuppet.algebra.placement import PricedStep, Run, gram_order
from tablepuppet.algebra.products import ByTable, TableProducts
from tablepuppet.mapping.table_mapping import Floats, ShardRows, TableMapping
from tablepuppet.prep.encode.encoded_table import EncodedTable

Array = NDArray[np.float64]
NARROW = 2  # columns that are quicker to move by themselves than by a matrix of counts


def gram(products: TableProducts, weights: Array | None = None) -> Array:
    """X^T X, or X^T diag(weights) X, (d, d); one trip for one table, else two.

    A table computes its own block. Of two tables the one with fewer columns sends its encoded cells and the other
    multiplies: that moves least. So all tables but the widest send as many products as they have columns. A table that
    sends sums only is the one that multiplies; PrivacyError if there are two.
    """
    found = np.zeros((products.shape[1], products.shape[1]))
    if not products.tables:
        return found
    order = gram_order(products)
    run = products.placement.begin(PricedStep.gram(products, weights is not None))
    within = _ask_blocks(products, weights, run)
    sent = products.ask_images({alias: np.eye(products.width(alias)) for alias in order[:-1]}, run)
    for alias, own in within().items():
        found[products.blocks[alias], products.blocks[alias]] = own * products.shape[0]
    cells = sent()
    met = {}
    for place, alias in enumerate(order[1:], 1):
        parts = [_moved(products.mapping, other, alias, cells[other], weights) for other in order[:place]]
        met[alias] = np.concatenate(parts, axis=1)
    for alias, sums in products.ask_table_sums(met, run)().items():
        others = np.concatenate([_places(products.blocks[other]) for other in order[: order.index(alias)]])
        found[products.blocks[alias], others] = sums
        found[others, products.blocks[alias]] = sums.T
    return found


def _ask_blocks(products: TableProducts, weights: Array | None, run: Run) -> ByTable:
    """Ask for T_i^T diag(S_i^T w) T_i / N of all tables."""
    op, bound, count = "matrix.gram", 1.0, products.shape[0]
    rows = dict[str, Array]()
    if weights is not None:
        op, bound = "matrix.weighted_gram", float(np.abs(weights).max(initial=0.0))
        rows = {alias: products.mapping.scatter_sum(alias, weights) for alias in products.tables}

    def arguments(alias: str, shard: ShardRows) -> dict[str, Any]:
        chosen = {"rows": products.cut(rows[alias], shard)} if rows else {}
        return {"joined_rows": count, **chosen}

    def compute(alias: str, data: EncodedTable) -> Array:
        return data.gram(rows[alias] if rows else products.mapping.counts(alias).astype(np.float64)) / count

    return products.ask_tables(
        run, op, "gram", products.tables, arguments, compute, lambda alias: {"gram": bound * products.square(alias)}
    )


def _moved(mapping: TableMapping, source: str, target: str, values: Floats, weights: Array | None = None) -> Array:
    """Values of one table's rows, (rows, k), summed at another's by how often they are joined: S_t^T S_s values.

    With ``weights``, (joined rows,), S_t^T diag(weights) S_s values.
    """
    here, there = mapping.tables[source], mapping.tables[target]
    if weights is None and there.is_identity:
        return np.asarray(mapping.gather(source, values), np.float64)
    if weights is None and (here.is_identity or values.shape[1] <= NARROW):
        return mapping.scatter_sum(target, mapping.gather(source, values))
    data = np.ones(len(mapping), np.int32) if weights is None else weights
    counted = coo_array((data, (there.index, here.index)), shape=(there.rows, here.rows)).tocsr()
    return np.asarray(counted @ values.astype(np.float64))


def _places(block: slice) -> NDArray[np.intp]:
    return np.arange(block.start, block.stop)
