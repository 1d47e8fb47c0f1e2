"""Arrow IPC files and streams: the asked columns are read into memory at once.

They are not memory-mapped: if a mapped file is truncated, the process ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from tablepuppet.party.database import POSITION
from tablepuppet.party.databases.names import AskedColumn, select
from tablepuppet.party.databases.sandbox import describe, new_name


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
