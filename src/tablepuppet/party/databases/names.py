"""Names: how asked tables and columns are found in a database, and how they are written into SQL with their positions.

Every name that reaches a database was first found in its catalog, and is quoted; every type has a checked form. A
row's position is its place among all rows of its table, in an order that is the same at every reading. Rows that tie
are equal in everything that is read, so any order of them is the same order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tablepuppet.errors import PartyError
from tablepuppet.party.database import POSITION, UnavailableError
from tablepuppet.sql.types import Family, family, holds

_PLAIN_TYPE = re.compile(r"[A-Z][A-Z0-9_ ]*(\(\d+, ?\d+\))?")


class UnknownNameError(PartyError):
    """A table or column is not there; the message lists those that are. Of a table, ``name`` is the one asked for."""

    def __init__(self, message: str, name: str = ""):
        super().__init__(message)
        self.name = name


@dataclass(frozen=True)
class AskedColumn:
    """A column's name as the caller wrote it, and as the table spells it."""

    name: str  # the caller's spelling
    type: str
    stored: str  # the table's spelling
    declared: str  # the table's type, as a DuckDB type

    def cast(self, expression: str) -> str:
        """``expression``, which holds the stored column, as an item of a DuckDB SELECT list.

        A number of the asked type is not cast: DuckDB binds each cast of a wide table several times. Of texts and times
        there are stored types that are declared as others.
        """
        is_cast = self.type != self.declared or family(self.type) not in (Family.INTEGER, Family.FLOAT)
        return f"{f'CAST({expression} AS {self.type})' if is_cast else expression} AS {identifier(self.name)}"


def identifier(name: str) -> str:
    """A name quoted for SQL.

    >>> print(identifier('a "b"'))
    "a ""b""\"
    """
    return '"' + name.replace('"', '""') + '"'


def text_literal(text: str) -> str:
    """A text quoted for SQL."""
    return "'" + text.replace("'", "''") + "'"


def select(columns: Iterable[AskedColumn], position: str, relation: str) -> str:
    """The subquery that yields asked columns and their position, from a relation that has the stored ones."""
    items = [column.cast(identifier(column.stored)) for column in columns]
    return f"(SELECT {', '.join([*items, f'CAST({position} AS BIGINT) AS {POSITION}'])} FROM {relation})"


def numbered_by(order: Sequence[str]) -> str:
    """The SQL that numbers rows from 0 in the order of some expressions; without any, in the order of the scan.

    >>> numbered_by(["rowid"])
    'row_number() OVER (ORDER BY rowid) - 1'
    """
    ordering = f"ORDER BY {', '.join(order)}" if order else ""
    return f"row_number() OVER ({ordering}) - 1"


def find_table(party: str, tables: Iterable[str], wanted: str) -> str:
    """The database's spelling of table ``wanted``."""
    known = list(tables)
    found = _spelled(_by_case(known), wanted)
    if found is None:
        listed = ", ".join(sorted(known)) or "none"
        raise UnknownNameError(f"Party {party!r} has no table {wanted!r}; it has: {listed}", wanted)
    return found


def find_columns(
    party: str, table: str, stored: Mapping[str, str], asked: Mapping[str, str]
) -> tuple[AskedColumn, ...]:
    """The ``asked`` columns (name -> type) among those a table has (name -> declared type).

    A type must hold every value of the declared one: a cast that fails on some values would reveal them.
    """
    columns = []
    for (name, type_name), found in zip(asked.items(), find_names(party, table, stored, asked), strict=True):
        declared = stored[found]
        if not _PLAIN_TYPE.fullmatch(type_name) or not holds(type_name, declared):
            raise PartyError(
                f"Party {party!r}: table {table!r}: column {name!r} is {declared[:40]} and cannot be read as "
                f"{type_name[:40]}; ask for the catalog again, or publish a view that casts it"
            )
        columns.append(AskedColumn(name, type_name, found, declared))
    return tuple(columns)


def find_names(party: str, table: str, stored: Iterable[str], asked: Iterable[str]) -> list[str]:
    """The table's spelling of every ``asked`` column; an error that names all that it has not."""
    names, known, where = list(asked), _by_case(stored), f"Party {party!r}: table {table!r}"
    if len({name.lower() for name in names}) < len(names):
        raise PartyError(f"{where}: columns that differ in case only cannot be read together")
    if POSITION in {name.lower() for name in names}:
        raise PartyError(f"{where}: a column cannot be called {POSITION}; publish a view that renames it")
    found = {name: spelling for name in names if (spelling := _spelled(known, name)) is not None}
    if missing := [repr(name) for name in names if name not in found]:
        listed = ", ".join(each for alike in known.values() for each in alike)
        raise UnknownNameError(f"{where} has no column {', '.join(missing)}; it has: {listed}")
    return list(found.values())


Spellings = dict[str, list[str]]
"""Names by how they are in lower case."""


def _by_case(names: Iterable[str]) -> Spellings:
    found: Spellings = {}
    for name in names:
        found.setdefault(name.lower(), []).append(name)
    return found


def _spelled(known: Spellings, wanted: str) -> str | None:
    """The exact name, or else the only one that differs in case alone."""
    alike = known.get(wanted.lower(), [])
    if wanted in alike:
        return wanted
    return alike[0] if len(alike) == 1 else None


# Where a database that is a file or a folder lies. A missing one is never created.


def existing(party: str, kind: str, path: str) -> Path:
    """The full path of the file or folder that a URL names.

    ``duckdb:///tmp/x`` is the relative ``tmp/x``, as in SQLAlchemy; when only ``/tmp/x`` exists, that was meant.
    """
    candidates = [Path(path)] if path.startswith("/") else [Path(path), Path("/" + path)]
    for candidate in candidates:
        if candidate.exists():
            return candidate.resolve()
    sought = " and ".join(str(candidate.absolute()) for candidate in candidates)
    raise UnavailableError(f"Party {party!r}: the {kind} database is missing (looked for {sought}); check its URL")


FileState = tuple[tuple[int, int, int] | None, ...]
"""Identity, size and time of the last change of some files."""


def state_of(*paths: Path) -> FileState:
    """What changes when one of these files does."""
    found: list[tuple[int, int, int] | None] = []
    for path in paths:
        try:
            status = path.stat()
            found.append((status.st_ino, status.st_size, status.st_mtime_ns))
        except FileNotFoundError:
            found.append(None)
    return tuple(found)
