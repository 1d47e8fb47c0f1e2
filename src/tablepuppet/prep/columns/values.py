"""Columns as numbers, at the party; dates as days since 1970-01-01, the parts of dates, and dates for people."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tablepuppet.errors import PartyError
from tablepuppet.runs.figures import shown
from tablepuppet.sql.types import Family

_NUMBERS = (
    pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_date,
    pa.types.is_timestamp, pa.types.is_null,
)  # fmt: skip
_FLOAT = pa.float64()
EXACT, MOST_SCALE = 1 << 53, 22  # whole numbers below, and powers of ten up to, that float64 has exactly
_PER_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}


def numbers(column: pa.ChunkedArray) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """(values as the nearest float64, which are present); dates and times in days since 1970-01-01, booleans 0 and 1.

    PartyError for a type that is no number: of texts it would depend on the rows whether they can be read as some.

    >>> numbers(pa.chunked_array([pa.array([True, None])]))[0].tolist()
    [1.0, 0.0]
    """
    if column.type == _FLOAT and not column.null_count:
        return column.to_numpy(), np.ones(len(column), bool)
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
    present = pc.is_valid(column).to_numpy() if column.null_count else np.ones(len(column), bool)
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    values = _decimals(column) if pa.types.is_decimal(column.type) else column.cast(pa.float64(), safe=False)
    filled = (values.fill_null(0.0) if values.null_count else values).to_numpy()
    if infinity < math.inf and len(filled):
        endless = max(filled.max(), -filled.min()) >= infinity
        days = filled * scale
        filled = np.where(np.abs(filled) < infinity, days, np.copysign(np.inf, filled)) if endless else days
    return filled, present


def _decimals(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Decimals as the nearest float64, which Arrow's own cast misses by a bit in every third number.

    >>> from decimal import Decimal
    >>> _decimals(pa.chunked_array([pa.array([Decimal("1.15"), None])])).to_pylist()
    [1.15, None]
    """
    kind = column.type
    if kind.bit_width == 128 and 0 <= kind.scale <= MOST_SCALE:
        found = [_quotients(part, 10.0**kind.scale) for part in column.chunks]
        if all(part is not None for part in found):
            return pa.chunked_array(found, pa.float64())
    return column.cast(pa.string()).cast(pa.float64())


def _quotients(part: pa.Array, power: float) -> pa.Array | None:
    """Decimals as the quotients of two exact floats, which are rounded once; None if one has too many digits."""
    words = np.frombuffer(part.buffers()[1], np.int64)[2 * part.offset : 2 * (part.offset + len(part))]
    missing = pc.is_null(part).to_numpy(zero_copy_only=False)
    low, high = (np.where(missing, 0, words[place::2]) for place in (0, 1))
    if not (np.array_equal(high, low >> 63) and np.all((low > -EXACT) & (low < EXACT))):
        return None
    return pa.array(low / power, mask=missing)


DATES = (Family.DATE, Family.TIMESTAMP)
DatePart = Literal["year", "quarter", "month", "week", "day", "weekday", "yearday", "hour", "minute", "second"]
PART_BOUNDS: Mapping[DatePart, tuple[float, float]] = {
    "quarter": (1, 4), "month": (1, 12), "week": (1, 53), "day": (1, 31), "weekday": (0, 6), "yearday": (1, 366),
    "hour": (0, 23), "minute": (0, 59), "second": (0, 59),
}  # fmt: skip
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY = 86_400_000_000  # microseconds
_PARTS: Mapping[DatePart, Callable[[pa.Array], pa.Array]] = {
    "year": pc.year, "quarter": pc.quarter, "month": pc.month, "week": pc.iso_week, "day": pc.day,
    "weekday": pc.day_of_week, "yearday": pc.day_of_year, "hour": pc.hour, "minute": pc.minute, "second": pc.second,
}  # fmt: skip
_EARLIEST, _LATEST = -719_528.0, 2_932_896.0  # days of the years 0 and 9999: dates beyond have no parts


def date_part(days: NDArray[np.float64], part: DatePart) -> NDArray[np.float64]:
    """A part of dates, which are days since 1970-01-01; NaN for what no calendar has.

    >>> date_part(np.array([0.75]), "hour").tolist(), date_part(np.array([59.0]), "month").tolist()
    ([18.0], [3.0])
    """
    known = np.isfinite(days) & (days >= _EARLIEST) & (days <= _LATEST)
    ticks = np.rint(np.where(known, days, 0.0) * _DAY).astype("datetime64[us]")
    return np.where(known, _PARTS[part](pa.array(ticks)).to_numpy().astype(np.float64), np.nan)


def as_date(days: float | None) -> datetime | None:
    """Days since 1970-01-01 as a time, to ten microseconds; None outside of the years 1 to 9999.

    Days as a float are accurate to a microsecond or two: so that whole seconds stay whole.

    >>> as_date(0.5), as_date((datetime(2202, 10, 3, 1, 45, tzinfo=UTC) - _EPOCH) / timedelta(days=1))
    (datetime.datetime(1970, 1, 1, 12, 0), datetime.datetime(2202, 10, 3, 1, 45))
    """
    try:
        if days is None:
            return None
        whole, part = divmod(days, 1.0)
        return (_EPOCH + timedelta(days=whole, microseconds=10 * round(part * 8.64e9))).replace(tzinfo=None)
    except (OverflowError, ValueError):
        return None


def shown_date(value: datetime, kind: Family) -> str:
    """A date, or a time to the second."""
    return f"{value:%Y-%m-%d}" if kind is Family.DATE else f"{value:%Y-%m-%d %H:%M:%S}"


def shown_value(value: float, kind: Family) -> str:
    """A number for people; of a column of dates, a date."""
    date = as_date(float(value)) if kind in DATES else None
    return shown_date(date, kind) if date else shown(float(value))
