"""The file of the key that parties share."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

import pytest

from tablepuppet.errors import ConfigError
from tablepuppet.party.blind import FORMAT, new_blinding_key, read_blinding_key

KEY = bytes(range(200, 232))
TEXT = base64.b64encode(KEY).decode()


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    path.chmod(0o600)
    return path


def test_a_new_key_is_read_back(tmp_path: Path) -> None:
    """32 bytes, another each time, in one line of text that only the owner may read."""
    for name in ("one", "two"):
        new_blinding_key(tmp_path / name)
    one, two = (read_blinding_key(tmp_path / name) for name in ("one", "two"))
    assert len(one) == len(two) == 32
    assert one != two
    key = f"{FORMAT} {base64.b64encode(one).decode()}"
    assert (tmp_path / "one").read_text() == f"{key} {hashlib.sha256(key.encode()).hexdigest()[:8]}\n"
    (tmp_path / "one").write_text(f"{key}\n")  # as an earlier version wrote it
    assert read_blinding_key(tmp_path / "one") == one
    other = key.replace(key[-5], "A" if key[-5] != "A" else "B", -1)
    (tmp_path / "two").write_text(f"{other} {hashlib.sha256(key.encode()).hexdigest()[:8]}\n")
    with pytest.raises(ConfigError, match="is not one line"):
        read_blinding_key(tmp_path / "two")
    assert (tmp_path / "one").stat().st_mode & 0o777 == 0o600


def test_a_key_is_never_written_over(tmp_path: Path) -> None:
    """The parties that share the old one would no longer meet."""
    new_blinding_key(tmp_path / "key")
    before = read_blinding_key(tmp_path / "key")
    with pytest.raises(ConfigError, match=r"blinding key '.*key' exists and is kept"):
        new_blinding_key(tmp_path / "key")
    assert read_blinding_key(tmp_path / "key") == before


def test_a_key_open_to_others_is_refused(tmp_path: Path) -> None:
    """The mode is checked before the key is used."""
    new_blinding_key(tmp_path / "key")
    (tmp_path / "key").chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_blinding_key(tmp_path / "key")


@pytest.mark.parametrize("line", ["{} {}", "{} {}\n", "{} {}\r\n"])
def test_line_ends_do_not_matter(tmp_path: Path, line: str) -> None:
    """A key that went through another editor or system is the same key."""
    assert read_blinding_key(write(tmp_path / "key", line.format(FORMAT, TEXT).encode())) == KEY


@pytest.mark.parametrize(
    "content",
    [
        b"",
        TEXT.encode(),
        f"tablepuppet-blinding-key-2 {TEXT}".encode(),
        f"{FORMAT} {TEXT} {TEXT}".encode(),
        f"{FORMAT} {TEXT[:-4]}".encode(),
        f"{FORMAT} {TEXT[:-1]}".encode(),
        f"{FORMAT} {TEXT[:9]}!{TEXT[10:]}".encode(),
        f"{FORMAT} {TEXT[:9]}\xe9{TEXT[10:]}".encode(),
        FORMAT.encode() + b" " + KEY,
    ],
)
def test_anything_else_is_refused(tmp_path: Path, content: bytes) -> None:
    """A cut, damaged or foreign file is an error that does not quote it, nor has a cause that does."""
    with pytest.raises(ConfigError, match=r"blinding key '.*key' is not one line") as caught:
        read_blinding_key(write(tmp_path / "key", content))
    assert TEXT[:6] not in str(caught.value)
    assert caught.value.__cause__ is caught.value.__context__ is None
