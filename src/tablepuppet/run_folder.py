"""The run folder of a job: which run is in it, whether that is finished, and one process at a time that writes to it.

``run.json`` says that a run is finished; it is written last. A run that replaces another is written beside it first, so
that a full disk leaves the other as it was. ``record`` holds a run that is under way, was stopped or
broke off: the job as it was, and what parties elsewhere have answered, labels among it, for this user only. Where
both are, a finished run is being replaced. What happens in a run is in ``record`` too, and stays when that is removed:
in ``events.jsonl`` of the run that has finished, and in ``failed.jsonl`` of the last one that has not.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from tablepuppet.cli.output import plain, typed
from tablepuppet.errors import ConfigError
from tablepuppet.runs.event_file import EVENTS, FAILED, EventFile
from tablepuppet.store.files import DamagedFileError, read_facts, read_known, write_atomically, write_facts
from tablepuppet.store.folder import ModelFolder
from tablepuppet.wire.record import Record, recorded_sessions

RECORD, JOB, FINISHED, SEARCHED = "record", "job.toml", "run.json", "search.json"


class RunFolder:
    """A run folder at a path, which may not be there yet."""

    def __init__(self, path: Path):
        self.path, self.record = path, path / RECORD
        self._claim: int | None = None
        self._events: EventFile | None = None

    def events(self, facts: Mapping[str, Any]) -> EventFile:
        """The file of events of the run that is under way."""
        self._events = EventFile(self.record / EVENTS, facts)
        return self._events

    @contextmanager
    def begun(self, job: Path, *, overwrite: bool) -> Iterator[tuple[Record, list[str]]]:
        """Begin the run of a job file: its record, and the sessions of a run that is given up for it.

        If what is done inside fails, no run was begun. ConfigError if there is a run already, unless ``overwrite``, or
        the folder cannot be written.
        """
        with self._writable():
            self.path.mkdir(parents=True, exist_ok=True)
        with self._taken(), self._writable():
            self._check_free(overwrite)
            self._check_names()
            abandoned: list[str] = []
            with suppress(ConfigError):  # a damaged record is given up too; its sessions end by themselves
                abandoned = recorded_sessions(self.record)
            shutil.rmtree(self.record, ignore_errors=True)
            try:
                self.record.mkdir(mode=0o700)
                content = job.read_bytes()
                write_atomically(self.record / JOB, content, 0o666)
                base = os.path.relpath(job.parent.resolve(), self.path.resolve())
                write_facts(self.record / FINISHED, {"base": base, "job": sha256(content).hexdigest()})
            except BaseException:
                self.forget()
                raise
        try:
            yield Record(self.record), abandoned
        except BaseException:
            self.forget()
            raise

    def problem(self) -> str | None:
        """Why no run can be begun here without ``overwrite``; None if nothing is in the way. Nothing is made."""
        place = next(each for each in (self.path, *self.path.absolute().parents) if each.exists())
        try:
            with self._writable():
                self._check_free(overwrite=False)
                self._check_names()
                if not place.is_dir() or not os.access(place, os.W_OK):
                    code = errno.EACCES if place.is_dir() else errno.ENOTDIR
                    raise OSError(code, os.strerror(code))
        except ConfigError as error:
            return str(error)
        return None

    def resumed(self) -> Record:
        """The record of the run that is not finished; ConfigError if there is none, or another process is at it."""
        if not self._is_begun:
            state = "is finished" if (self.path / FINISHED).exists() else "is no run folder"
            raise ConfigError(f"{str(self.path)!r} {state}: there is nothing to resume")
        with self._taken():
            return Record(self.record)

    def check_finished(self) -> None:
        """ConfigError unless there is a finished run, and no newer one is under way."""
        if self._is_begun:
            raise ConfigError(
                f"the run in {str(self.path)!r} is not finished: `{typed('resume', self.path)}` continues it"
                f"{self.way_back}"
            )
        if not (self.path / FINISHED).exists():
            raise ConfigError(f"{str(self.path)!r} is not a run folder: it has no {FINISHED}; train a job first")

    def base(self, holder: Path) -> Path:
        """The folder that paths of the job start at; ConfigError unless it and the job are as they were written."""
        try:
            facts = read_facts(holder / FINISHED)
            read_known(holder / JOB, facts["job"])
            return (self.path / str(facts["base"])).resolve()
        except (OSError, LookupError, DamagedFileError) as error:
            reason = error if isinstance(error, DamagedFileError) else f"{str(holder / FINISHED)!r} cannot be read"
            raise ConfigError(f"{reason}: train the job again, with --overwrite") from error

    def write(self, figures: Mapping[str, Any], save: Callable[[Path], None]) -> None:
        """Write what a run has come to; until all is there, it is not finished."""
        written = {name: json.dumps(plain(value), indent=2).encode() for name, value in figures.items()}
        with self._writable():
            written |= {name: (self.record / name).read_bytes() for name in (JOB, FINISHED)}  # this one last
            try:
                for name, content in written.items():
                    write_atomically(self.path / f"{name}.new", content, 0o666)
                save(self.path / "model")
            except BaseException:
                for name in written:
                    with suppress(OSError):
                        (self.path / f"{name}.new").unlink(missing_ok=True)
                raise
            for name in (FINISHED, SEARCHED):  # a run before may have searched
                (self.path / name).unlink(missing_ok=True)
            for name in written:
                (self.path / f"{name}.new").replace(self.path / name)

    def keep_events(self) -> None:
        """Let the events stay when the record is removed, if parties were asked for rows."""
        if self._events is not None and self._events.has_opened:
            finished = self._events.outcome == "finished"
            with suppress(OSError):
                (self.path / FAILED).unlink(missing_ok=finished)
            self._events.move(self.path / (EVENTS if finished else FAILED))

    def forget(self) -> None:
        """Remove the record, and the folder if there is nothing else in it."""
        if self._events is not None:
            self._events.close()
        with suppress(OSError):
            (self.record / FINISHED).unlink()  # first: what is left of a record is none
        shutil.rmtree(self.record, ignore_errors=True)
        with suppress(OSError):
            self.path.rmdir()
        self.leave()

    def leave(self) -> None:
        """Let other processes at it."""
        self._events = None
        claim, self._claim = self._claim, None
        if claim is not None:
            os.close(claim)

    @property
    def way_back(self) -> str:
        """The tail of a message: how to have the finished run back that another would replace, if there is one."""
        if not (self.path / FINISHED).exists():
            return ""
        return f". The finished run from before is still there: remove the folder {str(self.record)!r} to have it back"

    @property
    def _is_begun(self) -> bool:
        return (self.record / FINISHED).exists()

    @contextmanager
    def _taken(self) -> Iterator[None]:
        """Keep other processes away, until `leave` if what is done inside goes well."""
        self._claim = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(self._claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError as error:
            self.leave()
            raise ConfigError(f"another process is training the run in {str(self.path)!r}") from error
        except BaseException:
            self.leave()
            raise

    def _check_free(self, overwrite: bool) -> None:
        if overwrite:
            return
        where, anew = repr(str(self.path)), "`--overwrite` replaces it, or name another output in the job file"
        if self._is_begun:
            raise ConfigError(
                f"{where} has a run that is not finished: `{typed('resume', self.path)}` continues it; {anew}"
                f"{self.way_back}"
            )
        if (self.path / FINISHED).exists():
            raise ConfigError(f"{where} has a finished run; {anew}")

    def _check_names(self) -> None:
        """ConfigError if something else has the name of a file that will be written."""
        files = [self.path / name for name in (JOB, "history.json", "metrics.json", SEARCHED, FINISHED)]
        wrong = [path for path in files if path.is_dir()] + [self.record] * self.record.is_file()
        if wrong:
            raise ConfigError(f"{str(wrong[0])!r} is in the way of the run's own files; remove it")
        ModelFolder(self.path / "model").check_free()

    @contextmanager
    def _writable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ConfigError(
                f"the run folder {str(self.path)!r} cannot be written ({error.strerror}); make room, or name another "
                "output in the job file"
            ) from error


def is_full(error: BaseException | None) -> bool:
    """Whether something failed because a disk of this machine is full, or cannot be written now."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _FULL:
            return True
        error = error.__cause__
    return False


_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO}
