"""Dates and timestamps are computed as days since 1970-01-01; this module has their parts, and shows them as dates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tablepuppet.runs.figures import shown
from tablepuppet.sql.types import Family

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
