"""Dates and timestamps are computed as days since 1970-01-01; here they become dates again, to be shown."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tablepuppet.sql.types import Family

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def as_date(days: float | None) -> datetime | None:
    """Days since 1970-01-01 as a time, to the nearest microsecond; None outside of the years 1 to 9999.

    >>> as_date(0.5)
    datetime.datetime(1970, 1, 1, 12, 0)
    """
    try:
        return None if days is None else (_EPOCH + timedelta(days=days)).replace(tzinfo=None)
    except (OverflowError, ValueError):
        return None


def shown_date(value: datetime, kind: Family) -> str:
    """A date, or a time to the second."""
    return f"{value:%Y-%m-%d}" if kind is Family.DATE else f"{value:%Y-%m-%d %H:%M:%S}"
