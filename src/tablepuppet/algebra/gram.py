"""The Gram matrix X^T X of a matrix [S_1 T_1, ..., S_M T_M] that is never built, from the products of products.py.

X^T X  = [T_i^T (S_i^T S_j) T_j]_ij       S_i^T S_j counts how often two base rows are joined with each other
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.algebra.costs import PricedStep, Run, gram_order
from tablepuppet.algebra.products import ByTable, TableProducts
from tablepuppet.arrays import Array
from tablepuppet.mapping.table_mapping import ShardRows
from tablepuppet.prep.encode.encoded_table import EncodedTable


def gram(products: TableProducts, weights: Array | None = None) -> Array:
    """X^T X, or X^T diag(weights) X, (d, d); one trip for one table, else two.

    A table computes its own block. Of two tables the one with fewer columns sends its encoded cells and the other
    multiplies: that moves least. So all tables but the widest send as many products as they have columns. A table that
    sends sums only is the one that multiplies; PrivacyError if there are two. Cells and weights travel exactly, in the
    bytes of float32 where that is exact, as it is for categories: an inverse would show what is lost.
    """
    found = np.zeros((products.shape[1], products.shape[1]))
    if not products.tables:
        return found
    order = gram_order(products)
    run = products.placement.begin(PricedStep.gram(products, weights is not None))
    within = _ask_blocks(products, weights, run)
    sent = _ask_cells(products, order[:-1], run)
    for alias, own in within().items():
        found[products.blocks[alias], products.blocks[alias]] = own * products.shape[0]
    cells = sent()
    asked = []
    for is_number in (True, False):
        met, places = {}, {}
        for place, alias in enumerate(order[1:], 1):
            parts = [(other, cells[is_number][other]) for other in order[:place] if other in cells[is_number]]
            if parts:
                moved = [products.rows.carried(other, alias, each, weights) for other, each in parts]
                met[alias] = np.concatenate(moved, axis=1)
                places[alias] = np.concatenate([_places(products, other, is_number) for other, _ in parts])
        if met:
            asked.append((places, products.ask_sums_by_table(met, run, exact=True)))
    for places, replies in asked:
        for alias, sums in replies().items():
            found[products.blocks[alias], places[alias]] = sums
            found[places[alias], products.blocks[alias]] = sums.T
    return found


def _ask_cells(
    products: TableProducts, aliases: Sequence[str], run: Run
) -> Callable[[], dict[bool, dict[str, Any]]]:  # fmt: skip
    """Ask for the cells of tables, exactly: numbers (True) and categories (False) apart, which are 0 and 1."""
    asked = {}
    for is_number in (True, False):
        wanted = {alias: _places(products, alias, is_number) - products.blocks[alias].start for alias in aliases}
        units = {a: np.eye(products.width(a))[:, places] for a, places in wanted.items() if len(places)}
        asked[is_number] = products.ask_outputs(units, run, exact=True) if units else dict
    return lambda: {is_number: replies() for is_number, replies in asked.items()}


def _ask_blocks(products: TableProducts, weights: Array | None, run: Run) -> ByTable:
    """Ask for T_i^T diag(S_i^T w) T_i / N of all tables."""
    op, bound, count = "matrix.gram", 1.0, products.shape[0]
    rows = dict[str, Array]()
    if weights is not None:
        op, bound = "matrix.weighted_gram", float(np.abs(weights).max(initial=0.0))
        rows = {alias: products.rows.sums(alias, weights) for alias in products.tables}

    def arguments(alias: str, shard: ShardRows) -> dict[str, Any]:
        chosen = {"rows": products.cut(alias, rows[alias], shard, exact=True)} if rows else {}
        return {"joined_rows": count, **chosen}

    def compute(alias: str, data: EncodedTable) -> Array:
        return data.gram(rows[alias] if rows else products.rows.tables[alias].counts.astype(np.float64)) / count

    return products.ask_tables(
        run, op, "gram", products.tables, arguments, compute, lambda alias: {"gram": bound * products.square(alias)}
    )


def _places(products: TableProducts, alias: str, is_number: bool) -> NDArray[np.intp]:
    """The columns of a table in X that are numbers, or that are not."""
    block = products.blocks[alias]
    middle = block.start + products.numbers(alias)
    return np.arange(block.start, middle) if is_number else np.arange(middle, block.stop)
