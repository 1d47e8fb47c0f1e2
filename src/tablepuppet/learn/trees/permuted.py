"""How scores change if the values of one column change places among the joined rows.

The coordinator has a bit for each base row and split: it lets the bits of splits by the column change places, as if
the values had. It learns nothing that predictions did not tell.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array, Words
from tablepuppet.learn.trees.tree import LEAVES, Bits, Forest, Tree
from tablepuppet.mapping.joined_rows import MOVED, Block, JoinedRows

Order = NDArray[np.integer]


def changes(
    rows: JoinedRows, forest: Forest, aliases: Sequence[str], bits: Bits, key: tuple[int, int], order: Order
) -> Array:
    """What is added to the scores, (joined rows, outputs), if joined row j has the column of row ``order[j]``.

    ``key`` is the place of the table among the aliases, and the column.
    """
    table, column = key
    rows.move(aliases[table], order)
    found = np.zeros((len(rows), max(map(len, forest), default=1)))
    for trees in forest:
        for output, tree in enumerate(trees):
            moved = (tree.tables == table) & (tree.columns == column)
            if not moved.any():
                continue
            kept = [
                (alias, tree.open_leaves(place, bits[alias], nodes=~moved))
                for place, alias in enumerate(aliases)
                if ((tree.tables == place) & ~moved).any()
            ]
            own = tree.open_leaves(table, bits[aliases[table]], nodes=moved)
            parts = rows.each(_change, tree, kept, (aliases[table], own))
            found[:, output] += np.concatenate([np.zeros(0), *parts])
    rows.drop(MOVED)
    return found


def _change(block: Block, tree: Tree, kept: Sequence[tuple[str, Words]], own: tuple[str, Words]) -> Array:
    rest = np.broadcast_to(tree.below[0], (block.rows, tree.words)).copy()
    for alias, mask in kept:
        rest &= block.taken(alias, mask)
    alias, mask = own
    return _values(tree, rest & block.taken_moved(mask)) - _values(tree, rest & block.taken(alias, mask))


def _values(tree: Tree, leaves: Words) -> Array:
    """The scores of rows, each of which has one leaf left."""
    word = (leaves > 0).argmax(axis=1)
    bit = np.take_along_axis(leaves, word[:, None], axis=1)[:, 0]
    leaf = np.frexp(bit.astype(np.float64))[1] - 1 + word * LEAVES  # the number of the only bit
    return np.asarray(tree.values[tree.leaves].take(leaf, mode="clip"))
