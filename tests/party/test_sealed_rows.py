"""A seal of all rows: it follows every change, and no flipped bit or lost row goes unseen."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import pytest

from tablepuppet.errors import ConfigError, PartyError
from tablepuppet.party.ledger import Budget, Ledger, charges, copy_of_ledger
from tablepuppet.party.sealed_rows import changes_sealed, is_as_sealed, seal
from tablepuppet.privacy.accountant import Spending

BUDGET = Budget(epsilon=100)


@pytest.fixture
def rows() -> sqlite3.Connection:
    made = sqlite3.connect(":memory:", isolation_level=None)
    made.execute("CREATE TABLE spent (who TEXT PRIMARY KEY, amount REAL NOT NULL, curve BLOB) WITHOUT ROWID")
    made.execute("CREATE TABLE names (name TEXT)")
    seal(made)
    return made


def test_the_seal_follows_every_kind_of_change(rows: sqlite3.Connection) -> None:
    """Also a row that replaces another, one that is written twice, and numbers of which SQLite stores fewer bytes."""
    with changes_sealed(rows):
        rows.execute("INSERT INTO spent VALUES ('ann', 1, x'00ff'), ('eve', 0.1, NULL)")
        rows.execute("INSERT OR REPLACE INTO spent VALUES ('ann', 2.0, x'01')")
        rows.execute("INSERT INTO spent VALUES ('eve', 3, NULL) ON CONFLICT DO UPDATE SET amount = amount + 1e300")
        rows.executemany("INSERT INTO names VALUES (?)", [("a",), ("a",), ("é\udc80".encode("utf-8", "replace"),)])
        rows.execute("UPDATE spent SET who = 'joe' WHERE who = 'eve'")
        rows.execute("DELETE FROM names WHERE name = 'a'")
    assert is_as_sealed(rows)
    assert rows.execute("SELECT count(*) FROM spent").fetchone() == (2,)


@pytest.mark.parametrize(
    "statement",
    ["UPDATE spent SET amount = 1.0000000000000002", "DELETE FROM spent", "INSERT INTO names VALUES ('a')",
     "DROP TABLE names", "DROP TABLE seal", "UPDATE seal SET digest = x'00'", "DELETE FROM seal"],
)  # fmt: skip
def test_what_is_changed_around_it_is_seen(rows: sqlite3.Connection, statement: str) -> None:
    """A number by its last bit, a row, a table, the seal itself."""
    with changes_sealed(rows):
        rows.execute("INSERT INTO spent VALUES ('ann', 1, x'00ff')")
    plain = sqlite3.connect(":memory:", isolation_level=None)
    plain.deserialize(rows.serialize())
    plain.execute(statement)
    assert not is_as_sealed(plain)


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """A file with several tables, callers and releases, some with a name."""
    path = tmp_path / "ledger.sqlite"
    made = Ledger(path, "bank")
    for number in range(6):
        made.charge(
            f"cards{number % 2}", f"caller{number % 3}", Spending.of_gaussian(20.0 + number), BUDGET,
            purpose="gradient", release=f"r{number}", line=f"s{number % 2}",
        )  # fmt: skip
        made.charge("cards0", "ann", Spending.of_pure(0.1), BUDGET, purpose="labels", release=f"l{number}")
    return path


def test_no_flipped_bit_of_a_ledger_is_another_budget(ledger: Path) -> None:
    """Whatever bit flips: the file is refused by its name, or says the same as before."""
    whole, known = ledger.read_bytes(), told(ledger)
    draws = random.Random(25)
    refused = 0
    for _ in range(700):
        flipped = bytearray(whole)
        place = draws.randrange(len(whole))
        while not any(whole[place - 8 : place + 8]):  # of pages that are mostly empty, the rest
            place = draws.randrange(len(whole))
        flipped[place] ^= 1 << draws.randrange(8)
        ledger.write_bytes(flipped)
        said = ""
        try:
            assert told(ledger) == known, place
        except ConfigError as error:
            said = str(error)
        assert not said or str(ledger) in said
        refused += bool(said)
    assert refused > 500


def told(ledger: Path) -> object:
    """All that a party reads of a ledger."""
    copy = sqlite3.connect(":memory:")
    copy.deserialize(copy_of_ledger(ledger))
    totals = copy.execute("SELECT * FROM totals ORDER BY table_name, caller").fetchall()
    releases = sorted(copy.execute("SELECT * FROM releases").fetchall())
    return charges(copy_of_ledger(ledger)), totals, releases


def test_damage_while_a_party_serves(ledger: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The next charge finds it: nothing is released, and the operator's log names the file."""
    open_ledger = Ledger(ledger, "bank")
    with sqlite3.connect(ledger) as file:
        file.execute("UPDATE totals SET pure = pure / 2")
    file.close()
    with pytest.raises(PartyError, match="'bank': its privacy ledger is damaged, so it releases nothing") as error:
        open_ledger.charge("cards0", "ann", Spending.of_pure(0.1), BUDGET, purpose="labels")
    assert not error.value.limit  # trying again does not help
    assert str(ledger) in caplog.text
