"""A grown tree as a value: nodes name a table, a column and a split; thresholds stay with their owner.

Trees are evaluated table by table: a base row's bits say which leaves its table leaves open, as bits of whole numbers;
the leaf of a joined row is the one that all its tables leave open.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array, Words
from tablepuppet.mapping.joined_rows import SCORES, Block, JoinedRows

LEAVES = 62  # of one word: a float has each of its bits exactly
TOGETHER = 8  # trees that are evaluated at a time
Bits = Mapping[str, NDArray[np.uint8]]
"""By table, (base rows, bytes): a bit for each split, 1 if the row goes left."""


@dataclass(frozen=True)
class Tree:
    """Nodes in an order in which parents come first; of leaves ``tables`` is -1."""

    tables: NDArray[np.int32]  # places in a list of aliases
    columns: NDArray[np.int32]  # places among the encoded columns before they are one-hot
    splits: NDArray[np.int32]  # places among the splits of the table
    left: NDArray[np.int32]
    right: NDArray[np.int32]
    values: Array  # scores of leaves, and what inner nodes would score as leaves
    counts: Array  # joined rows
    gains: Array

    @cached_property
    def leaves(self) -> NDArray[np.intp]:
        """The places of leaves."""
        return np.flatnonzero(self.tables < 0)

    @property
    def inner(self) -> NDArray[np.intp]:
        """The places of nodes that are split."""
        return np.flatnonzero(self.tables >= 0)

    @property
    def words(self) -> int:
        """Words that have a bit for each leaf."""
        return -(-len(self.leaves) // LEAVES)

    @cached_property
    def below(self) -> Words:
        """By node, the leaves below it, (nodes, words)."""
        found = np.zeros((len(self.tables), self.words), np.uint64)
        numbers = np.arange(len(self.leaves))
        found[self.leaves, numbers // LEAVES] = np.uint64(1) << (numbers % LEAVES).astype(np.uint64)
        for node in self.inner[::-1]:
            found[node] = found[self.left[node]] | found[self.right[node]]
        return found

    def open_leaves(
        self, table: int, bits: NDArray[np.uint8], first: int = 0, nodes: NDArray[np.bool_] | None = None
    ) -> Words:
        """The leaves that the splits of one table leave open, (base rows, words); its bits begin at split ``first``.

        Only some ``nodes`` of the table count, if they are given.
        """
        found = np.broadcast_to(self.below[0], (len(bits), self.words)).copy()
        own = self.tables == table
        for node in np.flatnonzero(own if nodes is None else own & nodes):
            place = int(self.splits[node]) - first
            is_left = (bits[:, place >> 3] >> (place & 7) & 1).astype(bool)
            closed = np.where(is_left[:, None], self.below[self.right[node]], self.below[self.left[node]])
            found &= ~closed
        return found

    def rows(self, aliases: Sequence[str]) -> list[dict[str, Any]]:
        """The nodes for people."""
        return [
            {
                "node": node, "table": aliases[table] if table >= 0 else None, "left": int(self.left[node]),
                "right": int(self.right[node]), "value": float(self.values[node]), "count": float(self.counts[node]),
                "gain": float(self.gains[node]), "column": int(self.columns[node]), "split": int(self.splits[node]),
            }
            for node, table in enumerate(self.tables)
        ]  # fmt: skip


Forest = Sequence[Sequence[Tree]]
"""Trees by round and output."""


def add_scores(rows: JoinedRows, forest: Forest, aliases: Sequence[str], bits: Bits, first: Mapping[str, int]) -> None:
    """Add what trees predict to the scores of joined rows; ``bits`` begin at the splits ``first`` of each table."""
    listed = [(output, tree) for trees in forest for output, tree in enumerate(trees)]
    for start in range(0, len(listed), TOGETHER):
        some = listed[start : start + TOGETHER]
        masks = {
            alias: np.concatenate([tree.open_leaves(place, bits[alias], first[alias]) for _, tree in some], axis=1)
            for place, alias in enumerate(aliases)
            if alias in bits and any((tree.tables == place).any() for _, tree in some)
        }
        rows.each(_add, [(output, tree.words, tree.values[tree.leaves], tree.below[0]) for output, tree in some], masks)


def _add(block: Block, trees: Sequence[tuple[int, int, Array, Words]], masks: Mapping[str, Words]) -> None:
    scores, start = block.stored[SCORES], 0
    taken = [block.taken(alias, mask) for alias, mask in masks.items()]
    for output, words, values, every in trees:
        for word in range(words):
            found = np.full(block.rows, every[word])
            for mask in taken:
                found &= mask[:, start + word]
            leaf = np.frexp(found.astype(np.float64))[1] - 1 + word * LEAVES  # the number of the only bit
            scores[output] += np.where(found > 0, values.take(leaf, mode="clip"), 0.0)
        start += words
