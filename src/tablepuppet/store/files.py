"""Files that this package writes and reads back: whole or not at all, on disk, each with a digest of its content.

Comes in: a path, and bytes or facts (JSON). Goes out: what was written, bit for bit, or a `DamagedFileError` that names
the file. A digest finds damage of disks and copies, not an attacker, who would write it anew. Below are files that hold
a secret, which only their owner may read and no error shows, and files that a user named. Files that grow are lists of
messages with a checksum each (`wire/message_file.py`); the ledger is a database with a seal of all its rows
(`party/sealed_rows.py`). No other module reads what a party or a coordinator wrote: a test looks for it.
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.errors import ConfigError

_OPENING = b"tablepuppet file 1 "
_HEAD = len(_OPENING) + 64 + 1  # a digest in hexadecimal, and the end of the line
DIGEST = "digest"  # of the other facts, among them


class DamagedFileError(ConfigError):
    """A file is not as it was written."""

    def __init__(self, path: Path):
        self.path = path
        super().__init__(f"the file {str(path)!r} is damaged, or of another version of tablepuppet")


def sealed(content: bytes) -> bytes:
    """Content as it stands in a file, with its digest."""
    return _OPENING + sha256(content).hexdigest().encode() + b"\n" + content


def unsealed(data: bytes, path: Path) -> bytes:
    """What was `sealed`; DamagedFileError with the ``path`` if it is not as it was."""
    content = data[_HEAD:]
    if data[:_HEAD] != sealed(content)[:_HEAD]:
        raise DamagedFileError(path)
    return content


def write_checked(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Replace a file, or create it. Raises OSError; the old content is then unchanged."""
    write_atomically(path, sealed(content), mode)


def read_checked(path: Path) -> bytes:
    """What `write_checked` wrote. Raises DamagedFileError, and OSError if there is no file that can be read."""
    return unsealed(path.read_bytes(), path)


def read_bare(path: Path) -> bytes:
    """What `write_checked` wrote, or a version before it without a digest; for files that are then written anew."""
    return read_checked(path) if path.read_bytes().startswith(_OPENING) else path.read_bytes()


def read_known(path: Path, digest: str) -> bytes:
    """The content of a file whose digest is among the facts of another; raises as `read_checked`."""
    content = path.read_bytes()
    if sha256(content).hexdigest() != digest:
        raise DamagedFileError(path)
    return content


def facts_text(facts: Mapping[str, Any], plain: Callable[[Any], Any] = str) -> str:
    """Facts as JSON that people may read too, with a digest; ``plain`` makes of a value what JSON has."""
    written = json.loads(json.dumps(facts, default=plain))
    return json.dumps({**written, DIGEST: _digest(written)}, indent=2)


def write_facts(path: Path, facts: Mapping[str, Any], mode: int = 0o600, plain: Callable[[Any], Any] = str) -> None:
    """Replace a file of facts, or create it; as `write_checked`."""
    write_atomically(path, facts_text(facts, plain).encode(), mode)


def read_facts(path: Path) -> dict[str, Any]:
    """What `write_facts` wrote; raises as `read_checked`."""
    try:
        facts = json.loads(path.read_bytes())
        if facts.pop(DIGEST) != _digest(facts):
            raise DamagedFileError(path)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedFileError(path) from error
    return dict(facts)


def _digest(facts: Any) -> str:
    return sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def npz(arrays: Mapping[str, Any]) -> bytes:
    """Arrays by name as the content of a file."""
    content = BytesIO()
    np.savez(content, **arrays)
    return content.getvalue()


def arrays_of(content: bytes) -> dict[str, NDArray[Any]]:
    """What `npz` made; raises many kinds of errors for anything else."""
    with np.load(BytesIO(content), allow_pickle=False) as stored:
        return dict(stored)


def write_atomically(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replace a file, or create it: whoever reads it finds the old content or the new one, and it is on disk.

    Raises OSError; the old content is then unchanged.
    """
    draft = path.with_name(f"{path.name}.new")
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        draft.replace(path)
    except OSError:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Force a folder's list of files to disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_new_file(path: Path, data: bytes, what: str, *, mode: int = 0o600) -> None:
    """Write a file whole or not at all; one that exists is kept and refused."""
    try:
        if not path.parent.exists():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".new-") as draft:  # made with mode 0600
            draft.write(data)
            draft.flush()
            os.fchmod(draft.fileno(), mode)
            os.fsync(draft.fileno())
            os.link(draft.name, path)  # unlike a rename, it never replaces
    except FileExistsError as error:
        raise ConfigError(f"{what} {str(path)!r} exists and is kept: choose another path or move it away") from error
    except OSError as error:
        raise ConfigError(f"cannot write {what} {str(path)!r}: {error.strerror}") from error


def read_private_file(path: Path, what: str) -> bytes:
    """The content of a file that only its owner may read; `ConfigError` for any other."""
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            _check_mode(os.fstat(file.fileno()).st_mode, path, what)
            return file.read()
    except FileNotFoundError as error:
        raise ConfigError(f"{what} {str(path)!r} does not exist") from error
    except OSError as error:
        raise ConfigError(f"cannot read {what} {str(path)!r}: {error.strerror}") from error


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a pipe without a writer must not hang us


def _check_mode(mode: int, path: Path, what: str) -> None:
    if not stat.S_ISREG(mode):
        raise ConfigError(f"{what} {str(path)!r} is not a file")
    if mode & 0o077:
        raise ConfigError(
            f"{what} {str(path)!r} is open to other users (mode {stat.S_IMODE(mode):o}): run chmod 600 on it"
        )


def write_output_file(path: Path, data: bytes) -> None:
    """Write a file that a user named, whole or not at all; a pipe is written as it comes. Raises OSError."""
    place = path.resolve()  # a link stays one
    if place.exists() and not place.is_file():
        place.write_bytes(data)
    else:
        write_atomically(place, data, 0o666)
