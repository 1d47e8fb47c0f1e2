"""CSV files: copied into DuckDB at once, because error messages of a CSV reader quote the line.

A column's type is the one that fits all its values: the whole file is read to find it, again only if the file changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import duckdb

from tablepuppet.party.databases.names import AskedColumn, numbered_by, select, text_literal
from tablepuppet.party.databases.sandbox import count, describe, new_name

# Nothing is skipped: DuckDB would take rows above a malformed one for a preamble.
# The first line is the header, always: a guess could publish a row of a file without one as names of columns.
_SNIFFED = "sample_size = -1, skip = 0, hive_partitioning = false, header = true"
# Options of read_csv, and the columns of sniff_csv that hold them.
_DIALECT = {
    "delim": "Delimiter",
    "quote": "Quote",
    "escape": "Escape",
    "new_line": "NewLineDelimiter",
    "comment": "Comment",
    "dateformat": "DateFormat",
    "timestampformat": "TimestampFormat",
}


class Csv:
    """The CSV format, also compressed."""

    suffixes = (".csv", ".csv.gz")

    def __init__(self) -> None:
        self._scans: dict[tuple[Path, int, int], str] = {}

    def parts(self, place: Path) -> list[Path]:
        """The file; a folder is no table."""
        return [] if place.is_dir() else [place]

    def columns(self, connection: duckdb.DuckDBPyConnection, file: Path) -> dict[str, str]:
        """From the header and all rows."""
        return describe(connection, self._scan(connection, file))

    def rows(self, connection: duckdb.DuckDBPyConnection, file: Path) -> int:
        """From all rows."""
        return count(connection, self._scan(connection, file))

    def sql(
        self, connection: duckdb.DuckDBPyConnection, file: Path, columns: Iterable[str], asked: Sequence[AskedColumn]
    ) -> str:
        """A temporary table of the asked columns."""
        name = new_name()
        scan = select(asked, numbered_by([]), self._scan(connection, file))
        connection.execute(f"CREATE TEMP TABLE {name} AS FROM {scan}")
        return f"(FROM {name})"

    def _scan(self, connection: duckdb.DuckDBPyConnection, file: Path) -> str:
        status = file.stat()
        key = (file, status.st_size, status.st_mtime_ns)
        if key not in self._scans:
            self._scans[key] = _sniff(connection, file)
        return self._scans[key]


def _sniff(connection: duckdb.DuckDBPyConnection, file: Path) -> str:
    """A call of read_csv that says all that DuckDB found out, so that it need not look again."""
    if not file.stat().st_size:
        raise ValueError("an empty file has no header")
    path = text_literal(str(file))
    found = connection.sql(f"SELECT * FROM sniff_csv({path}, {_SNIFFED})").to_arrow_table().to_pylist()[0]
    columns = [f"{text_literal(column['name'])}: {text_literal(column['type'])}" for column in found["Columns"]]
    options = [
        f"{option} = {text_literal('' if found[field] == '(empty)' else found[field])}"
        for option, field in _DIALECT.items()
        if found[field] is not None
    ]
    fixed = "auto_detect = false, skip = 0, hive_partitioning = false, header = true"
    return f"read_csv({path}, {fixed}, {', '.join(options)}, columns = {{{', '.join(columns)}}})"
