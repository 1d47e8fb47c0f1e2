"""Column types: DuckDB's type names, and the families in which types agree.

A type is spelled as DuckDB spells it (``BIGINT``, ``DECIMAL(12,2)``, ``VARCHAR``) whatever database the
column lives in. Shards of a table agree, and keys may meet, when their types are of one family. A type is what another
owner says it is: what is not spelled so, letter by letter, is of no family and never becomes part of a statement.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import date
from enum import Enum
from functools import lru_cache


class Family(Enum):
    """Types whose values mean the same thing."""

    INTEGER = "integer"
    DECIMAL = "decimal"
    FLOAT = "float"
    BOOLEAN = "boolean"
    TEXT = "text"
    DATE = "date"
    TIMESTAMP = "timestamp"
    UUID = "uuid"
    OTHER = "other"


# From narrow to wide: the last one that occurs holds the values of all before it.
_INTEGERS = ("TINYINT", "UTINYINT", "SMALLINT", "USMALLINT", "INTEGER", "UINTEGER", "BIGINT", "UBIGINT", "HUGEINT")
_FAMILIES = {
    **dict.fromkeys(_INTEGERS, Family.INTEGER),
    "FLOAT": Family.FLOAT,
    "DOUBLE": Family.FLOAT,
    "BOOLEAN": Family.BOOLEAN,
    "VARCHAR": Family.TEXT,
    "DATE": Family.DATE,
    "TIMESTAMP": Family.TIMESTAMP,
    "TIMESTAMP_S": Family.TIMESTAMP,
    "TIMESTAMP_MS": Family.TIMESTAMP,
    "TIMESTAMP_NS": Family.TIMESTAMP,
    "TIMESTAMP WITH TIME ZONE": Family.TIMESTAMP,
    "UUID": Family.UUID,
}
_PLAIN = frozenset("BIGNUM BIT BLOB GEOMETRY INTERVAL JSON TIME TIME_NS TIMESTAMPTZ_NS UHUGEINT VARIANT".split()) | {
    "TIME WITH TIME ZONE"
}  # of no family, but an expression may make something else of them
_DECIMAL = re.compile(r"DECIMAL\((\d{1,2}),\s?(\d{1,2})\)", re.ASCII)
_ENUM = re.compile(r"ENUM\('(?:[^']|'')*'(?:, '(?:[^']|'')*')*\)")
MOST_DIGITS = 38

_DAY = re.compile(r"[1-9][0-9]{3}-[0-9]{2}-[0-9]{2}")


def is_day(text: str) -> bool:
    """Whether a text is a day that every database reads alike.

    >>> is_day("2024-02-29"), is_day("2023-02-29"), is_day("24-1-1")
    (True, False, False)
    """
    try:
        return _DAY.fullmatch(text) is not None and date.fromisoformat(text) is not None
    except ValueError:
        return False


NUMERIC = frozenset({Family.INTEGER, Family.DECIMAL, Family.FLOAT, Family.BOOLEAN, Family.DATE, Family.TIMESTAMP})
"""Families that become one number as a feature; dates and timestamps count days since 1970-01-01."""

KEY_LIKE = frozenset(Family) - {Family.FLOAT, Family.OTHER}
"""Families whose values can be joined and counted as distinct."""


@lru_cache(maxsize=256)  # asked for every column again and again; texts of ENUMs may be long
def family(type_name: str) -> Family:
    """The family of a DuckDB type.

    >>> family("DECIMAL(12,2)").value, family("SMALLINT").value, family("ENUM('a', 'b')").value
    ('decimal', 'integer', 'text')
    """
    if _decimal(type_name) is not None:
        return Family.DECIMAL
    if _ENUM.fullmatch(type_name):
        return Family.TEXT
    return _FAMILIES.get(type_name, Family.OTHER)


def is_plain(type_name: str) -> bool:
    """Whether it is the whole name of a type of single values, which a statement may hold.

    >>> is_plain("TIME"), is_plain("ENUM('a')"), is_plain("INTEGER[]"), is_plain("INTEGER); DROP TABLE t")
    (True, True, False, False)
    """
    return family(type_name) is not Family.OTHER or type_name in _PLAIN


def _decimal(type_name: str) -> tuple[int, int] | None:
    """Digits and scale; None for what is no decimal that DuckDB has."""
    found = _DECIMAL.fullmatch(type_name)
    digits, scale = (int(found[1]), int(found[2])) if found else (0, 0)
    return (digits, scale) if 1 <= digits <= MOST_DIGITS and scale <= digits else None


def joinable(left: str, right: str) -> bool:
    """Whether keys of these types can be equal: one family, or whole numbers and decimals."""
    exact = {Family.INTEGER, Family.DECIMAL}
    families = {family(left), family(right)}
    return families <= exact or (len(families) == 1 and families <= KEY_LIKE)


def widest(types: Iterable[str]) -> str | None:
    """The type that holds all values of ``types``, or None where they do not agree.

    >>> widest(["INTEGER", "BIGINT"]), widest(["DECIMAL(6,0)", "DECIMAL(4,2)"]), widest(["VARCHAR", "BIGINT"])
    ('BIGINT', 'DECIMAL(8,2)', None)
    """
    names = list(types)
    families = {family(name) for name in names}
    if len(families) != 1:
        return None
    match families.pop():
        case Family.INTEGER:
            return _widest_integer(names)
        case Family.DECIMAL:
            return _widest_decimal(names)
        case Family.FLOAT:
            return "DOUBLE" if len(set(names)) > 1 else names[0]
        case Family.TEXT:
            return "VARCHAR"
        case Family.TIMESTAMP:
            return _widest_timestamp(names)
        case _:
            return names[0] if len(set(names)) == 1 else None


def holds(wide: str, narrow: str) -> bool:
    """Whether every value of type ``narrow`` is one of type ``wide`` too, so that a cast neither fails nor rounds.

    >>> holds("BIGINT", "INTEGER"), holds("UTINYINT", "INTEGER"), holds("DECIMAL(9,2)", "DECIMAL(8,3)")
    (True, False, False)
    """
    return widest([narrow, wide]) == wide


def _widest_integer(names: list[str]) -> str:
    top = max(names, key=_INTEGERS.index)
    signed_below = any(not name.startswith("U") for name in names)
    if top.startswith("U") and signed_below:  # an unsigned type does not hold the negative values
        return _INTEGERS[_INTEGERS.index(top) + 1]
    return top


def _widest_decimal(names: list[str]) -> str | None:
    sizes = [size for size in map(_decimal, names) if size]
    scale = max(s for _, s in sizes)
    whole = max(p - s for p, s in sizes)
    return f"DECIMAL({whole + scale},{scale})" if whole + scale <= MOST_DIGITS else None


def _widest_timestamp(names: list[str]) -> str | None:
    if len(set(names)) == 1:
        return names[0]
    if "TIMESTAMP_NS" in names:  # finer than the others, but of a narrower range
        return None
    return "TIMESTAMP WITH TIME ZONE" if "TIMESTAMP WITH TIME ZONE" in names else "TIMESTAMP"
