"""The journal of sessions: what cannot be kept is an error, and what is gone already is none."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import tablepuppet as tp
from tablepuppet.party.request import Request
from tablepuppet.wire.journal import Journal

KEY = ("analyst", "s")


def test_rows_that_cannot_be_sealed(tmp_path: Path) -> None:
    """Without room for the fingerprint of the rows, the session cannot begin."""
    journal = Journal(tmp_path / "sessions", "bank")
    assert (journal.seal(KEY, "a"), journal.seal(KEY, "b")) == ("a", "a")
    shutil.rmtree(tmp_path / "sessions")
    with pytest.raises(tp.PartyError, match="its operator must make room"):
        journal.seal(KEY, "a")


def test_files_are_their_owners_alone(tmp_path: Path) -> None:
    """Folder and files let nobody else read."""
    journal = Journal(tmp_path / "sessions", "bank")
    journal.add(KEY, Request("run", "s"))
    journal.seal(KEY, "a")
    folders, files = [tmp_path / "sessions", *(tmp_path / "sessions").glob("*")], (tmp_path / "sessions").glob("*/*")
    assert {path.stat().st_mode & 0o777 for path in folders} == {0o700}
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}


def test_a_session_that_ends_while_others_expire(tmp_path: Path) -> None:
    """A journal that is gone when its age is looked at does no harm; old ones are removed."""
    journal = Journal(tmp_path / "sessions", "bank")
    journal.add(KEY, Request("run", "s"))
    [own] = (tmp_path / "sessions").iterdir()
    (own / "gone.journal").symlink_to("nowhere")  # listed, but not there
    for path in own.glob("*.journal"):
        os.utime(path, (0, 0), follow_symlinks=False)
    journal.expire(60.0)
    assert not journal.has(KEY)
