"""Delivered predictions: a party writes them beside its own keys, at a place that its operator named.

Input: predictions about rows of a session, from a coordinator. Output for the coordinator: only whether it worked. The
file or table has the key columns, which need not be published, ``prediction``, for classifiers also
``probability=<class>``, and ``run``, a name for the delivery. It is replaced atomically. One run is written once,
however often it is asked for. A file or table that no delivery wrote is never overwritten.
"""

from __future__ import annotations

import csv
import hashlib
import os
import stat
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet
from msgspec import Meta
from numpy.typing import NDArray

from tablepuppet.errors import ConfigError, PartyError
from tablepuppet.party.beside import columns_beside
from tablepuppet.party.database import Database
from tablepuppet.party.databases.delivering import replace_rows
from tablepuppet.party.grant import refusal
from tablepuppet.party.snapshot import Snapshot
from tablepuppet.store.files import DamagedFileError, read_checked, sync_folder, write_checked

RULE = "predictions"
RUN = "run"
REMEMBERED = 1000  # runs of each table
RECORD = "delivered.txt"


class PredictionsEntry(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Where predictions about a table's rows are written, if callers deliver some."""

    keys: Annotated[list[str], Meta(description="columns to write beside predictions; they need not be published")]
    file: Annotated[str | None, Meta(description="a .parquet or .csv file, replaced by every delivery")] = None
    table: Annotated[
        str | None, Meta(description="or a table of the database, emptied and filled by every delivery")
    ] = None

    def anchored(self, folder: Path) -> PredictionsEntry:
        """This place, with its path taken from a folder."""
        file = None if self.file is None else str(folder / Path(self.file).expanduser())
        return msgspec.structs.replace(self, file=file)

    @property
    def problem(self) -> str:
        """What is wrong with it in itself; "" if nothing is."""
        if not self.keys or len({key.lower() for key in self.keys}) < len(self.keys):
            return "keys: name one column or more, each once"
        taken = [
            key for key in self.keys if key.lower() in ("prediction", RUN) or key.lower().startswith("probability=")
        ]
        if taken:
            return f"keys: {taken[0]!r} is the name of a column that a delivery adds; rename it in sql"
        if (self.file is None) == (self.table is None):
            return "file: name one place, a file or a table"
        if self.file is not None and Path(self.file).suffix not in SUFFIXES:
            return f"file: it must end in {' or '.join(SUFFIXES)}"
        if self.table is not None and not (self.table.isidentifier() and self.table.isascii() and len(self.table) < 64):
            return "table: a name has letters, digits and _ only"
        return ""


class Deliveries:
    """What a party writes down of predictions; ``database`` shows the key columns of every target.

    Tables for predictions are in the database at ``url``.
    """

    def __init__(
        self,
        party: str,
        targets: Mapping[str, PredictionsEntry],
        database: Database,
        state_dir: Path | None = None,
        url: str = "",
    ):
        self.party, self.database, self.url = party, database, url
        self.targets = {name.lower(): target for name, target in targets.items()}
        self._record = None if state_dir is None else state_dir / RECORD
        self._done = [] if self._record is None else read_record(self._record)
        self._lock = threading.Lock()

    def check(self, table: str) -> None:
        """PrivacyError if the operator named no place for predictions about a table, PartyError if it is no good."""
        target = self._target(table)
        if target.file is not None:
            check_place(self.party, Path(target.file), target.keys)

    def _target(self, table: str) -> PredictionsEntry:
        if table.lower() not in self.targets:
            raise refusal(self.party, RULE, "its operator has named no place for predictions about its rows", table)
        return self.targets[table.lower()]

    def write(
        self, caller: str, run: str, snapshot: Snapshot, places: NDArray[np.integer], predictions: pa.Table
    ) -> str:
        """Write predictions for the rows at ``places`` of a snapshot; the name of the delivery."""
        table = snapshot.scan.table
        target = self._target(table)
        name = hashlib.sha256(f"{len(caller)} {caller} {run}".encode()).hexdigest()[:16]
        with self._lock:
            if (table.lower(), name) in self._done:
                return name
            order = np.argsort(places)  # of the source, whatever the row ids are
            rows = columns_beside(snapshot, target.keys, self.database).take(pa.array(places[order]))
            for column in predictions.column_names:
                rows = rows.append_column(column, predictions[column].take(pa.array(order)))
            rows = rows.append_column(RUN, pa.array([name]).take(pa.array(np.zeros(len(rows), np.int32))))
            if target.file is not None:
                replace_file(self.party, Path(target.file), target.keys, rows, name)
            elif target.table is not None:
                replace_rows(self.party, self.url, target.table, rows, name)
            self._remember(table.lower(), name)
        return name

    def _remember(self, table: str, name: str) -> None:
        """Remember the last runs of each table, on disk where there is a folder for it."""
        mine = [each for each in self._done if each[0] == table][-REMEMBERED + 1 :]
        self._done = [*(each for each in self._done if each[0] != table), *mine, (table, name)]
        if self._record is None:
            return
        try:
            write_record(self._record, self._done)
        except OSError as error:
            raise PartyError(
                f"party {self.party!r} cannot write down that predictions were delivered ({error.strerror}); its "
                "operator must make room"
            ) from error


def write_record(file: Path, done: Sequence[tuple[str, str]]) -> None:
    """Write down (table, run) of delivered predictions. Raises OSError."""
    write_checked(file, "".join(f"{run} {table}\n" for table, run in done).encode())


def read_record(file: Path, read: Callable[[Path], bytes] = read_checked) -> list[tuple[str, str]]:
    """(table, run) of the predictions that a file says were delivered; ConfigError if it cannot be read."""
    try:
        lines = read(file).decode().splitlines()
        return [(table, name) for name, _, table in (line.partition(" ") for line in lines)]
    except FileNotFoundError:
        return []
    except (OSError, DamagedFileError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{str(file)!r}, which lists delivered predictions, is damaged or cannot be read: restore it, or remove "
            "it, after which a run that is asked for again is written again"
        ) from error


# A file of delivered predictions, Parquet or CSV: replaced whole or not at all, and only if a delivery wrote it.

SUFFIXES = (".parquet", ".csv")
_MARK = b"tablepuppet.run"


def check_place(party: str, file: Path, keys: Sequence[str]) -> str | None:
    """The run that a file holds; PartyError unless a file can be written there, and replaces an earlier delivery only.

    None: there is no file.
    """
    if not file.parent.is_dir() or not os.access(file.parent, os.W_OK | os.X_OK):
        raise _unable(party, "its folder is not there, or cannot be written")
    if not file.exists() and not file.is_symlink():
        return None
    found = None
    try:
        if stat.S_ISREG(file.stat().st_mode):
            found = _run_of_parquet(file) if file.suffix == ".parquet" else _run_of_csv(file, keys)
    except (OSError, pa.ArrowException, UnicodeDecodeError, csv.Error):
        pass
    if found is None:
        raise _unable(party, "another file stands there, which no delivery wrote; move it away")
    return found


def _run_of_parquet(file: Path) -> str | None:
    metadata = pa_parquet.read_schema(file).metadata or {}
    return metadata[_MARK].decode() if _MARK in metadata else None


def _run_of_csv(file: Path, keys: Sequence[str]) -> str | None:
    with file.open(newline="", encoding="utf-8") as stream:
        lines = csv.reader(stream)
        names, first = next(lines, []), next(lines, [])
    ours = names[: len(keys) + 1] == [*keys, "prediction"] and names[-1] == "run"
    return first[-1] if ours and first else None


def replace_file(party: str, file: Path, keys: Sequence[str], rows: pa.Table, run: str) -> None:
    """Replace an earlier delivery by new rows, unless they are the same delivery."""
    if check_place(party, file, keys) == run:
        return
    try:
        mode = stat.S_IMODE(file.stat().st_mode) if file.exists() else 0o600
        with tempfile.NamedTemporaryFile(dir=file.parent, prefix=".new-", suffix=file.suffix, delete=False) as draft:
            try:
                _write(rows, draft.name, run)
                os.fchmod(draft.fileno(), mode)
                os.fsync(draft.fileno())
                os.replace(draft.name, file)
            except BaseException:
                os.unlink(draft.name)
                raise
        sync_folder(file.parent)
    except OSError as error:
        raise _unable(party, str(error.strerror)) from error


def _write(rows: pa.Table, path: str, run: str) -> None:
    if path.endswith(".parquet"):
        pa_parquet.write_table(rows.replace_schema_metadata({_MARK: run.encode()}), path)
    else:
        pa_csv.write_csv(rows, path)


def _unable(party: str, reason: str) -> PartyError:
    """The error that a caller gets; it contains no path."""
    return PartyError(f"party {party!r} cannot write predictions to the file that its operator named: {reason}")
