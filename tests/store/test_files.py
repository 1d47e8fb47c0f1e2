"""Files that are replaced whole, with a digest, or hold a secret; and that no module reads and writes around them."""

from __future__ import annotations

import ast
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tablepuppet
from tablepuppet.errors import ConfigError
from tablepuppet.store.files import (
    DamagedFileError,
    read_bare,
    read_checked,
    read_facts,
    read_known,
    read_private_file,
    write_atomically,
    write_checked,
    write_facts,
    write_new_file,
    write_output_file,
)

FACTS = {"base": "../..", "numbers": [1.5e-9, 3], "text": "é \\ ", "none": None}


@pytest.mark.parametrize(
    ("write", "read"),
    [
        (lambda path: write_checked(path, b"\0 content\n" * 9), read_checked),
        (lambda path: write_facts(path, FACTS), read_facts),
    ],
)
def test_every_flipped_bit_is_found(
    tmp_path: Path, write: Callable[[Path], None], read: Callable[[Path], object]
) -> None:
    """And every shorter file; the error names it. What means the same, as 1e5 and 1E5, is the same."""
    path = tmp_path / "file"
    write(path)
    whole, expected = path.read_bytes(), read(path)
    same = 0
    for place in range(len(whole)):
        for bit in range(8):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
            said = ""
            try:
                assert read(path) == expected
                same += 1
            except DamagedFileError as error:
                said = str(error)
            assert not said or str(path) in said
    assert same <= 5
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(DamagedFileError):
            read(path)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        read(path)


def test_a_file_beside_its_digest(tmp_path: Path) -> None:
    """Content whose digest is among facts elsewhere; and a file from before there were digests."""
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    assert read_known(path, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad") == b"abc"
    with pytest.raises(DamagedFileError):
        read_known(path, "0" * 64)
    assert read_bare(path) == b"abc"
    write_checked(path, b"abc")
    assert read_bare(path) == b"abc"


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


READERS = {"np.load", "np.memmap", "np.fromfile", "os.open", "tarfile.open", "sqlite3.connect", "open", "FileIO"}
ELSEWHERE = {
    "store/files.py": "the mechanism for files that are written whole",
    "wire/message_file.py": "the mechanism for files that grow: a checksum for each message",
    "wire/journal.py": "opens files for `message_file`",
    "wire/record.py": "opens files for `message_file`",
    "party/ledger.py": "rows are sealed: `sealed_rows`",
    "party/state.py": "copies of files into a backup, with digests of each in its manifest",
    "party/kept.py": "parts of an earlier version: checks the digest that they have",
    "run_folder.py": "a job that the user wrote, and copies of it with its digest",
    "runs/event_file.py": "lines of a log for people: one that is none is left out",
    "monitor/audit_state.py": "lines of the audit log for a page; `party audit` is what checks their marks",
    "monitor/run_files.py": "reads for people what it does not rely on, and /proc",
    "monitor/pages.py": "its own style and script",
    "store/folder.py": "locks a folder; digests of files, beside facts",
    "party/delivery.py": "a table of predictions, which belongs to the operator",
    "party/audit.py": "only appends",
    "party/audit_chain.py": "lines have keyed marks, and so has the file that says where they end",
    "party/approval.py": "opens a file to lock it",
    "party/settings_file.py": "TOML that a user wrote",
    "party/tls_files.py": "certificates",
    "privacy/certificates.py": "certificates",
    "party/databases": "the databases of parties, and their own spilled files",
    "sql/quiet_duckdb.py": "DuckDB",
    "cli/commands.py": "SQL that a user wrote",
    "cli/output.py": "whether a file could be written",
    "demo": "writes what a user would write",
    "pieces.py": "/proc",
    "wire/doorkeeper.py": "/dev/null, and sockets",
    "wire/control.py": "a socket",
    "learn/party_ops.py": "this package's own sources",
    "party/databases/urls.py": "this package's own sources",
}
"""Modules that open files themselves, and why that is right."""


def reads(source: Path) -> Iterator[int]:
    """Lines that may open or read a file."""
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            modes = [each.value for each in node.args[:1] if isinstance(each, ast.Constant)]
            opens = called.endswith(".open") and any(isinstance(mode, str) for mode in modes)
            if called in READERS or opens or called.endswith((".read_bytes", ".read_text")):
                yield node.lineno


def test_nobody_reads_files_around_it() -> None:
    """A module that opens files is the mechanism, or has a reason that is written down here."""
    root = Path(tablepuppet.__file__).parent
    found = {}
    for source in sorted(root.rglob("*.py")):
        place = str(source.relative_to(root))
        lines = list(reads(source))
        if lines and not any(place == known or place.startswith(f"{known}/") for known in ELSEWHERE):
            found[place] = lines
    assert not found
    assert all((root / known).exists() for known in ELSEWHERE)


def test_a_careless_reader_is_found(tmp_path: Path) -> None:
    """However it reads."""
    for text in (
        "path.read_bytes()",
        "open(path)",
        "os.open(path, 0)",
        "np.load(path)",
        "sqlite3.connect(path)",
        "path.open('rb')",
    ):
        (tmp_path / "careless.py").write_text(f"def read(path):\n    return {text}\n")
        assert list(reads(tmp_path / "careless.py")) == [2]
