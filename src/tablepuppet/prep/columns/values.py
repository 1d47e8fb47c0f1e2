"""Columns as numbers, at the party."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tablepuppet.errors import PartyError

_NUMBERS = (
    pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_date,
    pa.types.is_timestamp, pa.types.is_null,
)  # fmt: skip
_PER_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}


def numbers(column: pa.ChunkedArray) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """(values as float64, which are present); dates and timestamps in days since 1970-01-01, booleans 0 and 1.

    PartyError for a type that is no number: of texts it would depend on the rows whether they can be read as some.

    >>> numbers(pa.chunked_array([pa.array([True, None])]))[0].tolist()
    [1.0, 0.0]
    """
    scale, infinity = 1.0, math.inf
    if not any(is_kind(column.type) for is_kind in _NUMBERS):
        raise PartyError(
            f"a column of type {column.type} holds no numbers; cast it in SELECT, or list it as categorical"
        )
    if pa.types.is_date(column.type):
        column = column.cast(pa.date32()).cast(pa.int32())
        infinity = 2.0**31 - 1  # how DuckDB writes DATE 'infinity'
    elif pa.types.is_timestamp(column.type):
        scale, infinity = 1 / _PER_DAY[column.type.unit], 2.0**63 - 1
        column = column.cast(pa.int64())
    present = pc.is_valid(column).to_numpy()
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    values = column.cast(pa.float64(), safe=False)
    filled = (values.fill_null(0.0) if values.null_count else values).to_numpy()
    if infinity < math.inf:
        filled = np.where(np.abs(filled) < infinity, filled * scale, np.copysign(np.inf, filled))
    return filled, present
