"""Files that hold a secret, which only their owner may read, and files that a user named.

Input: a path, and what the file is, in words for errors. A secret never appears in an error.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from tablepuppet.checked_file import write_atomically
from tablepuppet.errors import ConfigError


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
