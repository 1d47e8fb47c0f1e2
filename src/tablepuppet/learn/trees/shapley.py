"""Exact Shapley values of trees for joined rows, by the column that nodes are split by, and summed by table.

They are path-dependent (Lundberg et al. 2020): where a column is not known, both sides of its nodes are taken, by their
shares of the joined rows that were learned from. Only the coordinator computes here: it knows which columns nodes are
split by, and gets one bit for each base row and split, as for predictions.

For a leaf with value v and d different columns above it, o_j is whether a row takes the leaf's side of all nodes of
column j, and z_j the product of their shares. The part of column j is

    v (o_j - z_j) sum over sets S of other columns of |S|! (d - |S| - 1)! / d!  prod_S o  prod_rest z.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array, Words
from tablepuppet.learn.trees.tree import Bits, Forest, Tree
from tablepuppet.mapping.joined_rows import Block, JoinedRows

Key = tuple[int, int]  # place of the table, column


@dataclass(frozen=True)
class Path:
    """The way to one leaf: its columns, and what their nodes leave of the rows that were learned from."""

    value: float
    keys: tuple[Key, ...]
    zeros: Array
    steps: tuple[tuple[int, int, bool], ...]  # place among the keys, node, whether the leaf is below its left child

    @property
    def expected(self) -> float:
        """Its part of what the tree predicts if no column is known."""
        return self.value * float(np.prod(self.zeros))


def paths_of(tree: Tree) -> list[Path]:
    """The way to each leaf."""
    found, stack = list[Path](), [(0, list[tuple[int, bool]]())]
    while stack:
        node, above = stack.pop()
        if tree.tables[node] >= 0:
            stack += [(int(tree.left[node]), [*above, (node, True)]), (int(tree.right[node]), [*above, (node, False)])]
            continue
        columns = [(int(tree.tables[each]), int(tree.columns[each])) for each, _ in above]
        keys = tuple(dict.fromkeys(columns))
        zeros = np.ones(len(keys))
        for key, (each, is_left) in zip(columns, above, strict=True):
            child = tree.left[each] if is_left else tree.right[each]
            zeros[keys.index(key)] *= tree.counts[child] / tree.counts[each]
        steps = tuple((keys.index(key), *step) for key, step in zip(columns, above, strict=True))
        found.append(Path(float(tree.values[node]), keys, zeros, steps))
    return found


def contributions(
    rows: JoinedRows, forest: Forest, aliases: Sequence[str], bits: Bits, groups: Mapping[Key, int], outputs: int
) -> Array:
    """The parts of columns in the scores of joined rows, added up by group: (joined rows, groups + 1, outputs).

    ``groups`` are numbers of groups by table and column. The last part is what is predicted if no column is known,
    without the constant that boosting begins with.
    """
    size = max(groups.values(), default=-1) + 1
    found = np.zeros((len(rows), size + 1, outputs))
    for trees in forest:
        for output, tree in enumerate(trees):
            paths = paths_of(tree)
            found[:, size, output] += sum(path.expected for path in paths)
            codes = {
                alias: _codes(tree, paths, place, bits[alias]) for place, alias in enumerate(aliases) if alias in bits
            }
            parts = rows.each(_parts, paths, codes, groups, size)
            found[:, :size, output] += np.concatenate([np.zeros((0, size)), *parts])
    return found


def _codes(tree: Tree, paths: Sequence[Path], table: int, bits: NDArray[np.uint8]) -> Words:
    """By base row of one table and leaf, a bit for each of the leaf's columns that rules the row out."""
    found = np.zeros((len(bits), len(paths)), np.uint64)
    for place, path in enumerate(paths):
        for key, node, is_left in path.steps:
            if tree.tables[node] == table:
                split = int(tree.splits[node])
                goes_left = (bits[:, split >> 3] >> (split & 7) & 1).astype(bool)
                found[:, place] |= (goes_left != is_left).astype(np.uint64) << np.uint64(key)
    return found


def _parts(
    block: Block, paths: Sequence[Path], codes: Mapping[str, Words], groups: Mapping[Key, int], size: int
) -> Array:
    found = np.zeros((block.rows, size))
    taken = [block.taken(alias, each) for alias, each in codes.items()]
    for place, path in enumerate(paths):
        if not path.keys:
            continue
        ruled_out = np.zeros(block.rows, np.uint64)
        for each in taken:
            ruled_out |= each[:, place]
        kinds, of_row = np.unique(ruled_out, return_inverse=True)
        bits = kinds[:, None] >> np.arange(len(path.keys), dtype=np.uint64) & np.uint64(1)
        ones = np.asarray(bits == 0, np.float64)
        parts = path.value * shares(ones, path.zeros)  # (kinds, columns)
        of_group = np.zeros((len(kinds), size))
        for column, key in enumerate(path.keys):
            of_group[:, groups[key]] += parts[:, column]
        found += of_group[of_row]
    return found


def shares(ones: Array, zeros: Array) -> Array:
    """The parts of columns in a leaf of value 1, for rows that take its side at the columns with ``ones``.

    >>> shares(np.array([[1.0, 1.0], [0.0, 1.0]]), np.array([0.5, 0.5])).tolist()
    [[0.375, 0.375], [-0.375, 0.125]]
    """
    columns = len(zeros)
    weights = np.array([
        math.factorial(s) * math.factorial(columns - s - 1) / math.factorial(columns) for s in range(columns)
    ])  # fmt: skip
    found = np.empty_like(ones)
    for column in range(columns):
        sums = np.zeros((len(ones), columns))  # by size of a set of other columns
        sums[:, 0] = 1.0
        for other in range(columns):
            if other != column:
                grown = sums * zeros[other]
                grown[:, 1:] += sums[:, :-1] * ones[:, other, None]
                sums = grown
        found[:, column] = (ones[:, column] - zeros[column]) * (sums @ weights)
    return found
