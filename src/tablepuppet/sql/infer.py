"""Types of expressions, asked of DuckDB itself over empty tables: no data, and DuckDB's own rules.

Input: an expression of the analyst's that `expression.py` allows, and columns as parties publish them. Names of
columns are quoted, types are those that types.py knows, and what comes of it must be one SELECT: a party's catalog
cannot write a statement.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import duckdb
import pyarrow as pa
from sqlglot import exp

from tablepuppet.errors import plain_text
from tablepuppet.sql.catalog import VerticalTable
from tablepuppet.sql.expression import column_text, columns_of
from tablepuppet.sql.quiet_duckdb import scratch
from tablepuppet.sql.types import is_plain


def arrow_type(kind: str) -> pa.DataType:
    """The Arrow type in which DuckDB hands out a column."""
    with scratch() as connection:
        return connection.sql(f"SELECT CAST(NULL AS {kind}) AS it LIMIT 0").to_arrow_table().schema.field(0).type


def type_of(table: VerticalTable, expression: str) -> str:
    """The type of ``expression`` over ``table``; ValueError with DuckDB's reason if it has none."""
    return _inferred(expression, tuple((name, table.columns[name]) for name in columns_of(expression)))


def over_nulls(table: VerticalTable, expression: str) -> Any:
    """The value of ``expression``, which has a type, over a row of NULLs; Ellipsis if DuckDB cannot say it."""
    return _over_nulls(expression, tuple((name, table.columns[name]) for name in columns_of(expression)))


@lru_cache(maxsize=1 << 10)
def _over_nulls(expression: str, typed: tuple[tuple[str, str], ...]) -> Any:
    if len(typed) == 1 and expression == column_text(typed[0][0]):
        return None
    try:
        with scratch() as connection:
            found = connection.sql(f"SELECT {expression} AS it FROM {nulls(dict(typed))}").to_arrow_table()
    except (duckdb.Error, pa.ArrowException):
        return ...
    return found["it"][0].as_py()


def nulls(columns: Mapping[str, str]) -> str:
    """SQL of a row that has NULL in each of these columns (name -> type)."""
    cells = ", ".join(
        f"CAST(NULL AS {kind}) AS {exp.column(name, quoted=True).sql('duckdb')}" for name, kind in columns.items()
    )
    return f"(SELECT {cells or '1 AS one'})"


@lru_cache(maxsize=1 << 14)  # a wide table has thousands of columns
def _inferred(expression: str, typed: tuple[tuple[str, str], ...]) -> str:
    if len(typed) == 1 and expression == column_text(typed[0][0]):
        return typed[0][1]
    strange = next(((name, kind) for name, kind in typed if not is_plain(kind)), None)
    if strange is not None:
        raise ValueError(f"column {strange[0]} is {plain_text(strange[1], 60)}, which no expression can use")
    text = f"SELECT {expression} AS it FROM {nulls(dict(typed))} LIMIT 0"
    try:
        with scratch() as connection:
            statements = connection.extract_statements(text)
            if [each.type for each in statements] != [duckdb.StatementType.SELECT]:
                raise ValueError("it is not an expression but several statements")
            [kind] = connection.sql(statements[0].query).types
    except duckdb.Error as error:
        raise ValueError(plain_text(str(error).split("\n")[0].split(": ", 1)[-1])) from error
    return str(kind)
