"""The state folder of a party: nothing in it is lost silently, and one process at a time uses it."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import pytest

from tablepuppet.errors import ConfigError, PartyError
from tablepuppet.party.blind import new_blinding_key
from tablepuppet.party.config import PartyFile
from tablepuppet.party.counters import Counters
from tablepuppet.party.delivery import write_record
from tablepuppet.party.ledger import FILE, Budget, Ledger
from tablepuppet.party.report import inspect, spent
from tablepuppet.party.state import SECRET, State, check_state, restore_backup, write_backup
from tablepuppet.privacy.accountant import Spending
from tablepuppet.store.files import read_checked, read_facts
from tablepuppet.wire.serve import start
from tests import warm
from tests.command_line import tablepuppet
from tests.party.policed import write_file

BUDGET = Budget(epsilon=4)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """The state folder of a party that has served, and spent an epsilon of 3."""
    new_blinding_key(tmp_path / "blinding.key")
    write_file(tmp_path, table="budget = {epsilon = 4}", top='state_dir = "state"')
    file = tmp_path / "party.toml"
    file.write_text(re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:0", file.read_text()))
    with served(tmp_path):
        charge(tmp_path / "state", 3.0)
    return tmp_path / "state"


@contextmanager
def served(folder: Path) -> Iterator[None]:
    """A party that listens in this process."""
    server = start(PartyFile.load(folder / "party.toml"))
    try:
        yield
    finally:
        server.shutdown()
        assert server.state is not None
        server.state.close()


def charge(state: Path, epsilon: float) -> None:
    Ledger(state / FILE, "bank").charge("cards", "analyst", Spending(pure=epsilon), BUDGET, purpose="labels")


def refused(folder: Path) -> str:
    """Why a party does not start; a check finds the same."""
    with pytest.raises((ConfigError, PartyError)) as error, served(folder):
        pass
    [problem] = inspect(folder / "party.toml").problems
    assert problem.startswith(str(error.value))
    return problem


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize("how", ["missing", "empty", "text", "header", "schema", "no tables", "folder"])
def test_a_ledger_that_is_lost(state: Path, how: str) -> None:
    """It is no new budget: the party does not start, a check and `budget` say why; what is advised lets it start."""
    path = state / FILE
    write_backup(state, "bank", state.parent / "bank.tar")
    if how in ("missing", "folder", "no tables"):
        path.unlink()
    if how == "folder":
        path.mkdir()
    elif how == "no tables":
        subprocess.run([sys.executable, "-c", f"import sqlite3; sqlite3.connect({str(path)!r}).execute('VACUUM')"])
        path.touch()
    elif how in ("empty", "text"):
        path.write_text("" if how == "empty" else "spent: 3" * 100)
    elif how in ("header", "schema"):
        flip(path, 2 if how == "header" else 103)
    message = refused(state.parent)
    assert str(path) in message
    assert "`tablepuppet party restore`" in message
    with pytest.raises(ConfigError, match="ledger"):
        spent(state.parent / "party.toml")
    if how in ("missing", "text"):  # as a new party
        for name in (FILE, SECRET):
            if (state / name).exists():
                (state / name).rename(state.parent / name)
        with served(state.parent):
            assert not Ledger(path, "bank").spent("cards").pure
        path.write_text("")
    elif how == "folder":
        with pytest.raises(ConfigError, match=rf"'{path}' is in the way; move it away, then"):
            restore_backup(state, "bank", state.parent / "bank.tar")
        path.rename(state.parent / "folder")
    restore_backup(state, "bank", state.parent / "bank.tar")
    with served(state.parent):
        assert Ledger(path, "bank").spent("cards").pure == 3.0


def test_a_ledger_that_vanishes_while_a_party_serves(state: Path) -> None:
    """Nothing is charged to a new one."""
    ledger = Ledger(state / FILE, "bank")
    (state / FILE).unlink()
    with pytest.raises(PartyError, match="cannot use its privacy ledger"):
        ledger.charge("cards", "analyst", Spending(pure=1.0), BUDGET, purpose="labels")
    assert not (state / FILE).exists()


@pytest.mark.parametrize("content", [b"", b"short", bytes(33)])
def test_a_secret_that_is_none(state: Path, content: bytes) -> None:
    """Rows would be in an order that everybody can compute, and noise could be removed."""
    write_backup(state, "bank", state.parent / "bank.tar")
    (state / SECRET).write_bytes(content)
    message = refused(state.parent)
    assert f"{str(state / SECRET)!r} is damaged" in message
    assert "`tablepuppet party restore`" in message
    restore_backup(state, "bank", state.parent / "bank.tar")
    with served(state.parent):
        pass


def test_limits_that_are_damaged(state: Path) -> None:
    """They are no new allowance: a backup brings them back."""
    write_backup(state, "bank", state.parent / "bank.tar")
    (state / "used.json").write_bytes(b"\xff")
    message = refused(state.parent)
    assert str(state / "used.json") in message
    assert "`tablepuppet party restore`" in message
    restore_backup(state, "bank", state.parent / "bank.tar")
    with served(state.parent):
        pass


@pytest.mark.parametrize("name", ["delivered.txt", "sessions"])
def test_other_files_that_are_damaged(state: Path, name: str) -> None:
    """A check finds what keeps the party from starting; as its text says, it starts without the file."""
    if (state / name).is_dir():
        (state / name).rmdir()
    (state / name).write_bytes(b"\xff")
    message = refused(state.parent)
    assert str(state / name) in message
    assert "remove it" in message
    (state / name).unlink()
    with served(state.parent):
        pass


def test_a_first_start_that_was_cut_short(tmp_path: Path) -> None:
    """Before there is a secret nothing was spent, so an empty ledger is that of a new party."""
    (tmp_path / FILE).touch()
    State(tmp_path, "bank").close()
    assert not Ledger(tmp_path / FILE, "bank").spent("cards").pure


def test_one_process_at_a_time(state: Path) -> None:
    """A second party is refused, by the name of the folder; after kill -9 the next may start."""
    folder = state.parent
    command = [sys.executable, "-m", "tablepuppet", "party", "serve", "party.toml"]
    process = warm.start(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    process.stdout.readline()  # it is ready
    shown = tablepuppet(folder, "party", "serve", "party.toml")
    assert shown.returncode == 1
    assert f"state_dir: {str(state)!r} is in use by another process" in shown.stderr
    report = inspect(folder / "party.toml")
    assert not report.problems
    assert any("a party is served with the state_dir" in text for text in report.warnings)
    write_backup(state, "bank", folder / "bank.tar")
    with pytest.raises(ConfigError, match="in use by another process"):
        restore_backup(state, "bank", folder / "bank.tar")
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    with served(folder):
        pass


def test_a_backup_is_restored(state: Path) -> None:
    """On another machine: the budget is spent as it was, and what else a party must not lose is there."""
    folder = state.parent
    part = state / "models" / "caller" / "model" / "1.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"a part")
    Counters(state).use_texts("filter", "analyst", "cards", ["amount > 3"], 10)
    made = tablepuppet(folder, "party", "backup", "party.toml", "bank.tar")
    assert made.returncode == 0, made.stderr
    assert (folder / "bank.tar").stat().st_mode & 0o777 == 0o600
    secret, before = (state / SECRET).read_bytes(), spent(folder / "party.toml")
    state.rename(folder / "lost")
    shown = tablepuppet(folder, "party", "restore", "party.toml", "bank.tar")
    assert shown.returncode == 0, shown.stderr
    assert "could be spent again" in " ".join(shown.stderr.split())
    assert (state / SECRET).read_bytes() == secret
    assert spent(folder / "party.toml") == before
    assert part.read_bytes() == b"a part"
    assert Counters(state).used("filter", "analyst", "cards") == 1
    with served(folder):
        assert sorted(path.name for path in state.glob(".*")) == []


@pytest.mark.parametrize("newer", ["ledger", "limits"])
def test_an_older_backup_gives_no_budget_back(state: Path, newer: str) -> None:
    """Unless the operator says so; where the ledger is lost, there is nothing to compare with."""
    file = state.parent / "bank.tar"
    write_backup(state, "bank", file)
    if newer == "ledger":
        charge(state, 0.5)
    else:
        Counters(state).use_texts("filter", "analyst", "cards", ["amount > 3"], 10)
    with pytest.raises(ConfigError, match="would forget") as error:
        restore_backup(state, "bank", file)
    assert ("1 charges of privacy budgets (of 'cards')" in str(error.value)) == (newer == "ledger")
    if newer == "ledger":
        assert Ledger(state / FILE, "bank").spent("cards").pure == 3.5
        (state / FILE).write_bytes(b"")
        restore_backup(state, "bank", file)
        charge(state, 0.5)
    restore_backup(state, "bank", file, older=True)
    assert Ledger(state / FILE, "bank").spent("cards").pure == 3.0
    charge(state, 0.5)
    write_backup(state, "bank", state.parent / "newer.tar")
    restore_backup(state, "bank", state.parent / "newer.tar")
    assert Ledger(state / FILE, "bank").spent("cards").pure == 3.5


def test_no_flipped_bit_is_restored(state: Path) -> None:
    """Nor half a backup, another party's or something else: the folder stays as it is."""
    file = state.parent / "bank.tar"
    write_backup(state, "bank", file)
    restore_backup(state, "bank", file)
    whole, before = file.read_bytes(), (state / FILE).read_bytes()
    with pytest.raises(ConfigError, match="of party 'bank', not of 'store'"):
        restore_backup(state, "store", file)
    used = len(whole.rstrip(b"\0"))
    for place in range(0, used, 97):
        file.write_bytes(whole)
        flip(file, place)
        with suppress(ConfigError):  # else it was in a gap between the files of a tape
            restore_backup(state, "bank", file)
        assert (state / FILE).read_bytes() == before
    for size in (0, 600, used // 2, used - 5):
        file.write_bytes(whole[:size])
        with pytest.raises(ConfigError, match="backup"):
            restore_backup(state, "bank", file)
    (state.parent / "another.tar").write_bytes(whole)
    restore_backup(state, "bank", state.parent / "another.tar")


def test_a_full_disk_while_a_backup_is_restored_or_made(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there stays: the state folder, and the backup from before."""
    file = state.parent / "bank.tar"
    write_backup(state, "bank", file)
    before = {path.name: path.read_bytes() for path in (file, state / FILE, state / SECRET)}

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(ConfigError, match="No space left"):
            write_backup(state, "bank", file)
        with pytest.raises(ConfigError, match="make room, then restore again"):
            restore_backup(state, "bank", file)
    assert {path.name: path.read_bytes() for path in (file, state / FILE, state / SECRET)} == before
    assert sorted(path.name for path in (*state.glob(".*"), *state.parent.glob(".*"))) == []
    restore_backup(state, "bank", file)
    assert Ledger(state / FILE, "bank").spent("cards").pure == 3.0


def test_a_folder_of_a_version_without_digests(state: Path) -> None:
    """It is taken as it is, once, also if that is cut short: budgets, limits and models stay, and get digests."""
    content = b"a part of a model"
    part = state / "models" / "caller" / "model" / "1.part"
    part.parent.mkdir(parents=True)
    Counters(state).use_texts("filter", "analyst", "cards", ["amount > 3"], 10)
    used = read_facts(state / "used.json")["used"]
    secret = read_checked(state / SECRET)
    for seal_is_cut_short in (False, True):
        part.write_bytes(hashlib.sha256(content).digest() + content)
        (state / SECRET).write_bytes(secret)
        (state / "delivered.txt").write_text("run cards\n")
        if not seal_is_cut_short:
            (state / "used.json").write_bytes(msgspec.json.encode(used))
        assert not inspect(state.parent / "party.toml").problems
        with served(state.parent):
            pass
        assert read_checked(state / SECRET) == secret
        assert read_checked(part) == content
        assert read_checked(state / "delivered.txt") == b"run cards\n"
        assert Counters(state).used("filter", "analyst", "cards") == 1
        assert Ledger(state / FILE, "bank").spent("cards").pure == 3.0
    (state / "used.json").write_bytes(msgspec.json.encode(used))
    assert "used.json" in refused(state.parent)


def test_limits_that_are_lost(state: Path) -> None:
    """A vanished file is no new allowance."""
    (state / "used.json").unlink()
    assert f"{str(state / 'used.json')!r}, which counts what callers have used, is lost" in refused(state.parent)


@pytest.mark.parametrize("name", [SECRET, "used.json", "delivered.txt"])
def test_every_flipped_bit_stops_the_start(state: Path, name: str) -> None:
    """And the error names the file."""
    path = state / name
    if name == "delivered.txt":
        write_record(path, [("cards", "0123456789abcdef")])
    Counters(state).use_texts("filter", "analyst", "cards", ["amount > 3"], 10)
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole)
        path.chmod(0o600)
        flip(path, place)
        with pytest.raises(ConfigError) as error:
            check_state(state)
        assert str(path) in str(error.value)
