"""How a party reads its own database: read-only, by columns, only what is asked for, in a stable order.

Output: the names, types and row counts that a party may publish, and `Source`s: subqueries that DuckDB runs at the
party. Rows leave this package only through such a connection, and no error contains one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

import duckdb

from tablepuppet.errors import PartyError
from tablepuppet.sql.query import Comparison

POSITION = "__position"
"""The column every `Source` adds: a row's place (BIGINT, from 0) in the stable order of its table."""


class UnavailableError(PartyError):
    """The database cannot be opened or is lost. The message may name its host, user or path: it is for its owner only.

    A service sends a reference instead (`wire/desk.py`), and logs the message with it.
    """


@contextmanager
def noticing_loss(lost: Callable[[], str]) -> Iterator[None]:
    """UnavailableError instead of whatever fails in the block, if the connection is lost by then.

    ``lost`` says why, "" while the connection is there. So no use of a connection has to distinguish that.
    """
    try:
        yield
    except UnavailableError:
        raise
    except Exception:  # of whatever class: it may carry a value
        why = lost()
        if why:
            raise UnavailableError(why) from None
        raise


@dataclass(frozen=True)
class SourceTable:
    """What a database publishes of one table: never rows."""

    name: str
    columns: Mapping[str, str]  # name -> DuckDB type, in the table's order
    rows: int
    aggregates: bool = False  # a view that makes one row of several
    estimated: bool = False  # ``rows`` is what the database expects; they were not counted


@dataclass(frozen=True)
class Source:
    """A table ready to be read by DuckDB, for as long as its reader is open.

    ``sql`` is written after FROM. It yields the asked columns, named and typed as asked, and `POSITION`. If it is
    ``in_order`` it yields every row, in the order of positions: an unfiltered scan need not read them. If it is not
    ``of_all``, rows were left out before they were numbered: positions are places among those that are left.
    """

    connection: duckdb.DuckDBPyConnection
    sql: str
    in_order: bool = False
    of_all: bool = True


class Reader(Protocol):
    """One read-only transaction: every table is seen as of one moment."""

    def source(self, table: str, columns: Mapping[str, str], where: Sequence[Comparison] = ()) -> Source:
        """The ``columns`` (name -> DuckDB type) of a table, ready to be read.

        Rows that fail a comparison in ``where`` may be left out, or not: the caller filters again. Their order does not
        depend on it. Raises `PartyError` when the table, a column or a value is not as declared.
        """
        ...


class Database(Protocol):
    """A party's database. Nothing is open outside of ``tables`` and ``reader``."""

    def tables(self, names: Collection[str] | None = None) -> list[SourceTable]:
        """The tables and views of these names, or all of them; one that cannot be read is logged and left out.

        Nothing else is touched. Rows are counted where that costs little; else their number is estimated, or that of
        the last count. Raises `UnknownNameError` for a name that is not there.
        """
        ...

    def reader(self) -> AbstractContextManager[Reader]:
        """Open the database for reading; it is closed when the context ends."""
        ...
