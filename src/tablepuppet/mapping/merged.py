"""Joined rows that are equal in all encoded values, merged into one row with a weight.

Two joined rows have the same scores under every linear model, and the same nearest centre, if their base rows have
equal encoded values in each table. Where columns have few values, such as ages, ratings or codes, a relation of
millions of joined rows has only thousands of different ones, and a pass over them costs as little. Input: which base
rows are alike (prep/encode/alike.py). Output: rows with weights, over the same base rows, so nothing that parties hold
changes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tablepuppet.arrays import Places, Scalar, mark, take
from tablepuppet.mapping.joined_rows import Block, JoinedRows
from tablepuppet.mapping.table_mapping import MappedTable, ShardRows, TableMapping
from tablepuppet.pieces import over_pieces

MOST_CELLS = 4  # times the joined rows: more combinations of base rows and labels are not counted
WORTH = 2  # joined rows of a merged row, in the mean: with fewer there is little to gain
MOST_LABELS = 1000


@dataclass(frozen=True)
class MergedRows:
    """Merged rows: of each the group of alike base rows by table, its label's code, and how many joined rows it is."""

    firsts: Mapping[str, Places]  # by table, the first base row of each group
    groups: Mapping[str, Places]  # by table, the group of each merged row
    codes: NDArray[np.integer[Any]]
    weights: NDArray[np.float64]
    _cells: NDArray[np.integer[Any]]  # of each joined row, in a table of all combinations
    _filled: NDArray[np.intp]  # the cell of each merged row

    def __len__(self) -> int:
        return len(self.weights)

    @cached_property
    def numbers(self) -> Places:
        """The merged row that each joined row belongs to, (joined rows,)."""
        by_cell = np.zeros(int(self._filled[-1]) + 1, np.int32)
        by_cell[self._filled] = np.arange(len(self), dtype=np.int32)
        return take(by_cell, self._cells)

    def joined(self) -> JoinedRows:
        """The merged rows, over the first base row of each group."""
        tables = {
            alias: MappedTable(groups, (ShardRows("", self.firsts[alias], 0),)) for alias, groups in self.groups.items()
        }
        return JoinedRows(TableMapping(tables, len(self)))

    def expanded(self, values: NDArray[Scalar]) -> NDArray[Scalar]:
        """Values of merged rows as values of joined rows."""
        return take(values, self.numbers)


def merge(
    rows: JoinedRows, alike: Mapping[str, Places], codes: NDArray[np.integer[Any]] | None = None, kinds: int = 1
) -> MergedRows | None:
    """The joined rows merged where base rows of all these tables are ``alike``, and ``codes``; None if few are.

    ``alike`` gives, by table with features, the place of the first base row with the same values; ``codes`` are numbers
    of joined rows below ``kinds``.
    """
    if not alike:
        return None
    firsts, indexes = dict[str, Places](), list[tuple[NDArray[np.intp], Places]]()
    for alias, places in alike.items():
        is_first = mark(len(places), places)
        firsts[alias] = np.flatnonzero(is_first).astype(np.int32)
        indexes.append((np.cumsum(is_first)[places] - 1, rows.mapping.tables[alias].index))
    sizes = [*(len(each) for each in firsts.values()), kinds]  # the label last: neighbours share base rows
    if math.prod(sizes) > MOST_CELLS * len(rows):
        return None
    cells: NDArray[np.integer[Any]] = np.empty(len(rows), np.int32 if math.prod(sizes) < 1 << 31 else np.int64)

    def number(part: slice) -> None:
        found = np.zeros(part.stop - part.start, np.intp)
        for (group, index), size in zip(indexes, sizes, strict=False):
            found *= size
            found += group.take(index[part], mode="clip")
        if codes is not None:
            found *= kinds
            found += codes[part]
        cells[part] = found

    over_pieces(number, len(cells))
    counts = np.bincount(cells, minlength=math.prod(sizes))
    filled = np.flatnonzero(counts)
    if len(cells) < WORTH * len(filled):
        return None
    *groups, labels = (each.astype(np.int32) for each in np.unravel_index(filled, sizes))
    found = dict(zip(alike, groups, strict=True))
    return MergedRows(firsts, found, labels, counts[filled].astype(np.float64), cells, filled)


def merged(rows: JoinedRows, alike: Mapping[str, Places] | None) -> JoinedRows:
    """The rows merged where base rows of all tables are ``alike`` and labels are equal; themselves if few are."""
    if not alike:
        return rows
    values, codes = _coded(rows.each(_labels))
    found = merge(rows, alike, codes, len(values)) if values.size else None
    if found is None:
        return rows
    tables = {
        alias: MappedTable(found.firsts[alias][group], rows.mapping.tables[alias].shards)
        for alias, group in found.groups.items()
    }
    return JoinedRows(TableMapping(tables, len(found)), rows.outputs, values[found.codes], found.weights)


def _labels(block: Block) -> NDArray[Any]:
    return block.labels


def _coded(blocks: Sequence[NDArray[np.generic]]) -> tuple[NDArray[np.generic], NDArray[np.integer]]:
    """(the different labels, the place of each row's label among them); no labels if they are too many."""
    every = max(1, sum(map(len, blocks)) // (4 * MOST_LABELS))
    some = np.concatenate([labels[::every] for labels in blocks])
    if len(np.unique(some)) > MOST_LABELS:  # a look at some of them is cheap
        return some[:0], np.zeros(0, np.int32)
    coded = pa.chunked_array([pa.array(labels) for labels in blocks]).dictionary_encode().combine_chunks()
    values: NDArray[np.generic] = coded.dictionary.to_numpy()
    return (values if len(values) <= MOST_LABELS else values[:0]), coded.indices.to_numpy()
