"""A seal of all rows of a small SQLite file: their digests, added up, in a table of its own.

Every change of a row changes the seal in the same transaction, whatever statement makes it: triggers of the connection
see to it. So a bit that flips in a number, or a row that vanishes, is found by adding up again. Input and output:
a connection. The seal finds damage, not an attacker.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256

_TABLE = "seal"
_SIZE = 32  # bytes of a digest
_MODULUS = 1 << 8 * _SIZE


def seal(connection: sqlite3.Connection) -> None:
    """Seal all rows that there are now, for the first time."""
    connection.execute(f"CREATE TABLE {_TABLE} (digest BLOB NOT NULL)")
    connection.execute(f"INSERT INTO {_TABLE} VALUES (?)", (_blob(_sum(connection)),))


def is_as_sealed(connection: sqlite3.Connection) -> bool:
    """Whether tables and rows are those that were sealed; False too if there is no seal."""
    try:
        [(stored,)] = connection.execute(f"SELECT digest FROM {_TABLE}").fetchall()
        return bool(stored == _blob(_sum(connection)))
    except (sqlite3.Error, ValueError):  # tables, or the seal, cannot be read
        return False


@contextmanager
def changes_sealed(connection: sqlite3.Connection) -> Iterator[None]:
    """Let the seal follow whatever is changed inside, of rows that were as sealed."""
    change = 0

    def changed(sign: int, table: str, *row: object) -> None:
        nonlocal change
        change += sign * _digest(table, row)

    connection.create_function("seal_changed", -1, changed)
    connection.execute("PRAGMA recursive_triggers = ON")  # else a row that another replaces would vanish unseen
    for table, columns in _tables(connection).items():
        for event in ("INSERT", "UPDATE", "DELETE"):
            old, new = (", ".join(f"{each}.{name}" for name in columns) for each in ("old", "new"))
            gone = f"SELECT seal_changed(-1, '{table}', {old});" if event != "INSERT" else ""
            come = f"SELECT seal_changed(1, '{table}', {new});" if event != "DELETE" else ""
            connection.execute(
                f"CREATE TEMP TRIGGER seal_{table}_{event} AFTER {event} ON main.{table} BEGIN {gone} {come} END"
            )
    yield
    if change:
        [(stored,)] = connection.execute(f"SELECT digest FROM {_TABLE}").fetchall()
        connection.execute(f"UPDATE {_TABLE} SET digest = ?", (_blob(int.from_bytes(stored) + change),))


def _tables(connection: sqlite3.Connection) -> dict[str, list[str]]:
    """The columns of each table that is sealed."""
    names = "SELECT name FROM main.sqlite_master WHERE type = 'table' AND name <> ? ORDER BY name"
    return {
        name: [column for _, column, *_ in connection.execute(f"PRAGMA main.table_info({name})")]
        for (name,) in connection.execute(names, (_TABLE,)).fetchall()
    }


def _sum(connection: sqlite3.Connection) -> int:
    made = connection.execute("SELECT name, sql FROM main.sqlite_master WHERE sql IS NOT NULL").fetchall()
    total = sum(_digest("", row) for row in made)
    for table, columns in _tables(connection).items():
        total += sum(_digest(table, row) for row in connection.execute(f"SELECT {', '.join(columns)} FROM {table}"))
    return total


def _digest(table: str, row: tuple[object, ...]) -> int:
    return int.from_bytes(sha256(repr((table, tuple(row))).encode("utf-8", "surrogateescape")).digest())


def _blob(total: int) -> bytes:
    return (total % _MODULUS).to_bytes(_SIZE)
