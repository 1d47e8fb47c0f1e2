"""Columns as numbers, at the party."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

MICROSECONDS_PER_DAY = 86_400_000_000


def numbers(column: pa.ChunkedArray) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """(values as float64, which are present); dates and timestamps in days since 1970-01-01, booleans 0 and 1.

    >>> numbers(pa.chunked_array([pa.array([True, None])]))[0].tolist()
    [1.0, 0.0]
    """
    scale = 1.0
    if pa.types.is_date(column.type):
        column = column.cast(pa.date32()).cast(pa.int32())
    elif pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz), safe=False).cast(pa.int64())
        scale = 1 / MICROSECONDS_PER_DAY
    present = pc.is_valid(column).to_numpy()
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    values = column.cast(pa.float64(), safe=False)
    filled = values.fill_null(0.0) if values.null_count else values
    return filled.to_numpy() * scale if scale != 1.0 else filled.to_numpy(), present
