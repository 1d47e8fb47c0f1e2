"""Plain comparisons, written for a source database only where it would decide exactly as DuckDB does.

The caller filters again in DuckDB, so a comparison that is not certain to mean the same is left out here, and costs
only time. A row that DuckDB would keep must never be lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tablepuppet.party.databases.names import text_literal
from tablepuppet.sql.query import Comparison
from tablepuppet.sql.types import Family, family, is_day

Value = int | float | str
Kind = Literal["integer", "decimal", "double", "text", "date", "other"]

# Beyond these a double cannot distinguish neighbouring whole numbers, or decimals.
_EXACT_WHOLE = 2**53
_EXACT_DIGITS = 15


@dataclass(frozen=True)
class Comparable:
    """A column of a source query: its expression there, and how its values compare."""

    sql: str
    kind: Kind
    digits: int = 0  # of a decimal
    also: str = ""  # an expression with an index, to which equal texts are equal too; others may be
    nulls: bool = True  # whether NULL here is NULL there


def kind_of(type_name: str) -> Kind:
    """How values of a DuckDB type compare; "other" is compared with NULL only.

    >>> kind_of("SMALLINT"), kind_of("DOUBLE"), kind_of("FLOAT")
    ('integer', 'double', 'other')
    """
    if type_name == "DOUBLE":  # but not FLOAT: databases disagree whether 0.1 equals the nearest FLOAT
        return "double"
    kinds: dict[Family, Kind] = {
        Family.INTEGER: "integer", Family.DECIMAL: "decimal", Family.TEXT: "text", Family.DATE: "date"
    }  # fmt: skip
    return kinds.get(family(type_name), "other")


def condition(where: Sequence[Comparison], columns: Mapping[str, Comparable], literal: Callable[[Value], str]) -> str:
    """A WHERE clause of those comparisons that can be pushed, or an empty text.

    ``columns`` go by lower-case name; ``literal`` writes an int, float or text in the source's SQL.
    """
    pushed = []
    for comparison in where:
        column = columns.get(comparison.column.lower())
        if column is not None and _means_the_same(comparison, column):
            pushed.append(_written(comparison, column, literal))
    return f"WHERE {' AND '.join(pushed)}" if pushed else ""


def _means_the_same(comparison: Comparison, column: Comparable) -> bool:
    if comparison.operator in ("is null", "is not null"):
        return column.nulls
    if column.kind == "text" and comparison.operator not in ("=", "<>", "in"):  # an order depends on the collation
        return False
    return bool(comparison.values) and all(_exact(value, column) for value in comparison.values)


def _exact(value: Value, column: Comparable) -> bool:
    match column.kind, value:
        case (("integer" | "decimal" | "double"), bool()):
            return False
        case "text", str():
            return "\0" not in value and _encodable(value)
        case "date", str():
            return is_day(value)
        case (("integer" | "decimal"), int()):
            return -(2**63) <= value < 2**63
        case "integer", float():
            return abs(value) < _EXACT_WHOLE
        case "decimal", float():
            return math.isfinite(value) and column.digits <= _EXACT_DIGITS
        case "double", int():
            return abs(value) <= _EXACT_WHOLE
        case "double", float():
            return math.isfinite(value)
    return False


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _written(comparison: Comparison, column: Comparable, literal: Callable[[Value], str]) -> str:
    if comparison.operator in ("is null", "is not null"):
        return f"{column.sql} {comparison.operator.upper()}"
    values = [literal(float(value) if column.kind == "double" else value) for value in comparison.values]
    if column.kind == "date":
        values = [f"DATE {text_literal(str(value))}" for value in comparison.values]
    operator, value = (
        ("IN", f"({', '.join(values)})") if comparison.operator == "in" else (comparison.operator, values[0])
    )
    found = f"{column.sql} {operator} {value}"
    if not column.also or comparison.operator not in ("=", "in"):
        return found
    texts = [text_literal(str(each)) for each in comparison.values]
    if not all(map(str.isascii, texts)):  # which every character set has
        return found
    return f"{column.also} IN ({', '.join(texts)}) AND {found}"
