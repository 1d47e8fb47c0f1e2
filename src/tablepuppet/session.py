"""`Session`: the snapshots of one query at its parties, their blinded keys, and the join of these keys.

Parties are sent a plan; they answer with the number of rows that they have read, and with digests of keys. Both are
held against what the catalog said.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from queue import SimpleQueue

import msgspec
import numpy as np
from numpy.typing import NDArray

from tablepuppet.errors import PartyError, TablePuppetError
from tablepuppet.mapping.join import AttachRows, JoinBranch, KeepRows, ShardKeys, join
from tablepuppet.mapping.joined_rows import JoinedRows
from tablepuppet.operators.client import SecureTables
from tablepuppet.party.request import UNDECLARED, Declared, Request, Step
from tablepuppet.party.returns import Asked, check_reply, keys_returned
from tablepuppet.party.snapshot import MOST_ROWS
from tablepuppet.prep.pipelines.pipeline import DEFAULT, Pipeline
from tablepuppet.runs.events import Events
from tablepuppet.sql.plan import Plan, Scan
from tablepuppet.sql.query import Attach, JoinTree, KeyClass
from tablepuppet.wire.engine import Engine, call_all
from tablepuppet.wire.outbox import Outbox, WhenLost

BRIEFLY = 1.0  # seconds for the other parties of a session, when one is gone
Blinded = dict[str, NDArray[np.integer]]  # what `keys.blind` returns of one table
GROWTH, SLACK = 2, 1000  # a table may have so many times its rows in the catalog, and so many more, when it is read


@dataclass(frozen=True)
class FederationSettings:
    """What a federation decides for all its relations."""

    wire: str  # precision of row arrays between processes
    memory_limit: int | None
    max_categories: int
    when_lost: WhenLost
    prep: Pipeline = DEFAULT
    job: Declared = UNDECLARED  # what parties are told that it is for
    epsilons: Mapping[str, float] = field(default_factory=dict)  # the most that it spends on a table, by party


@dataclass(frozen=True)
class Opening:
    """What parties gave with their catalogs, to open one relation with.

    ``nonces`` are of parties elsewhere, by their names. ``key`` is a mark of the blinding key that all parties have: it
    differs for another key, and reveals nothing else of it.
    """

    nonces: Mapping[str, str]
    key: str


class Session:
    """The snapshots of one query at all its parties, freed when nothing refers to them any more."""

    def __init__(self, plan: Plan, engine: Engine, events: Events, settings: FederationSettings, opening: Opening):
        self.plan, self.engine, self.events, self.settings = plan, engine, events, settings
        nonces, self.key = opening.nonces, opening.key
        self._nonces = tuple(sorted(nonces[party] for party in plan.parties if party in nonces))
        self.id = engine.new_session()
        # Numbers of rows are rounded if one of the parties is a service; in one process none is lost.
        self.wire = settings.wire if any(map(engine.is_service, plan.parties)) else "float64"
        self._views = itertools.count()
        closer().wait()  # so that limits of parties do not count what is no longer used
        self._close = partial(close_session, engine, plan.parties, self.id)
        self._finalizer = weakref.finalize(self, closer().later, self._close)
        self.outbox = Outbox(engine, self.id, settings.when_lost)
        self.secured = SecureTables()
        self.rows_read: dict[tuple[str, str], int] = {}
        self._keys: dict[tuple[str, str], Blinded] = {}
        self.join_seconds = 0.0
        self._open()

    def _open(self) -> None:
        """Let parties read their tables and blind their keys, in one trip."""
        scans, calls = {party: self.plan.of_party(party) for party in self.plan.parties}, []
        for party, listed in scans.items():
            job = msgspec.structs.replace(self.settings.job, epsilon=self.settings.epsilons.get(party))
            arguments = {"scans": listed, "wire": self.wire, "nonces": self._nonces, "job": job}
            blind = tuple(Step("keys.blind", scan.alias) for scan in listed)
            calls.append((party, Request("open", self.id, arguments, blind)))
        done = self.events.progress("open", "reading tables and blinding keys at their parties", len(calls))
        for (party, _), (opened, *blinded) in zip(calls, call_all(self.engine, calls, done), strict=True):
            self.rows_read |= self._rows_read(party, scans[party], opened.get("rows"))
            for scan, keys in zip(scans[party], blinded, strict=True):
                returns = keys_returned(scan, keys)
                asked = Asked(rows=self.rows_read[party, scan.alias])
                check_reply(party, f"table {scan.table!r}", "keys.blind", returns, keys, asked)
                self._keys[party, scan.alias] = dict(keys)
        self.events.emit("info", "opened", f"{sum(self.rows_read.values()):,} rows are read where they live")

    def _rows_read(self, party: str, scans: Sequence[Scan], reply: object) -> dict[tuple[str, str], int]:
        """How many rows a party has read by alias; PartyError unless it can be, by what the catalog said."""
        if not isinstance(reply, dict) or reply.keys() != {scan.alias for scan in scans}:
            raise PartyError(f"party {party!r} does not say how many rows it has read of each table")
        found = {}
        for scan in scans:
            shard = next(s for s in self.plan.tables[scan.alias].shards if s.party == party)
            most = MOST_ROWS if shard.estimated else min(GROWTH * shard.rows + SLACK, MOST_ROWS)
            least, rows = int(scan.missing), reply[scan.alias]
            if not isinstance(rows, int) or isinstance(rows, bool) or not least <= rows <= most:
                shown = f"{rows:,}" if isinstance(rows, int) else "no number of"
                raise PartyError(
                    f"party {party!r}: it claims {shown} rows of table {scan.table!r}, which had {shard.counted} "
                    "when the catalog was asked for; if the table has grown so much, run the query again"
                )
            found[party, scan.alias] = rows
        return found

    def close(self) -> None:
        """Free the snapshots now."""
        if self._finalizer.detach():
            self._close()

    def new_view(self) -> str:
        """A name for the rows of one relation over these snapshots."""
        return f"v{next(self._views)}"

    def join(self) -> JoinedRows:
        """Join the blinded keys, which are not needed after that."""
        keys, self._keys = self._keys, {}
        done = self.events.progress("join", "joining blinded keys", 1)
        query, scans = self.plan.query, {alias: self.plan.of_alias(alias) for alias in self.plan.tables}
        tables = {
            alias: [self._shard_keys(scan, keys[scan.party, alias]) for scan in listed]
            for alias, listed in scans.items()
        }
        branches = [self._branch(number, each.joined, scans, keys) for number, each in enumerate(query.branches)]
        began = time.perf_counter()
        joined = join(tables, branches, query.distinct, self.settings.memory_limit)
        self.join_seconds = time.perf_counter() - began
        done(1)
        self.events.emit("info", "joined", f"{len(joined):,} joined rows")
        return JoinedRows(joined)

    def _shard_keys(self, scan: Scan, reply: Blinded) -> ShardKeys:
        labels = [key.label for key in scan.keys]
        return ShardKeys(
            scan.party,
            self.rows_read[scan.party, scan.alias],
            {label: reply[f"digests{i}"].view(np.uint8) for i, label in enumerate(labels)},
            {label: reply[f"codes{i}"] for i, label in enumerate(labels)},
            scan.missing,
        )

    def _branch(
        self, number: int, tree: JoinTree, scans: Mapping[str, Sequence[Scan]], keys: Mapping[tuple[str, str], Blinded]
    ) -> JoinBranch:
        """A tree of joins with what parties answered about rows."""

        def holds(conditions: Mapping[str, str]) -> dict[str, NDArray[np.bool_]]:
            return {alias: self._rows_holding(scans[alias], text, keys) for alias, text in conditions.items()}

        steps: list[AttachRows | KeepRows] = []
        for step in tree.steps:
            if isinstance(step, Attach):
                right = self._branch(number, step.right, scans, keys)
                steps.append(AttachRows(right, _members(step.keys), holds(step.conditions), step.keeps_right))
            else:
                steps.append(KeepRows(holds(step.conditions)))
        rows = {alias: self._rows_of_branch(scans[alias], number, keys) for alias in tree.tables}
        return JoinBranch(_members(tree.keys), rows, steps)

    def _rows_of_branch(
        self, scans: Sequence[Scan], number: int, keys: Mapping[tuple[str, str], Blinded]
    ) -> NDArray[np.bool_] | None:
        """Which rows of a vertical table a branch of the union reads, the missing row not among them; None for all."""
        parts = []
        for scan in scans:
            branch, rows = scan.branches[number], self.rows_read[scan.party, scan.alias]
            passes = None if branch is None else keys[scan.party, scan.alias].get(f"passes{branch.filter}")
            if passes is None:
                parts.append(np.full(rows, branch is not None))
            else:
                parts.append(np.unpackbits(passes.view(np.uint8), count=rows).astype(bool))
            if scan.missing:
                parts[-1][-1] = False
        alive = np.concatenate(parts)
        return None if alive.all() else alive

    def _rows_holding(
        self, scans: Sequence[Scan], text: str, keys: Mapping[tuple[str, str], Blinded]
    ) -> NDArray[np.bool_]:
        """Which rows of a vertical table hold a condition of the query."""
        parts = []
        for scan in scans:
            bits, rows = keys[scan.party, scan.alias][f"holds{scan.conditions.index(text)}"], self.rows_read
            parts.append(np.unpackbits(bits.view(np.uint8), count=rows[scan.party, scan.alias]).astype(bool))
        return np.concatenate(parts)


def _members(keys: Sequence[KeyClass]) -> dict[str, frozenset[str]]:
    return {key.label: frozenset(key.members) for key in keys}


def close_session(engine: Engine, parties: tuple[str, ...], session: str) -> None:
    """Free the snapshots of a session at its parties."""
    patience: float | None = None
    for party in parties:
        try:
            engine.call(party, Request("close", session), patience)
        except TablePuppetError:  # a party that is gone has nothing to free; others may be gone with it
            patience = BRIEFLY


# Sessions that nobody refers to any more are closed by a thread of their own. Python calls finalizers at any point,
# also while a lock is held that closing needs. So a finalizer only queues what is to be closed.


log = logging.getLogger(__name__)
Close = Callable[[], object]


class Closer:
    """A thread that closes sessions, one after the other."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Close | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="tablepuppet-close", daemon=True)
        self._thread.start()
        self._ended, self._process = False, os.getpid()
        atexit.register(self._end)

    def later(self, close: Close) -> None:
        """Close something soon. A finalizer may call this at any time."""
        if os.getpid() != self._process:  # a fork does not close what its parent uses
            return
        if self._ended:  # the interpreter ends, in its last thread: no lock is held
            _try(close)
        else:
            self._queue.put(close)

    def wait(self) -> None:
        """Wait until all is closed that was given so far."""
        if not self._ended:
            done = threading.Event()
            self._queue.put(done.set)
            done.wait()

    def _work(self) -> None:
        while (close := self._queue.get()) is not None:
            _try(close)
            del close

    def _end(self) -> None:
        if os.getpid() != self._process:
            return
        self._queue.put(None)
        self._thread.join()
        self._ended = True
        while not self._queue.empty():  # found since
            if close := self._queue.get():
                _try(close)


def _try(close: Close) -> None:
    try:
        close()
    except Exception as error:  # nobody is there to hear it, and the next is to be closed all the same
        log.warning("a session could not be closed (%s)", type(error).__name__)


@cache
def closer() -> Closer:
    """The closer of this process."""
    return Closer()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=closer.cache_clear)  # threads do not survive a fork
