"""A `Party`: one owner of one database, answering four verbs and nothing else.

`describe` tells the schema, `open` reads snapshots for one relation, `run` computes an op on them, `close`
frees them. Sessions belong to their caller: nothing is shared between callers, and every reply passes through here.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import tablepuppet.party.rows  # noqa: F401 - registers its ops
from tablepuppet.errors import PartyError
from tablepuppet.party.audit import AuditLog, Outcome
from tablepuppet.party.blind import derive_key
from tablepuppet.party.bounded import Bounded
from tablepuppet.party.database import Database, SourceTable
from tablepuppet.party.grant import Grant
from tablepuppet.party.guard import Guard
from tablepuppet.party.kept import Shelves
from tablepuppet.party.ledger import FILE, Ledger
from tablepuppet.party.ops import LocalTable, Op, Values, category_secret, find_op
from tablepuppet.party.policy import Policy, TableRule
from tablepuppet.party.release import Release
from tablepuppet.party.request import Reply, Request
from tablepuppet.party.secure_ops import answered
from tablepuppet.party.secure_table import SecureTable
from tablepuppet.party.snapshot import Snapshot, take_snapshot
from tablepuppet.privacy.accountant import Spending
from tablepuppet.privacy.signed_keys import Identity
from tablepuppet.sql.catalog import Shard
from tablepuppet.sql.plan import Scan

HERE = ""  # the caller in whose process the party lives


class Party:
    """One owner of one database.

    ``blinding_key`` is shared by all parties and unknown to the coordinator. ``row_secret`` orders row ids; a
    party inside the coordinator's process has nobody to hide the order from, needs none, and numbers rows as
    its source does. Every verb first asks the guard, which enforces ``policy``, and ends with a line in the
    ``audit`` log. ``state_dir`` keeps what callers have used up of their limits, the parts of their saved models, and
    the ledger of what was spent of privacy budgets; without it nothing is charged. What was read for a caller is read
    anew for its next run once ``snapshot_ttl`` seconds have passed. ``identity`` signs what it tells other shards.
    """

    def __init__(
        self,
        name: str,
        database: Database,
        blinding_key: bytes,
        policy: Policy | None = None,
        row_secret: bytes | None = None,
        audit: AuditLog | None = None,
        state_dir: Path | None = None,
        snapshot_ttl: float = 0.0,
        identity: Callable[[], Identity] | None = None,
    ):
        self.name = name
        self._database = database
        self._blinding_key = blinding_key
        self._guard = Guard(name, policy or Policy(), state_dir)
        self._audit = audit or AuditLog(None)
        self._row_secret, self._identity = row_secret, identity
        self._noise_secret = hmac.digest(row_secret or secrets.token_bytes(32), b"noise", "sha256")
        self._ledger = None if state_dir is None else Ledger(state_dir / FILE, name)
        self._sessions: dict[tuple[str, str], dict[str, LocalTable]] = {}
        self._models: dict[str, Bounded] = {}  # by caller
        self._shelves = Shelves(name, state_dir, self._guard.policy.max_models)
        self._category_secrets: dict[str, bytes] = {}
        self._snapshot_ttl = snapshot_ttl
        self._read: dict[tuple[str, str], tuple[float, list[Snapshot]]] = {}
        self._lock = threading.Lock()

    def answer(self, caller: str, request: Request, outcome: Outcome = "ok") -> Reply:
        """The reply to one request: an answer of the verb unless that is `run`, then one of each step.

        ``outcome`` is what the audit log says of it; ``restored`` if the reply goes nowhere.
        """
        replies: Reply = []
        match request.verb:
            case "describe":
                replies.append({"tables": self.describe(caller), "key": self.key_mark})
            case "open":
                replies.append({"rows": self.open(caller, request.session, **request.arguments, outcome=outcome)})
            case "close":
                self.close(caller, request.session)
                replies.append({})
        for step in request.steps:
            replies.append(self.run(caller, request.session, step.op, step.table, step.arguments, outcome))
        return replies

    @property
    def key_mark(self) -> str:
        """Tells whether two parties hold the same blinding key, and nothing else of it."""
        return derive_key(self._blinding_key, "", "mark").hex()[:16]

    def admit(self, caller: str) -> None:
        """PrivacyError unless the policy lets this caller in."""
        self._guard.admit(caller)

    def note_refusal(self, caller: str, session: str, verb: str, error: Exception) -> None:
        """Put a request into the audit log that was refused before it came here."""
        self._audit.refusal(caller, session, verb, error)

    def describe(self, caller: str) -> list[Shard]:
        """The tables this party publishes to a caller."""
        with self._audit.entry(caller, "", "describe", releases=Release.SCHEMA) as entry:
            self._guard.admit(caller)  # before the database is asked
            tables = self._guard.published(caller, self._database.tables())
            return entry.reply([self._shard(table) for table in tables])

    def _shard(self, table: SourceTable) -> Shard:
        rules = self._guard.policy.table(table.name) or TableRule()
        demands = (rules.budget.require_dp, rules.secure_sum)
        return Shard(self.name, table.name, table.columns, table.rows, *demands)

    def open(
        self, caller: str, session: str, scans: Iterable[Scan], wire: str = "float64", outcome: Outcome = "ok",
        nonce: str | None = None,
    ) -> dict[str, int]:  # fmt: skip
        """Read every shard the relation needs, as of one moment; answers with row counts by alias.

        ``nonce`` is the one under which a session's noise was drawn before, if it comes back.
        """
        tables, listed, nonce = {}, tuple(scans), nonce or secrets.token_hex(16)
        rosters: dict[str, frozenset[str]] = {}
        with self._audit.entry(caller, session, "open", Release.COUNTS, outcome) as entry:
            entry.tables = sorted({scan.table for scan in listed})
            grants = self._guard.open(caller, listed)
            for scan, snapshot in zip(listed, self._snapshots(caller, listed), strict=True):
                tables[scan.alias] = LocalTable(
                    snapshot,
                    grants[scan.alias],
                    self._blinding_key,
                    session,
                    SecureTable(
                        self.name,
                        scan.table,
                        scan.alias,
                        session,
                        caller,
                        self._identity,
                        self._guard.policy.peers,
                        rosters,
                    ),
                    wire,
                    views=self._bounded(f"table {scan.table!r}: relations of this session", "views"),
                    state=self._bounded(f"table {scan.table!r}: encoded relations of this session", "views"),
                    models=self._models.setdefault(caller, self._bounded("models of this caller", "fits")),
                    category_secrets=self._category_secrets,
                    noise_secret=self._noise_secret,
                    nonce=nonce,
                    charged=partial(self._charge, caller, grants[scan.alias]),
                    read=self._whole,
                    shelf=self._shelves.of(caller),
                )
            with self._lock:
                self._sessions[caller, session] = tables
            return entry.reply({alias: table.snapshot.rows for alias, table in tables.items()})

    def _whole(self, scan: Scan) -> Snapshot:
        """What a scan reads now, for the party's own eyes."""
        with self._database.reader() as reader:
            return take_snapshot(scan, reader, None)

    def _charge(self, caller: str, grant: Grant, cost: Spending, purpose: str, release: str | None) -> None:
        if self._ledger is not None:
            self._ledger.charge(grant.table, caller, cost, grant.rules.budget, purpose=purpose, release=release)

    def _bounded(self, what: str, limit: str) -> Bounded:
        return Bounded(f"party {self.name!r}, {what}", limit, getattr(self._guard.policy, limit))

    def _snapshots(self, caller: str, scans: tuple[Scan, ...]) -> list[Snapshot]:
        """What the scans read, as of one moment; what this caller read a short time ago may do."""
        now = time.monotonic()
        with self._lock:
            self._read = {key: kept for key, kept in self._read.items() if kept[0] > now}
            known = self._read.get((caller, repr(scans)))
        if not scans:  # a session for the caller's parts of models
            return []
        if known is not None:
            return [snapshot.again() for snapshot in known[1]]
        with self._database.reader() as reader:
            found = [take_snapshot(scan, reader, self._row_secret) for scan in scans]
        if self._snapshot_ttl > 0:
            with self._lock:
                self._read[caller, repr(scans)] = (now + self._snapshot_ttl, found)
        return found

    def run(
        self, caller: str, session: str, op: str, alias: str, arguments: Mapping[str, Any], outcome: Outcome = "ok"
    ) -> Values:
        """Compute one op on one table of a session, or on the caller's parts of saved models."""
        with self._audit.entry(caller, session, "run", outcome=outcome) as entry:
            self._guard.admit(caller)
            found = find_op(op)
            entry.op, entry.releases = found.name, found.releases
            if found.on_shelf:
                return entry.reply(self._run_on_shelf(caller, session, found, arguments, outcome))
            table = self.table(session, alias, caller)
            entry.tables = [table.grant.table]
            self._guard.run(caller, session, found, table.grant, arguments, bound=table.secure.is_bound)
            table.is_repeat = outcome == "restored"
            return entry.reply(answered(found, table, arguments))

    def _run_on_shelf(
        self, caller: str, session: str, op: Op, arguments: Mapping[str, Any], outcome: Outcome
    ) -> Values:
        """An op on parts of saved models; one that was answered before does nothing again."""
        op.parameters.check(arguments)
        shelf = self._shelves.of(caller)
        for kept, _ in shelf.all(arguments.get("part", "")):
            self._guard.run(caller, session, op, self._guard.grant(caller, kept.scan), arguments)
        return {} if outcome == "restored" else op(shelf, arguments)

    def table(self, session: str, alias: str, caller: str = HERE) -> LocalTable:
        """One table of a session; for code that runs at the party."""
        try:
            return self._sessions[caller, session][alias]
        except KeyError:
            raise PartyError(
                f"party {self.name!r}: no open session has table {alias!r}; open the relation again"
            ) from None

    def fingerprint(self, session: str, caller: str = HERE) -> str:
        """A hash of all rows that a session read, of the secrets that order and blind them, and of its columns' rules.

        With another secret the rows are the same, but row ids and digests mean others. With other rules some releases
        have no noise, and those after them would have that of others.
        """
        tables = self._sessions[caller, session]
        order = hmac.digest(self._row_secret or b"", b"fingerprint", "sha256").hex()
        prints = [self.key_mark, order]
        for alias in sorted(tables):
            prints.append(f"{alias} {tables[alias].snapshot.fingerprint}")
            prints += [f"{name} {output.rule!r}" for name, output in sorted(tables[alias].grant.outputs.items())]
        return hashlib.sha256("\n".join(prints).encode()).hexdigest()

    def category_secret(self, blinding: str) -> bytes:
        """The secret of a model's categories; for saving a model beside a party in the same process."""
        return self._category_secrets.get(blinding) or category_secret(self._blinding_key, blinding)

    def adopt_category_secret(self, blinding: str, secret: bytes) -> None:
        """Use the secret of a saved model for its categories."""
        self._category_secrets[blinding] = secret

    def close(self, caller: str, session: str) -> None:
        """Free everything that a session holds, the parts of its models too."""
        with self._lock:
            self._sessions.pop((caller, session), None)
            models = self._models.get(caller) or Bounded()
            for name in [name for name in models if name.startswith(f"{session}.")]:
                del models[name]
        self._guard.close(caller, session)
        with suppress(PartyError), self._audit.entry(caller, session, "close"):
            pass  # nothing leaves with it: a log that cannot be written must not keep sessions open
