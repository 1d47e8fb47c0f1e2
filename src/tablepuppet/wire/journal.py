"""The journal of a party's sessions: every request, written down before it is computed.

What a party holds of a session follows from the requests it was sent and the rows it read. So a list of requests is all
that must outlive the process. A file per session, for the owner only: it holds what the coordinator sent, no row.

A request is handed to the operating system before it is computed, so the end of the process loses nothing. It is not
forced to disk, which would take longer than a round: a machine that loses power may forget the last requests, and the
caller is then told that one was lost.
"""

from __future__ import annotations

import hashlib
import os
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from io import BufferedReader
from pathlib import Path

import pyarrow as pa

from tablepuppet.errors import PartyError
from tablepuppet.party.request import Request
from tablepuppet.wire.codec import decode_header, encode
from tablepuppet.wire.protocol import read_request, request_message

Key = tuple[str, str]  # caller, session
_LENGTHS = struct.Struct("<QQ")  # of header and arrays


class Journal:
    """Requests by caller and session, in files of a folder."""

    def __init__(self, folder: Path, party: str):
        self.folder, self.party = folder, party
        self._lock = threading.Lock()
        self._checked = 0.0
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def _file(self, key: Key) -> Path:
        return self.folder / f"{hashlib.sha256(chr(0).join(key).encode()).hexdigest()[:32]}.journal"

    def has(self, key: Key) -> bool:
        """Whether a session was written down."""
        return self._file(key).exists()

    def add(self, key: Key, request: Request) -> None:
        """Write a request down; PartyError if that is impossible, and then it must not be computed."""
        encoded = encode(request_message(request))
        path, start = self._file(key), 0
        if request.verb == "open":
            self.drop(key)
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(handle, "ab") as file:
                start = file.tell()
                file.write(_LENGTHS.pack(len(encoded.header), encoded.nbytes - len(encoded.header)))
                for frame in encoded.frames():
                    file.write(memoryview(frame))
        except OSError as error:
            self._cut(path, start)
            raise self._no_room(error) from error

    def _no_room(self, error: OSError) -> PartyError:
        return PartyError(
            f"party {self.party!r} cannot write down a request ({error.strerror}); its operator must make room"
        )

    @staticmethod
    def _cut(path: Path, size: int) -> None:
        """Take back what was half written."""
        if path.exists():
            os.truncate(path, size)

    def seal(self, key: Key, fingerprint: str) -> str:
        """The fingerprint of the rows that the session began with; this one if it begins now."""
        path = self._file(key).with_suffix(".rows")
        try:
            if not path.exists():
                path.touch(0o600)
                path.write_text(fingerprint)
            return path.read_text()
        except OSError as error:
            raise self._no_room(error) from error

    def read(self, key: Key) -> Iterator[Request]:
        """The requests of a session in their order; what a crash left half written is not one."""
        path = self._file(key)
        with path.open("rb") as file:
            whole = 0
            while (request := _read_one(file)) is not None:
                whole = file.tell()
                yield request
        self._cut(path, whole)

    def drop(self, key: Key) -> None:
        """Forget a session."""
        _drop(self._file(key))

    def expire(self, seconds: float) -> None:
        """Forget sessions that nobody came back for; looked at once a minute."""
        with self._lock:
            if time.monotonic() < self._checked + 60:
                return
            self._checked = time.monotonic()
        for path in self.folder.glob("*.journal"):
            with suppress(FileNotFoundError):  # its session was closed just now
                if path.stat().st_mtime < time.time() - seconds:
                    _drop(path)


def _drop(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.with_suffix(".rows").unlink(missing_ok=True)


def _read_one(file: BufferedReader) -> Request | None:
    lengths = file.read(_LENGTHS.size)
    if len(lengths) < _LENGTHS.size:
        return None
    header_size, arrays_size = _LENGTHS.unpack(lengths)
    header, arrays = file.read(header_size), file.read(arrays_size)
    if len(header) < header_size or len(arrays) < arrays_size:
        return None
    return read_request(decode_header(header).fill(iter([pa.py_buffer(arrays)] if arrays else [])))
