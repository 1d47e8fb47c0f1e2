"""Reading tables of a database server: asked columns are found, sent by one SELECT, and copied into DuckDB.

What differs between kinds of server, the SELECT and the way of its answer, is passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from tablepuppet.party.database import Source
from tablepuppet.party.databases.loading import ForeignColumn, Loader, sent_name
from tablepuppet.party.databases.names import AskedColumn, find_columns, find_table
from tablepuppet.sql.query import Comparison


class ServerType(Protocol):
    """The type of a column on the server."""

    @property
    def duckdb(self) -> str:
        """The same as a DuckDB type."""
        ...

    def restored(self, sent: str) -> str:
        """A DuckDB expression of the value as it was, from what was sent."""
        ...


TypeT = TypeVar("TypeT", bound=ServerType)
KeyT = TypeVar("KeyT", list[str], dict[int, str])


@dataclass(frozen=True)
class ServerTable(Generic[TypeT, KeyT]):
    """A table or view of the server's catalog."""

    sql: str  # its name, quoted
    key: KeyT  # the columns of the primary key: in its order, or by their place in it
    types: dict[str, TypeT] = field(default_factory=dict)

    @property
    def columns(self) -> dict[str, str]:
        """Its columns, as DuckDB types."""
        return {name: type_.duckdb for name, type_ in self.types.items()}


@dataclass(frozen=True)
class ServerReader(Generic[TypeT, KeyT]):
    """Reads within one transaction: ``query`` gives the SELECT to send, ``read`` its rows as Arrow batches."""

    party: str
    catalog: Mapping[str, ServerTable[TypeT, KeyT]]
    loader: Loader
    query: Callable[[ServerTable[TypeT, KeyT], Sequence[AskedColumn], Sequence[Comparison]], str]
    read: Callable[[str, str], AbstractContextManager[Any]]  # of a table's name and the SELECT

    def source(self, table: str, columns: Mapping[str, str], where: Sequence[Comparison] = ()) -> Source:
        """The columns, copied into DuckDB."""
        name = find_table(self.party, self.catalog, table)
        found = self.catalog[name]
        asked = find_columns(self.party, name, found.columns, columns)
        sent = [
            ForeignColumn(column, found.types[column.stored].restored(sent_name(index)))
            for index, column in enumerate(asked)
        ]
        return self.loader.load(name, sent, partial(self.read, name, self.query(found, asked, where)))
