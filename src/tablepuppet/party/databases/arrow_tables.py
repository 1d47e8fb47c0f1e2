"""Tables that are Arrow already: files and streams of which the asked columns are read into memory, and tables there.

Files are not memory-mapped: if a mapped file is truncated, the process ends.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from tablepuppet.errors import ConfigError
from tablepuppet.party.database import POSITION, Source, SourceTable
from tablepuppet.party.databases.names import AskedColumn, find_columns, find_table, select
from tablepuppet.party.databases.sandbox import describe, new_name, sandbox
from tablepuppet.sql.query import Comparison


class Arrow:
    """The Arrow IPC format, as a file (also called Feather) or as a stream."""

    suffixes = (".arrow", ".feather", ".ipc")

    def parts(self, place: Path) -> list[Path]:
        """The file; a folder is no table."""
        return [] if place.is_dir() else [place]

    def columns(self, connection: duckdb.DuckDBPyConnection, file: Path) -> dict[str, str]:
        """From the file's schema."""
        with _opened(file) as reader:
            return duckdb_types(connection, reader.schema)

    def rows(self, connection: duckdb.DuckDBPyConnection, file: Path) -> int:
        """From the file's footer; a stream has to be read."""
        with _opened(file) as reader:
            if isinstance(reader, pa.RecordBatchFileReader):
                return int(reader.count_rows())
            return sum(batch.num_rows for batch in reader)

    def sql(
        self, connection: duckdb.DuckDBPyConnection, file: Path, columns: Iterable[str], asked: Sequence[AskedColumn]
    ) -> str:
        """A scan of the columns in memory."""
        table = _read(file, [column.stored for column in asked])
        return numbered_scan(connection, table, asked)


def duckdb_types(connection: duckdb.DuckDBPyConnection, schema: pa.Schema) -> dict[str, str]:
    """Names and DuckDB types of Arrow columns."""
    known = {kind: _type(connection, kind) for kind in dict.fromkeys(schema.types)}
    return {field.name: known[field.type] for field in schema}


def numbered_scan(connection: duckdb.DuckDBPyConnection, table: pa.Table, asked: Sequence[AskedColumn]) -> str:
    """A subquery that yields columns of an Arrow table in memory and their position."""
    table = table.select([column.stored for column in asked]).append_column(POSITION, _positions(table.num_rows))
    name = new_name()
    connection.register(name, table)
    return select(asked, POSITION, name)


def _read(file: Path, columns: Sequence[str]) -> Any:
    with _opened(file) as reader:
        wanted = [reader.schema.get_field_index(column) for column in columns]
    # an empty list would read all fields
    with _opened(file, included_fields=sorted(wanted) or [0]) as reader:
        return reader.read_all()


def _positions(rows: int) -> Any:
    return pa.array(np.arange(rows, dtype=np.int64))


@contextmanager
def _opened(file: Path, **options: Any) -> Iterator[Any]:
    read_options = pa.ipc.IpcReadOptions(**options)
    with pa.OSFile(str(file)) as handle:
        try:
            reader = pa.ipc.open_file(handle, options=read_options)
        except pa.ArrowInvalid:  # not the file format
            handle.seek(0)
            reader = pa.ipc.open_stream(handle, options=read_options)
        with reader:
            yield reader


def _type(connection: duckdb.DuckDBPyConnection, kind: pa.DataType) -> str:
    """The DuckDB type of an Arrow type; one that DuckDB does not know keeps Arrow's name."""
    name = new_name()
    try:
        connection.register(name, pa.table({"column": pa.array([], kind)}))
        return describe(connection, name)["column"]
    except duckdb.Error:
        return str(kind).upper()
    finally:
        connection.unregister(name)


# A party whose tables are in this process: DataFrames, Arrow tables, dicts of columns. They are copied to Arrow when
# the federation is made; what the program does to them later changes nothing here.


TAKEN = "a pandas or Polars DataFrame, an Arrow table, or a dict of columns"


class InMemory:
    """Tables by name."""

    def __init__(self, party: str, tables: Mapping[str, Any]):
        self.party = party
        self._tables = {name: _arrow(party, name, table) for name, table in tables.items()}

    def tables(self, names: Collection[str] | None = None) -> list[SourceTable]:
        """These, or all of them."""
        wanted = self._tables if names is None else [find_table(self.party, self._tables, name) for name in names]
        with sandbox() as connection:
            found = {name: self._tables[name] for name in wanted}
            return [SourceTable(n, duckdb_types(connection, t.schema), t.num_rows) for n, t in found.items()]

    @contextmanager
    def reader(self) -> Iterator[_Reader]:
        """They do not change, so that they are of one moment."""
        with sandbox() as connection:
            yield _Reader(self.party, connection, self._tables)


@dataclass(frozen=True)
class _Reader:
    party: str
    connection: duckdb.DuckDBPyConnection
    tables: Mapping[str, pa.Table]

    def source(self, table: str, columns: Mapping[str, str], where: Sequence[Comparison] = ()) -> Source:
        """The columns of a table; DuckDB filters."""
        name = find_table(self.party, self.tables, table)
        found = self.tables[name]
        asked = find_columns(self.party, name, duckdb_types(self.connection, found.schema), columns)
        return Source(self.connection, numbered_scan(self.connection, found, asked), in_order=True)


def _arrow(party: str, name: object, table: Any) -> pa.Table:
    where = f"party {party!r}: table {name!r}"
    if not isinstance(name, str) or not name.strip():
        raise ConfigError(f"party {party!r}: tables have names, such as {{'orders': frame}}, not {name!r}")
    try:
        found = _converted(table)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):  # which may quote a value
        odd = _odd_column(table)
        at = "it" if odd is None else f"column {odd!r}"
        raise ConfigError(f"{where}: {at} does not become an Arrow column; give all its values one type") from None
    if found is None:
        raise ConfigError(f"{where} is {TAKEN}, not {type(table).__name__}")
    names = [field.name.lower() for field in found.schema]
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"{where}: it needs columns with different names; SQL ignores case")
    return found


def _converted(table: Any) -> pa.Table | None:
    """A copy as Arrow; None if it is no table."""
    if isinstance(table, pa.Table):  # nobody can change it
        return table
    if hasattr(table, "reset_index") and hasattr(table, "columns"):  # pandas; an index with a name is a column
        columns = table.reset_index() if any(name is not None for name in table.index.names) else table
        return pa.Table.from_pandas(columns.copy(), preserve_index=False)
    if hasattr(table, "__arrow_c_stream__"):
        return pa.table(table)
    if isinstance(table, Mapping):
        return pa.table({str(column): _array(values) for column, values in table.items()})
    return None


def _array(values: Any) -> pa.Array:
    return pa.array(values.copy() if isinstance(values, np.ndarray) else list(values))


def _odd_column(table: Any) -> str | None:
    """The first column that cannot be converted by itself."""
    for column in table if isinstance(table, Mapping) else getattr(table, "columns", ()):
        try:
            _array(table[column])
        except Exception:  # of whatever class: it is looked for, not handled
            return str(column)
    return None
