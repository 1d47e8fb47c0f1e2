"""A party whose tables are files in a folder, each file a table named by its stem; of Parquet, each folder too.

The formats (`parquet_files`, `csv_files`, `arrow_files`) say how one file is read. Positions are the file's order.
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
from tablepuppet.party.databases.arrow_files import Arrow
from tablepuppet.party.databases.csv_files import Csv
from tablepuppet.party.databases.names import AskedColumn, find_columns, find_table
from tablepuppet.party.databases.parquet_files import Parquet
from tablepuppet.party.databases.paths import existing
from tablepuppet.party.databases.sandbox import allow, sandbox
from tablepuppet.sql.query import Comparison


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
