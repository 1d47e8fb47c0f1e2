"""Pairs of columns in a Gram matrix that rest on few rows, and what stands for them there.

Input: encoded rows, and the policy's ``min_group``. Output: the fewest rows behind each pair of columns, and a Gram
matrix without the pairs that rest on too few: of these it has what it would have if the two columns had nothing to do
with each other, which follows from their own sums. Learners use a Gram matrix for the direction of their steps, not for
what they converge to.

An entry of two categories is a number of rows, one of a category and a number the sum over its rows, and one of two
flags counts those that have both. A number that is missing in some rows is a flag too: whoever scales it by a large
number has made it one. Entries of the rows without a category, or without a flag, follow from others, and so do
differences of the sums of a column, or of the rows of a category, over the rows of two flags (pair_groups.py).
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array, Counts, Mask
from tablepuppet.party.allowance import check_time
from tablepuppet.prep.columns.pair_groups import Patterns, released_by_group
from tablepuppet.prep.encode.encoded_table import EncodedTable, sums_by_code
from tablepuppet.privacy.clip import blocks

NONE = np.iinfo(np.int64).max  # no group at all


def fewest_rows(data: EncodedTable, firsts: Mask, least: int) -> Counts:
    """(columns, columns), numbers first: rows of the smallest group behind a pair of columns; 0 if there is none.

    1 of a pair that another one of its columns forbids, whose difference to it is of fewer rows than ``least``.
    """
    marked = data.apart or (None,) * data.dense.shape[1]
    apart = [np.ones(len(firsts), bool), *(each for each in marked if each is not None)]  # first columns of any numbers
    place = np.zeros(len(marked), np.intp)
    place[[each is not None for each in marked]] = np.arange(1, len(apart))
    own, both = np.zeros(len(apart)), np.zeros((len(apart), len(apart)))
    by_code = [np.zeros((size + 1, len(apart))) for size in data.sizes]
    for block in blocks(len(firsts), len(apart)):
        check_time()
        there = np.stack([each[block] for each in apart], 1)[firsts[block]].astype(np.float64)
        own, both = own + there.sum(axis=0), both + there.T @ there
        for found, codes, size in zip(by_code, data.codes, data.sizes, strict=True):
            found += sums_by_code(codes[block][firsts[block]] % (size + 1), size + 1, there)
    present = [partial(np.asarray, each) for each in apart]
    released = Patterns.of(present, firsts, least).released
    released = released & released[0] & released[0][:, None]  # sums over all rows tell of those that have no flag too
    numbers = np.where(released, _fewest_of_flags(own, both), 1)[np.ix_(place, place)]
    columns, width = len(place), len(place) + len(data.sizes)
    found = np.full((width, width), NONE)
    found[:columns, :columns] = numbers
    with_codes = released_by_group(
        present, [c % (n + 1) for c, n in zip(data.codes, data.sizes, strict=True)], firsts, least
    )
    for i, (counts, told) in enumerate(zip(by_code, with_codes, strict=True)):
        line = np.where(told, np.minimum(_least(counts), _least(counts[:, :1] - counts)), 1)[place]
        found[columns + i, :columns] = found[:columns, columns + i] = line
        for j in range(i):
            check_time()
            found[columns + i, columns + j] = found[columns + j, columns + i] = _fewest_together(data, i, j, firsts)
    np.fill_diagonal(found, NONE)  # a column's own sums are its statistics
    return np.where(found == NONE, 0, found)


def _fewest_of_flags(own: Array, both: Array) -> Counts:
    """Of pairs of flags, of which the first is one of all rows: rows that have both, only one, or none."""
    alone = own[:, None] - both
    neither = own[0] - own[:, None] - own + both
    found = np.minimum(_positive(both), _positive(neither))
    return np.minimum(found, np.minimum(_positive(alone), _positive(alone.T)))


def _fewest_together(data: EncodedTable, i: int, j: int, firsts: NDArray[np.bool_]) -> int:
    """Of two columns of categories, missing ones too, also of both: rows of the smallest cell."""
    wide = data.sizes[j] + 1
    pairs = (data.codes[i][firsts] % (data.sizes[i] + 1)).astype(np.int64) * wide + data.codes[j][firsts] % wide
    counts = np.bincount(pairs)
    return int(counts[counts > 0].min(initial=NONE))


def _positive(counts: Array) -> Counts:
    return np.where(counts > 0.5, np.rint(counts).astype(np.int64), NONE)  # as a float `NONE` would be no int64


def _least(counts: Array) -> Counts:
    return np.asarray(_positive(counts).min(axis=0))


def without_pairs(
    data: EncodedTable, gram: Array, weights: Array, centres: Array | None, few: NDArray[np.bool_]
) -> Array:
    """A Gram matrix in which ``few`` pairs of columns have nothing to do with each other."""
    sums, found = data.transposed_times(weights), gram.copy()
    if centres is not None:
        sums = sums - weights.sum() * centres
    column_of = np.repeat(np.arange(data.columns), [*[1] * data.dense.shape[1], *data.sizes])
    chosen = few[np.ix_(column_of, column_of)]
    expected = np.outer(sums, sums) / max(weights.sum(), 1.0)
    np.copyto(found, expected, where=chosen)
    return found
