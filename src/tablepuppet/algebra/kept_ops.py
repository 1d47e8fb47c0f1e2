"""What a shard keeps at its party for a session; `products.py` and `kept.py` are the coordinator's half.

T are the shard's encoded rows. What is computed of them stays under a new name, which the ops of `ops.py` can use:

    matrix.centre           T less centres
    matrix.apply            f(T)

So do vectors: K has one number, or k numbers, for every row of the shard that takes part. It belongs to one session and
one table.

    matrix.keep_times       K = T V
    matrix.keep_rows        K = numbers that the caller sends
    matrix.keep_function    K = f(K1), f(K1, K2), with numbers in the place of one of them
    matrix.kept_sums        the sums of K over rows; `matrix.sums_by` releases T^T K
    matrix.kept_rows        K itself

The last two are counted by columns of K, the others release nothing. V, f and numbers are of the caller's choice: the
table's policy must allow these (``matrix = true``), and the party counts V and the columns that f is applied to. What
is released of K must be nonzero in no row, or in at least ``min_rows`` rows. Its numbers are checked to be finite then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.algebra.functions import (
    OF_ONE,
    OF_TWO,
    FunctionName,
    FunctionSteps,
    check_steps,
    evaluate,
    evaluated,
)
from tablepuppet.arrays import Array
from tablepuppet.errors import PartyError
from tablepuppet.party.allowance import check_memory, check_reply
from tablepuppet.party.arguments import Means, Name, Some, Within
from tablepuppet.party.local_table import LocalTable, RelationRows
from tablepuppet.party.ops import Values, op
from tablepuppet.party.release import Release
from tablepuppet.party.returns import OUTPUTS, ROW_OUTPUTS, Numbers
from tablepuppet.prep.encode.encode import EncodedShard, encoded
from tablepuppet.prep.encode.encoded_table import EncodedTable, SealedTable, check_length

Row = Annotated[NDArray[np.float64], Within(dimensions=(1,), size=10_000)]
Operand = Name | float | Row  # a kept vector, a number, or a number for each column
Places = Annotated[NDArray[np.int64], Within(dimensions=(1,), size=10_000)]
Constants = Annotated[NDArray[np.float64], Within(dimensions=(2,))]


def check_weighed(table: LocalTable, view: RelationRows, rows: NDArray[Any]) -> None:
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


@op("matrix.centre", asked="the relation as a matrix", releases=Release.COUNTS, returns={})
def centre(table: LocalTable, view: str, encoding: str, into: Name, centres: Means) -> Values:
    """Keep T less ``centres``, (numbers,), under the name ``into``: products of columns far from zero lose digits.

    No direction is counted: whatever is asked of it follows from the same of T, from its sums and from N.
    """
    data = encoded(table, view, encoding)
    check_length("centres", centres, data.dense.shape[1])
    _keep_table(table, view, into, data.centred(centres), "matrix.centre")
    return {}


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
    _keep_table(table, view, into, found, "matrix.apply")
    return {}


class Applied(EncodedShard):
    """What ``matrix.apply`` and ``matrix.centre`` keep at a party."""


def _forget(table: LocalTable, view: str, into: str, op_name: str) -> None:
    """Free the memory of what was kept under a name before; PartyError if that is an encoding."""
    if f"{view}/{into}" in table.state and not isinstance(table.state[f"{view}/{into}"], Applied):
        raise PartyError(f"op {op_name!r}: {into!r} is the name of an encoding")
    table.state.pop(f"{view}/{into}", None)


def _keep_table(table: LocalTable, view: str, into: str, data: EncodedTable, op_name: str) -> None:
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


@dataclass(frozen=True)
class KeptVector:
    """A kept vector, and the rows that its numbers are of."""

    values: Array  # (rows, columns)
    view: RelationRows


@op(
    "matrix.keep_times",
    asked="the relation as a matrix, vectors at parties",
    releases=Release.COUNTS,
    directions="directions",
    returns={},
)
def keep_times(table: LocalTable, view: str, encoding: str, into: Name, directions: Array) -> Values:
    """K = T V."""
    data = encoded(table, view, encoding)
    check_memory(8 * len(data.dense) * directions[:1].size)
    _keep(table, view, into, data.times(directions))
    return {}


@op(
    "matrix.keep_rows",
    asked="the relation as a matrix, vectors at parties",
    releases=Release.COUNTS,
    directions="rows",
    returns={},
)
def keep_rows(table: LocalTable, view: str, into: Name, rows: Array) -> Values:
    """K = numbers of the caller's own, one or k for every row."""
    check_length("values", rows, len(table.view(view).row_ids))
    check_memory(8 * rows.size)
    check_weighed(table, table.view(view), rows)
    _keep(table, view, into, rows.astype(np.float64))
    return {}


@op(
    "matrix.keep_function",
    asked="the relation as a matrix, vectors at parties",
    releases=Release.COUNTS,
    returns={},
)
def keep_function(
    table: LocalTable, view: str, into: Name, function: FunctionName, left: Operand, right: Operand | None = None
) -> Values:
    """K = an elementwise function of one or two vectors; a vector of one column goes with each column of another."""
    given = [left] if right is None else [left, right]
    functions = OF_ONE if right is None else OF_TWO
    if function not in functions or not any(isinstance(each, str) for each in given):
        raise PartyError(f"op 'matrix.keep_function': {function!r} takes another number of vectors")
    values = [_kept(table, view, each) if isinstance(each, str) else np.asarray(each, np.float64) for each in given]
    widths = {each.shape[-1] for each in values if each.ndim} - {1}
    if len(widths) > 1:
        raise PartyError("op 'matrix.keep_function': its vectors have different numbers of columns")
    rows = len(table.view(view).row_ids)
    check_memory(16 * rows * max(widths, default=1))  # comparisons are made into numbers
    _keep(table, view, into, np.asarray(functions[function](*values), np.float64))
    return {}


@op(
    "matrix.kept_sums",
    asked="the relation as a matrix, vectors at parties",
    releases=Release.GRADIENT_SUMS,
    directions="vectors",
    summed=("sums",),
    returns={"sums": Numbers((1, OUTPUTS))},
)
def kept_sums(table: LocalTable, view: str, kept: Name, vectors: Some) -> Values:
    """The sum of each of the ``vectors`` columns of K, as one row."""
    values = released(table, view, kept, vectors)
    return {"sums": flat(_finite(table, values.sum(axis=0, keepdims=True)))}


@op(
    "matrix.kept_rows",
    asked="the relation as a matrix, vectors at parties",
    releases=Release.PREDICTIONS,
    directions="vectors",
    returns={"outputs": ROW_OUTPUTS},
)
def kept_rows(table: LocalTable, view: str, kept: Name, vectors: Some) -> Values:
    """K itself, of ``vectors`` columns."""
    values = released(table, view, kept, vectors)
    check_reply(values.nbytes)
    return {"outputs": flat(values).astype(table.wire)}


def _keep(table: LocalTable, view: str, into: str, values: Array) -> None:
    """Keep a vector under a name; what was kept under it is forgotten."""
    name = f"{view}/{into}"
    if not isinstance(table.state.get(name, None), KeptVector | None):
        raise PartyError(f"{into!r} is the name of something else than a kept vector")
    table.state[name] = KeptVector(values if values.ndim == 2 else values[:, None], table.view(view))


def _kept(table: LocalTable, view: str, name: str) -> Array:
    """A kept vector, (rows, columns)."""
    found = table.state.get(f"{view}/{name}")
    if not isinstance(found, KeptVector) or found.view is not table.view(view):  # rows may be announced again
        raise PartyError(f"party {table.grant.party!r} keeps no vector {name!r} for this relation")
    return found.values


def released(table: LocalTable, view: str, name: str, vectors: int) -> Array:
    """A kept vector that something is to be released of; by its number of columns, which were counted."""
    values = _kept(table, view, name)
    if values.shape[1] != vectors:
        raise PartyError(f"the kept vector {name!r} has another number of columns than {vectors:,}")
    check_weighed(table, table.view(view), values)
    return _finite(table, values)


def _finite(table: LocalTable, values: Array) -> Array:
    if not np.isfinite(values).all():
        raise PartyError(
            f"party {table.grant.party!r}, table {table.grant.table!r}: a kept vector is not finite in some rows"
        )
    return values


def flat(values: Array) -> Array:
    """Without a second dimension of one, as for a single vector."""
    return values[:, 0] if values.shape[1:] == (1,) else values
