"""What a party reads for its callers: snapshots as of one moment, kept for a while, and how many rows tables have.

Input: the scans of a session, which the guard has allowed. Output: their snapshots, for code of the party only, if the
caller has room for them. A failure that may depend on rows counts as a query that fails.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace

from tablepuppet.errors import PartyError
from tablepuppet.party.allowance import ran_out
from tablepuppet.party.blind import derive_key
from tablepuppet.party.bounded import MEMORY_BYTES, MemoryAccount
from tablepuppet.party.database import Database, Reader, SourceTable
from tablepuppet.party.grant import Grant
from tablepuppet.party.guard import Guard
from tablepuppet.party.snapshot import EvaluationError, Snapshot, take_snapshot
from tablepuppet.sql.plan import Scan


class Readings:
    """Reads the tables of one party. ``account`` gives the memory of a caller; see `Party` for the rest."""

    def __init__(
        self,
        database: Database,
        guard: Guard,
        account: Callable[[str], MemoryAccount],
        row_secret: bytes | None,
        snapshot_ttl: float,
    ):
        self.database = database
        self._guard, self._account, self._row_secret, self._ttl = guard, account, row_secret, snapshot_ttl
        self._row_counts: dict[str, int] = {}  # of tables, as the database last counted; 0 where it never did
        self._rows_read: dict[str, int] = {}  # of tables, when all of them was last read
        self._kept: dict[tuple[str, str], tuple[float, list[Snapshot]]] = {}  # by caller and scans
        self._lock = threading.Lock()

    def adopt(self, database: Database) -> None:
        """Read another database from now on; nothing that was read of the last one is used again."""
        with self._lock:
            self.database = database
            kept, self._kept, self._row_counts, self._rows_read = list(self._kept), {}, {}, {}
        for caller, text in kept:
            self._account(caller).drop(("read", text))

    def published(self, caller: str) -> list[SourceTable]:
        """The tables that a caller may know of; one whose rows are not counted has as many as were last read."""
        tables = self._guard.published(caller, self.database.tables())
        self._note_rows(tables)
        found = []
        for table in tables:
            read = self._rows_read.get(table.name.lower()) if table.estimated else None
            found.append(table if read is None else replace(table, rows=read))
        return found

    def _note_rows(self, tables: Iterable[SourceTable]) -> None:
        """Know how many rows tables have, if they were counted: an estimate changes while rows stay as they are."""
        for table in tables:
            if table.estimated:
                self._row_counts.setdefault(table.name.lower(), 0)
            else:
                self._row_counts[table.name.lower()] = table.rows

    def of_session(self, caller: str, session: str, scans: tuple[Scan, ...]) -> list[Snapshot]:
        """What the scans of a session read, if there is room for it.

        If noise is required, this depends on public values only. Otherwise it depends on the lengths of texts, and a
        refusal counts as a query that fails.
        """
        account = self._account(caller)
        with self._guard.evaluating(caller, scans):
            before = account.total
            try:
                found = self._snapshots(caller, scans)
                account.put((session,), sum(map(self._size, found)))
            except PartyError as error:
                for scan in scans if error.limit == MEMORY_BYTES else ():
                    if not self._demands_noise(scan):
                        self._guard.failed(caller, scan, beside=before)
                raise
        return found

    def _size(self, snapshot: Snapshot) -> int:
        """Bytes that a snapshot is counted as."""
        return snapshot.public_nbytes if self._demands_noise(snapshot.scan) else snapshot.nbytes

    def _demands_noise(self, scan: Scan) -> bool:
        rules = self._guard.policy.table(scan.table)
        return rules is not None and bool(rules.budget.require_dp)

    def whole(self, scan: Scan) -> Snapshot:
        """What a scan reads now, with NULL where an expression fails; it stays at the party."""
        with self.database.reader() as reader:
            return take_snapshot(scan, reader, None, True, self._demands_noise(scan))

    def _is_total(self, scan: Scan) -> bool:
        """Whether no expression may fail: to another caller, or where noise is demanded, that would reveal a row."""
        return self._row_secret is not None or self._demands_noise(scan)

    def split(self, caller: str, grant: Grant, chosen: str) -> None:
        """Count a split; if the number of a table's rows has changed, counting starts again, since their order is new.

        Of a table whose rows are not counted, it never does.
        """
        name = grant.table.lower()
        if name not in self._row_counts and self._guard.policy.limits.max_splits is not None:
            self._note_rows(self.database.tables([grant.table]))
        self._guard.split(caller, grant, chosen, self._row_counts.get(name, 0))

    def _snapshots(self, caller: str, scans: tuple[Scan, ...]) -> list[Snapshot]:
        """What the scans read, as of one moment; what this caller read a short time ago may do."""
        now = time.monotonic()
        with self._lock:
            late = [key for key, kept in self._kept.items() if kept[0] <= now]
            for key in late:
                del self._kept[key]
            known = self._kept.get((caller, repr(scans)))
        for owner, text in late:
            self._account(owner).drop(("read", text))
        if not scans:  # a session for the caller's parts of models
            return []
        if known is not None:
            return [snapshot.again() for snapshot in known[1]]
        secret = None if self._row_secret is None else derive_key(self._row_secret, "row ids", caller)
        account, found, size = self._account(caller), list[Snapshot](), 0
        with self.database.reader() as reader:
            for scan in scans:
                found.append(self._taken(caller, scan, reader, secret))
                account.check(size := size + self._size(found[-1]))  # before the next takes more
        whole = [each for each in found if "" in each.scan.filters and each.scan.view is None]
        self._rows_read |= {each.scan.table.lower(): each.own_rows for each in whole}
        if self._ttl > 0:
            with suppress(PartyError):  # without room it is read again
                self._account(caller).put(("read", repr(scans)), sum(map(self._size, found)))
                with self._lock:
                    self._kept[caller, repr(scans)] = (now + self._ttl, found)
        return found

    def _taken(self, caller: str, scan: Scan, reader: Reader, secret: bytes | None) -> Snapshot:
        try:
            return take_snapshot(scan, reader, secret, self._is_total(scan), self._demands_noise(scan))
        except Exception as error:
            if isinstance(error, EvaluationError) or ran_out(error):
                self._guard.failed(caller, scan)
            raise
