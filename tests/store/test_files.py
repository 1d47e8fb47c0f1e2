"""What is written and read back has a digest, through one mechanism that no module goes around."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tablepuppet
from tablepuppet.store.files import (
    DamagedFileError,
    read_bare,
    read_checked,
    read_facts,
    read_known,
    write_checked,
    write_facts,
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
    "store/folder.py": "locks a folder; digests of files, beside facts",
    "party/delivered_file.py": "a table of predictions, which belongs to the operator",
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
    "mapping/memory.py": "/proc",
    "wire/doorkeeper.py": "/dev/null, and sockets",
    "wire/control.py": "a socket",
    "learn/party_ops.py": "this package's own sources",
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
