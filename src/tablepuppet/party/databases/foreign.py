"""Reading tables of a foreign database: columns are sent by one SELECT, and cast at once to the declared types.

What a driver says about a value it cannot read contains that value. So every error here is replaced by one that
names the column, and the value is left behind. What differs between databases is passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import duckdb

from tablepuppet.errors import PartyError
from tablepuppet.party.database import POSITION, Source
from tablepuppet.party.databases.names import AskedColumn, find_columns, find_table
from tablepuppet.party.databases.pushdown import Comparable, Value, condition
from tablepuppet.party.databases.sandbox import new_name
from tablepuppet.sql.query import Comparison
from tablepuppet.sql.types import Family, family

SENT_POSITION = "p"


class ForeignType(Protocol):
    """The type of a column in the foreign database."""

    @property
    def duckdb(self) -> str:
        """The same as a DuckDB type."""
        ...

    def sent(self, column: str) -> str:
        """An expression of the foreign database for what is sent of a column."""
        ...

    def restored(self, column: str) -> str:
        """A DuckDB expression of the value as it was, from what was sent."""
        ...

    def comparable(self, column: str) -> Comparable | None:
        """How values compare in the foreign database; None if they do not compare as in DuckDB."""
        ...


TypeT = TypeVar("TypeT", bound=ForeignType)


@dataclass(frozen=True)
class ForeignTable(Generic[TypeT]):
    """A table or view of the foreign database's catalog."""

    name: str
    sql: str  # its name, quoted
    types: dict[str, TypeT] = field(default_factory=dict)
    key: list[tuple[int, str]] = field(default_factory=list)  # the columns of the primary key, with their places in it

    @property
    def columns(self) -> dict[str, str]:
        """Its columns, as DuckDB types."""
        return {name: type_.duckdb for name, type_ in self.types.items()}

    @property
    def key_columns(self) -> list[str]:
        """The columns of the primary key, in its order."""
        return [column for _, column in sorted(self.key)]

    def asked_types(self, asked: Sequence[AskedColumn]) -> list[TypeT]:
        """The types of asked columns."""
        return [self.types[column.stored] for column in asked]

    def condition(
        self, asked: Sequence[AskedColumn], where: Sequence[Comparison], literal: Callable[[Value], str]
    ) -> str:
        """A WHERE clause over the travelling names, of the comparisons that the foreign database decides as DuckDB."""
        compared = [type_.comparable(sent_name(index)) for index, type_ in enumerate(self.asked_types(asked))]
        columns = {column.name.lower(): each for column, each in zip(asked, compared, strict=True) if each is not None}
        return condition(where, columns, literal)

    def numbered(self, asked: Sequence[AskedColumn], stored: Sequence[str], position: str, where: str) -> str:
        """The SELECT to send: rows are numbered before they are filtered. ``stored`` are expressions of the columns."""
        inner = [f"{sql} AS {sent_name(index)}" for index, sql in enumerate(stored)]
        names = [sent_name(index) for index in range(len(asked))]
        sent = [f"{type_.sent(name)} AS {name}" for type_, name in zip(self.asked_types(asked), names, strict=True)]
        return (
            f"SELECT {', '.join([*sent, SENT_POSITION])} "
            f"FROM (SELECT {', '.join([*inner, f'{position} AS {SENT_POSITION}'])} FROM {self.sql} AS t) AS numbered "
            f"{where}"
        )


TableT = TypeVar("TableT", bound=ForeignTable[Any])


def sent_name(index: int) -> str:
    """What an asked column is called while it travels; it cannot collide with anything."""
    return f"c{index}"


@dataclass(frozen=True)
class _SentColumn:
    """An asked column as the foreign database sends it."""

    asked: AskedColumn
    sent: str  # a DuckDB expression over the travelling names

    @property
    def value(self) -> str:
        """An item of a SELECT list: first of the declared type, which checks it, then of the asked one."""
        return self.asked.cast(f"CAST({self.sent} AS {self.asked.declared})")

    @property
    def misfits(self) -> str:
        """Whether some value is not of the declared type."""
        cast = f"TRY_CAST(TRY_CAST({self.sent} AS {self.asked.declared}) AS {self.asked.type})"
        return f"coalesce(bool_or({self.sent} IS NOT NULL AND {cast} IS NULL), false)"


Read = Callable[[], AbstractContextManager[Any]]  # Arrow batches; it may be called twice


@dataclass(frozen=True)
class ForeignReader(Generic[TableT]):
    """Copies tables into temporary tables of the sandbox, within one transaction of the foreign database.

    ``find`` describes the table of a name, and ``read`` sends columns of it, as Arrow batches.
    """

    party: str
    connection: duckdb.DuckDBPyConnection
    names: Collection[str]
    find: Callable[[str], TableT]
    read: Callable[[TableT, Sequence[AskedColumn], Sequence[Comparison]], AbstractContextManager[Any]]

    def source(self, table: str, columns: Mapping[str, str], where: Sequence[Comparison] = ()) -> Source:
        """The columns, copied into DuckDB."""
        found = self.find(find_table(self.party, self.names, table))
        asked = find_columns(self.party, found.name, found.columns, columns)
        sent = []
        for index, column in enumerate(asked):
            if family(column.declared) is Family.OTHER:
                raise PartyError(
                    f"Party {self.party!r}: table {found.name!r}, column {column.stored!r} is of type "
                    f"{column.declared}, which cannot be read; publish a view that casts the column"
                )
            sent.append(_SentColumn(column, found.types[column.stored].restored(sent_name(index))))
        return self._load(found.name, sent, partial(self.read, found, asked, where))

    def _load(self, table: str, columns: Sequence[_SentColumn], read: Read) -> Source:
        name = new_name()
        selected = ", ".join([*(column.value for column in columns), f"CAST({SENT_POSITION} AS BIGINT) AS {POSITION}"])
        try:
            self._scan(f"CREATE TEMP TABLE {name} AS SELECT {selected} FROM sent WHERE {SENT_POSITION} >= 0", read)
        except PartyError:
            raise
        except Exception as error:  # of whatever class: it may carry a value
            raise self._explained(table, columns, read, error) from None
        return Source(self.connection, f"(FROM {name})")

    def _scan(self, sql: str, read: Read) -> tuple[Any, ...]:
        with read() as batches:
            self.connection.register("sent", batches)
            try:
                [row] = self.connection.execute(sql).fetchall()  # fetchone would leave the result open
                return tuple(row)
            finally:
                self.connection.unregister("sent")

    def _explained(self, table: str, columns: Sequence[_SentColumn], read: Read, error: Exception) -> PartyError:
        """Read again, to find the column that holds a value it should not."""
        checks = ", ".join(column.misfits for column in columns) or "false"
        try:
            found = self._scan(f"SELECT {checks} FROM sent WHERE {SENT_POSITION} >= 0", read)
        except Exception:  # the database failed, not a value
            found = ()
        for column, is_misfit in zip(columns, found, strict=False):
            if is_misfit:
                return misfit(self.party, table, column.asked)
        state = getattr(error, "sqlstate", None) or type(error).__name__
        reason = f"its database could not read it ({state}); try the same SELECT there"
        return PartyError(f"Party {self.party!r}: table {table!r}: {reason}")


def misfit(party: str, table: str, column: AskedColumn) -> PartyError:
    """The error for a value that is not what its column declares."""
    return PartyError(
        f"Party {party!r}: table {table!r}, column {column.stored!r} is declared {column.declared} but holds a value "
        f"that is not; correct the value, or publish a view that casts the column"
    )
