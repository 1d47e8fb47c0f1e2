"""A party whose tables are files in a folder, each file a table named by its stem; of Parquet, each folder too.

The formats (`Csv`, `Parquet`, and `Arrow` of arrow_tables.py) say how one file is read. Positions are the file's order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import duckdb

from tablepuppet.errors import PartyError
from tablepuppet.party.database import Source, SourceTable, UnavailableError
from tablepuppet.party.databases.arrow_tables import Arrow
from tablepuppet.party.databases.names import (
    AskedColumn,
    existing,
    find_columns,
    find_table,
    numbered_by,
    select,
    text_literal,
)
from tablepuppet.party.databases.sandbox import allow, count, describe, new_name, sandbox
from tablepuppet.party.databases.urls import Address, database
from tablepuppet.sql.query import Comparison

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
    """The CSV format, also compressed: copied into DuckDB at once, because a CSV reader's errors quote the line.

    A column's type is the one that fits all its values: the whole file is read to find it, again only if it changes.
    """

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


class Parquet:
    """The Parquet format: DuckDB reads the columns and row groups it needs, when the caller's query runs.

    A folder is one table: the rows of its files and of those in its folders, in the order of their paths. Folders that
    are named ``year=2024`` are a column ``year``, as Spark, Hive and DuckDB write partitions.
    """

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


class Format(Protocol):
    """A format of files; its methods raise errors of any class when a file cannot be read."""

    @property
    def suffixes(self) -> tuple[str, ...]:
        """How names of such files end."""
        ...

    def parts(self, place: Path) -> list[Path]:
        """The files that are read for a table: of a file itself, of a folder those in it, or none."""
        ...

    def columns(self, connection: duckdb.DuckDBPyConnection, file: Path) -> dict[str, str]:
        """Names and DuckDB types, in the file's order."""
        ...

    def rows(self, connection: duckdb.DuckDBPyConnection, file: Path) -> int:
        """The number of rows."""
        ...

    def sql(
        self, connection: duckdb.DuckDBPyConnection, file: Path, columns: Iterable[str], asked: Sequence[AskedColumn]
    ) -> str:
        """A subquery that yields the asked columns and their position; ``columns`` are all that the file has."""
        ...


FORMATS: dict[str, type[Format]] = {"parquet": Parquet, "csv": Csv, "arrow": Arrow}


class Folder:
    """A folder of files of one format; other files in it are ignored."""

    def __init__(self, party: str, path: str, kind: str):
        self.party, self.path, self.kind = party, path, kind
        self.format = FORMATS[kind]()

    def tables(self, names: Collection[str] | None = None) -> list[SourceTable]:
        """One table per file, and per folder of files if the format has such."""
        with self._opened() as (connection, files):
            wanted = files if names is None else [find_table(self.party, files, name) for name in names]
            return [self._published(connection, name, files[name]) for name in wanted]

    @contextmanager
    def reader(self) -> Iterator[_Reader]:
        """Open the folder. Files have no transactions: one that is replaced while it is read shows both states."""
        with self._opened() as (connection, files):
            yield _Reader(self.party, connection, self.format, files)

    @contextmanager
    def _opened(self) -> Iterator[tuple[duckdb.DuckDBPyConnection, dict[str, Path]]]:
        folder = existing(self.party, self.kind, self.path)
        if not folder.is_dir():
            raise UnavailableError(
                f"Party {self.party!r}: {folder} is not a folder; {self.kind}:/// takes a folder of files"
            )
        files = self._files(folder)
        with sandbox(allow(part for file in files.values() for part in self.format.parts(file))) as connection:
            yield connection, files

    def _files(self, folder: Path) -> dict[str, Path]:
        files: dict[str, Path] = {}
        for file in sorted(folder.iterdir()):
            suffix = next((ending for ending in self.format.suffixes if file.name.endswith(ending)), None)
            known = file.is_dir() or (suffix is not None and file.is_file())
            if not known or file.name.startswith(".") or not self.format.parts(file):
                continue
            name = file.name.removesuffix(suffix or "")
            if name in files:
                both = f"{files[name].name} and {file.name}"
                raise UnavailableError(f"Party {self.party!r}: {both} in {folder} are both table {name!r}; rename one")
            files[name] = file.resolve()  # a link is the file it leads to, and only that may be opened
        return files

    def _published(self, connection: duckdb.DuckDBPyConnection, name: str, file: Path) -> SourceTable:
        try:
            return SourceTable(name, self.format.columns(connection, file), self.format.rows(connection, file))
        except Exception:  # of whatever class: it may quote a line of the file
            raise _unreadable(self.party, file) from None


@dataclass(frozen=True)
class _Reader:
    party: str
    connection: duckdb.DuckDBPyConnection
    format: Format
    files: Mapping[str, Path]

    def source(self, table: str, columns: Mapping[str, str], where: Sequence[Comparison] = ()) -> Source:
        """The columns of one file; DuckDB itself pushes the caller's filter into the scan, ``where`` is not needed."""
        name = find_table(self.party, self.files, table)
        file = self.files[name]
        try:
            stored = self.format.columns(self.connection, file)
            asked = find_columns(self.party, name, stored, columns)
            return Source(self.connection, self.format.sql(self.connection, file, stored, asked), in_order=True)
        except PartyError:
            raise
        except Exception:  # of whatever class: it may quote a line of the file
            raise _unreadable(self.party, file) from None


def _unreadable(party: str, file: Path) -> PartyError:
    return UnavailableError(
        f"Party {party!r}: {file} cannot be read; it is corrupt, incomplete, not UTF-8, or of another format: "
        f"write it again, or take it out of the folder"
    )


@database("parquet", is_file=True)
@database("csv", is_file=True)
@database("arrow", is_file=True)
def _opened(address: Address) -> Folder:
    return Folder(address.party, address.path, address.kind)
