"""Which expressions may be join keys: those that cannot turn one key into another.

Input: an expression of a scan, the types of the columns it reads, and the expressions that the operator named. Output:
yes or no. Digests of ``id`` and of ``id + 1`` under one key would link the ids of a table to a chain, and one known id
would reveal all; a ``CASE`` would be a filter that is not counted. So a key is a plain column, or a cast that keeps
different values different and never fails: to a wider type of its kind, or from whole numbers, dates, booleans and
UUIDs to text. The operator names any other expression that is needed.
"""

from __future__ import annotations

from collections.abc import Mapping

import duckdb
from sqlglot import exp

from tablepuppet.sql.expression import checked, render
from tablepuppet.sql.quiet_duckdb import scratch
from tablepuppet.sql.types import Family, family, holds

_ONE_TEXT_EACH = frozenset({Family.INTEGER, Family.BOOLEAN, Family.DATE, Family.UUID, Family.TEXT})
"""Families whose different values have different texts, whatever the type's size."""


def named_key(text: str) -> str:
    """An expression in the one spelling in which a policy's keys and those of scans are compared.

    >>> named_key("LOWER(Email)") == named_key('lower("email")'), named_key("lower('A')") == named_key("lower('a')")
    (True, False)
    """

    def plain(node: exp.Expr) -> exp.Expr:
        return exp.to_identifier(node.name.lower(), quoted=True) if isinstance(node, exp.Identifier) else node

    return render(checked(text).unnest().transform(plain))


def keeps_keys_apart(text: str, columns: Mapping[str, str]) -> bool:
    """Whether an expression is a column, or casts of one that keep its values apart.

    >>> types = {"id": "INTEGER", "price": "DECIMAL(8,2)"}
    >>> [keeps_keys_apart(key, types) for key in ("id", "CAST(id AS BIGINT)", "id::VARCHAR", "(price)")]
    [True, True, True, True]
    >>> [keeps_keys_apart(key, types) for key in ("id + 1", "CAST(id AS TINYINT)", "price::BIGINT", "price::VARCHAR")]
    [False, False, False, False]
    """
    return _type_of(checked(text), columns) is not None


def _type_of(node: exp.Expr, columns: Mapping[str, str]) -> str | None:
    """The type of a column, or of casts of one that keep its values apart; None for anything else."""
    inner = node.unnest()
    if isinstance(inner, exp.Column):
        return columns.get(inner.name)
    if not isinstance(inner, exp.Cast) or any(inner.args.get(name) for name in ("format", "action", "default")):
        return None
    start, end = _type_of(inner.this, columns), _type_name(inner.to)
    if start is None or end is None:
        return None
    return end if holds(end, start) or (end == "VARCHAR" and family(start) in _ONE_TEXT_EACH) else None


def _type_name(type_: exp.DataType) -> str | None:
    """The type as DuckDB spells it; None if it has no such type."""
    with scratch() as connection:
        try:
            return str(connection.sql(f"SELECT CAST(NULL AS {render(type_)})").types[0])
        except duckdb.Error:
            return None
