"""The ledger of a party: what has been spent on each table, in a small SQLite file that outlives the process.

Comes in: who asks, which table, what a release would cost. Goes out: nothing, or a PrivacyError that says what is
left. A charge is on disk before its release leaves; a process that is killed in between has spent too much, never
too little. Costs are kept as curves (`privacy/accountant.py`), so that many runs add up to less than the sum of
their epsilons; a single run may promise a little less than it is charged, as it can be counted more tightly alone. The
budget of a table binds the sum over all callers; a limit per caller comes on top. Only the
party and its operator read the file; it holds no value of a row.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from tablepuppet.errors import ConfigError, PartyError, PrivacyError
from tablepuppet.privacy.accountant import ORDERS, Spending

FILE = "ledger.sqlite"
_WAIT = 60.0  # seconds for another process to finish its charge
_SLACK = 1 + 1e-9  # sums of floats: ten times 0.1 is within a budget of 1
_EVERYBODY = ""  # the caller under which a table's total is kept; no certificate has this name
_FORMAT = 1

_SCHEMA = """
CREATE TABLE charges (
    time TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP, table_name TEXT NOT NULL, caller TEXT NOT NULL,
    purpose TEXT NOT NULL, release TEXT, epsilon REAL NOT NULL
);
CREATE INDEX by_release ON charges (table_name, release, caller) WHERE release IS NOT NULL;
CREATE TABLE totals (
    table_name TEXT NOT NULL, caller TEXT NOT NULL, pure REAL NOT NULL, gaussian BLOB NOT NULL,
    pure_curve BLOB NOT NULL, PRIMARY KEY (table_name, caller)
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
        bool, Meta(description="refuse every relation whose releases of this table are not all noised")
    ] = False


class Account(msgspec.Struct, frozen=True):
    """What was spent on a table by a caller, or by everybody (``caller`` is empty); ``left`` is None if unbounded."""

    table: str
    caller: str
    spent: float
    budget: float | None
    left: float | None
    delta: float


class Ledger:
    """The charges of one party's tables. Threads and processes may share the file."""

    def __init__(self, path: Path, party: str):
        self.path, self.party = path, party
        with self._transaction() as ledger:
            self._prepare(ledger)

    def charge(
        self, table: str, caller: str, cost: Spending, budget: Budget, *, purpose: str, release: str | None = None
    ) -> None:
        """Spend ``cost``, or raise PrivacyError and spend nothing. Return only when it is on disk.

        ``release`` names a release that is the same whenever it is asked for, such as noisy labels: it costs a table
        once, and each caller once. All others cost each time.
        """
        if not caller:
            raise PrivacyError(f"party {self.party!r}: a charge needs a caller", rule="budget")
        name = table.lower()
        with self._transaction() as ledger:
            had = {who for (who,) in ledger.execute(_HAD, (name, release))} if release else set()
            limits = [(caller, budget.epsilon_per_caller)] if caller not in had else []
            limits += [(_EVERYBODY, budget.epsilon)] if not had else []
            for who, most in limits:
                before = _total(ledger, name, who)
                self._check(name, who, before, before + cost, budget.delta, most)
                _store(ledger, name, who, before + cost)
            if limits:
                ledger.execute(_CHARGE, (name, caller, purpose, release, cost.epsilon(budget.delta)))

    def spent(self, table: str, caller: str = _EVERYBODY) -> Spending:
        """What has been spent on a table, by everybody or by one caller."""
        with self._transaction() as ledger:
            return _total(ledger, table.lower(), caller)

    def accounts(self, table: str, budget: Budget) -> list[Account]:
        """What was spent on a table and what is left, for everybody first, then by caller."""
        with self._transaction() as ledger:
            found = [who for (who,) in ledger.execute(_CALLERS, (table.lower(),))]
            totals = {who: _total(ledger, table.lower(), who) for who in dict.fromkeys((_EVERYBODY, *found))}
        return [_account(table.lower(), who, total, budget) for who, total in totals.items()]

    def _check(
        self, table: str, caller: str, before: Spending, after: Spending, delta: float, most: float | None
    ) -> None:
        if most is None or after.epsilon(delta) <= most * _SLACK:
            return
        rule = "epsilon_per_caller" if caller else "epsilon"
        whose = f"caller {caller!r} has" if caller else "all callers together have"
        left = round(max(0.0, most - before.epsilon(delta)), 9)
        raise PrivacyError(
            f"party {self.party!r}, table {table!r}: {whose} a budget of epsilon {most:g} at delta {delta:g}, of which "
            f"{left:.4g} is left, and this would spend {after.epsilon(delta):.4g} in all: ask for less, with a smaller "
            f"epsilon or fewer rounds, or ask the party's operator",
            rule=rule,
        )

    def _prepare(self, ledger: sqlite3.Connection) -> None:
        """Make the tables of a new file; refuse one that this version cannot add to."""
        version = ledger.execute("PRAGMA user_version").fetchone()[0]
        if version == 0 and not ledger.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            for statement in _SCHEMA.split(";"):
                ledger.execute(statement)
            ledger.execute("INSERT INTO orders VALUES (?)", (_blob(ORDERS),))
            ledger.execute(f"PRAGMA user_version = {_FORMAT}")
        elif version != _FORMAT or _floats(ledger.execute("SELECT orders FROM orders").fetchone()[0]) != ORDERS:
            raise ConfigError(f"ledger {str(self.path)!r} was written by another version of tablepuppet: use that one")

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing, alone among threads and processes, and forced to disk at the end."""
        try:
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
            with closing(sqlite3.connect(self.path, timeout=_WAIT, isolation_level=None)) as ledger:
                ledger.execute("PRAGMA synchronous = EXTRA")
                ledger.execute("BEGIN IMMEDIATE")
                yield ledger
                ledger.execute("COMMIT")
        except (OSError, sqlite3.Error) as error:
            raise PartyError(
                f"party {self.party!r} cannot use its privacy ledger, so it releases nothing; its operator must "
                f"restore the file, or make room for it"
            ) from error


_HAD = "SELECT DISTINCT caller FROM charges WHERE table_name = ? AND release = ?"
_CALLERS = "SELECT caller FROM totals WHERE table_name = ? ORDER BY caller"
_CHARGE = "INSERT INTO charges (table_name, caller, purpose, release, epsilon) VALUES (?, ?, ?, ?, ?)"
_TOTAL = "SELECT gaussian, pure, pure_curve FROM totals WHERE table_name = ? AND caller = ?"


def _total(ledger: sqlite3.Connection, table: str, caller: str) -> Spending:
    row = ledger.execute(_TOTAL, (table, caller)).fetchone()
    return Spending() if row is None else Spending(_floats(row[0]), row[1], _floats(row[2]))


def _store(ledger: sqlite3.Connection, table: str, caller: str, total: Spending) -> None:
    values = (table, caller, total.pure, _blob(total.gaussian), _blob(total.pure_curve))
    ledger.execute("INSERT OR REPLACE INTO totals VALUES (?, ?, ?, ?, ?)", values)


def _account(table: str, caller: str, total: Spending, budget: Budget) -> Account:
    most = budget.epsilon_per_caller if caller else budget.epsilon
    spent = total.epsilon(budget.delta)
    return Account(table, caller, spent, most, None if most is None else max(0.0, most - spent), budget.delta)


def _blob(values: tuple[float, ...]) -> bytes:
    return np.array(values, "<f8").tobytes()


def _floats(blob: bytes) -> tuple[float, ...]:
    return tuple(np.frombuffer(blob[: len(blob) // 8 * 8], "<f8").tolist())  # a cut one has too few, and is refused
