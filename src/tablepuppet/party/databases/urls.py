"""The database behind a URL."""

from __future__ import annotations

from pathlib import Path

from tablepuppet.errors import ConfigError
from tablepuppet.party.database import Database

_FILE_KINDS = ("duckdb", "sqlite", "parquet", "csv", "arrow")
_SERVER_KINDS = ("postgresql", "mysql")


def open_database(party: str, url: str, *others: str, most_connections: int | None = None) -> Database:
    """The database behind ``url``; it is first opened when it is read. An error names ``others`` that there are too.

    ``most_connections`` are open at once to a server.

    >>> open_database("bank", "oracle://host/db")
    Traceback (most recent call last):
    tablepuppet.errors.ConfigError: Party 'bank': no database of kind 'oracle'; known: duckdb:///path, ...
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        raise ConfigError(f"Party {party!r}: the database must be a URL, one of: {_known()}")
    # Imported here: a driver is loaded only by a party that uses it.
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

            return PostgreSQL(party, url, most_connections)
        case "mysql" | "mariadb":
            from tablepuppet.party.databases.mysql import MySQL

            return MySQL(party, url, most_connections)
        case other:
            # Only a plain word is repeated: whatever else was typed there may be a password.
            named = f"no database of kind {other!r}" if other.isalnum() else "the URL has no scheme"
            raise ConfigError(f"Party {party!r}: {named}; known: {', '.join([_known(), *others])}")


def anchored(url: str, folder: Path) -> str:
    """The URL with a relative file path made absolute from ``folder``, the folder of a configuration file."""
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
