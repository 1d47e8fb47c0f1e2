"""The blinding key: 32 random bytes in a file that all parties of a federation have and the coordinator does not.

One party creates the file and gives it to the others over a channel that they trust, as one would a password.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
from pathlib import Path

from tablepuppet.errors import ConfigError
from tablepuppet.store.files import read_private_file, write_new_file

FORMAT = "tablepuppet-blinding-key-1"
SIZE = 32


def new_blinding_key(path: Path) -> None:
    """Write a new key to a file that must not exist yet."""
    text = base64.b64encode(secrets.token_bytes(SIZE)).decode()
    write_new_file(path, f"{FORMAT} {text} {_check(text)}\n".encode(), "blinding key")


def read_blinding_key(path: Path) -> bytes:
    """The key in a file that only its owner may read."""
    content = read_private_file(path, "blinding key")
    try:
        name, text, *check = content.decode("ascii").split()
        key = base64.b64decode(text, validate=True) if check in ([], [_check(text)]) else b""
    except (ValueError, binascii.Error):
        name, key = "", b""  # the cause is not in the error: it may quote the key
    if name != FORMAT or len(key) != SIZE:
        raise ConfigError(
            f"blinding key {str(path)!r} is not one line of {FORMAT!r} and a key of {SIZE} bytes in base64: "
            "copy it again from the party that made it, or make one for all with 'tablepuppet keys new'"
        )
    return key


def _check(text: str) -> str:
    """A few letters that show whether a key was copied well; earlier versions wrote none."""
    return hashlib.sha256(f"{FORMAT} {text}".encode()).hexdigest()[:8]
