"""Types of expressions, asked of DuckDB itself over empty tables: no data, and DuckDB's own rules."""

from __future__ import annotations

import duckdb

from tablepuppet.sql.catalog import VerticalTable
from tablepuppet.sql.expression import columns_of
from tablepuppet.sql.scope import identifier
from tablepuppet.sql.scratch import scratch


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
        columns = ", ".join(f"CAST(NULL AS {kind}) AS {identifier(name).sql(dialect='duckdb')}" for name, kind in typed)
        source = f"(SELECT {columns or '1 AS one'} LIMIT 0)"
        try:
            relation = self._connection.sql(f"SELECT {expression} AS it FROM {source}")
        except duckdb.Error as error:
            raise ValueError(str(error).split("\n")[0].split(": ", 1)[-1]) from error
        return str(relation.types[0])
