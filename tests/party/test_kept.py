"""Parts of saved models at a party: whole or not there, each caller's apart, and not without end."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from tablepuppet.errors import PartyError
from tablepuppet.learn.tables.linear import Linear
from tablepuppet.learn.tables.model import Bottom, Spec
from tablepuppet.party.kept import KeptPart, Shelves
from tablepuppet.sql.plan import Scan

THETA = np.array([[1.5, -2.0], [0.25, 3.0]])


def part(name: str, model: str = "m", alias: str = "t") -> KeptPart:
    scan = Scan("bank", alias, "cards", {"x": "DOUBLE"}, {"x": "x"}, ("",), (), (None,), ())
    return KeptPart.of(model, name, scan, THETA, Linear(2))


def test_a_part_outlives_the_process(tmp_path: Path) -> None:
    """What was put is found by a new process, with the same fingerprint, for its owner only."""
    told = Shelves("bank", tmp_path, 5).of("analyst").put(part("p"))
    again = Shelves("bank", tmp_path, 5)
    kept = again.of("analyst").get("p", "t")
    assert kept is not None
    np.testing.assert_array_equal(kept.theta, THETA)
    assert kept.spec_of(Spec) == Linear(2)
    assert kept.spec_of(Bottom) is None
    assert [fingerprint for _, fingerprint in again.of("analyst").all("p")] == [told]
    assert again.of("rival").get("p", "t") is None
    assert [path.suffix for path in tmp_path.rglob("*") if path.is_file()] == [".part"]


def test_a_part_never_changes(tmp_path: Path) -> None:
    """A repeated request finds what the first one left; equal parameters have unequal fingerprints."""
    shelf = Shelves("bank", tmp_path, 5).of("analyst")
    assert shelf.put(part("p")) == shelf.put(part("p"))
    assert shelf.put(part("p")) != shelf.put(part("q"))


def test_settling(tmp_path: Path) -> None:
    """Only the part that is settled on stays, and other models are left alone."""
    shelf = Shelves("bank", tmp_path, 5).of("analyst")
    for name in ("old", "broken off", "new"):
        shelf.put(part(name))
    shelf.put(part("other", model="n"))
    shelf.keep_only("m", "new")
    assert [bool(shelf.get(name, "t")) for name in ("old", "broken off", "new", "other")] == [False, False, True, True]
    shelf.keep_only("m", "")
    assert shelf.get("new", "t") is None


def test_as_many_as_are_allowed(tmp_path: Path) -> None:
    """One more model is refused with advice; tables of a known one are not counted, nor other callers."""
    shelves = Shelves("bank", tmp_path, 2)
    shelf = shelves.of("analyst")
    shelf.put(part("a", "1"))
    shelf.put(part("b", "2"))
    shelf.put(part("b", "2", "another table"))
    with pytest.raises(PartyError, match=r"'bank' keeps 2 saved models.*forget.*limits\.max_models"):
        shelf.put(part("c", "3"))
    shelves.of("colleague").put(part("c", "3"))
    shelf.keep_only("1", "")
    shelf.put(part("c", "3"))


def test_a_damaged_part(tmp_path: Path) -> None:
    """One byte that changed on disk is noticed."""
    shelf = Shelves("bank", tmp_path, 2).of("analyst")
    shelf.put(part("a"))
    [file] = tmp_path.rglob("*.part")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(PartyError, match="'bank' cannot read its part"):
        shelf.get("a", "t")


def test_a_disk_that_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be written whole is not there, and the error says what to do; what was there stays."""
    shelf = Shelves("bank", tmp_path, 5).of("analyst")
    shelf.put(part("old"))

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(PartyError, match=r"'bank' cannot keep its part of the model \(No space left"):
            shelf.put(part("new"))
    assert shelf.get("new", "t") is None
    assert shelf.get("old", "t") is not None
    assert not list(tmp_path.rglob("*.new"))


def test_drafts_of_a_dead_process(tmp_path: Path) -> None:
    """A file that was half written when the process died is removed, and is no part."""
    Shelves("bank", tmp_path, 5).of("analyst").put(part("a"))
    [file] = tmp_path.rglob("*.part")
    file.with_suffix(".new").write_bytes(b"half")
    assert Shelves("bank", tmp_path, 5).of("analyst").get("a", "t") is not None
    assert not list(tmp_path.rglob("*.new"))


def test_folders_of_parts_are_their_owners_alone(tmp_path: Path) -> None:
    """Nobody else looks into a folder of parts, whatever the umask was; folders that were made open are closed."""
    old = os.umask(0o022)
    try:
        open_to_all = tmp_path / "models" / "old" / "one"
        open_to_all.mkdir(parents=True)
        shelf = Shelves("bank", tmp_path).of("analyst")
        shelf.put(part("p"))
    finally:
        os.umask(old)
    folders = [path for path in (tmp_path / "models").glob("**/") if path.is_dir()]
    assert len(folders) == 5
    assert {path.stat().st_mode & 0o777 for path in folders} == {0o700}
