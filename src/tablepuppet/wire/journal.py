"""The journal of a party's sessions: every request, written down before it is computed.

What a party holds of a session follows from the requests it was sent, the rows it read and the noise it drew. So a list
of requests and one of noisy releases are all that must outlive the process. A folder per caller, two files per session,
for the owner only: they hold what the coordinator sent and was sent, no row. A request that was refused is cut down to
the steps that were answered, and the words of the refusal: it is not computed again.

A request is handed to the operating system before it is computed, so the end of the process loses nothing. It is not
forced to disk, which would take longer than a round: a machine that loses power may forget the last requests, and the
caller then gets an error that one was lost. Each caller's sessions have so many bytes of room.
"""

from __future__ import annotations

import hashlib
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cached_property, lru_cache
from io import FileIO
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tablepuppet.errors import PartyError
from tablepuppet.party.kept import file_name
from tablepuppet.party.metrics import OTHER
from tablepuppet.party.request import Request
from tablepuppet.store.files import DamagedFileError, read_checked, write_checked
from tablepuppet.wire.codec import Encoded, encode
from tablepuppet.wire.message_file import append, damaged, pieces, read_message, size_of, write_all
from tablepuppet.wire.protocol import VersionError, read_request, request_message

Key = tuple[str, str]  # caller, session
LEAST = 4096  # bytes that a file is counted as
KINDS = (".journal", ".releases")  # of files that are counted


class Written(msgspec.Struct, frozen=True):
    """A request as it was written down, and the message of the refusal that followed, if one did."""

    request: Request
    refusal: Any = None


class Journal:
    """Requests by caller and session, in files of a folder; ``most`` bytes for each caller."""

    def __init__(self, folder: Path, party: str, most: int | None = None):
        self.folder, self.party, self._most = folder, party, most
        self._lock = threading.Lock()
        self._checked = 0.0
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._bytes: Counter[str] = Counter()  # by the name of a caller's folder
        for path in (found for kind in KINDS for found in folder.glob(f"*/*{kind}")):
            self._bytes[path.parent.name] += _size(path)

    def _file(self, key: Key) -> Path:
        return _file_of(self.folder, *key)

    def has(self, key: Key) -> bool:
        """Whether a session was written down."""
        return self._file(key).exists()

    def add(self, key: Key, request: Request) -> int:
        """Write a request down; where it begins. PartyError if that is impossible: then it must not be computed."""
        if request.verb == "open":
            self.drop(key)
        return self.append(self._file(key), encode([request_message(request), None]))

    def refuse(self, key: Key, start: int, request: Request, done: int, refusal: Any) -> None:
        """Let a request that begins at ``start`` be one that was refused after ``done`` of its steps.

        PartyError if that cannot be written down: then the session must end, as the request would be computed again.
        """
        path, short = self._file(key), msgspec.structs.replace(request, steps=request.steps[:done])
        record = b"".join(map(bytes, pieces(encode([request_message(short), refusal]))))
        before = _size(path)
        try:
            with path.open("r+b", buffering=0) as file:
                missing = start + len(record) - file.seek(0, os.SEEK_END)
                if missing > 0:  # first, so that a full disk is known before anything is changed
                    write_all(file, bytes(missing))
                file.seek(start)
                write_all(file, record)
                file.truncate()
        except OSError as error:
            raise self._no_room(error) from error
        self._count(path, _size(path) - before)

    def releases(self, key: Key) -> ReleaseFile:
        """What a session has released with noise."""
        return ReleaseFile(self._file(key).with_suffix(".releases"), self)

    def append(self, path: Path, encoded: Encoded, *, sync: bool = False) -> int:
        """Write a message down, on disk if it must ``sync``; where it begins. PartyError if there is no room."""
        found = _length(path)
        before, start = _counted(found), found or 0
        after = _counted(start + size_of(encoded))
        self._take_room(path, after - before)
        try:
            if found is None:
                path.parent.mkdir(exist_ok=True, mode=0o700)
            with FileIO(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as file:
                append(file, encoded, sync=sync)
        except OSError as error:
            self._count(path, _size(path) - after)
            raise self._no_room(error) from error
        return start

    def _take_room(self, path: Path, more: int) -> None:
        with self._lock:
            held = self._bytes[path.parent.name]
            if self._most is None or held + more <= self._most:
                self._bytes[path.parent.name] += more
                return
        raise PartyError(
            f"party {self.party!r}: the requests of this caller's sessions take {held:,} bytes, and with {more:,} more "
            f"would exceed the {self._most:,} that it writes down (limits.journal_bytes); del relations you no longer "
            "use, resume or remove interrupted runs, or ask the party's operator",
            limit="journal_bytes",
        )

    def _count(self, path: Path, more: int) -> None:
        with self._lock:
            self._bytes[path.parent.name] += more

    def _no_room(self, error: OSError) -> PartyError:
        return PartyError(
            f"party {self.party!r} cannot write down a request ({error.strerror}); its operator must make room",
            limit="disk",
        )

    @staticmethod
    def _cut(path: Path, size: int) -> None:
        """Take back what was half written, or is no longer needed."""
        with suppress(FileNotFoundError):
            os.truncate(path, size)

    def seal(self, key: Key, fingerprint: str) -> str:
        """The fingerprint of the rows that the session began with; this one if it begins now."""
        path = self._file(key).with_suffix(".rows")
        try:
            if not path.exists():
                path.parent.mkdir(exist_ok=True, mode=0o700)
                write_checked(path, fingerprint.encode())
            return read_checked(path).decode()
        except DamagedFileError as error:
            raise damaged(path, self._whose) from error
        except OSError as error:
            raise self._no_room(error) from error

    def read(self, key: Key) -> Iterator[Written]:
        """The requests of a session in their order; what a crash left half written is not one."""
        for _, (message, refusal) in self.messages(self._file(key)):
            try:
                request = read_request(message, self.party)
            except VersionError:
                raise PartyError(
                    f"{self._whose} was upgraded since this session began, and does not read what it had written down; "
                    "start the run again"
                ) from None
            yield Written(request, refusal)

    def messages(self, path: Path) -> Iterator[tuple[int, Any]]:
        """Where each message of a file begins, and the message; what is half written at the end is cut off."""
        with path.open("rb") as file:
            whole = 0
            while (stored := read_message(file, path, self._whose)) is not None:
                yield whole, stored.message
                whole = file.tell()
        before = _size(path)
        self._cut(path, whole)
        self._count(path, _size(path) - before)

    def message_at(self, path: Path, place: int) -> Any:
        """The message of a file that begins at a place."""
        with path.open("rb") as file:
            file.seek(place)
            stored = read_message(file, path, self._whose)
        assert stored is not None, "it was there"
        return stored.message

    @property
    def _whose(self) -> str:
        return f"party {self.party!r}"

    def take_back(self, key: Key, start: int) -> None:
        """Forget the last request, which begins at ``start``; PartyError if that is impossible."""
        path = self._file(key)
        before = _size(path)
        try:
            self._cut(path, start)
        except OSError as error:
            raise self._no_room(error) from error
        self._count(path, _size(path) - before)

    def sizes(self, callers: Iterable[str]) -> list[tuple[tuple[str], float]]:
        """Bytes of each of these callers that has some; of all others as `OTHER`."""
        names = {file_name(caller): caller for caller in callers}
        with self._lock:
            return [((names.get(folder, OTHER),), size) for folder, size in self._bytes.items()]

    def drop(self, key: Key) -> None:
        """Forget a session."""
        self._drop(self._file(key))

    def expire(self, seconds: float) -> int:
        """Forget sessions that nobody came back for, and say how many; looked at once a minute."""
        with self._lock:
            if time.monotonic() < self._checked + 60:
                return 0
            self._checked = time.monotonic()
        forgotten = 0
        for path in self.folder.glob("*/*.journal"):
            with suppress(FileNotFoundError):  # its session was closed just now
                if path.stat().st_mtime < time.time() - seconds:
                    self._drop(path)
                    forgotten += 1
        return forgotten

    def _drop(self, path: Path) -> None:
        for kind in KINDS:
            size = _size(path.with_suffix(kind))
            path.with_suffix(kind).unlink(missing_ok=True)
            self._count(path, -size)
        path.with_suffix(".rows").unlink(missing_ok=True)


@lru_cache(1024)  # asked for with every request
def _file_of(folder: Path, caller: str, session: str) -> Path:
    return folder / file_name(caller) / f"{file_name(session)}.journal"


def _size(path: Path) -> int:
    """Bytes that a file is counted as; none if it is not there."""
    return _counted(_length(path))


def _counted(length: int | None) -> int:
    return 0 if length is None else max(LEAST, length)


def _length(path: Path) -> int | None:
    """Bytes of a file; None if it is not there."""
    try:
        return path.stat().st_size
    except OSError:
        return None


class ReleaseFile:
    """The releases with noise of one session, in a file beside its journal; see `party/local_table.py`.

    Each is on disk before it leaves, so that a party which is killed never draws noise a second time for what was sent.
    All releases of one size take the same bytes: how full a journal is reveals nothing of rows.
    """

    def __init__(self, path: Path, journal: Journal):
        self._path, self._journal = path, journal

    @cached_property
    def _places(self) -> dict[bytes, int]:
        """Where in the file each release stands that was there at first; no later one is asked for by its name."""
        if not self._path.exists():
            return {}
        return {bytes(message[0]): place for place, message in self._journal.messages(self._path)}

    def get(self, name: str) -> NDArray[np.float64] | None:
        """What a release was; None if there was none of that name."""
        place = self._places.get(_hash(name))
        if place is None:
            return None
        _, shape, values = self._journal.message_at(self._path, place)
        size = tuple(int(length) for length in shape)
        return np.array(values[: math.prod(size)], np.float64).reshape(size)

    def put(self, name: str, values: NDArray[np.float64], size: int) -> None:
        """Write a release down as if it had ``size`` numbers; PartyError if that is impossible."""
        padded = np.zeros(max(size, values.size))
        padded[: values.size] = values.ravel()
        message = [_hash(name), np.array(values.shape, np.int64), padded]
        self._journal.append(self._path, encode(message), sync=True)


def _hash(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()
