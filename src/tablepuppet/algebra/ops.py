"""What a shard computes for its part of the joined matrix X; `products.py` is the coordinator's half.

T (rows x width) are the shard's encoded rows, w counts how often each of them is joined, N counts the joined rows:

    matrix.times               T V                      one number per row and direction
    matrix.transposed_times    T^T U                    one sum per encoded column and direction
    matrix.sums_by             T^T U                    for the 0/1 matrix U of groups of rows
    matrix.column_sums         T^T w
    matrix.column_squares      (T * T)^T w              of T less centres if they are given
    matrix.centre              T less centres, stored here under a new name, which the other ops can use
    matrix.gram                T^T diag(w) T / N        with noise if that is asked for, of T less centres if they are
    matrix.weighted_gram       T^T diag(u) T / N        u as U
    matrix.apply               f(T), stored here under a new name, which the other ops can use
    matrix.values              T, cell by cell          only columns whose policy says so (``values``)

The caller chooses V, U, u and f: with unit vectors as V, T V is T itself. It also chooses w, and by which steps T is
encoded. So a table's policy must allow these ops, all but ``matrix.gram`` (``matrix = true``), and the party counts the
columns of V and U, those that f is applied to, and w as one (``limits.max_matrix_columns``). Learners use only
``matrix.gram`` of them: their directions come from their algorithms, and their ops have other rules.

A noisy Gram matrix is not weighted by w. Every row is clipped to the length of a row whose numbers are about 1, so that
a row counts once however often it is joined. n counts the table's rows:

    K = sum_r c_r^2 t_r t_r^T / n + noise               |c_r t_r|^2 <= columns of the table
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from tablepuppet.algebra.functions import FunctionSteps, check_steps, evaluate, evaluated
from tablepuppet.arrays import lossless
from tablepuppet.errors import PartyError
from tablepuppet.party.added_noise import GramNoise
from tablepuppet.party.allowance import check_memory, check_reply
from tablepuppet.party.arguments import Means, Name, Positive, Some, Within
from tablepuppet.party.groups import Grouped
from tablepuppet.party.local_table import LocalTable, RelationRows
from tablepuppet.party.ops import Values, op
from tablepuppet.party.release import Release
from tablepuppet.party.returns import ANY, OUTPUTS, ROW_OUTPUTS, ROWS, WIDTH, Numbers, OfGroups, OfRows
from tablepuppet.prep.encode.encode import EncodedShard, encoded, encoded_for_noise
from tablepuppet.prep.encode.encoded_table import EncodedTable, SealedTable, check_length
from tablepuppet.prep.encode.gram_groups import fewest_rows, without_pairs
from tablepuppet.privacy.clip import blocks, kept_shares

Array = NDArray[np.float64]
Places = Annotated[NDArray[np.int64], Within(dimensions=(1,), size=10_000)]
Labels = Annotated[NDArray[np.integer], Within(dimensions=(1,))]
Constants = Annotated[NDArray[np.float64], Within(dimensions=(2,))]


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
    "matrix.transposed_times",
    asked="the relation as a matrix",
    releases=Release.GRADIENT_SUMS,
    directions="rows",
    summed=("sums",),
    returns={"sums": Numbers((WIDTH, OUTPUTS))},
)
def transposed_times(table: LocalTable, view: str, encoding: str, rows: Array) -> Values:
    """T^T U: (width,) for one direction, else (width, directions); each weighs no row, or at least ``min_rows``."""
    data = encoded(table, view, encoding)
    check_length("values", rows, len(data.dense))
    check_weighed(table, table.view(view), rows)
    return {"sums": data.transposed_times(rows)}


@op(
    "matrix.sums_by",
    asked="the relation as a matrix",
    releases=Release.GRADIENT_SUMS,
    directions="groups",
    summed=("sums",),
    returns={"sums": Numbers((WIDTH, OUTPUTS))},
)
def sums_by(table: LocalTable, view: str, encoding: str, labels: Labels, groups: Some) -> Values:
    """T^T U for the 0/1 matrix U of groups of rows, by the number of each row's group; of ``min_rows`` rows or none."""
    data, rows = encoded(table, view, encoding), table.view(view)
    check_length("values", labels, len(data.dense))
    if len(labels) and (labels.min() < 0 or labels.max() >= groups):
        raise PartyError(f"labels must be at least 0 and below {groups:,}")
    if table.grant.rules.min_rows:
        check_memory(len(labels) * groups)
        check_weighed(table, rows, labels[:, None] == np.arange(groups))
    found = data.sums_by(labels, groups)
    return {"sums": found[:, 0] if groups == 1 else found}


def check_weighed(table: LocalTable, view: RelationRows, rows: Array) -> None:
    """PrivacyError if a direction weighs some rows, but too few to hide among; by what was asked alone."""
    least = table.grant.rules.min_rows
    if not least:
        return
    weighed = (rows if rows.ndim == 2 else rows[:, None]) != 0
    if not view.is_each_once:  # a row that is listed twice counts once
        distinct, places = np.unique(view.row_ids, return_inverse=True)
        weighed = np.stack([np.bincount(places, column, len(distinct)) > 0 for column in weighed.T], axis=1)
    found = np.count_nonzero(weighed, axis=0)
    if np.any((found > 0) & (found < least)):
        reason = "leave out columns that few rows have, or take larger groups: a product would be a sum over fewer than"
        raise table.grant.refusal("min_rows", f"{reason} {least} of its rows")


def check_varied(table: LocalTable, view: RelationRows, values: Array) -> None:
    """PrivacyError if all rows of a column but some, too few to hide among, have one value."""
    least = table.grant.rules.min_rows
    if not least or not len(values):
        return
    rising = np.sort(np.ascontiguousarray(values[view.firsts].T))  # (columns, different rows)
    shared = (rising[:, :least] == rising[:, -least:]).any(axis=1)  # by all but fewer than ``least``
    if np.any(shared & (rising[:, 0] != rising[:, -1])):
        raise table.grant.refusal(
            "min_rows",
            f"a step of the function, such as a comparison, makes fewer than {least} of its rows differ from all "
            "others; compare with a number that so many rows are above and below; to limit numbers, write np.clip",
        )


@op(
    "matrix.column_sums",
    asked="the relation as a matrix",
    releases=Release.STATISTICS | Release.GRADIENT_SUMS,
    directions="view",
    summed=("sums",),
    returns={"sums": OfRows(Numbers((WIDTH,)), Release.PREDICTIONS)},
)
def column_sums(table: LocalTable, view: str, encoding: str) -> Values:
    """T^T w."""
    return {"sums": encoded(table, view, encoding).transposed_times(joined_counts(table, view))}


@op(
    "matrix.column_squares",
    asked="the relation as a matrix",
    releases=Release.STATISTICS | Release.GRADIENT_SUMS,
    directions="view",
    summed=("sums",),
    returns={"sums": OfRows(Numbers((WIDTH,)), Release.PREDICTIONS)},
)
def column_squares(table: LocalTable, view: str, encoding: str, centres: Means | None = None) -> Values:
    """(T * T)^T w; with ``centres``, (numbers,), these are subtracted from the columns of numbers first."""
    data = encoded(table, view, encoding)
    if centres is not None:
        data = _centred(data, centres)
    return {"sums": squares_of(data, joined_counts(table, view))}


@op("matrix.centre", asked="the relation as a matrix", releases=Release.COUNTS, returns={})
def centre(table: LocalTable, view: str, encoding: str, into: Name, centres: Means) -> Values:
    """Keep T less ``centres``, (numbers,), under the name ``into``: products of columns far from zero lose digits.

    No direction is counted: whatever is asked of it follows from the same of T, from its sums and from N.
    """
    data = _centred(encoded(table, view, encoding), centres)
    _keep(table, view, into, data, "matrix.centre")
    return {}


def _centred(data: EncodedTable, centres: Array) -> EncodedTable:
    check_length("centres", centres, data.dense.shape[1])
    return data.centred(centres)


def squares_of(data: EncodedTable, weights: Array) -> Array:
    """The weighted squares of every encoded column; those of categories are 0 and 1."""
    squared = EncodedTable(data.dense**2, data.codes, data.sizes)
    return squared.transposed_times(weights)


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
    "matrix.apply",
    asked="the relation as a matrix, functions of columns",
    releases=Release.COUNTS,
    directions="numbers",
    returns={},
)
def apply(
    table: LocalTable,
    view: str,
    encoding: str,
    into: Name,
    numbers: Places,
    groups: Places,
    steps: FunctionSteps,
    constants: Constants,
) -> Values:
    """Keep a function of some of the table's numbers under the name ``into``, and the codes of some categories with it.

    ``numbers`` are places among the numeric columns, ``groups`` among those of categories. What was kept under that
    name is forgotten. PartyError if the function is not finite in some row, PrivacyError if some step of it is the same
    in all rows but a few: a difference that later steps hide could be found again in sums.
    """
    data = encoded(table, view, encoding)
    check_steps(steps, constants, len(numbers))
    for places, most in ((numbers, data.dense.shape[1]), (groups, len(data.codes))):
        if len(places) and (places.min() < 0 or places.max() >= most):
            raise PartyError(f"places of columns must be at least 0 and below {most:,}")
    _forget(table, view, into, "matrix.apply")
    check_memory(8 * (len(steps) + 4) * len(data.dense) * max(len(numbers), 1))
    for result in evaluated(steps, constants, data.dense[:, numbers]):
        check_varied(table, table.view(view), result)
    found = _beside_groups(data, result, groups)
    if not np.isfinite(found.dense).all():
        raise PartyError(
            f"party {table.grant.party!r}, table {table.grant.table!r}: the function is not finite for some rows; its "
            "columns are standardised numbers, below zero for what is below the mean"
        )
    _keep(table, view, into, found, "matrix.apply")
    return {}


class Applied(EncodedShard):
    """What ``matrix.apply`` and ``matrix.centre`` keep at a party."""


def _forget(table: LocalTable, view: str, into: str, op_name: str) -> None:
    """Free the memory of what was kept under a name before; PartyError if that is an encoding."""
    if f"{view}/{into}" in table.state and not isinstance(table.state[f"{view}/{into}"], Applied):
        raise PartyError(f"op {op_name!r}: {into!r} is the name of an encoding")
    table.state.pop(f"{view}/{into}", None)


def _keep(table: LocalTable, view: str, into: str, data: EncodedTable, op_name: str) -> None:
    _forget(table, view, into, op_name)
    table.state[f"{view}/{into}"] = Applied(SealedTable.of(data, table.snapshot.look), table.view(view), private=False)


def applied(
    data: EncodedTable, numbers: NDArray[np.int64], groups: NDArray[np.int64], steps: FunctionSteps,
    constants: Array,
) -> EncodedTable:  # fmt: skip
    """A function of some numbers of a table, and some of its categories."""
    return _beside_groups(data, evaluate(steps, constants, data.dense[:, numbers]), groups)


def _beside_groups(data: EncodedTable, numbers: Array, groups: NDArray[np.int64]) -> EncodedTable:
    """Numbers of a table's rows, and some of its categories."""
    chosen = groups.tolist()
    codes, sizes = tuple(data.codes[place] for place in chosen), tuple(data.sizes[place] for place in chosen)
    return EncodedTable(np.ascontiguousarray(numbers), codes, sizes)


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

    Pairs of columns that rest on few rows have nothing to do with each other (gram_groups.py), unless the policy lets
    the caller have products of its choice.
    """
    if noise is not None:
        if centres is not None:
            raise PartyError("op 'matrix.gram': a Gram matrix with noise takes no centres")
        return {"gram": noisy_gram(table, encoded_for_noise(table, view, encoding), noise)}
    data, weights, rows = encoded(table, view, encoding), joined_counts(table, view), table.view(view)
    found, fewest = data.gram(weights, centres), np.zeros(1, np.int64)
    if table.grant.rules.min_group > 1 and not table.grant.rules.matrix:  # else the caller may have single rows
        fewest = fewest_rows(data, rows.firsts)
        few = ~table.grant.is_group(fewest)
        found, fewest = without_pairs(data, found, weights, centres, few), np.where(few, 0, fewest)
    return {"gram": Grouped(found / joined_rows, fewest)}


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
