"""A party whose tables are in this process: DataFrames, Arrow tables, dicts of columns.

They are copied to Arrow when the federation is made; what the program does to them later changes nothing here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from tablepuppet.errors import ConfigError
from tablepuppet.party.database import Source, SourceTable
from tablepuppet.party.databases.arrow_files import duckdb_types, numbered_scan
from tablepuppet.party.databases.names import find_columns, find_table
from tablepuppet.party.databases.sandbox import sandbox
from tablepuppet.sql.query import Comparison

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
