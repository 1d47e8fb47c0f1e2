"""Types of expressions, asked of DuckDB itself over empty tables: no data, and DuckDB's own rules.

Input: an expression of the analyst's that `expression.py` allows, and columns as parties publish them. Names of
columns are quoted, types are those that types.py knows, and what comes of it must be one SELECT: a party's catalog
cannot write a statement.
"""

from __future__ import annotations

import duckdb
import pyarrow as pa

from tablepuppet.errors import plain_text
from tablepuppet.sql.catalog import VerticalTable
from tablepuppet.sql.expression import columns_of
from tablepuppet.sql.scope import identifier
from tablepuppet.sql.scratch import scratch
from tablepuppet.sql.types import is_plain


def arrow_type(kind: str) -> pa.DataType:
    """The Arrow type in which DuckDB hands out a column."""
    with scratch() as connection:
        return connection.sql(f"SELECT CAST(NULL AS {kind}) AS it LIMIT 0").to_arrow_table().schema.field(0).type


class TypeInference:
    """Binds one-table expressions in an empty in-memory DuckDB."""

    def __init__(self) -> None:
        self._connection = scratch()
        self._known: dict[tuple[str, tuple[tuple[str, str], ...]], str] = {}

    def __enter__(self) -> TypeInference:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def type_of(self, table: VerticalTable, expression: str) -> str:
        """The type of ``expression`` over ``table``; ValueError with DuckDB's reason if it has none."""
        columns = tuple((name, table.columns[name]) for name in columns_of(expression))
        if (expression, columns) not in self._known:
            self._known[expression, columns] = self._infer(expression, columns)
        return self._known[expression, columns]

    def _infer(self, expression: str, typed: tuple[tuple[str, str], ...]) -> str:
        if len(typed) == 1 and expression == _name(typed[0][0]):
            return typed[0][1]
        strange = next(((name, kind) for name, kind in typed if not is_plain(kind)), None)
        if strange is not None:
            raise ValueError(f"column {strange[0]} is {plain_text(strange[1], 60)}, which no expression can use")
        columns = ", ".join(f"CAST(NULL AS {kind}) AS {_name(name)}" for name, kind in typed)
        try:
            statements = self._connection.extract_statements(
                f"SELECT {expression} AS it FROM (SELECT {columns or '1 AS one'} LIMIT 0)"
            )
            if [each.type for each in statements] != [duckdb.StatementType.SELECT]:
                raise ValueError("it is not an expression but several statements")
            [kind] = self._connection.sql(statements[0].query).types
        except duckdb.Error as error:
            raise ValueError(plain_text(str(error).split("\n")[0].split(": ", 1)[-1])) from error
        return str(kind)


def _name(column: str) -> str:
    """A column's name as it stands in an expression."""
    return identifier(column).sql(dialect="duckdb")
