"""A file of delivered predictions, Parquet or CSV: replaced whole or not at all, and only if a delivery wrote it."""

from __future__ import annotations

import csv
import os
import stat
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet

from tablepuppet.errors import PartyError
from tablepuppet.store.files import sync_folder

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
