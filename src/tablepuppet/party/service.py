"""A `Party`: one owner of one database, answering four verbs and nothing else.

`describe` returns the schema, `open` reads snapshots for one relation, `run` computes an op on them, `close`
frees them. Sessions belong to their caller: nothing is shared between callers, and every reply passes through here.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

import tablepuppet.party.rows  # noqa: F401 - registers its ops
from tablepuppet.errors import PartyError
from tablepuppet.party.allowance import Allowance, allowed, check_reply, check_time
from tablepuppet.party.audit import AuditLog, Entry, Outcome
from tablepuppet.party.beside import columns_beside
from tablepuppet.party.blind import derive_key
from tablepuppet.party.bounded import Bounded, MemoryAccount, Owned, size_of
from tablepuppet.party.database import Database, SourceTable
from tablepuppet.party.databases.servers import AllInUseError
from tablepuppet.party.delivery import Deliveries
from tablepuppet.party.grant import Grant
from tablepuppet.party.guard import Guard
from tablepuppet.party.kept import Shelves
from tablepuppet.party.ledger import FILE, Ledger
from tablepuppet.party.local_table import LocalTable, Place, ReleaseLog, Unlogged, category_secret
from tablepuppet.party.metrics import Metrics
from tablepuppet.party.openings import Openings
from tablepuppet.party.ops import Op, Values, find_op
from tablepuppet.party.origins import Origin, Reached
from tablepuppet.party.policy import Level, Policy, TableRule, Use
from tablepuppet.party.readings import Readings
from tablepuppet.party.release import BY_ROW, Release
from tablepuppet.party.request import UNDECLARED, Declared, Reply, Request
from tablepuppet.party.secure_ops import answered
from tablepuppet.party.secure_table import SecureTable
from tablepuppet.privacy.accountant import Spending
from tablepuppet.privacy.signed_keys import Identity
from tablepuppet.sql.catalog import Shard
from tablepuppet.sql.plan import Scan

LEARNED = Use.FEATURE | Use.LABEL
HERE = ""  # the caller in whose process the party lives


class Party:
    """One owner of one database.

    ``blinding_key`` is shared by all parties and unknown to the coordinator. ``row_secret`` orders row ids, for each
    caller otherwise; a party inside the coordinator's process has nobody to hide the order from, needs none, and
    numbers rows as its source does. Every verb first asks the guard, which enforces ``policy``, and ends with a line
    in the ``audit`` log. ``state_dir`` keeps what callers have used up of their limits, the parts of their saved
    models, and the ledger of what was spent of privacy budgets; without it nothing is charged. What was read for a
    caller is read again for its next run once ``snapshot_ttl`` seconds have passed. ``identity`` signs what it sends
    to other shards. ``deliveries`` are the places for predictions that it takes home; without them it takes none.
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
        deliveries: Deliveries | None = None,
    ):
        self.name = name
        self._blinding_key = blinding_key
        self._guard = Guard(name, policy or Policy(), state_dir)
        limits = self._guard.policy.limits
        self._audit = audit or AuditLog(None)
        self._row_secret, self._identity = row_secret, identity
        self._deliveries = deliveries or Deliveries(name, {}, database)
        self._noise_secret = hmac.digest(row_secret or secrets.token_bytes(32), b"noise", "sha256")
        self._ledger = None if state_dir is None else Ledger(state_dir / FILE, name, limits.ledger_releases)
        self._sessions: dict[tuple[str, str], dict[str, LocalTable]] = {}
        self._models: dict[str, tuple[Bounded, dict[str, str]]] = {}  # by caller, and the sessions that made them
        self._accounts: dict[str, MemoryAccount] = {}  # by caller
        self._turns: dict[str, threading.BoundedSemaphore] = {}  # by caller: requests that are computed now
        self._shelves = Shelves(name, state_dir, limits.max_models, limits.kept_bytes)
        self._category_secrets: dict[str, bytes] = {}
        self._openings = Openings(name)
        self._readings = Readings(database, self._guard, self._account, row_secret, snapshot_ttl)
        self._lock = threading.Lock()

    def answer(
        self,
        caller: str,
        request: Request,
        outcome: Outcome = "ok",
        replies: Reply | None = None,
        *,
        again: bool = False,
        made: ReleaseLog | None = None,
        is_abandoned: Callable[[], bool] | None = None,
    ) -> Reply:
        """The reply to one request: an answer of the verb unless that is `run`, then one of each step.

        ``outcome`` is what the audit log says of it; ``restored`` if the reply goes nowhere. ``replies`` is filled one
        by one: whoever gives a list knows how far the request has come if it fails. ``again``: the party has accepted
        the request before it was restarted. ``made`` keeps what a session that is opened releases with noise.
        Once it ``is_abandoned``, what only reads is ended: nobody waits for the reply.
        """
        reads = request.verb in ("describe", "open")
        allowance = self._allowance(caller, outcome, is_abandoned if reads else None)
        replies = [] if replies is None else replies
        refusing = self._audit.refusing(caller, request.session, request.verb)
        with allowed(allowance), ExitStack() as held:
            with refusing:
                held.enter_context(self._at_work(caller))
            match request.verb:
                case "describe":
                    tables = self.describe(caller)
                    nonce = None if caller == HERE else self._openings.issue(caller)
                    name = None if caller == HERE or self._identity is None else self._identity().name
                    replies.append({"tables": tables, "key": self.key_mark, "nonce": nonce, "identity": name})
                case "open":
                    rows = self.open(
                        caller, request.session, **request.arguments, outcome=outcome, again=again, made=made
                    )
                    replies.append({"rows": rows})
                case "close":
                    self.close(caller, request.session)
                    replies.append({})
                case "run" if not request.steps:  # a caller that asks whether the party is back: a line all the same
                    with self._audit.entry(caller, request.session, "run", outcome=outcome):
                        pass
            size = 0
            for number, step in enumerate(request.steps):
                with refusing:
                    check_time()
                place = None if caller == HERE else (request.sequence, number)
                found = self.run(caller, request.session, step.op, step.table, step.arguments, outcome, place)
                with refusing:
                    check_reply(size := size + size_of(found))
                replies.append(found)
        return replies

    def _allowance(self, caller: str, outcome: Outcome, is_abandoned: Callable[[], bool] | None) -> Allowance:
        """What one request may take; what was computed in time before may take longer now."""
        limits = self._guard.policy.limits
        if outcome == "restored":
            limits = msgspec.structs.replace(limits, request_seconds=None, releases_per_request=None)
        return Allowance(self.name, limits, self._account(caller), is_abandoned)

    def _account(self, caller: str) -> MemoryAccount:
        with self._lock:
            if caller not in self._accounts:
                self._accounts[caller] = MemoryAccount(self.name, self._guard.policy.limits.memory_bytes)
            return self._accounts[caller]

    def hold_reply(self, caller: str, session: str, size: int) -> None:
        """Count the bytes of a session's last reply, which is kept until the next; PartyError if there is no room."""
        with self._audit.refusing(caller, session, "run"):
            self._account(caller).put(("reply", session), size)

    @contextmanager
    def _at_work(self, caller: str) -> Iterator[None]:
        """Compute this number of a caller's requests at once; the others wait, since each takes memory."""
        most = self._guard.policy.limits.work_per_caller
        if most is None:
            yield
            return
        with self._lock:
            if caller not in self._turns:
                self._turns[caller] = threading.BoundedSemaphore(most)
            turn = self._turns[caller]
        if not turn.acquire(blocking=False):
            self.reached("work_per_caller")
            while not turn.acquire(timeout=1.0):
                check_time()
        try:
            yield
        finally:
            turn.release()

    def _models_of(self, caller: str, session: str) -> Owned:
        """A caller's models, as a session sees them."""
        account = self._account(caller)
        with self._lock:
            held = self._models.setdefault(caller, (self._bounded("models of this caller", "fits", account), {}))
            return Owned(*held, session)

    @property
    def key_mark(self) -> str:
        """A value that is equal for parties with the same blinding key, and reveals nothing else of it."""
        return derive_key(self._blinding_key, "mark of digests by source").hex()[:16]

    def admit(self, caller: str) -> None:
        """PrivacyError unless the policy lets this caller in."""
        self._guard.admit(caller)

    def note_refusal(self, caller: str, session: str, verb: str, error: Exception) -> None:
        """Put a request into the audit log that was refused before it came here."""
        self._audit.refusal(caller, session, verb, error)

    def reached(self, limit: str) -> None:
        """Count a limit that ran out where no request was refused because of it."""
        self._audit.reached(limit)

    def close_log(self) -> None:
        """Close the audit log, when nobody calls any more."""
        self._audit.close()

    @property
    def callers(self) -> frozenset[str]:
        """The callers that the policy names."""
        return self._guard.policy.allow or frozenset()

    def adopt(
        self, policy: Policy, database: Database, deliveries: Deliveries, identity: Identity | None = None
    ) -> None:
        """Have other rules from now on, and what they publish; sessions that are open keep those of their tables."""
        with self._lock:
            self._guard.policy, self._deliveries = policy, deliveries
            self._identity = None if identity is None else lambda: identity
        self._readings.adopt(database)

    def tables_of(self, caller: str, session: str) -> list[str]:
        """The names of the tables that a session is over."""
        opened = self._sessions.get((caller, session), {})
        return sorted({table.grant.table for table in opened.values()})

    def reach_database(self) -> None:
        """PartyError unless the database can be opened now, or is open as often as it may be."""
        with suppress(AllInUseError), self._readings.database.reader():
            pass

    def measure(self, metrics: Metrics) -> None:
        """Have metrics read what the party holds for its callers, in memory and on disk, and its budgets."""
        in_memory = "Bytes of memory that a caller's tables, encoded rows and models take."
        metrics.gauge("memory_bytes", in_memory, self._held_bytes, "caller")
        if self._shelves.keeps:
            saved = "Bytes of saved models on disk."
            metrics.gauge("saved_model_bytes", saved, lambda: self._shelves.sizes(self.callers), "caller")
        if self._ledger is not None:
            metrics.budgets(self._ledger)

    def _held_bytes(self) -> list[tuple[tuple[str], float]]:
        with self._lock:
            return [((caller,), account.total) for caller, account in self._accounts.items()]

    def describe(self, caller: str) -> list[Shard]:
        """The tables this party publishes to a caller."""
        with self._audit.entry(caller, "", "describe", releases=Release.SCHEMA) as entry:
            self._guard.admit(caller)  # before the database is asked
            return entry.reply([self._shard(caller, table) for table in self._readings.published(caller)])

    def _shard(self, caller: str, table: SourceTable) -> Shard:
        policy = self._guard.policy
        rules = policy.table(table.name) or TableRule()
        rule_of = {name: rules.column(name) for name in table.columns}
        public = tuple(name for name, rule in rule_of.items() if rule is not None and rule.level is Level.PUBLIC)
        known = {name: rule for name, rule in rule_of.items() if rule is not None and rule.level is not Level.PRIVATE}
        require_dp = bool(rules.budget.require_dp)
        return Shard(
            party=self.name,
            name=table.name,
            columns=table.columns,
            rows=table.rows,
            require_dp=require_dp,
            secure_sum=rules.secure_sum,
            max_rounds=policy.limits.max_prediction_rounds,
            public=() if require_dp else public,
            funds=() if self._ledger is None else self._ledger.funds(table.name, caller, rules.budget),
            bounds={name: rule.bounds for name, rule in known.items() if rule.bounds and rule.uses & LEARNED},
            categories={
                name: rule.categories if Use.LABEL in rule.uses else ()
                for name, rule in known.items()
                if rule.categories is not None and rule.uses & LEARNED
            },
            cross_statistics=rules.cross_statistics and not rules.secure_sum,
            embeddings=None if rules.embeddings is None else (rules.embeddings.max_width, rules.embeddings.max_epochs),
            matrix=rules.matrix and not require_dp,
            values=tuple(
                name for name, rule in rule_of.items() if rule is not None and Release.VALUES & rules.releases(rule)
            ),
            label_means=rules.label_means and not require_dp,
            min_group=rules.min_group,
            min_rows=rules.min_rows,
            require_approval=rules.require_approval,
            aggregates=table.aggregates,
            estimated=table.estimated,
        )

    def open(
        self, caller: str, session: str, scans: Iterable[Scan], wire: str = "float64", outcome: Outcome = "ok",
        nonce: str | None = None, nonces: Iterable[str] = (), job: Declared = UNDECLARED, again: bool = False,
        made: ReleaseLog | None = None,
    ) -> dict[str, int]:  # fmt: skip
        """Read every shard the relation needs, as of one moment; answers with row counts by alias.

        ``nonce`` is the one under which a session's noise was drawn before, if it comes back. ``nonces`` are those that
        parties gave with their catalogs, this one's among them; ``again``: they were taken before. ``job`` is what the
        caller says that it is for. ``made`` keeps what is released with noise.
        """
        tables, listed, nonce, given = {}, tuple(scans), nonce or secrets.token_hex(16), sorted(set(nonces))
        rosters: dict[str, frozenset[str]] = {}
        blinds, again = any(scan.keys for scan in listed), again or caller == HERE
        run_key = derive_key(self._blinding_key, "run", session, *given)
        account = self._account(caller)
        with self._audit.entry(caller, session, "open", Release.COUNTS, outcome) as entry:
            entry.tables = sorted({scan.table for scan in listed})
            entry.about = self._audit.about(job, listed)
            grants = self._guard.open(caller, listed, job)
            entry.columns = sorted({f"{scan.table}.{name}" for scan in listed for name in scan.read})
            if not again:
                self._openings.check(caller, session, given, blinds=blinds)
            for scan, snapshot in zip(listed, self._readings.of_session(caller, session, listed), strict=True):
                grant, peers = grants[scan.alias], self._guard.policy.peers
                tables[scan.alias] = LocalTable(
                    snapshot=snapshot,
                    caller=caller,
                    grant=grant,
                    secure=SecureTable(
                        self.name, scan.table, scan.alias, session, caller, self._identity, peers, rosters
                    ),
                    wire=wire,
                    secret=self._blinding_key,
                    run_key=run_key,
                    category_secrets=self._category_secrets,
                    noise_secret=self._noise_secret,
                    nonce=nonce,
                    views=self._bounded(f"table {scan.table!r}: relations of this session", "views", account),
                    _held_here=self._bounded(
                        f"table {scan.table!r}: encoded relations of this session", "views", account
                    ),
                    _held_models=self._models_of(caller, session),
                    _shelf=self._shelves.of(caller),
                    made=made or Unlogged(),
                    charged=partial(self._charge, caller, grant),
                    split_by=partial(self._readings.split, caller, grant),
                    refine=partial(self._guard.refine, caller, grant),
                    _read_now=self._readings.whole,
                    _read_beside=partial(columns_beside, snapshot, database=self._readings.database),
                    deliveries=self._deliveries,
                )
            if caller != HERE:
                self._openings.use(caller, session, given, blinds=blinds, again=again)
            with self._lock:
                self._sessions[caller, session] = tables
            self._audit.begin(caller, session, entry.about)
            entry.rows = sum(table.snapshot.rows for table in tables.values())
            return entry.reply({alias: table.snapshot.rows for alias, table in tables.items()})

    def _charge(self, caller: str, grant: Grant, cost: Spending, purpose: str, release: str | None, line: str) -> None:
        if self._ledger is not None:
            self._ledger.charge(
                grant.table, caller, cost, grant.rules.budget, purpose=purpose, release=release, line=line,
                job=None if grant.approval is None else grant.approval.spend(),
            )  # fmt: skip

    def _bounded(self, what: str, limit: str, account: MemoryAccount) -> Bounded:
        return Bounded(f"party {self.name!r}, {what}", limit, getattr(self._guard.policy.limits, limit), account)

    def run(
        self, caller: str, session: str, op: str, alias: str, arguments: Mapping[str, Any], outcome: Outcome = "ok",
        place: Place | None = None,
    ) -> Values:  # fmt: skip
        """Compute one op on one table of a session, or on the caller's parts of saved models.

        ``place`` is that of the op in the session; None: after those before it.
        """
        with self._audit.entry(caller, session, "run", outcome=outcome) as entry:
            self._guard.admit(caller)
            found = find_op(op)
            entry.ask(found.name, found.releases, arguments)
            if found.on_shelf:
                return entry.reply(self._run_on_shelf(caller, session, found, arguments, entry))
            table = self.table(session, alias, caller)
            entry.tables, entry.columns = [table.grant.table], table.grant.columns(found, arguments)
            self._guard.run(caller, session, found, table.grant, arguments, bound=table.secure.is_bound)
            table.is_repeat, table.is_by_row = outcome == "restored", not found.releases & ~BY_ROW
            with table.running(partial(self._allow, caller, session, found, arguments, entry), place):
                values = answered(found, table, arguments)
            table.measure()
            entry.rows = table.rows_of(arguments.get("view"))
            return entry.reply(values)

    def _allow(
        self, caller: str, session: str, op: Op, arguments: Mapping[str, Any], entry: Entry, origin: Origin
    ) -> None:
        """Let an op use something that comes from elsewhere than its table, if the policy allows it."""
        own = "" if op.on_shelf else entry.tables[0]
        table = self._guard.run_on_kept(caller, session, op, origin, arguments, own)
        entry.tables = list(dict.fromkeys([*entry.tables, table]))

    def _run_on_shelf(self, caller: str, session: str, op: Op, arguments: Mapping[str, Any], entry: Entry) -> Values:
        """An op on parts of saved models; one that was answered before does nothing again."""
        op.parameters.read(arguments)
        reached = Reached(allow=partial(self._allow, caller, session, op, arguments, entry))
        shelf = self._shelves.of(caller).watched(lambda: reached)
        return {} if entry.outcome == "restored" else op(shelf, arguments)

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

    def knows_categories(self, blinding: str, key: str) -> bool:
        """Whether it has the secret of a model's categories: from the saved model, or by a key of the same mark."""
        return blinding in self._category_secrets or key == self.key_mark

    def settle_opening(self, caller: str, session: str) -> None:
        """A session was opened, and its caller is told: its name is used up."""
        self._openings.settle(caller, session)

    def give_back_opening(self, caller: str, session: str) -> None:
        """Let a session open again under its name that the machine had no room to open, before its caller was told."""
        self._openings.give_back(caller, session)

    def close(self, caller: str, session: str) -> None:
        """Free everything that a session holds, the parts of its models too."""
        self.settle_opening(caller, session)
        with self._lock:
            tables = self._sessions.pop((caller, session), {})
        for table in tables.values():
            table.free()
        self._account(caller).drop((session,))
        self._account(caller).drop(("reply", session))
        self._guard.close(caller, session)
        with suppress(PartyError), self._audit.entry(caller, session, "close"):
            pass  # nothing leaves with it: a log that cannot be written must not keep sessions open
        self._audit.end(caller, session)
