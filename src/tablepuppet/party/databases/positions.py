"""A row's position: its place among all rows of its table, in an order that is the same at every reading.

Rows that tie are equal in everything that is read, so any order of them is the same order.
"""

from __future__ import annotations

from collections.abc import Sequence


def numbered_by(order: Sequence[str]) -> str:
    """The SQL that numbers rows from 0 in the order of some expressions; without any, in the order of the scan.

    >>> numbered_by(["rowid"])
    'row_number() OVER (ORDER BY rowid) - 1'
    """
    ordering = f"ORDER BY {', '.join(order)}" if order else ""
    return f"row_number() OVER ({ordering}) - 1"
