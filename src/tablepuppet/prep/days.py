"""Dates and timestamps are computed as days since 1970-01-01; this module converts them back, to be shown."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tablepuppet.runs.table_view import shown
from tablepuppet.sql.types import Family

DATES = (Family.DATE, Family.TIMESTAMP)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


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
