"""Values that an analyst gives beside the SQL: ``$name`` becomes a typed literal of the tree, never text that is read.

Input: a parsed statement and Python values by name. Output: the tree with literals, each at the place of its name, or a
QueryError that underlines the name. What follows sees values as if they had been written there.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
from sqlglot import exp

from tablepuppet.errors import QueryError
from tablepuppet.spelling import did_you_mean
from tablepuppet.sql.place import SqlText

Parameters = Mapping[str, Any]
MOST_DIGITS = 38  # of a DECIMAL
WHOLE = 1 << 127  # an INT128 is below
KINDS = "a number, a text, a date, a time stamp, a UUID, True, False, None, or after IN a list of these"


def with_values(tree: exp.Expr, sql: SqlText, given: Parameters, *, where_named: bool = False) -> exp.Expr:
    """A copy of the tree in which every parameter is its value; with ``where_named``, others may be given too.

    Raises QueryError for a parameter without a value, a value without a parameter, and a value that SQL has no literal
    for.

    >>> from tablepuppet.sql.statement import tree_of
    >>> sql = SqlText("SELECT a FROM t WHERE b >= $since AND c IN ($kinds)")
    >>> day = datetime.date(2024, 1, 1)
    >>> with_values(tree_of(sql), sql, {"since": day, "kinds": ["x", "y"]}).sql("duckdb")
    "SELECT a FROM t WHERE b >= CAST('2024-01-01' AS DATE) AND c IN ('x', 'y')"
    """
    tree = tree.copy()
    found = list(tree.find_all(exp.Placeholder, bfs=False))
    names = [_name(each, sql) for each in found]
    unused = [name for name in given if name not in names]
    if unused and not where_named:
        known = did_you_mean(str(unused[0]), names)
        raise QueryError(f"params: the SQL has no ${unused[0]}{known}")
    for name, place in zip(names, found, strict=True):
        if name not in given:
            known = did_you_mean(name, list(given))
            example = f"params={{{name!r}: ...}}, or --param {name}=... on the command line"
            raise sql.error(f"${name} has no value{known}: give it as {example}", place)
        values = _values(given[name], place, sql)
        span = sql.span(place)
        for value in values:
            value.meta.update(start=span[0], end=span[1] - 1)
        _put(place, values)
    return tree


def _name(place: exp.Placeholder, sql: SqlText) -> str:
    name = str(place.this or "")
    if not name or name.isdigit():
        raise sql.error("parameters have names here: write $since, and give params={'since': ...}", place)
    return name


def _values(given: Any, place: exp.Placeholder, sql: SqlText) -> list[exp.Expr]:
    """The literal of a value; of a list after IN, that of each of its values."""
    listed = given[()] if isinstance(given, np.ndarray) else given
    is_list = isinstance(listed, list | tuple | set | frozenset | np.ndarray)
    if is_list and (not isinstance(place.parent, exp.In) or place.arg_key != "expressions"):
        raise sql.error(f"${place.this} is a list: write it as IN (${place.this}), or give one value", place)
    each: Iterable[Any] = listed if is_list else [listed]
    found = [_literal(value) for value in each]
    refused = next((value for value, literal in zip(each, found, strict=True) if literal is None), None)
    if refused is not None:
        raise sql.error(f"${place.this} is {type(refused).__name__}: a parameter is {KINDS}", place)
    if not found:
        raise sql.error(f"${place.this} is an empty list, which no value is in", place)
    return [literal for literal in found if literal is not None]


def _literal(value: Any) -> exp.Expr | None:
    """The typed literal of a value; None if there is none.

    A value of a subclass, such as a member of an enumeration, is that of its base: what its class prints is no SQL.
    """
    value = _plain(value) if isinstance(value, np.generic) else value
    match value:
        case None:
            return exp.Null()
        case bool():
            return exp.Boolean(this=value)
        case int():
            return _number(int.__repr__(value)) if abs(int.__int__(value)) < WHOLE else None
        case float():
            return _cast(float.__repr__(value), "DOUBLE")
        case Decimal():
            return _decimal(Decimal(value)) if value.is_finite() else None
        case str():
            return _text(str.__str__(value))
        case datetime.datetime():  # before date, which it is too
            return _time_stamp(value)
        case datetime.date():
            return _cast(datetime.date.isoformat(value), "DATE")
        case datetime.time() if value.tzinfo is None:
            return _cast(datetime.time.isoformat(value), "TIME")
        case UUID():
            return _cast(str(value), "UUID")
    return None


def _plain(value: np.generic) -> Any:
    """NumPy's value as Python's, or itself: numbers that NumPy has for a time are none."""
    if not isinstance(value, np.datetime64 | np.timedelta64):
        return value.item()
    same = value.astype("datetime64[us]") if isinstance(value, np.datetime64) and value.dtype != "M8[D]" else value
    found = same.item()
    if isinstance(value, np.timedelta64) or isinstance(found, int) or not (np.isnat(value) or same == value):
        return value
    return found


def _text(value: str) -> exp.Expr | None:
    """A text; None if no database holds it: with a zero, or half of a pair of surrogates."""
    return None if re.search("[\0\ud800-\udfff]", value) else exp.Literal.string(value)


def _time_stamp(value: datetime.datetime) -> exp.Expr | None:
    """A time stamp; None if it has nanoseconds, as those of pandas may, which also has one that is no time."""
    if value != value:
        return exp.Null()
    if getattr(value, "nanosecond", 0):
        return None
    return _cast(datetime.datetime.isoformat(value, " "), "TIMESTAMP" if value.utcoffset() is None else "TIMESTAMPTZ")


def _number(digits: str) -> exp.Expr:
    number = exp.Literal.number(digits.removeprefix("-"))
    return exp.Neg(this=number) if digits.startswith("-") else number


def _decimal(value: Decimal) -> exp.Expr | None:
    """DECIMAL with the digits that were given."""
    _, digits, exponent = value.as_tuple()
    scale = max(-int(exponent), 0)
    size = max(len(digits) + max(int(exponent), 0), scale)
    return _cast(f"{value:f}", f"DECIMAL({size}, {scale})") if size <= MOST_DIGITS else None


def _cast(text: str, type_: str) -> exp.Expr:
    return exp.cast(exp.Literal.string(text), type_, dialect="duckdb")


def _put(place: exp.Placeholder, values: list[exp.Expr]) -> None:
    """Put literals in place of a parameter."""
    parent = place.parent
    if len(values) == 1 or parent is None:
        place.replace(values[0])
        return
    others: list[exp.Expr] = []
    for each in parent.expressions:
        others += values if each is place else [each]
    parent.set("expressions", others)
