"""Files that grow, message by message: each with its lengths and a checksum of all its bytes.

Such are a party's journals (`journal.py`) and the record of a run (`record.py`). A process that dies while it writes
leaves a half-written message at the end, which is no message. Anything else that is not as it was written is damage,
and never taken for a message: a `DamagedError` names the file.
"""

from __future__ import annotations

import errno
import itertools
import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from tablepuppet.errors import PartyError
from tablepuppet.wire.codec import Encoded, decode_header

MARK = 32  # bytes that a message may be found by
_LENGTHS = struct.Struct(f"<{MARK}sQQI")  # mark, bytes of header and arrays, checksum of these
_HEAD = struct.Struct(f"<{_LENGTHS.size}sI")  # and a checksum of all that was written


class DamagedError(PartyError):
    """A file is not as it was written."""


class Stored(NamedTuple):
    """A message as it stands in a file."""

    mark: bytes
    header: bytes
    arrays: bytes

    @property
    def message(self) -> Any:
        """What was written."""
        return decode_header(self.header).fill(iter([pa.py_buffer(self.arrays)] if self.arrays else []))


def size_of(encoded: Encoded) -> int:
    """Bytes that a message takes in a file."""
    return _HEAD.size + encoded.nbytes


def pieces(encoded: Encoded, mark: bytes = b"") -> Iterator[bytes | memoryview]:
    """A message as it stands in a file."""
    lengths = struct.pack(f"<{MARK}sQQ", mark, len(encoded.header), encoded.nbytes - len(encoded.header))
    lengths += struct.pack("<I", zlib.crc32(lengths))
    arrays = [memoryview(frame) for frame in itertools.islice(encoded.frames(), 1, None)]
    checksum = zlib.crc32(encoded.header, zlib.crc32(lengths))
    for piece in arrays:
        checksum = zlib.crc32(piece, checksum)
    yield _HEAD.pack(lengths, checksum) + encoded.header
    yield from arrays


def append(file: FileIO, encoded: Encoded, mark: bytes = b"", *, sync: bool = False) -> None:
    """Add a message at the end, whole or not at all, and on disk if it must ``sync``. Raises OSError."""
    before = file.seek(0, os.SEEK_END)
    try:
        for piece in pieces(encoded, mark):
            write_all(file, piece)
        if sync:
            os.fsync(file.fileno())
    except OSError:
        with suppress(OSError):
            file.truncate(before)
        raise


def write_all(file: FileIO, data: bytes | memoryview) -> None:
    """Write bytes; OSError also if a full disk takes only some of them."""
    if file.write(data) != len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def read_message(file: BufferedReader, path: Path, whose: str) -> Stored | None:
    """The next message of a file; None at its end, or where it is half written. ``whose`` it is, for a DamagedError."""
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size or not any(head):
        return None
    lengths, checksum = _HEAD.unpack(head)
    mark, header_size, arrays_size, of_lengths = _LENGTHS.unpack(lengths)
    if zlib.crc32(lengths[:-4]) != of_lengths:
        raise damaged(path, whose)
    header, arrays = file.read(header_size), file.read(arrays_size)
    if len(header) < header_size or len(arrays) < arrays_size:
        return None
    if zlib.crc32(arrays, zlib.crc32(header, zlib.crc32(lengths))) != checksum:
        raise damaged(path, whose)
    return Stored(mark, header, arrays)


def damaged(path: Path, whose: str) -> DamagedError:
    """The error of a file that is not as it was written; a caller may see it."""
    return DamagedError(
        f"{whose}: the file {path.name!r} is damaged, so this run cannot go on from it; check the disk, then start the "
        "run again"
    )
