"""Delivered predictions: a party writes them beside its own keys, at a place that its operator named.

Input: predictions about rows of a session, from a coordinator. Output for the coordinator: only whether it worked. The
file or table has the key columns, which need not be published, ``prediction``, for classifiers also
``probability=<class>``, and ``run``, a name for the delivery. It is replaced atomically. One run is written once,
however often it is asked for. A file or table that no delivery wrote is never overwritten.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Meta
from numpy.typing import NDArray

from tablepuppet.errors import ConfigError, PartyError
from tablepuppet.party.beside import columns_beside
from tablepuppet.party.database import Database
from tablepuppet.party.databases.delivering import replace_rows
from tablepuppet.party.delivered_file import SUFFIXES, check_place, replace_file
from tablepuppet.party.grant import refusal
from tablepuppet.party.snapshot import Snapshot
from tablepuppet.store.files import DamagedFileError, read_checked, write_checked

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
