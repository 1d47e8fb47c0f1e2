"""The ledger: never less than was spent, whatever dies, and never more than the budget, whoever asks at once."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import tablepuppet as tp
import tablepuppet.party.ledger as module
from tablepuppet.party.ledger import Budget, Ledger
from tablepuppet.privacy.accountant import ORDERS, Spending
from tests import warm

TENTH = Spending.of_pure(0.1)
ONE = Budget(epsilon=1.0)
SPENDER = """
import sys
from pathlib import Path
from tablepuppet.party.ledger import Budget, Ledger
from tablepuppet.privacy.accountant import Spending

ledger = Ledger(Path(sys.argv[1]), "bank")
for number in range(int(sys.argv[2])):
    ledger.charge("cards", "analyst", Spending.of_pure(0.125), Budget(), purpose="test")
    print(number, flush=True)  # the release
"""


def open_ledger(folder: Path) -> Ledger:
    """The ledger of a bank."""
    return Ledger(folder / "ledger.sqlite", "bank")


def test_a_budget_binds_the_sum_over_callers(tmp_path: Path) -> None:
    """What one caller spent is gone for the others; a refusal says what is left, spends nothing, names the rule."""
    ledger = open_ledger(tmp_path)
    for number in range(8):
        ledger.charge("cards", f"caller{number % 2}", TENTH, ONE, purpose="labels")
    with pytest.raises(tp.PrivacyError, match=r"party 'bank', table 'cards': all callers .* 0\.2 is left") as refused:
        ledger.charge("cards", "caller0", Spending.of_pure(0.3), ONE, purpose="labels")
    assert refused.value.rule == "epsilon"
    assert ledger.spent("CARDS").pure == pytest.approx(0.8)
    for _ in range(2):  # ten times 0.1 is within 1
        ledger.charge("Cards", "caller1", TENTH, ONE, purpose="labels")
    with pytest.raises(tp.PrivacyError, match="0 is left"):
        ledger.charge("cards", "caller2", Spending.of_pure(1e-3), ONE, purpose="labels")
    ledger.charge("orders", "caller2", TENTH, ONE, purpose="labels")  # another table, another budget


def test_callers_have_limits_on_top(tmp_path: Path) -> None:
    """A caller at its own limit is refused though the table has more; another caller is not."""
    ledger, budget = open_ledger(tmp_path), Budget(epsilon=1.0, epsilon_per_caller=0.3)
    for _ in range(3):
        ledger.charge("cards", "eve", TENTH, budget, purpose="labels")
    with pytest.raises(tp.PrivacyError, match=r"caller 'eve' has a budget of epsilon 0\.3") as refused:
        ledger.charge("cards", "eve", TENTH, budget, purpose="labels")
    assert refused.value.rule == "epsilon_per_caller"
    ledger.charge("cards", "ann", TENTH, budget, purpose="labels")
    assert ledger.spent("cards").pure == pytest.approx(0.4)


def test_a_refusal_by_the_table_leaves_the_caller_unchanged(tmp_path: Path) -> None:
    """Both totals change or neither does."""
    ledger = open_ledger(tmp_path)
    with pytest.raises(tp.PrivacyError):
        ledger.charge("cards", "ann", Spending.of_pure(2.0), Budget(epsilon=1.0, epsilon_per_caller=5.0), purpose="x")
    assert ledger.spent("cards") == ledger.spent("cards", "ann") == Spending()


def test_runs_compose_as_curves(tmp_path: Path) -> None:
    """Over runs and restarts the cost is that of one long run, far below the sum of the runs' epsilons."""
    run = Spending.of_gaussian(20.0, steps=10)
    for _ in range(10):
        open_ledger(tmp_path).charge("cards", "ann", run, Budget(), purpose="features")
    spent = open_ledger(tmp_path).spent("cards")
    assert spent.epsilon(1e-6) == pytest.approx(Spending.of_gaussian(20.0, steps=100).epsilon(1e-6))
    assert spent.epsilon(1e-6) < 0.5 * 10 * run.epsilon(1e-6)


def test_the_same_release_costs_once(tmp_path: Path) -> None:
    """Labels whose noise never changes cost the table once and each caller once."""
    ledger, budget = open_ledger(tmp_path), Budget(epsilon=0.5, epsilon_per_caller=0.5)
    for caller in ("ann", "ann", "eve", "ann"):
        ledger.charge("cards", caller, Spending.of_pure(0.4), budget, purpose="labels", release="fraud, epsilon 0.4")
    assert ledger.spent("cards").pure == 0.4
    assert ledger.spent("cards", "ann").pure == ledger.spent("cards", "eve").pure == 0.4
    with pytest.raises(tp.PrivacyError):
        ledger.charge("cards", "ann", Spending.of_pure(0.4), budget, purpose="labels", release="fraud + 0")


def test_accounts(tmp_path: Path) -> None:
    """An operator sees what was spent and what is left, in all and by caller; without a budget nothing is bounded."""
    ledger, budget = open_ledger(tmp_path), Budget(epsilon=1.0, epsilon_per_caller=0.25, delta=1e-7)
    [untouched] = ledger.accounts("cards", budget)
    assert (untouched.spent, untouched.left) == (0.0, 1.0)
    for caller in ("ann", "eve", "ann"):
        ledger.charge("Cards", caller, TENTH, budget, purpose="labels")
    told = [(account.caller, round(account.spent, 9), round(account.left or 0, 9)) for account in
            ledger.accounts("cards", budget)]  # fmt: skip
    assert told == [("", 0.3, 0.7), ("ann", 0.2, 0.05), ("eve", 0.1, 0.15)]
    assert {account.left for account in ledger.accounts("cards", Budget())} == {None}


def test_kill_in_the_middle(tmp_path: Path) -> None:
    """A process that is killed while it charges has charged for every release that it made, and the file is whole."""
    released = 0
    for after in (3, 7):
        path = tmp_path / "ledger.sqlite"
        child = warm.start([sys.executable, "-c", SPENDER, str(path), "100000"], stdout=subprocess.PIPE)
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(after)]
        os.kill(child.pid, signal.SIGKILL)
        lines += child.stdout.readlines()
        assert child.wait() == -signal.SIGKILL
        released += len([line for line in lines if line.endswith("\n")])
        charged = open_ledger(tmp_path).spent("cards").pure / 0.125
        assert charged in (released, released + 1)
        released = int(charged)
    with sqlite3.connect(tmp_path / "ledger.sqlite") as file:
        assert file.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert file.execute("SELECT times FROM charges").fetchone() == (released,)
    file.close()


def test_processes_at_once(tmp_path: Path) -> None:
    """Charges of several processes all count."""
    path = str(tmp_path / "ledger.sqlite")
    children = [warm.start([sys.executable, "-c", SPENDER, path, "20"], stdout=subprocess.DEVNULL) for _ in "abc"]
    assert [child.wait(timeout=300) for child in children] == [0, 0, 0]
    assert open_ledger(tmp_path).spent("cards").pure == 60 * 0.125


def test_threads_cannot_overdraw(tmp_path: Path) -> None:
    """Of many threads that ask at once, exactly as many are served as the budget allows."""
    ledger, served, refused = open_ledger(tmp_path), [], []

    def ask(number: int) -> None:
        for _ in range(5):
            try:
                ledger.charge("cards", f"caller{number}", TENTH, ONE, purpose="labels")
                served.append(number)
            except tp.PrivacyError:
                refused.append(number)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(served), len(refused)) == (10, 20)
    assert ledger.spent("cards").pure == pytest.approx(1.0)


def test_the_file_is_the_owners_alone(tmp_path: Path) -> None:
    """Others cannot read who asked for what."""
    open_ledger(tmp_path)
    assert (tmp_path / "ledger.sqlite").stat().st_mode & 0o777 == 0o600


def test_what_cannot_be_charged_is_not_released(tmp_path: Path) -> None:
    """A folder that is not there, a spoiled file, a file that was removed: no charge, no release, no new budget."""
    with pytest.raises(tp.PartyError, match="cannot use its privacy ledger, so it releases nothing"):
        open_ledger(tmp_path / "nowhere")
    (tmp_path / "ledger.sqlite").write_bytes(b"this is no database, but it is long enough to be one" * 100)
    with pytest.raises(tp.PartyError, match="releases nothing"):
        open_ledger(tmp_path)
    (tmp_path / "ledger.sqlite").unlink()
    ledger = open_ledger(tmp_path)
    (tmp_path / "ledger.sqlite").unlink()
    with pytest.raises(tp.PartyError, match="releases nothing"):
        ledger.charge("cards", "ann", TENTH, ONE, purpose="labels")


def test_a_ledger_of_another_version(tmp_path: Path) -> None:
    """Curves that this version cannot add to are refused, not begun anew."""
    open_ledger(tmp_path)
    with sqlite3.connect(tmp_path / "ledger.sqlite") as file:
        as_of_version_3(file)
        file.execute("UPDATE orders SET orders = x'00'")
    file.close()
    with pytest.raises(tp.ConfigError, match="another version of tablepuppet"):
        open_ledger(tmp_path)
    with sqlite3.connect(tmp_path / "ledger.sqlite") as file:
        file.execute("PRAGMA user_version = 5")
    file.close()
    with pytest.raises(tp.ConfigError, match="another version of tablepuppet"):
        open_ledger(tmp_path)


def test_a_ledger_of_the_first_version_goes_on(tmp_path: Path) -> None:
    """What was spent before tails were counted stays spent, and tails add up from now on."""
    open_ledger(tmp_path).charge("cards", "ann", TENTH, ONE, purpose="labels")
    with sqlite3.connect(tmp_path / "ledger.sqlite") as file:
        as_of_version_2(file)
        file.execute("ALTER TABLE totals DROP COLUMN tail")
        file.execute("PRAGMA user_version = 1")
    file.close()
    ledger = open_ledger(tmp_path)
    ledger.charge("cards", "ann", Spending(tail=1e-12), ONE, purpose="categories")
    assert open_ledger(tmp_path).spent("cards") == TENTH + Spending(tail=1e-12)


@pytest.mark.parametrize("total", [float("nan"), float("inf"), -1.0])
@pytest.mark.parametrize("where", ["pure", "gaussian"])
def test_a_total_that_is_no_number_is_refused(tmp_path: Path, total: float, where: str) -> None:
    """A ledger that holds one is not opened, since every later charge would be free; the error says what to do."""
    open_ledger(tmp_path).charge("cards", "ann", TENTH, ONE, purpose="labels")
    curve = np.full(len(ORDERS), total, "<f8").tobytes()
    with sqlite3.connect(tmp_path / "ledger.sqlite") as file:
        as_of_version_3(file)
        file.execute(f"UPDATE totals SET {where} = ?", (total if where == "pure" and total == total else curve,))
    file.close()
    with pytest.raises(tp.ConfigError, match=r"table 'cards' is not a finite number.* Restore an older copy"):
        open_ledger(tmp_path)


def test_tails_are_taken_off_delta(tmp_path: Path) -> None:
    """Releases that are wrong with some probability use up delta: beyond it there is no epsilon."""
    ledger, budget = open_ledger(tmp_path), Budget(epsilon=1.0, delta=1e-6)
    ledger.charge("cards", "ann", Spending(tail=6e-7), budget, purpose="categories")
    with pytest.raises(tp.PrivacyError, match="this would spend inf in all"):
        ledger.charge("cards", "ann", Spending(tail=6e-7), budget, purpose="categories")


def test_the_last_release_of_a_line_is_known(tmp_path: Path) -> None:
    """A release that a process was killed in the middle of costs nothing more when it is made after all; those before
    it are never asked for again, and would cost.
    """
    ledger = open_ledger(tmp_path)
    for name in ("1", "1", "2", "2"):
        ledger.charge("cards", "ann", TENTH, ONE, purpose="features", release=name, line="session")
    assert ledger.spent("cards") == TENTH + TENTH
    ledger.charge("cards", "ann", TENTH, ONE, purpose="features", release="1", line="session")
    assert ledger.spent("cards") == TENTH + TENTH + TENTH


def test_the_file_does_not_grow(tmp_path: Path) -> None:
    """Thousands of charges and sessions take no more room than some, and all of them count."""
    ledger, small = open_ledger(tmp_path), Spending.of_pure(1e-6)
    sizes = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_MOST_LINES", 20)
        for number in range(300):
            ledger.charge(
                "cards", "ann", small, ONE, purpose="gradient", release=f"r {number}", line=f"s {number // 3}"
            )
            sizes.append((tmp_path / "ledger.sqlite").stat().st_size)
    assert sizes[-1] == sizes[99]
    assert ledger.spent("cards").pure == pytest.approx(300e-6)
    with sqlite3.connect(tmp_path / "ledger.sqlite") as file:
        assert file.execute("SELECT purpose, times FROM charges").fetchall() == [("gradient", 300)]
        assert file.execute("SELECT count(*) FROM releases").fetchone() == (20,)
    file.close()


def test_releases_with_names_are_bounded(tmp_path: Path) -> None:
    """A caller that has asked for as many different labels as the ledger keeps is refused, not charged, and may ask for
    those that it had; others may ask too.
    """
    ledger = Ledger(tmp_path / "ledger.sqlite", "bank", most_releases=2)
    for name in "aabb":
        ledger.charge("cards", "ann", TENTH, ONE, purpose="labels", release=name)
    with pytest.raises(tp.PrivacyError, match=r"2 different noisy labels.*limits\.ledger_releases") as refused:
        ledger.charge("cards", "ann", TENTH, ONE, purpose="labels", release="c")
    assert refused.value.rule == "ledger_releases"
    for caller, name in (("ann", "a"), ("eve", "b")):
        ledger.charge("cards", caller, TENTH, ONE, purpose="labels", release=name)
    assert ledger.spent("cards") == ledger.spent("cards", "ann") == TENTH + TENTH


def test_a_ledger_of_single_charges_goes_on(tmp_path: Path) -> None:
    """Charges that were kept one by one are added up; totals and names of labels stay."""
    open_ledger(tmp_path).charge("cards", "ann", TENTH, ONE, purpose="labels", release="fraud")
    with sqlite3.connect(tmp_path / "ledger.sqlite") as file:
        as_of_version_2(file)
        add = "INSERT INTO charges (table_name, caller, purpose, release, epsilon) VALUES ('cards', 'ann', ?, ?, 0.1)"
        file.executemany(add, [("labels", "fraud"), ("gradient", "g 1"), ("gradient", "g 2")])
    file.close()
    ledger = open_ledger(tmp_path)
    ledger.charge("cards", "ann", TENTH, ONE, purpose="labels", release="fraud")
    assert ledger.spent("cards") == TENTH
    with sqlite3.connect(tmp_path / "ledger.sqlite") as file:
        told = file.execute("SELECT purpose, times, round(epsilons, 9) FROM charges ORDER BY purpose").fetchall()
        assert told == [("gradient", 2, 0.2), ("labels", 1, 0.1)]
    file.close()


def as_of_version_3(file: sqlite3.Connection) -> None:
    """Make it a file without a seal."""
    file.execute("DROP TABLE seal")
    file.execute("PRAGMA user_version = 3")


def as_of_version_2(file: sqlite3.Connection) -> None:
    """Make the tables those of a file with a row for every charge."""
    as_of_version_3(file)
    file.execute("DROP TABLE charges")
    file.execute("DROP TABLE releases")
    file.execute(
        "CREATE TABLE charges (time TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP, table_name TEXT NOT NULL, caller TEXT NOT "
        "NULL, purpose TEXT NOT NULL, release TEXT, epsilon REAL NOT NULL)"
    )
    file.execute("CREATE INDEX by_release ON charges (table_name, release, caller) WHERE release IS NOT NULL")
    file.execute("PRAGMA user_version = 2")


def test_a_charge_has_a_caller(tmp_path: Path) -> None:
    """Nobody can charge under the name that totals are kept under."""
    with pytest.raises(tp.PrivacyError, match="needs a caller"):
        open_ledger(tmp_path).charge("cards", "", TENTH, ONE, purpose="labels")
