"""What a shard does with vectors that stay at its party; `kept.py` is the coordinator's half.

A kept vector has one number, or k numbers, for every row of the shard that takes part. It has a name, and belongs to
one session and one table. T are the shard's encoded rows:

    matrix.keep_times               K = T V
    matrix.keep_rows                K = numbers that the caller sends
    matrix.keep_function            K = f(K1), f(K1, K2), with numbers in the place of one of them
    matrix.kept_sums                the sums of K over rows
    matrix.kept_transposed_times    T^T K
    matrix.kept_rows                K itself

The first three release nothing. The others are counted by columns of K. What they release must be nonzero in no row, or
in at least ``min_rows`` rows. A vector exists only if the table's policy allowed V, or the caller's own numbers, before
(``matrix = true``). Numbers are checked to be finite when they are released.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from tablepuppet.algebra.functions import OF_ONE, OF_TWO, FunctionName
from tablepuppet.algebra.ops import check_weighed
from tablepuppet.errors import PartyError
from tablepuppet.party.allowance import check_memory, check_reply
from tablepuppet.party.arguments import Name, Some, Within
from tablepuppet.party.local_table import LocalTable, RelationRows
from tablepuppet.party.ops import Values, op
from tablepuppet.party.release import Release
from tablepuppet.party.returns import OUTPUTS, ROW_OUTPUTS, WIDTH, Numbers
from tablepuppet.prep.encode.encode import encoded
from tablepuppet.prep.encode.encoded_table import check_length

Array = NDArray[np.float64]
Row = Annotated[NDArray[np.float64], Within(dimensions=(1,), size=10_000)]
Operand = Name | float | Row  # a kept vector, a number, or a number for each column


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
    values = _released(table, view, kept, vectors)
    return {"sums": _flat(_finite(table, values.sum(axis=0, keepdims=True)))}


@op(
    "matrix.kept_transposed_times",
    asked="the relation as a matrix, vectors at parties",
    releases=Release.GRADIENT_SUMS,
    directions="vectors",
    summed=("sums",),
    returns={"sums": Numbers((WIDTH, OUTPUTS))},
)
def kept_transposed_times(table: LocalTable, view: str, encoding: str, kept: Name, vectors: Some) -> Values:
    """T^T K, for the ``vectors`` columns of K."""
    data = encoded(table, view, encoding)
    values = _finite(table, _released(table, view, kept, vectors))
    return {"sums": data.transposed_times(_flat(values))}


@op(
    "matrix.kept_rows",
    asked="the relation as a matrix, vectors at parties",
    releases=Release.PREDICTIONS,
    directions="vectors",
    returns={"outputs": ROW_OUTPUTS},
)
def kept_rows(table: LocalTable, view: str, kept: Name, vectors: Some) -> Values:
    """K itself, of ``vectors`` columns."""
    values = _released(table, view, kept, vectors)
    check_reply(values.nbytes)
    return {"outputs": _flat(_finite(table, values)).astype(table.wire)}


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


def _released(table: LocalTable, view: str, name: str, vectors: int) -> Array:
    """A kept vector that something is to be released of; by its number of columns, which were counted."""
    values = _kept(table, view, name)
    if values.shape[1] != vectors:
        raise PartyError(f"the kept vector {name!r} has another number of columns than {vectors:,}")
    check_weighed(table, table.view(view), values)
    return values


def _finite(table: LocalTable, values: Array) -> Array:
    if not np.isfinite(values).all():
        raise PartyError(
            f"party {table.grant.party!r}, table {table.grant.table!r}: a kept vector is not finite in some rows"
        )
    return values


def _flat(values: Array) -> Array:
    """Without a last dimension of one, as for a single vector."""
    return values[..., 0] if values.shape[-1] == 1 else values
