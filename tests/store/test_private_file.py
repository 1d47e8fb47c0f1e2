"""Files that hold a secret: who may read them, and that none is written over. Files that are replaced atomically."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tablepuppet.errors import ConfigError
from tablepuppet.store.files import read_private_file, write_atomically, write_new_file, write_output_file


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o377])
def test_a_new_file_is_its_owners_alone(tmp_path: Path, mask: int) -> None:
    """Whatever the umask, the mode is 0600, and nothing else is left in the folder."""
    before = os.umask(mask)
    try:
        write_new_file(tmp_path / "secret", b"s3cret", "secret")
    finally:
        os.umask(before)
    assert (tmp_path / "secret").stat().st_mode & 0o7777 == 0o600
    assert read_private_file(tmp_path / "secret", "secret") == b"s3cret"
    assert os.listdir(tmp_path) == ["secret"]


def test_missing_folders_are_made_private(tmp_path: Path) -> None:
    """A folder made for secrets is its owner's alone."""
    write_new_file(tmp_path / "keys" / "secret", b"s3cret", "secret")
    assert (tmp_path / "keys").stat().st_mode & 0o7777 == 0o700


@pytest.mark.parametrize("kind", ["file", "folder", "link to nothing"])
def test_nothing_is_written_over(tmp_path: Path, kind: str) -> None:
    """Whatever has the name already is kept as it is."""
    path = tmp_path / "secret"
    if kind == "file":
        path.write_text("mine")
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=r"secret '.*secret' exists and is kept"):
        write_new_file(path, b"s3cret", "secret")
    assert os.listdir(tmp_path) == ["secret"]
    assert kind != "file" or path.read_text() == "mine"


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    """The error names the file and the reason."""
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cannot write secret '.*file/secret': Not a directory"):
        write_new_file(tmp_path / "file" / "secret", b"s3cret", "secret")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644, 0o777])
def test_a_file_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    """Any right of group or others is too much; the error says what to do and holds no secret."""
    path = tmp_path / "secret"
    path.write_text("s3cret")
    path.chmod(mode)
    with pytest.raises(ConfigError, match=rf"TLS key '.*secret' .*mode {mode:o}.*chmod 600") as caught:
        read_private_file(path, "TLS key")
    assert "s3cret" not in str(caught.value)
    path.chmod(0o400)
    read_private_file(path, "TLS key")


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    """A missing file, a folder and a pipe that nobody writes end in an error, not in a wait."""
    with pytest.raises(ConfigError, match=r"TLS key '.*missing' does not exist"):
        read_private_file(tmp_path / "missing", "TLS key")
    with pytest.raises(ConfigError, match=r"TLS key '.*': Is a directory"):
        read_private_file(tmp_path, "TLS key")
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(ConfigError, match=r"TLS key '.*pipe' is not a file"):
        read_private_file(tmp_path / "pipe", "TLS key")


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    """The new content is complete, the mode is that asked for, and no draft is left."""
    path = tmp_path / "facts.json"
    write_atomically(path, b"old", 0o644)
    assert path.stat().st_mode & 0o7777 == 0o644 & ~_umask()
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o7777 == 0o600
    assert os.listdir(tmp_path) == ["facts.json"]


def test_a_file_that_cannot_be_replaced_stays(tmp_path: Path) -> None:
    """What is there is kept, the error is the operating system's, and no draft is left."""
    path = tmp_path / "facts.json"
    path.mkdir()
    (path / "inside").touch()
    with pytest.raises(OSError, match=r"facts\.json"):
        write_atomically(path, b"new")
    assert (path / "inside").exists()
    assert os.listdir(tmp_path) == ["facts.json"]


def _umask() -> int:
    """The process's umask, unchanged."""
    found = os.umask(0o077)
    os.umask(found)
    return found


def test_a_page_is_whole_or_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk leaves the old one and nothing beside it; a link stays a link, a pipe is written to."""
    page, link = tmp_path / "page.html", tmp_path / "link.html"
    write_output_file(page, b"old")
    link.symlink_to(page)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            write_output_file(page, b"new")
    assert page.read_bytes() == b"old"
    write_output_file(link, b"new")
    assert page.read_bytes() == b"new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.html", "page.html"]
    assert link.is_symlink()
    write_output_file(Path(os.devnull), b"nothing is left of it")
