"""The DuckDB in which a party evaluates what an analyst wrote.

It reaches nothing but what it was given while it was set up: no other file, no network, no extension, no Python
variable; and its configuration is locked. Opening one takes longer than most of what it evaluates, so one that was
used without an error is kept for the next reading of the same files, empty: its tables went with the connection.
"""

from __future__ import annotations

import atexit
import fcntl
import itertools
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import gettempdir, mkdtemp
from threading import Lock

import duckdb

from tablepuppet.party.allowance import current, interrupted_in_time
from tablepuppet.party.databases.names import text_literal
from tablepuppet.pieces import cores
from tablepuppet.sql.quiet_duckdb import connect

# In this order: nothing can be set after the lock, and no file allowed after access is closed. GLOBAL: for all
# connections.
_LOCK = (
    "SET GLOBAL TimeZone = 'UTC'",
    # What is computed of a row must not depend on others: least and largest values of Parquet files leave out NaN
    "SET GLOBAL disabled_optimizers = 'statistics_propagation'",
    "SET GLOBAL enable_external_file_cache = false",  # a file may have changed since it was last read
    "SET GLOBAL autoinstall_known_extensions = false",
    "SET GLOBAL autoload_known_extensions = false",
    "SET GLOBAL enable_external_access = false",
    "SET GLOBAL lock_configuration = true",
)


SPILLED = "tablepuppet-spill-"
NEW = 60.0  # seconds in which a folder may not be locked yet
SPILL = 4  # times the memory, on disk
MOST_THREADS = 4
MOST_IDLE = 8  # databases that are kept
LEAST = 64 << 20  # bytes, without which DuckDB reads next to nothing
_numbers = itertools.count()


class _Locked:
    """A private DuckDB in memory after its setup has run and everything else is locked."""

    def __init__(self, setup: Sequence[str], settings: dict[str, str | bool]):
        self.made_by = (tuple(setup), settings)
        self._spill = mkdtemp(prefix=SPILLED)  # for nobody else to read
        self._folder = os.open(self._spill, os.O_RDONLY)  # as long as it is open, no other has its identity
        fcntl.flock(self._folder, fcntl.LOCK_SH | fcntl.LOCK_NB)  # until the process ends, however it does
        try:
            own: dict[str, str | bool] = {"temp_directory": self._spill, "python_enable_replacements": False}
            self.connection = connect(config={**own, **settings})
            for statement in (*setup, *_LOCK):
                self.connection.execute(statement)
        except BaseException:
            self._remove_folder()
            raise

    @property
    def can_be_used(self) -> bool:
        """Whether its folder is its own, and empty.

        Where a folder was removed, as old ones in /tmp are, DuckDB would make another that all may read, or spill rows
        into one that somebody else has made.
        """
        return self._has_folder and not os.listdir(self._spill)

    @property
    def _has_folder(self) -> bool:
        try:
            return os.path.samestat(os.lstat(self._spill), os.fstat(self._folder))
        except OSError:
            return False

    def close(self) -> None:
        """Close it, and remove what it has spilled."""
        self.connection.close()
        self._remove_folder()

    def _remove_folder(self) -> None:
        if self._has_folder:
            shutil.rmtree(self._spill, ignore_errors=True)
        os.close(self._folder)


def remove_spilled() -> None:
    """Remove what processes of this user have spilled that were killed: rows of their tables may be in it."""
    for path in Path(gettempdir()).glob(f"{SPILLED}*"):
        with suppress(OSError):  # somebody else's, in use, or gone just now
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                found = os.fstat(folder)
                if found.st_uid == os.getuid() and found.st_mtime < time.time() - NEW:
                    fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(folder)


class _Idle:
    """Databases that nobody uses; at most so many, those that were used last."""

    def __init__(self) -> None:
        self._lock, self._kept = Lock(), list[_Locked]()

    def take(self, setup: Sequence[str], settings: dict[str, str | bool]) -> _Locked | None:
        """One that was made by this, if there is any; nobody else gets it until it is given back."""
        with self._lock:
            place = next((at for at, each in enumerate(self._kept) if each.made_by == (tuple(setup), settings)), None)
            found = None if place is None else self._kept.pop(place)
        if found is not None and not found.can_be_used:
            found.close()
            return None
        return found

    def give(self, used: _Locked) -> None:
        """Keep one; the one that was not used for longest may go."""
        with self._lock:
            self._kept.append(used)
            gone = self._kept.pop(0) if len(self._kept) > MOST_IDLE else None
        if gone is not None:
            gone.close()

    def close(self) -> None:
        """Close all: left to the end of the interpreter, DuckDB may report them as leaked."""
        with self._lock:
            kept, self._kept = self._kept, []
        for each in kept:
            each.close()


_idle = _Idle()
_of_parents: list[_Idle] = []  # never closed: the threads of their databases did not survive the fork
atexit.register(lambda: _idle.close())


def _forget() -> None:
    global _idle
    _of_parents.append(_idle)
    _idle = _Idle()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


@contextmanager
def sandbox(*setup: str, begin: Sequence[str] = (), end: Sequence[str] = ()) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection to a private DuckDB, in which ``setup`` has run before all else was locked.

    ``begin`` runs in each connection, and ``end`` after it. Raises `duckdb.Error` when one of these statements fails.
    Large queries spill into a folder of their own. Memory and time are those that the request is allowed.
    """
    settings = _memory_settings()
    used = _idle.take(setup, settings) or _Locked(setup, settings)
    try:
        connection = used.connection.cursor()
        try:
            with interrupted_in_time(connection.interrupt):
                for statement in begin:
                    connection.execute(statement)
                yield connection
        finally:
            connection.close()
        for statement in end:
            used.connection.execute(statement)
    except BaseException:
        used.close()
        raise
    if used.can_be_used:
        _idle.give(used)
    else:
        used.close()


def _memory_settings() -> dict[str, str | bool]:
    """DuckDB's own limits; texts that grow within one step are not in them, see `sql/growth.py`."""
    allowance = current()
    if allowance is None or allowance.limits.expression_bytes is None:
        return {}
    most = max(allowance.limits.expression_bytes, LEAST)
    threads = min(MOST_THREADS, cores())  # each holds a step of its own
    return {"memory_limit": f"{most}B", "max_temp_directory_size": f"{SPILL * most}B", "threads": str(threads)}


def describe(connection: duckdb.DuckDBPyConnection, relation: str) -> dict[str, str]:
    """Columns of an expression after FROM, with the types in which parties publish them."""
    rows = connection.execute(f"DESCRIBE SELECT * FROM {relation}").fetchall()
    return {name: _published(type_name) for name, type_name, *_ in rows}


def count(connection: duckdb.DuckDBPyConnection, relation: str) -> int:
    """The number of rows of an expression after FROM."""
    rows = connection.execute(f"SELECT count(*) FROM {relation}").fetchall()  # fetchone would leave the result open
    return int(rows[0][0])


def new_name() -> str:
    """A name for a temporary table, never used before."""
    return f"source_{next(_numbers)}"


def allow(files: Iterable[Path]) -> str:
    """The setup statement that lets the sandbox read these files, and no others."""
    return f"SET allowed_paths = [{', '.join(text_literal(str(file)) for file in files)}]"


def _published(type_name: str) -> str:
    if type_name.startswith("ENUM") or type_name == '"NULL"':  # a column without any value
        return "VARCHAR"
    return "TIMESTAMP WITH TIME ZONE" if type_name == "TIMESTAMPTZ_NS" else type_name
