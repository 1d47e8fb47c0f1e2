"""Joined rows that a linear model cannot tell apart, merged into one row with a weight.

Two joined rows have the same scores under every model if their base rows have equal encoded values in each table. Where
columns have few values, such as ages, ratings or codes, a relation of millions of joined rows has only thousands of
different ones, and a pass over them costs as little. Input: which base rows are alike (prep/alike.py). Output:
`JoinedRows` with weights, over the same base rows, so nothing that parties hold or are sent changes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tablepuppet.mapping.table_mapping import MappedTable, TableMapping
from tablepuppet.operators.joined_rows import JoinedRows
from tablepuppet.pieces import on_all_cores, pieces

Places = NDArray[np.int32]
MOST_CELLS = 4  # times the joined rows: more combinations of base rows and labels are not counted
WORTH = 2  # joined rows of a merged row, in the mean: with fewer there is little to gain
MOST_LABELS = 1000


def merged(rows: JoinedRows, alike: Mapping[str, Places]) -> JoinedRows:
    """The rows merged where base rows of all tables are ``alike`` and labels are equal; themselves if few are.

    ``alike`` gives, by table with features, the place of the first base row with the same values.
    """
    if not alike:
        return rows
    labels = rows.whole().labels
    values, codes = _coded(labels)
    firsts, numbers = {}, {}
    for alias, places in alike.items():
        firsts[alias], numbers[alias] = np.unique(places, return_inverse=True)
    sizes = [*(len(each) for each in firsts.values()), len(values)]  # the label last: neighbours share base rows
    if not values.size or math.prod(sizes) > MOST_CELLS * len(rows):
        return rows
    indexes = [(numbers[alias].astype(np.intp), rows.mapping.tables[alias].index) for alias in alike]

    def cells(part: slice) -> NDArray[np.intp]:
        """The cell of each row in a table of all combinations."""
        found = np.zeros(part.stop - part.start, np.intp)
        for (number, index), size in zip(indexes, sizes, strict=False):
            found *= size
            found += number.take(index[part], mode="clip")
        found *= len(values)
        found += codes[part]
        return found

    parts = on_all_cores(cells, pieces(len(rows)))
    counts = np.bincount(np.concatenate(parts), minlength=math.prod(sizes))
    filled = np.flatnonzero(counts)
    if len(rows) < WORTH * len(filled):
        return rows
    *groups, label = np.unravel_index(filled, sizes)
    tables = {
        alias: MappedTable(firsts[alias][group].astype(np.int32), rows.mapping.tables[alias].shards)
        for alias, group in zip(alike, groups, strict=True)
    }
    mapping = TableMapping(tables, len(filled))
    return JoinedRows(mapping, rows.outputs, values[label], counts[filled].astype(np.float64))


def _coded(labels: NDArray[np.generic]) -> tuple[NDArray[np.generic], NDArray[np.integer]]:
    """(the different labels, the place of each row's label among them); no labels if they are too many."""
    some = labels[:: max(1, len(labels) // (4 * MOST_LABELS))]
    if len(np.unique(some)) > MOST_LABELS:  # a look at some of them is cheap
        return labels[:0], np.zeros(0, np.int32)
    coded = pa.array(labels).dictionary_encode()
    values: NDArray[np.generic] = coded.dictionary.to_numpy()
    return (values if len(values) <= MOST_LABELS else values[:0]), coded.indices.to_numpy()
