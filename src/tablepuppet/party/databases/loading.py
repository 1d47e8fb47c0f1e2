"""Rows of a foreign database on their way into DuckDB: cast at once to the declared types.

What a driver says about a value it cannot read contains that value. So every error here is replaced by one that
names the column, and the value is left behind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import duckdb

from tablepuppet.errors import PartyError
from tablepuppet.party.database import POSITION, Source
from tablepuppet.party.databases.names import AskedColumn
from tablepuppet.party.databases.sandbox import new_name
from tablepuppet.sql.types import Family, family

SENT_POSITION = "p"


def sent_name(index: int) -> str:
    """What an asked column is called while it travels; it cannot collide with anything."""
    return f"c{index}"


@dataclass(frozen=True)
class ForeignColumn:
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
class Loader:
    """Copies tables into temporary tables of the sandbox."""

    party: str
    connection: duckdb.DuckDBPyConnection

    def load(
        self, table: str, columns: Sequence[ForeignColumn], read: Callable[[], AbstractContextManager[Any]]
    ) -> Source:
        """What ``read`` sends (Arrow batches; it may be called twice) as a `Source`."""
        for column in columns:
            if family(column.asked.declared) is Family.OTHER:
                raise _unreadable(self.party, table, column.asked)
        name = new_name()
        selected = ", ".join([*(column.value for column in columns), f"CAST({SENT_POSITION} AS BIGINT) AS {POSITION}"])
        try:
            self._scan(f"CREATE TEMP TABLE {name} AS SELECT {selected} FROM sent WHERE {SENT_POSITION} >= 0", read)
        except PartyError:
            raise
        except Exception as error:  # of whatever class: it may carry a value
            raise self._explained(table, columns, read, error) from None
        return Source(self.connection, f"(FROM {name})")

    def _scan(self, sql: str, read: Callable[[], AbstractContextManager[Any]]) -> tuple[Any, ...]:
        with read() as batches:
            self.connection.register("sent", batches)
            try:
                [row] = self.connection.execute(sql).fetchall()  # fetchone would leave the result open
                return tuple(row)
            finally:
                self.connection.unregister("sent")

    def _explained(
        self,
        table: str,
        columns: Sequence[ForeignColumn],
        read: Callable[[], AbstractContextManager[Any]],
        error: Exception,
    ) -> PartyError:
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


def _unreadable(party: str, table: str, column: AskedColumn) -> PartyError:
    return PartyError(
        f"Party {party!r}: table {table!r}, column {column.stored!r} is of type {column.declared}, "
        f"which cannot be read; publish a view that casts the column"
    )
