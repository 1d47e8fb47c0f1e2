"""The recorded transport: keeps what services have answered, so that a run whose coordinator died can go on.

Nothing of an algorithm is saved. A run that is resumed starts from the beginning and asks the same questions; answers
that are on record are read instead of asked for, until the record ends. The parties stand where they stood, and the
last request, which may or may not have reached them, is answered from their store. A question that differs from the one
on record ends the run: the job or the software is no longer the same. Where a run goes on without a party that is lost,
that it was lost is on record too.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from io import BufferedReader, FileIO
from pathlib import Path

from tablepuppet.errors import ConfigError, LearnError
from tablepuppet.party.openings import StaleNonceError
from tablepuppet.party.request import Reply, Request
from tablepuppet.store.files import DamagedFileError, read_checked, read_facts, write_checked, write_facts
from tablepuppet.wire.codec import Encoded, encode
from tablepuppet.wire.engine import Transport
from tablepuppet.wire.message_file import append, read_message, size_of
from tablepuppet.wire.protocol import LostError, error_message, read_reply, reply_message, request_message

NO_REPLY = Encoded(b"", [])
SESSIONS = "sessions"


class Record:
    """The record of one run: a folder with a file per party, and the names of its sessions."""

    def __init__(self, folder: Path):
        self.folder = folder
        with write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._known = recorded_sessions(folder)
        self._used = 0

    @property
    def run(self) -> str:
        """A name of the run, by which operators of parties know its requests; the same when it is resumed."""
        path = self.folder / "run"
        with write_errors(self.folder):
            if not path.exists():
                write_checked(path, secrets.token_hex(8).encode())
            return read_checked(path).decode()

    def new_session(self) -> str:
        """The name of the next session: the one on record, or a new one."""
        if self._used == len(self._known):
            known = [*self._known, secrets.token_hex(16)]
            with write_errors(self.folder):
                write_facts(self.folder / SESSIONS, {SESSIONS: known})
            self._known = known
        self._used += 1
        return self._known[self._used - 1]

    def of(self, name: str, transport: Transport, *, losses: bool = False) -> RecordedTransport:
        """A transport whose replies are recorded, with ``losses`` also that there was none."""
        return RecordedTransport(name, transport, self.folder / f"{name}.replies", losses=losses)


def recorded_sessions(folder: Path) -> list[str]:
    """The names of a record's sessions; none where there is no record. ConfigError if they cannot be read."""
    try:
        return [str(name) for name in read_facts(folder / SESSIONS)[SESSIONS]]
    except FileNotFoundError:
        return []
    except DamagedFileError as error:
        raise ConfigError(f"{error}, so this run cannot go on from it: train it again, with --overwrite") from error
    except OSError as error:
        raise ConfigError(f"the record {str(folder)!r} of this run cannot be read ({error.strerror})") from error


class RecordedTransport(Transport):
    """Answers from the record as far as it goes, then calls another transport and records its replies."""

    def __init__(self, name: str, transport: Transport, path: Path, *, losses: bool = False):
        self._name, self._transport, self._path, self._losses = name, transport, path, losses
        self.capabilities = replace(transport.capabilities, drop_losses=self._drop_losses)
        self._reading: BufferedReader | None = path.open("rb") if path.exists() else None
        self._writing: FileIO | None = None

    def call(self, request: Request, patience: float | None = None) -> Reply:
        """The reply on record, or one that is recorded now."""
        if request.verb == "close":
            return self._transport.call(request, patience)
        digest = _digest(encode(request_message(request)))
        if self._reading is not None:
            reply = self._recorded(self._reading, request, digest)
            if reply is not None:
                return reply
        try:
            reply = self._transport.call(request, patience)
        except LostError:
            if self._losses and request.verb != "describe":  # which is asked again: the run went on without an answer
                self._write(digest, NO_REPLY)
            raise
        except StaleNonceError as error:  # the run asks for another nonce then, also when it is resumed
            self._write(digest, encode(error_message(error)))
            raise
        self._write(digest, encode(reply_message(reply)))
        return reply

    def _drop_losses(self, losses: int) -> None:
        """Drop the last losses from the record: the run ends because of them, and asks again if it is resumed."""
        if self._writing is not None:
            os.truncate(self._path, self._path.stat().st_size - losses * size_of(NO_REPLY))

    def _recorded(self, file: BufferedReader, request: Request, digest: bytes) -> Reply | None:
        """The next reply on record; None at its end, where what a crash left half written is cut off."""
        start = file.tell()
        stored = read_message(file, self._path, "the record of this run")
        if stored is not None:
            if stored.mark != digest:
                raise LearnError(
                    f"this run cannot be resumed: it asks party {self._name!r} something else than before; was the "
                    "job changed, a database in this process, the version of tablepuppet, or a file of the record cut "
                    "short? Train it again"
                )
            if not stored.header:
                raise LostError(f"party {self._name!r} did not answer then, as the record of this run says")
            return read_reply(stored.message, request, self._name)
        file.close()
        self._reading = None
        os.truncate(self._path, start)
        return None

    def _write(self, digest: bytes, reply: Encoded) -> None:
        """Add a reply, whole or not at all; the end of this process loses nothing then."""
        with write_errors(self._path.parent):
            if self._writing is None:
                self._writing = self._path.open("ab", buffering=0)
            append(self._writing, reply, digest)


@contextmanager
def write_errors(folder: Path) -> Iterator[None]:
    """Raise ConfigError instead of OSError, for a record that cannot be written."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"the record of this run in {str(folder)!r} cannot be written ({error.strerror})") from error


def _digest(message: Encoded) -> bytes:
    found = hashlib.sha256()
    for frame in message.frames():
        found.update(memoryview(frame))
    return found.digest()
