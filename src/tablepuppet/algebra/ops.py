"""What a shard computes for its part of the joined matrix X; `products.py` is the coordinator's half.

T (rows x width) are the shard's encoded rows, w counts how often each of them is joined, N counts the joined rows:

    matrix.times            T V                      one number per row and direction
    matrix.sums_by          T^T U                    one sum per encoded column and vector; U is sent, as numbers or as
                                                     groups of rows, or kept at the party (`kept_ops.py`)
    matrix.sums             T^T w, (T * T)^T w       of T less centres if they are given
    matrix.gram             T^T diag(w) T / N        with noise if that is asked for, of T less centres if they are
    matrix.weighted_gram    T^T diag(u) T / N        u as U
    matrix.row_max          max_j (scale_j T[:, place_j] + shift_j), or the first j of that number
    matrix.values           T, cell by cell          only columns whose policy says so (``values``)

The caller chooses V, U and u: with unit vectors as V, T V is T itself. It also chooses w, and by which steps T is
encoded. So a table's policy must allow these ops, all but ``matrix.gram`` (``matrix = true``), and the party counts the
columns of V and U, and w as one (``limits.max_matrix_columns``). Learners use only ``matrix.gram`` of them: their
directions come from their algorithms, and their ops have other rules.

A noisy Gram matrix is not weighted by w. Every row is clipped to the length of a row whose numbers are about 1, so that
a row counts once however often it is joined. n counts the table's rows:

    K = sum_r c_r^2 t_r t_r^T / n + noise               |c_r t_r|^2 <= columns of the table

The smallest number of a row is minus the largest one of -X. Category columns are 0 or 1, and at most one of a group is
1, so the values of a group's columns are looked up by the row's code.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.algebra.kept_ops import Places, check_weighed, flat, released
from tablepuppet.arrays import Array, lossless
from tablepuppet.errors import PartyError
from tablepuppet.party.allowance import check_memory, check_reply, check_time
from tablepuppet.party.arguments import GramNoise, List, Means, Name, Positive, Some, Within
from tablepuppet.party.groups import Grouped, rows_by
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.ops import Values, op
from tablepuppet.party.release import Release
from tablepuppet.party.returns import ANY, OUTPUTS, ROW_OUTPUTS, ROWS, WIDTH, Asked, Numbers, OfGroups, OfRows
from tablepuppet.prep.encode.encode import encoded, encoded_for_noise
from tablepuppet.prep.encode.encoded_table import EncodedTable, SealedTable, check_length
from tablepuppet.privacy.clip import blocks, kept_shares

Whole = NDArray[np.int64]
Vectors = NDArray[np.floating[Any]]
Labels = Annotated[NDArray[np.integer], Within(dimensions=(1,))]


@op(
    "matrix.times",
    asked="the relation as a matrix",
    releases=Release.PREDICTIONS,
    directions="directions",
    returns={"outputs": ROW_OUTPUTS},
)
def times(table: LocalTable, view: str, encoding: str, directions: Array, exact: bool = False) -> Values:
    """T V: (rows,) for one direction, else (rows, directions); rounded to the wire's precision unless ``exact``."""
    found = encoded(table, view, encoding).times(directions)
    return {"outputs": lossless(found) if exact else found.astype(table.wire)}


@op(
    "matrix.sums_by",
    asked="the relation as a matrix",
    releases=Release.GRADIENT_SUMS,
    directions="vectors",
    summed=("sums",),
    returns={"sums": Numbers((WIDTH, OUTPUTS))},
)
def sums_by(table: LocalTable, view: str, encoding: str, by: Vectors | Labels | Name, vectors: Some) -> Values:
    """T^T U: (width,) for one vector, else (width, vectors); each weighs no row, or at least ``min_rows``.

    ``by`` is U, whose columns are ``vectors``; or for a 0/1 matrix U the number of each row's group, of so many; or the
    name of a kept vector.
    """
    data, rows = encoded(table, view, encoding), table.view(view)
    if isinstance(by, str):
        return {"sums": flat(data.transposed_times(released(table, view, by, vectors)))}
    check_length("values", by, len(data.dense))
    if by.dtype.kind == "f":
        if (by.shape[1] if by.ndim == 2 else 1) != vectors:
            raise PartyError(f"op 'matrix.sums_by': the array has another number of columns than {vectors:,}")
        check_weighed(table, rows, by)
    else:
        if len(by) and (by.min() < 0 or by.max() >= vectors):
            raise PartyError(f"numbers of groups must be at least 0 and below {vectors:,}")
        if table.grant.rules.min_rows:
            check_memory(len(by) * vectors)
            check_weighed(table, rows, by[:, None] == np.arange(vectors))
    return {"sums": flat(weighed_sums(data, by, vectors))}


def weighed_sums(data: EncodedTable, by: NDArray[Any], vectors: int) -> Array:
    """T^T U of rows that are here, by U or the numbers of groups."""
    return data.transposed_times(by) if by.dtype.kind == "f" else data.sums_by(by, vectors)


@op(
    "matrix.sums",
    asked="the relation as a matrix",
    releases=Release.STATISTICS | Release.GRADIENT_SUMS,
    directions="view",
    summed=("sums",),
    returns={"sums": OfRows(Numbers((WIDTH,)), Release.PREDICTIONS)},
)
def sums(table: LocalTable, view: str, encoding: str, squared: bool = False, centres: Means | None = None) -> Values:
    """T^T w, or (T * T)^T w; with ``centres``, (numbers,), these are subtracted from the columns of numbers first."""
    data = encoded(table, view, encoding)
    if centres is not None:
        check_length("centres", centres, data.dense.shape[1])
        data = data.centred(centres)
    return {"sums": counted_sums(data, joined_counts(table, view), squared)}


def counted_sums(data: EncodedTable, counts: Array, squared: bool) -> Array:
    """T^T w or (T * T)^T w of rows that are here; columns of categories are 0 and 1, and so are their squares."""
    return (EncodedTable(data.dense**2, data.codes, data.sizes) if squared else data).transposed_times(counts)


@op(
    "matrix.weighted_gram",
    asked="the relation as a matrix, weighted",
    releases=Release.GRAM,
    directions="rows",
    summed=("gram",),
    returns={"gram": OfRows(Numbers((WIDTH, WIDTH)), Release.PREDICTIONS)},
)
def weighted_gram(
    table: LocalTable,
    view: str,
    encoding: str,
    rows: Annotated[NDArray[np.float64], Within(dimensions=(1,))],
    joined_rows: Positive,
) -> Values:
    """T^T diag(u) T / N, where u weighs no row, or at least ``min_rows``."""
    data = encoded(table, view, encoding)
    check_length("values", rows, len(data.dense))
    check_weighed(table, table.view(view), rows)
    return {"gram": data.gram(rows.astype(np.float64)) / joined_rows}


@op(
    "matrix.values",
    asked="the relation as a matrix, collected",
    releases=Release.VALUES,
    returns={"numbers": Numbers((ROWS, ANY)), "codes": Numbers((ROWS, ANY), kinds="i", least=-1.0)},
)
def values(table: LocalTable, view: str, encoding: str) -> Values:
    """T: the encoded numbers of every row, exactly, and the codes of its categories, -1 for none."""
    data = encoded(table, view, encoding)
    check_reply(len(data.dense) * (8 * data.dense.shape[1] + 4 * len(data.codes)))
    codes = np.stack(data.codes, axis=1) if data.codes else np.zeros((len(data.dense), 0), np.int32)
    return {"numbers": lossless(data.dense), "codes": codes}


@op(
    "matrix.gram",
    asked="linear `lbfgs`, `admm`, tables with several shards; the relation as a matrix",
    releases=Release.GRAM,
    private=("noise",),
    summed=("gram",),
    returns={"gram": OfGroups(Numbers((WIDTH, WIDTH)))},
)
def gram(
    table: LocalTable, view: str, encoding: str, joined_rows: Positive, noise: GramNoise | None = None,
    centres: Means | None = None,
) -> Values:  # fmt: skip
    """T^T diag(w) T / N, or K. With ``centres``, (width,), T is less these in each column; K has none.

    Where the policy hides small groups, and does not let the caller have products of its choice, it has nothing but the
    squares and sums of each column: sums of products of two columns, over few rows or differing by few, are not
    computed. Learners take the direction of their steps from it, not what they converge to.
    """
    if noise is not None:
        if centres is not None:
            raise PartyError("op 'matrix.gram': a Gram matrix with noise takes no centres")
        return {"gram": noisy_gram(table, encoded_for_noise(table, view, encoding), noise)}
    data, weights, rows = encoded(table, view, encoding), joined_counts(table, view), table.view(view)
    if table.grant.rules.min_group <= 1 or table.grant.rules.matrix:  # then the caller may have single rows
        return {"gram": Grouped(data.gram(weights, centres) / joined_rows, 0)}
    by_code = [rows_by(rows, codes, size) for codes, size in zip(data.codes, data.sizes, strict=True)]
    groups = np.concatenate([np.zeros(0, np.int64), *by_code])  # numbers are as their statistics
    return {"gram": Grouped(data.unrelated_gram(weights, centres) / joined_rows, groups)}


def joined_counts(table: LocalTable, view: str) -> Array:
    """w: how often each row of a relation is joined."""
    return table.view(view).counts.astype(np.float64)


def noisy_gram(table: LocalTable, data: SealedTable, noise: GramNoise) -> Array:
    """K of one shard."""
    most, upper = float(max(data.empty.columns, 1)), np.triu_indices(data.width)

    def parts() -> Iterator[Array]:
        encoded = data.open()
        for block in blocks(*encoded.dense.shape):
            rows = encoded.rows(block)
            yield rows.gram(kept_shares(rows.norms(), math.sqrt(most)) ** 2)[upper] / noise.table_rows

    data.empty.check_gram()
    found = np.zeros((data.width, data.width))
    found[upper] = table.noisy(parts, upper[0].shape, most / noise.table_rows, noise.multiplier, "gram")
    return np.asarray(found + np.triu(found, 1).T)


def gram_noise(columns: int, noise: GramNoise) -> float:
    """The noise in one number of K, for a table with this number of columns before they were encoded."""
    return noise.multiplier * columns / noise.table_rows


class NumberOrPlace(Numbers):
    """Of each row a number; or if ``arg`` was asked for, its place among the columns."""

    def check(self, value: Any, asked: Asked, reply: Mapping[str, Any]) -> None:
        if asked.arguments.get("arg"):
            Numbers(self.lengths, "u", places_in="places").check(value, asked, reply)
        else:
            super().check(value, asked, reply)


@op(
    "matrix.row_max",
    asked="the relation as a matrix, extremes of rows",
    releases=Release.PREDICTIONS,
    directions="scale",
    returns={"outputs": NumberOrPlace((ROWS,))},
)
def row_max(
    table: LocalTable, view: str, encoding: str, places: Places, scale: List, shift: List, arg: bool = False
) -> Values:
    """The largest number of every row among some encoded columns, each scaled and shifted; with ``arg`` which of these
    columns has it: the first, if several have.
    """
    data = encoded(table, view, encoding)
    if not 0 < len(places) == len(scale) == len(shift) or places.min() < 0 or places.max() >= data.width:
        raise PartyError(
            f"places of columns must be at least 0 and below {data.width:,}, with a scale and a shift each"
        )
    found = largest_of_rows(data, places, scale, shift)
    return {"outputs": found[1].astype(np.min_scalar_type(len(places))) if arg else found[0].astype(table.wire)}


class Largest:
    """The largest of the numbers that each row was offered, and the first place of it."""

    def __init__(self, rows: int):
        self.values: Array = np.full(rows, -np.inf)
        self.places: Whole = np.zeros(rows, np.int64)

    def offer(self, values: Array, places: Whole | int) -> None:
        """Take the numbers that are larger, or as large and at a place before."""
        better = (values > self.values) | ((values == self.values) & (places < self.places))
        np.copyto(self.values, values, where=better)
        np.copyto(self.places, places, where=better)


def largest_of_rows(data: EncodedTable, places: NDArray[np.integer], scale: Array, shift: Array) -> tuple[Array, Whole]:
    """(the largest of ``scale * T[:, places] + shift`` in every row, which of ``places`` it is of), (rows,) each."""
    found, numbers = Largest(len(data.dense)), data.dense.shape[1]
    for number, place in enumerate(places):
        check_time()
        if place < numbers:
            found.offer(data.dense[:, place] * scale[number] + shift[number], number)
    start = numbers
    for codes, size in zip(data.codes, data.sizes, strict=True):
        here = np.flatnonzero((places >= start) & (places < start + size))
        if len(here):
            known = _by_code(places[here] - start, scale[here], shift[here], size)
            found.offer(known.values[codes], here[known.places[codes]])  # the code -1, for none, finds the last
        start += size
    return found.values, found.places


def _by_code(columns: NDArray[np.integer], scale: Array, shift: Array, size: int) -> Largest:
    """The largest number of a group in a row, by the row's code; the last is for rows without a code."""
    found = Largest(size + 1)
    order = np.argsort(-shift, kind="stable")  # where columns are 0
    first = order[0]
    found.offer(np.full(size + 1, shift[first]), int(first))
    others = order[columns[order] != columns[first]]
    here = columns[first]  # where the first is 1, the largest of the others
    found.values[here], found.places[here] = (shift[others[0]], others[0]) if len(others) else (-np.inf, 0)
    ones = np.lexsort((np.arange(len(columns)), -(scale + shift), columns))  # by column: where it is 1
    own, starts = np.unique(columns[ones], return_index=True)
    best = ones[starts]
    values, places = np.full(size + 1, -np.inf), np.zeros(size + 1, np.int64)
    values[own], places[own] = (scale + shift)[best], best
    found.offer(values, places)
    return found
