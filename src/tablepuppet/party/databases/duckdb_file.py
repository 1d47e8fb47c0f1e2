"""A party whose tables are in a DuckDB file (schema ``main``); the file is attached read-only while it is read.

A row's position is its place by ``rowid``; a view has none and is ordered by the columns that are read. Rows of a view
are counted for as long as a person would wait, and again only if the file has changed.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from threading import Timer

import duckdb

from tablepuppet.errors import PartyError
from tablepuppet.party.allowance import check_time
from tablepuppet.party.database import Source, SourceTable, UnavailableError
from tablepuppet.party.databases.names import (
    AskedColumn,
    FileState,
    existing,
    find_columns,
    find_table,
    identifier,
    numbered_by,
    select,
    state_of,
    text_literal,
)
from tablepuppet.party.databases.sandbox import allow, count, describe, sandbox
from tablepuppet.party.databases.urls import Address, database
from tablepuppet.party.databases.view_text import aggregating
from tablepuppet.sql.query import Comparison

logger = logging.getLogger(__name__)

PATIENCE = 2.0  # seconds in which a view is counted

_CATALOG = """
    SELECT table_name, NULL FROM duckdb_tables()
    WHERE database_name = current_database() AND schema_name = 'main' AND NOT internal
    UNION ALL
    SELECT view_name, sql FROM duckdb_views()
    WHERE database_name = current_database() AND schema_name = 'main' AND NOT internal
    ORDER BY 1
"""


@dataclass(frozen=True)
class DuckDBFile:
    """A DuckDB file, opened again for each reading, so that others can write in between."""

    party: str
    path: str
    _counted: dict[str, tuple[FileState, int, bool]] = field(default_factory=dict, compare=False, repr=False)

    def tables(self, names: Collection[str] | None = None) -> list[SourceTable]:
        """Tables and views of ``main``; a view that cannot be evaluated is logged and left out."""
        path = existing(self.party, "DuckDB", self.path)
        state = state_of(path, path.with_name(f"{path.name}.wal"))  # before anything is read
        with self._attached() as connection:
            catalog = _catalog(connection)
            wanted = catalog if names is None else [find_table(self.party, catalog, name) for name in names]
            views = {name: sql for name, sql in catalog.items() if sql is not None}
            sums = aggregating(views, "duckdb", set(wanted))
            tables = [self._published(connection, state, name, name in views, sums) for name in wanted]
            return [table for table in tables if table is not None]

    @contextmanager
    def reader(self) -> Iterator[_Reader]:
        """Attach the file for reading. No transaction is needed: while it is attached nobody can write to it."""
        with self._attached() as connection:
            yield _Reader(self.party, connection)

    @contextmanager
    def _attached(self) -> Iterator[duckdb.DuckDBPyConnection]:
        path = existing(self.party, "DuckDB", self.path)
        # Views may name their own database, which DuckDB calls by the file's stem.
        alias = identifier(path.stem if path.stem not in ("memory", "system", "temp") else "source")
        begin = (f"ATTACH {text_literal(str(path))} AS {alias} (READ_ONLY, TYPE duckdb)", f"USE {alias}.main")
        reached = allow([path, path.with_name(f"{path.name}.wal")])  # the second has what is not in the file yet
        with ExitStack() as stack:
            try:
                connection = stack.enter_context(sandbox(reached, begin=begin, end=[f"DETACH {alias}"]))
            except duckdb.Error as error:
                raise UnavailableError(f"Party {self.party!r}: {_why_closed(error, str(path))}") from None
            yield connection

    def _published(
        self, connection: duckdb.DuckDBPyConnection, state: FileState, name: str, is_view: bool, sums: frozenset[str]
    ) -> SourceTable | None:
        try:
            columns, estimated = describe(connection, identifier(name)), False
            if is_view:
                rows, estimated = self._count(connection, state, name)
            else:
                rows = count(connection, identifier(name))
            return SourceTable(name, columns, rows, name in sums, estimated)
        except duckdb.Error:
            what = "view" if is_view else "table"
            logger.warning("Party %r: %s %r cannot be read and is not published", self.party, what, name)
            return None

    def _count(self, connection: duckdb.DuckDBPyConnection, state: FileState, name: str) -> tuple[int, bool]:
        """The rows of a view, and whether they are only estimated, since counting takes too long."""
        if name not in self._counted or self._counted[name][0] != state:
            expected = _expected(connection, name)
            patience = Timer(PATIENCE, connection.interrupt)
            patience.start()
            try:
                found = count(connection, identifier(name)), False
            except duckdb.InterruptException:
                check_time()
                found = expected, True
            finally:
                patience.cancel()
                patience.join()
            self._counted[name] = (state, *found)
        return self._counted[name][1:]


def _expected(connection: duckdb.DuckDBPyConnection, name: str) -> int:
    """The rows that the planner expects; nothing is evaluated."""
    [(_, text)] = connection.execute(f"EXPLAIN (FORMAT json) SELECT * FROM {identifier(name)}").fetchall()
    [plan] = json.loads(text)
    while "Estimated Cardinality" not in plan.get("extra_info", {}) and plan.get("children"):
        plan = plan["children"][0]
    return int(plan.get("extra_info", {}).get("Estimated Cardinality", 0))


def _catalog(connection: duckdb.DuckDBPyConnection) -> dict[str, str | None]:
    """Tables and views; of a view its definition."""
    return dict(connection.execute(_CATALOG).fetchall())


def _why_closed(error: duckdb.Error, path: str) -> str:
    message = str(error)
    if "Unique file handle conflict" in message:
        return f"{path} is open for writing in this process; close that connection and try again"
    if "Could not set lock" in message:
        return f"{path} is locked by a process that writes to it; close it there, or try again when it has finished"
    if "not a valid DuckDB database" in message:
        return f"{path} is not a DuckDB database; check the URL"
    return f"{path} cannot be opened by DuckDB {duckdb.__version__} ({type(error).__name__}); check the file"


@dataclass(frozen=True)
class _Reader:
    party: str
    connection: duckdb.DuckDBPyConnection

    def source(self, table: str, columns: Mapping[str, str], where: Sequence[Comparison] = ()) -> Source:
        """The columns as a plain scan, into which DuckDB itself pushes the caller's filter: ``where`` is not needed."""
        catalog = _catalog(self.connection)
        name = find_table(self.party, catalog, table)
        try:
            stored = describe(self.connection, identifier(name))
            asked = find_columns(self.party, name, stored, columns)
            has_rowid = catalog[name] is None and "rowid" not in map(str.lower, stored)  # a column may hide it
            position = self._position(name, asked, has_rowid=has_rowid)
        except duckdb.Error as error:
            reason = f"cannot be evaluated ({type(error).__name__}); a view may use the tables of its own file only"
            raise PartyError(f"Party {self.party!r}: {name!r} {reason}") from None
        return Source(self.connection, select(asked, position, identifier(name)), in_order=position == "rowid")

    def _position(self, name: str, asked: Sequence[AskedColumn], *, has_rowid: bool) -> str:
        if not has_rowid:
            return numbered_by(sorted(identifier(column.stored) for column in asked))
        # Without deleted rows, rowid is the position, and the scan stays one plain parallel scan.
        dense = f"SELECT coalesce(max(rowid) + 1, 0) = count(*) FROM {identifier(name)}"
        [(is_dense,)] = self.connection.execute(dense).fetchall()
        return "rowid" if is_dense else numbered_by(["rowid"])


@database("duckdb", is_file=True)
def _opened(address: Address) -> DuckDBFile:
    return DuckDBFile(address.party, address.path)
