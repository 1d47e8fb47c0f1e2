"""Reading tables of a foreign database: columns are sent by one SELECT, and cast at once to the declared types.

The database filters, and neither sorts nor numbers: rows are put in order here, so that no sort fills its temporary
space and an index finds the few rows that are asked for.

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
from tablepuppet.party.allowance import check_time
from tablepuppet.party.database import POSITION, Source
from tablepuppet.party.databases.names import AskedColumn, find_columns, find_table, identifier, numbered_by
from tablepuppet.party.databases.pushdown import Comparable, Value, condition
from tablepuppet.party.databases.sandbox import new_name
from tablepuppet.sql.query import Comparison
from tablepuppet.sql.types import Family, family

SENT_POSITION = "p"
IN_ORDER = numbered_by([])  # rows arrive in the order of positions
MOST_COUNTED = 8 << 20  # bytes of a table whose rows a server is asked to count


class ForeignType(Protocol):
    """The type of a column in the foreign database."""

    @property
    def duckdb(self) -> str:
        """The DuckDB type that its values have once they are read."""
        ...

    def sent(self, column: str) -> str:
        """An expression of the foreign database for what is sent of a column."""
        ...

    def restored(self, column: str) -> str:
        """A DuckDB expression of the value as it was, from what was sent."""
        ...

    @property
    def orders_alike(self) -> bool:
        """Whether no two different values are equal here, and both databases put them in the same order."""
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
        """DuckDB types, by column."""
        return {name: type_.duckdb for name, type_ in self.types.items()}

    @property
    def key_columns(self) -> list[str]:
        """The columns of the primary key, in its order."""
        return [column for _, column in sorted(self.key)]

    def asked_types(self, asked: Sequence[AskedColumn]) -> list[TypeT]:
        """The types of asked columns."""
        return [self.types[column.stored] for column in asked]

    @property
    def orders_alike(self) -> bool:
        """Whether DuckDB puts its rows in the order of its primary key as the foreign database does."""
        return bool(self.key) and all(self.types[column].orders_alike for column in self.key_columns)

    def condition(
        self, asked: Sequence[AskedColumn], where: Sequence[Comparison], literal: Callable[[Value], str]
    ) -> str:
        """A WHERE clause over the stored columns, of the comparisons that the foreign database decides as DuckDB."""
        columns = {column.name.lower(): self.types[column.stored].comparable(stored(column.stored)) for column in asked}
        return condition(where, {name: each for name, each in columns.items() if each is not None}, literal)

    def sent(self, asked: Sequence[AskedColumn]) -> list[str]:
        """The items of the SELECT to send: asked columns, under the names by which they travel."""
        return [f"{self.types[c.stored].sent(stored(c.stored))} AS {sent_name(i)}" for i, c in enumerate(asked)]

    def unsorted(self, asked: Sequence[AskedColumn], where: str, nulls: str) -> tuple[str, str]:
        """The SELECT to send, without an order, and DuckDB's expression of the position that a row has."""
        if self.orders_alike:
            types = [self.types[column] for column in self.key_columns]
            keys = [
                f"{type_.sent(stored(c))} AS k{i}"
                for i, (c, type_) in enumerate(zip(self.key_columns, types, strict=True))
            ]
            order = [
                f"CAST({type_.restored(f'k{i}')} AS {type_.duckdb}) NULLS {nulls}" for i, type_ in enumerate(types)
            ]
        else:
            keys = [] if asked else ["0 AS k0"]  # so that there is a column
            named = {
                c.stored: f"CAST({self.types[c.stored].restored(sent_name(i))} AS {c.declared})"
                for i, c in enumerate(asked)
            }
            order = [f"{named[name]} NULLS {nulls}" for name in sorted(named, key=identifier)]
        return f"SELECT {', '.join([*self.sent(asked), *keys])} FROM {self.sql} AS t {where}", numbered_by(order)


TableT = TypeVar("TableT", bound=ForeignTable[Any])


def stored(column: str) -> str:
    """A column of the table that is read."""
    return f"t.{identifier(column)}"


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


@dataclass(frozen=True)
class Sent:
    """Rows of a table as Arrow batches, and DuckDB's expression of their positions; see `Source.of_all`."""

    batches: Any
    position: str
    of_all: bool
    relation: str = "sent"  # those of the batches that are rows


Read = Callable[[], AbstractContextManager[Sent]]  # it may be called twice


@dataclass(frozen=True)
class ForeignReader(Generic[TableT]):
    """Copies tables into temporary tables of the sandbox, within one transaction of the foreign database.

    ``find`` describes the table of a name, and ``read`` sends columns of it.
    """

    party: str
    connection: duckdb.DuckDBPyConnection
    names: Collection[str]
    find: Callable[[str], TableT]
    read: Callable[[TableT, Sequence[AskedColumn], Sequence[Comparison]], AbstractContextManager[Sent]]

    def source(self, table: str, columns: Mapping[str, str], where: Sequence[Comparison] = ()) -> Source:
        """The columns, copied into DuckDB."""
        found = self._found(table)
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

    def _found(self, table: str) -> TableT:
        """The table of a name; one without a column that can be read is as if it were not there."""
        name = find_table(self.party, self.names, table)
        try:
            found = self.find(name)
        except PartyError:
            raise
        except Exception as error:  # of whatever class: the connection is lost
            check_time()
            raise _unread(self.party, name, error) from None
        if not found.types:
            find_table(self.party, [each for each in self.names if each != name], table)
        return found

    def _load(self, table: str, columns: Sequence[_SentColumn], read: Read) -> Source:
        name, values = new_name(), [column.value for column in columns]
        try:
            with read() as sent:
                items = ", ".join([*values, f"CAST({sent.position} AS BIGINT) AS {POSITION}"])
                self._scan(f"CREATE TEMP TABLE {name} AS SELECT {items} FROM {sent.relation}", sent)
                return Source(self.connection, f"(FROM {name})", of_all=sent.of_all)
        except PartyError:
            raise
        except Exception as error:  # of whatever class: it may carry a value
            check_time()
            raise self._explained(table, columns, read, error) from None

    def _scan(self, sql: str, sent: Sent) -> tuple[Any, ...]:
        self.connection.register("sent", sent.batches)
        try:
            [row] = self.connection.execute(sql).fetchall()  # fetchone would leave the result open
            return tuple(row)
        finally:
            self.connection.unregister("sent")

    def _explained(self, table: str, columns: Sequence[_SentColumn], read: Read, error: Exception) -> PartyError:
        """Read again, to find the column that holds a value it should not."""
        checks = ", ".join(column.misfits for column in columns) or "false"
        try:
            with read() as sent:
                found = self._scan(f"SELECT {checks} FROM {sent.relation}", sent)
        except Exception:  # the database failed, not a value
            found = ()
        for column, is_misfit in zip(columns, found, strict=False):
            if is_misfit:
                return misfit(self.party, table, column.asked)
        return _unread(self.party, table, error)


def _unread(party: str, table: str, error: Exception) -> PartyError:
    state = getattr(error, "sqlstate", None) or type(error).__name__
    reason = f"its database could not read it ({state}); try the same SELECT there"
    return PartyError(f"Party {party!r}: table {table!r}: {reason}")


def misfit(party: str, table: str, column: AskedColumn) -> PartyError:
    """The error for a value that is not what its column declares."""
    return PartyError(
        f"Party {party!r}: table {table!r}, column {column.stored!r} is declared {column.declared} but holds a value "
        f"that is not; correct the value, or publish a view that casts the column"
    )
