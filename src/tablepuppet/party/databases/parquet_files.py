"""Parquet files: DuckDB reads the columns and row groups it needs, when the caller's query runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import duckdb

from tablepuppet.party.databases.names import AskedColumn, numbered_by, select, text_literal
from tablepuppet.party.databases.sandbox import count, describe


class Parquet:
    """The Parquet format."""

    suffixes = (".parquet",)

    def columns(self, connection: duckdb.DuckDBPyConnection, file: Path) -> dict[str, str]:
        """From the file's footer."""
        return describe(connection, _scan(file))

    def rows(self, connection: duckdb.DuckDBPyConnection, file: Path) -> int:
        """From the file's footer."""
        return count(connection, _scan(file))

    def sql(self, connection: duckdb.DuckDBPyConnection, file: Path, asked: Sequence[AskedColumn]) -> str:
        """A scan; DuckDB knows a row's number in its file."""
        taken = "file_row_number" in map(str.lower, self.columns(connection, file))
        return select(asked, numbered_by([]) if taken else "file_row_number", _scan(file))


def _scan(file: Path) -> str:
    # A folder called year=2020 would add a column that is not in the file.
    return f"read_parquet({text_literal(str(file))}, hive_partitioning = false)"
