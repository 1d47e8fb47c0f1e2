"""Parquet files, and folders of them: DuckDB reads the columns and row groups it needs, when the caller's query runs.

A folder is one table: the rows of its files and of those in its folders, in the order of their paths. Folders that are
named ``year=2024`` are a column ``year``, as Spark, Hive and DuckDB write partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import duckdb

from tablepuppet.party.databases.names import AskedColumn, numbered_by, select, text_literal
from tablepuppet.party.databases.sandbox import count, describe


class Parquet:
    """The Parquet format."""

    suffixes = (".parquet",)

    def parts(self, place: Path) -> list[Path]:
        """The file itself, or the files of a folder; those that begin with ``_`` or ``.`` are notes of who wrote it."""
        if not place.is_dir():
            return [place]
        found = [file for ending in self.suffixes for file in place.rglob(f"*{ending}") if file.is_file()]
        return sorted(file for file in found if not any(part[0] in "._" for part in file.relative_to(place).parts))

    def columns(self, connection: duckdb.DuckDBPyConnection, place: Path) -> dict[str, str]:
        """From the footers of files."""
        return describe(connection, self._scan(place))

    def rows(self, connection: duckdb.DuckDBPyConnection, place: Path) -> int:
        """From the footers of files."""
        return count(connection, self._scan(place))

    def sql(
        self, connection: duckdb.DuckDBPyConnection, place: Path, columns: Iterable[str], asked: Sequence[AskedColumn]
    ) -> str:
        """A scan; DuckDB knows a row's number in its file."""
        numbered = not place.is_dir() and "file_row_number" not in map(str.lower, columns)
        return select(asked, "file_row_number" if numbered else numbered_by([]), self._scan(place))

    def _scan(self, place: Path) -> str:
        if not place.is_dir():  # which may lie in a folder called year=2020: it would add a column
            return f"read_parquet({text_literal(str(place))}, hive_partitioning = false)"
        above = next((part for part in place.parts if "=" in part), None)
        files = [file.relative_to(place).parts[:-1] for file in self.parts(place)]
        partitioned = any("=" in part for parts in files for part in parts)
        if partitioned and above is not None:
            raise ValueError(f"the folder {above!r} above would be a column too")
        listed = ", ".join(text_literal(str(file)) for file in self.parts(place))
        return f"read_parquet([{listed}], hive_partitioning = {str(partitioned).lower()}, union_by_name = true)"
