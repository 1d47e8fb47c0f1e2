"""How a party reads its own database: read-only, columnar, only what is asked, in a stable order.

In goes a URL; out come the names, types and row counts that a party may publish, and `Source`s: subqueries that
DuckDB runs at the party. Rows never leave this package except through such a connection, and no error holds one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import duckdb

from tablepuppet.errors import ConfigError
from tablepuppet.sql.query import Comparison

POSITION = "__position"
"""The column every `Source` adds: a row's place (BIGINT, from 0) among all rows of its table."""

_FILE_KINDS = ("duckdb", "sqlite", "parquet", "csv", "arrow")
_SERVER_KINDS = ("postgresql", "mysql")


@dataclass(frozen=True)
class SourceTable:
    """What a database publishes of one table: never rows."""

    name: str
    columns: Mapping[str, str]  # name -> DuckDB type, in the table's order
    rows: int


@dataclass(frozen=True)
class Source:
    """A table ready to be read by DuckDB, for as long as its reader is open.

    ``sql`` stands after FROM. It yields the asked columns, named and typed as asked, and `POSITION`. If it is
    ``in_order`` it yields every row, in the order of positions: an unfiltered scan need not read them.
    """

    connection: duckdb.DuckDBPyConnection
    sql: str
    in_order: bool = False


class Reader(Protocol):
    """One read-only transaction: every table is seen as of one moment."""

    def source(self, table: str, columns: Mapping[str, str], where: Sequence[Comparison] = ()) -> Source:
        """The ``columns`` (name -> DuckDB type) of a table, ready to be read.

        Rows that fail a comparison in ``where`` may be left out, or not: the caller filters again. Positions do not
        depend on it. Raises `PartyError` when the table, a column or a value is not as declared.
        """
        ...


class Database(Protocol):
    """A party's database. Nothing is open outside of ``tables`` and ``reader``."""

    def tables(self) -> list[SourceTable]:
        """Every table and view, with columns and exact row counts."""
        ...

    def reader(self) -> AbstractContextManager[Reader]:
        """Open the database for reading; it is closed when the context ends."""
        ...


def open_database(party: str, url: str) -> Database:
    """The database behind ``url``; it is first opened when it is read.

    >>> open_database("bank", "oracle://host/db")
    Traceback (most recent call last):
    tablepuppet.errors.ConfigError: Party 'bank': no database of kind 'oracle'; known: duckdb:///path, ...
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        raise ConfigError(f"Party {party!r}: the database must be a URL, one of: {_known()}")
    # Imported here: the kinds build on this module, and a driver is loaded only by a party that uses it.
    match scheme.lower():
        case "duckdb":
            from tablepuppet.party.databases.duckdb_file import DuckDBFile

            return DuckDBFile(party, _file_path(party, "duckdb", rest))
        case "sqlite":
            from tablepuppet.party.databases.sqlite import SQLite

            return SQLite(party, _file_path(party, "sqlite", rest))
        case "parquet" | "csv" | "arrow" as kind:
            from tablepuppet.party.databases.files import Folder

            return Folder(party, _file_path(party, kind, rest), kind)
        case "postgresql" | "postgres":
            from tablepuppet.party.databases.postgresql import PostgreSQL

            return PostgreSQL(party, url)
        case "mysql" | "mariadb":
            from tablepuppet.party.databases.mysql import MySQL

            return MySQL(party, url)
        case other:
            # Only a plain word is repeated: whatever else was typed there may be a password.
            named = f"no database of kind {other!r}" if other.isalnum() else "the URL has no scheme"
            raise ConfigError(f"Party {party!r}: {named}; known: {_known()}")


def anchored(url: str, folder: Path) -> str:
    """The URL with a relative file path made absolute from ``folder``, where a configuration file stands."""
    scheme, separator, path = url.partition(":///")
    if not separator or path.startswith("/") or scheme.startswith(("postgres", "mysql", "mariadb")):
        return url
    place = (folder / path).absolute()
    if not place.exists() and Path("/" + path).exists():  # duckdb:///tmp/x, where /tmp/x was meant
        place = Path("/" + path)
    return f"{scheme}:///{place}"


def _file_path(party: str, kind: str, rest: str) -> str:
    """What follows ``kind:///``: ``data/x`` is relative, ``/data/x`` absolute."""
    if not rest.startswith("/") or not rest[1:].strip("/"):
        raise ConfigError(
            f"Party {party!r}: {kind} needs a path after three slashes: {kind}:///relative/path or {kind}:////full/path"
        )
    return rest[1:]


def _known() -> str:
    servers = [f"{kind}://user:password@host/database" for kind in _SERVER_KINDS]
    return ", ".join([f"{kind}:///path" for kind in _FILE_KINDS] + servers)
