"""The ledger of a party: what has been spent on each table, in a small SQLite file that outlives the process.

Input: the caller, the table, the cost of a release. Output: nothing, or a PrivacyError that says what is left. A charge
is on disk before its release is sent; if the process is killed in between, too much is charged, never too little. Costs
are stored as curves (`privacy/accountant.py`), so that many runs add up to less than the sum of their epsilons. A
single run may promise a little less than it is charged, since it can be counted more tightly alone. The budget of a
table limits the sum over all callers; each caller may have a limit in addition. Only the party and its operator read
the file; it contains no value of a row.

The file does not grow with the number of charges: they are added up by table, caller and purpose. The names of releases
that are charged once are stored, up to a limit per caller and table. A release whose name was dropped is charged again.
All rows are sealed (`sealed_rows.py`): a file that is not as it was written is refused, when it is opened and when
somebody else has written to it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta

from tablepuppet.errors import ConfigError, PartyError, PrivacyError
from tablepuppet.party.sealed_rows import changes_sealed, is_as_sealed, seal
from tablepuppet.privacy.accountant import ORDERS, Spending
from tablepuppet.privacy.funds import SLACK, Funds, label_mark
from tablepuppet.runs.figures import number

log = logging.getLogger("tablepuppet.party")

FILE = "ledger.sqlite"
_WAIT = 60.0  # seconds for another process to finish its charge
_EVERYBODY = ""  # the caller under which a table's total is kept; no certificate has this name
_FORMAT = 4  # 1 had no tails, 2 a row for every charge, 3 no seal
_MOST_LINES = 1000  # of releases, by caller and table: sessions that may come back

_CHARGES = """
CREATE TABLE charges (
    table_name TEXT NOT NULL, caller TEXT NOT NULL, purpose TEXT NOT NULL,
    first TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP, last TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
    times INTEGER NOT NULL, epsilons REAL NOT NULL,
    PRIMARY KEY (table_name, caller, purpose)
) WITHOUT ROWID;
CREATE TABLE releases (
    table_name TEXT NOT NULL, name BLOB NOT NULL, caller TEXT NOT NULL, line TEXT NOT NULL, mark TEXT NOT NULL
);
CREATE INDEX by_name ON releases (table_name, name);
CREATE INDEX by_line ON releases (table_name, caller, line);
"""
_SCHEMA = f"""{_CHARGES}
CREATE TABLE totals (
    table_name TEXT NOT NULL, caller TEXT NOT NULL, pure REAL NOT NULL, gaussian BLOB NOT NULL,
    pure_curve BLOB NOT NULL, tail REAL NOT NULL DEFAULT 0, PRIMARY KEY (table_name, caller)
) WITHOUT ROWID;
CREATE TABLE orders (orders BLOB NOT NULL);
"""

Epsilon = Annotated[float, Meta(gt=0)]


class Budget(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """How much may be spent on a table, for ever; without ``epsilon`` spending is counted and not bounded."""

    epsilon: Annotated[Epsilon | None, Meta(description="what all callers together may spend")] = None
    delta: Annotated[
        float, Meta(gt=0, lt=1, description="the delta at which it is counted; well below one over the table's rows")
    ] = 1e-6
    epsilon_per_caller: Annotated[Epsilon | None, Meta(description="what each caller may spend of it")] = None
    require_dp: Annotated[
        bool | None,
        Meta(
            description="refuse every relation whose releases of this table are not all noised; if absent, `true` "
            "where an epsilon is set"
        ),
    ] = None

    def __post_init__(self) -> None:
        """A bound that binds nothing is no default: what has no noise is not counted."""
        if self.require_dp is None:
            msgspec.structs.force_setattr(self, "require_dp", self.is_bounded)

    @property
    def is_bounded(self) -> bool:
        """Whether there is a bound on what may be spent."""
        return self.epsilon is not None or self.epsilon_per_caller is not None


class Account(msgspec.Struct, frozen=True):
    """What was spent on a table by a caller, or by everybody (``caller`` is empty); ``left`` is None if unbounded."""

    table: str
    caller: str
    spent: float
    budget: float | None
    left: float | None
    delta: float


class Spend(NamedTuple):
    """What an approved job may spend on a table in all, under the name of its approval; None: nothing."""

    name: str
    epsilon: float | None
    delta: float


class Ledger:
    """The charges of one party's tables. Threads and processes may share the file."""

    def __init__(self, path: Path, party: str, most_releases: int | None = None):
        self.path, self.party, self._most_releases = path, party, most_releases
        with self._alone(os.O_CREAT) as ledger:
            _prepare(ledger, path)
        self._left = _state_of(path)  # as this process has left the file: it need not be checked again

    def charge(
        self, table: str, caller: str, cost: Spending, budget: Budget, *, purpose: str, release: str | None = None,
        line: str = "", job: Spend | None = None,
    ) -> None:  # fmt: skip
        """Spend ``cost``, or raise PrivacyError and spend nothing. Return only when it is on disk.

        ``release`` names a release that is the same whenever it is asked for, such as noisy labels: it costs a table
        once, and each caller once. All others cost each time. Of the releases in one ``line`` only the last is known by
        its name: when the next is charged, nobody asks for those before it. A ``job`` that was approved spends no more
        than it was approved for.
        """
        if not caller:
            raise PrivacyError(f"party {self.party!r}: a charge needs a caller", rule="budget")
        name, known = table.lower(), None if release is None else hashlib.sha256(release.encode()).digest()
        with self._transaction() as ledger:
            had = {who for (who,) in ledger.execute(_HAD, (name, known))} if known else set()
            limits = [(caller, budget.epsilon_per_caller)] if caller not in had else []
            limits += [(_EVERYBODY, budget.epsilon)] if not had else []
            for who, most in limits:
                before = _total(ledger, name, who)
                if most is not None:
                    self._check(name, who, Funds("caller" if who else "all", most, budget.delta, before), cost)
                _store(ledger, name, who, before + cost)
            if limits and job is not None:
                self._check_job(name, job, _total(ledger, name, job.name) + cost)
                _store(ledger, name, job.name, _total(ledger, name, job.name) + cost)
            if limits:
                ledger.execute(_CHARGE, (name, caller, purpose, cost.epsilon(budget.delta)))
            if limits and known is not None:
                self._remember(ledger, name, known, caller, line, _mark(release))

    def _check_job(self, table: str, job: Spend, after: Spending) -> None:
        most = 0.0 if job.epsilon is None else job.epsilon
        if after.epsilon(job.delta) > most * SLACK:
            raise PrivacyError(
                f"party {self.party!r}, table {table!r}: the job was approved for epsilon {number(most)} at delta "
                f"{job.delta:g}, and this would spend {number(after.epsilon(job.delta))} in all: ask for less, or ask "
                "the party's operator to approve it again (policy rule require_approval)",
                rule="require_approval",
            )

    def _remember(self, ledger: sqlite3.Connection, table: str, name: bytes, caller: str, line: str, mark: str) -> None:
        """Remember the name of a release; PrivacyError if there are as many as the party allows."""
        if line:
            ledger.execute(
                "DELETE FROM releases WHERE table_name = ? AND caller = ? AND line = ?", (table, caller, line)
            )
            ledger.execute(_OLD_LINES, (table, caller, table, caller, _MOST_LINES - 1))
        elif self._most_releases is not None:
            known = ledger.execute(_KNOWN, (table, caller)).fetchone()[0]
            if known >= self._most_releases:
                raise PrivacyError(
                    f"party {self.party!r}, table {table!r}: caller {caller!r} has asked for {known:,} different noisy "
                    "labels, as many as the party keeps in its ledger (limits.ledger_releases); ask for labels as "
                    "before, or ask the party's operator",
                    rule="ledger_releases",
                )
        ledger.execute("INSERT INTO releases VALUES (?, ?, ?, ?, ?)", (table, name, caller, line, mark))

    def spent(self, table: str, caller: str = _EVERYBODY) -> Spending:
        """What has been spent on a table, by everybody or by one caller."""
        with self._transaction() as ledger:
            return _total(ledger, table.lower(), caller)

    def funds(self, table: str, caller: str, budget: Budget) -> tuple[Funds, ...]:
        """What the caller, and all callers together, may spend on a table and have spent; none where nothing binds."""
        both = ((caller, budget.epsilon_per_caller), (_EVERYBODY, budget.epsilon))
        limits = [(who, most) for who, most in both if most is not None]
        found: list[Funds] = []
        if not limits:
            return ()
        with self._transaction() as ledger:
            for who, most in limits:
                labels = tuple(mark for (mark,) in ledger.execute(_LABELS, (table.lower(), who, who)))
                total = _total(ledger, table.lower(), who)
                found.append(Funds("caller" if who else "all", most, budget.delta, total, labels))
        return tuple(found)

    def accounts(self, table: str, budget: Budget) -> list[Account]:
        """What was spent on a table and what is left, for everybody first, then by caller."""
        with self._transaction() as ledger:
            found = [who for (who,) in ledger.execute(_CALLERS, (table.lower(),))]
            totals = {who: _total(ledger, table.lower(), who) for who in dict.fromkeys((_EVERYBODY, *found))}
        return [_account(table.lower(), who, total, budget) for who, total in totals.items()]

    def began(self, table: str) -> str | None:
        """When a table was first charged (UTC); None if it never was."""
        with self._transaction() as ledger:
            found = ledger.execute("SELECT min(first) FROM charges WHERE table_name = ?", (table.lower(),)).fetchone()
        return None if found is None or found[0] is None else str(found[0])

    def _check(self, table: str, caller: str, funds: Funds, cost: Spending) -> None:
        if funds.allows(cost):
            return
        rule = "epsilon_per_caller" if caller else "epsilon"
        whose = f"caller {caller!r} has" if caller else "all callers together have"
        raise PrivacyError(
            f"party {self.party!r}, table {table!r}: {whose} a budget of epsilon {funds.epsilon:g} at delta "
            f"{funds.delta:g}, of which {number(round(funds.left, 9))} is left, and this would spend "
            f"{number(funds.after(cost))} in all: ask for less, with a smaller epsilon or fewer rounds, or ask the "
            "party's operator",
            rule=rule,
        )

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """As `_alone`, on rows that are as they were sealed; what is changed is sealed again."""
        with self._alone() as ledger:
            if _state_of(self.path) != self._left and not is_as_sealed(ledger):
                log.error("the ledger %s is damaged: stop the party, and restore it from a backup", self.path)
                raise PartyError(
                    f"party {self.party!r}: its privacy ledger is damaged, so it releases nothing; its operator must "
                    "restore it"
                )
            with changes_sealed(ledger):
                yield ledger
        self._left = _state_of(self.path)

    @contextmanager
    def _alone(self, flags: int = 0) -> Iterator[sqlite3.Connection]:
        """All or nothing, alone among threads and processes, and forced to disk at the end."""
        try:
            os.close(os.open(self.path, os.O_RDWR | flags, 0o600))
            with closing(sqlite3.connect(self.path, timeout=_WAIT, isolation_level=None)) as ledger:
                ledger.execute("PRAGMA synchronous = EXTRA")
                ledger.execute("BEGIN IMMEDIATE")
                yield ledger
                ledger.execute("COMMIT")
        except (OSError, sqlite3.Error, UnicodeDecodeError) as error:
            raise PartyError(
                f"party {self.party!r} cannot use its privacy ledger, so it releases nothing; its operator must "
                f"restore the file, or make room for it",
                limit="disk",
            ) from error


def copy_of_ledger(path: Path) -> bytes:
    """The content of a ledger, at one moment, also while a party charges it; ConfigError if no party can use it.

    The file is not changed: a copy of it is opened as a party would.
    """
    try:
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as copy:
            os.close(os.open(path, os.O_RDWR))
            with closing(sqlite3.connect(path, timeout=_WAIT)) as ledger:
                ledger.backup(copy)
            if not copy.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                raise ConfigError(f"ledger {str(path)!r} is empty")
            _prepare(copy, path)
            return copy.serialize()
    except OSError as error:
        raise ConfigError(f"ledger {str(path)!r} cannot be read and written: {error.strerror}") from error
    except (sqlite3.Error, ValueError, TypeError, LookupError) as error:  # damaged pages raise many kinds
        raise ConfigError(f"ledger {str(path)!r} is damaged ({error})") from error


def charges(content: bytes) -> dict[tuple[str, str, str], int]:
    """How often a ledger was charged, by table, caller and purpose."""
    with closing(sqlite3.connect(":memory:")) as ledger:
        ledger.deserialize(content)
        found = ledger.execute("SELECT table_name, caller, purpose, times FROM charges").fetchall()
    return {(table, caller, purpose): times for table, caller, purpose, times in found}


def _prepare(ledger: sqlite3.Connection, path: Path) -> None:
    """Make the tables of a new file; refuse one that this version cannot add to."""
    version = ledger.execute("PRAGMA user_version").fetchone()[0]
    if version == 0 and not ledger.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        _execute(ledger, _SCHEMA)
        ledger.execute("INSERT INTO orders VALUES (?)", (_blob(ORDERS),))
        seal(ledger)
        ledger.execute(f"PRAGMA user_version = {_FORMAT}")
        return
    if version not in range(1, _FORMAT + 1):
        raise ConfigError(f"ledger {str(path)!r} was written by another version of tablepuppet: use that one")
    if ledger.execute("PRAGMA quick_check").fetchone()[0] != "ok":
        raise ConfigError(f"ledger {str(path)!r} is damaged")
    if version == _FORMAT and not is_as_sealed(ledger):
        raise ConfigError(f"ledger {str(path)!r} is damaged")
    if version == 1:
        ledger.execute("ALTER TABLE totals ADD COLUMN tail REAL NOT NULL DEFAULT 0")
    if version in (1, 2):
        _add_up(ledger)
    if _floats(ledger.execute("SELECT orders FROM orders").fetchone()[0]) != ORDERS:
        raise ConfigError(f"ledger {str(path)!r} was written by another version of tablepuppet: use that one")
    for table, caller in ledger.execute("SELECT table_name, caller FROM totals").fetchall():
        _check_total(ledger, path, table, caller)
    if version < _FORMAT:
        seal(ledger)
        ledger.execute(f"PRAGMA user_version = {_FORMAT}")


def _state_of(path: Path) -> tuple[int, int, int]:
    """What changes whenever a file is written."""
    try:
        found = path.stat()
    except OSError:
        return (0, 0, 0)
    return found.st_ino, found.st_size, found.st_mtime_ns


def _check_total(ledger: sqlite3.Connection, path: Path, table: str, caller: str) -> None:
    """Refuse a total that is no number: every later charge would be free."""
    try:
        _total(ledger, table, caller)
    except (PrivacyError, TypeError):
        raise ConfigError(
            f"ledger {str(path)!r}: what was spent on table {table!r} is not a finite number, so that no "
            "budget can be held against it. Restore an older copy of the file. If there is none, take what the "
            "table could spend as spent: publish it no more, or move the file away and lower its budget"
        ) from None


_HAD = "SELECT DISTINCT caller FROM releases WHERE table_name = ? AND name = ?"
_KNOWN = "SELECT count(*) FROM releases WHERE table_name = ? AND caller = ? AND line = ''"
_LABELS = (
    "SELECT DISTINCT mark FROM releases WHERE table_name = ? AND mark > '' AND (? = '' OR caller = ?) ORDER BY mark"
)
_OLD_LINES = """DELETE FROM releases WHERE table_name = ? AND caller = ? AND line > '' AND rowid <= (
    SELECT rowid FROM releases WHERE table_name = ? AND caller = ? AND line > '' ORDER BY rowid DESC LIMIT 1 OFFSET ?
)"""
_CALLERS = "SELECT caller FROM totals WHERE table_name = ? AND caller NOT LIKE 'job %' ORDER BY caller"  # nor jobs
_CHARGE = """INSERT INTO charges (table_name, caller, purpose, times, epsilons) VALUES (?, ?, ?, 1, ?)
    ON CONFLICT DO UPDATE SET times = times + 1, epsilons = epsilons + excluded.epsilons, last = excluded.last"""
_TOTAL = "SELECT gaussian, pure, pure_curve, tail FROM totals WHERE table_name = ? AND caller = ?"


def _execute(ledger: sqlite3.Connection, statements: str) -> None:
    for statement in filter(str.strip, statements.split(";")):
        ledger.execute(statement)


def _add_up(ledger: sqlite3.Connection) -> None:
    """Charges that were kept one by one, by purpose; those of noisy labels stay known by name."""
    ledger.execute("DROP INDEX by_release")
    ledger.execute("ALTER TABLE charges RENAME TO single_charges")
    _execute(ledger, _CHARGES)
    ledger.execute(
        "INSERT INTO charges SELECT table_name, caller, purpose, min(time), max(time), count(*), sum(epsilon) "
        "FROM single_charges GROUP BY table_name, caller, purpose"
    )
    labels = "SELECT DISTINCT table_name, release, caller FROM single_charges WHERE purpose = 'labels' AND release > ''"
    for table, release, caller in ledger.execute(labels).fetchall():
        name = hashlib.sha256(release.encode()).digest()
        ledger.execute("INSERT INTO releases VALUES (?, ?, ?, '', ?)", (table, name, caller, _mark(release)))
    ledger.execute("DROP TABLE single_charges")


def _mark(release: str | None) -> str:
    """The name by which a caller recognises noisy labels that are paid for (funds.py); "" for other releases."""
    labels = release is not None and release.startswith('["labels", ')
    return label_mark(*json.loads(release or "")[1:4]) if labels else ""


def _total(ledger: sqlite3.Connection, table: str, caller: str) -> Spending:
    row = ledger.execute(_TOTAL, (table, caller)).fetchone()
    return Spending() if row is None else Spending(_floats(row[0]), row[1], _floats(row[2]), row[3])


def _store(ledger: sqlite3.Connection, table: str, caller: str, total: Spending) -> None:
    values = (table, caller, total.pure, _blob(total.gaussian), _blob(total.pure_curve), total.tail)
    ledger.execute("INSERT OR REPLACE INTO totals VALUES (?, ?, ?, ?, ?, ?)", values)


def _account(table: str, caller: str, total: Spending, budget: Budget) -> Account:
    most = budget.epsilon_per_caller if caller else budget.epsilon
    spent = total.epsilon(budget.delta)
    return Account(table, caller, spent, most, None if most is None else max(0.0, most - spent), budget.delta)


def _blob(values: tuple[float, ...]) -> bytes:
    return np.array(values, "<f8").tobytes()


def _floats(blob: bytes) -> tuple[float, ...]:
    return tuple(np.frombuffer(blob[: len(blob) // 8 * 8], "<f8").tolist())  # a cut one has too few, and is refused
