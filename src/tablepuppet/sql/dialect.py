"""DuckDB's SQL for sqlglot, in which a call stays the call that was written.

sqlglot's own dialect knows the functions of every database: it reads ``log2(x)`` as a logarithm with a base and writes
``log(2, x)``, takes a column for the unit of ``date_trunc``, and drops arguments that it does not expect. Here a
function is a name with arguments. What has a grammar of its own, such as ``CAST`` and ``TRIM(... FROM ...)``, keeps it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from sqlglot import TokenType, exp
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.parsers.duckdb import DuckDBParser

_GRAMMAR = ("CAST", "TRY_CAST", "POSITION", "SUBSTRING", "TRIM")
_UNITS = frozenset("CENTURY CENTURIES MILLENNIUM MILLENNIA".split()) | {
    f"{unit}{ending}"
    for unit in "YEAR QUARTER MONTH WEEK DAY HOUR MINUTE SECOND MILLISECOND MICROSECOND DECADE".split()
    for ending in ("", "S")
}  # of an interval
_WITHOUT_BRACKETS = {
    name: parser for name, parser in DuckDBParser.NO_PAREN_FUNCTION_PARSERS.items() if name not in ("IF", "@")
}


class AsWritten(DuckDB):
    """DuckDB's dialect without the functions of sqlglot."""

    class Parser(DuckDBParser):
        """Reads calls as `exp.Anonymous`, and units and numbers of intervals as they are."""

        FUNCTIONS: ClassVar[dict[str, Callable[..., exp.Expr]]] = {}
        FUNCTION_PARSERS: ClassVar[dict[str, Callable[..., Any]]] = {
            **{name: DuckDBParser.FUNCTION_PARSERS[name] for name in _GRAMMAR},
            "EXTRACT": lambda self: self._parse_date_part(),
        }
        NO_PAREN_FUNCTION_PARSERS: ClassVar[dict[str, Callable[[Any], Any]]] = {
            **_WITHOUT_BRACKETS,
            "@": lambda self: call("abs", self._parse_bitwise()),
        }

        def _parse_date_part(self) -> exp.Expr:
            """EXTRACT(unit FROM x), which DuckDB reads as date_part('unit', x)."""
            unit = self._parse_var_or_string()
            if not unit or not self._match(TokenType.FROM):
                self.raise_error("Expected unit FROM in EXTRACT", self._prev)
            return call("date_part", exp.Literal.string(unit.name if unit else ""), self._parse_bitwise())

        def _parse_interval_span(self, this: exp.Expr, parse_function_unit: bool = True) -> exp.Interval:
            """INTERVAL 1 DAY, INTERVAL '1 day' and INTERVAL (x) DAY, none of them turned into another."""
            is_unit = self._curr is not None and self._curr.text.upper() in _UNITS
            unit = self._parse_var(any_token=True, upper=True) if is_unit else None
            return exp.Interval(this=this, unit=unit)


def call(name: str, *arguments: exp.Expr | None) -> exp.Anonymous:
    """A call of a function by its name."""
    return exp.Anonymous(this=name, expressions=list(arguments))
