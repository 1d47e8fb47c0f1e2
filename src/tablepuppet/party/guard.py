"""The `Guard`: the one place where a party's policy is enforced, at `open` and on every op.

Input: the caller, and what is asked. Output: nothing, or a PrivacyError that names party, table, column and rule. The
service calls it before anything is read or computed.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from tablepuppet.errors import ConfigError, PartyError
from tablepuppet.party.allowance import check_time
from tablepuppet.party.approval import Approvals
from tablepuppet.party.counters import Counters
from tablepuppet.party.database import SourceTable
from tablepuppet.party.grant import Grant, refusal
from tablepuppet.party.groups import check_declared
from tablepuppet.party.ops import SECURE, Op
from tablepuppet.party.origins import Origin
from tablepuppet.party.policy import CELLS, Policy, TableRule
from tablepuppet.party.release import Release
from tablepuppet.party.request import UNDECLARED, Declared
from tablepuppet.party.secure_table import RULE
from tablepuppet.sql.expression import is_column
from tablepuppet.sql.plan import Scan

SUMS = Release.GRADIENT_SUMS | Release.GRAM | Release.PARAMETERS
"""Releases that are sums over the shards of a table: with ``secure_sum`` each shard masks its summand."""


class Guard:
    """Enforces the policy of one party."""

    def __init__(self, party: str, policy: Policy, state_dir: Path | None = None, counters: Counters | None = None):
        self.party, self.policy = party, policy
        self._counters = Counters(state_dir) if counters is None else counters
        self._approvals = Approvals(party, state_dir)
        self._evaluates: Counter[tuple[str, str]] = Counter()  # queries now, by caller and table
        self._evaluated = threading.Condition()

    def admit(self, caller: str) -> None:
        """Refuse a caller that the policy does not allow."""
        if self.policy.allow is not None and caller not in self.policy.allow:
            raise refusal(self.party, "allow", f"caller {caller!r} is not allowed")

    def published(self, caller: str, tables: Iterable[SourceTable]) -> list[SourceTable]:
        """The tables that a caller may know of."""
        self.admit(caller)
        listed = list(tables)
        self._check_names(listed)
        return [table for table in listed if self._allowed(caller, table.name) is not None]

    def open(self, caller: str, scans: Sequence[Scan], job: Declared = UNDECLARED) -> dict[str, Grant]:
        """What the caller may do with each table of a relation, by alias; ``job`` is what it says that this is for."""
        self.admit(caller)
        if scans and self.policy.require_purpose and not job.purpose.strip():
            raise refusal(
                self.party,
                "require_purpose",
                "it answers only who says what for: give a purpose, in the federation or job file, or as "
                "tp.Federation(..., purpose=...)",
            )
        if len({scan.alias for scan in scans}) < len(scans):  # else the rules of one would hold for the other
            raise PartyError(f"party {self.party!r}: two tables of the relation have one alias")
        grants = {scan.alias: Grant.of(self.party, self._rules(caller, scan.table), scan) for scan in scans}
        needed = [scan for scan in scans if grants[scan.alias].rules.require_approval]
        if needed:
            approval = self._approvals.approved(caller, job, needed)
            grants |= {scan.alias: replace(grants[scan.alias], approval=approval) for scan in needed}
        for table in dict.fromkeys(scan.table for scan in scans):
            self._count(caller, table, [scan for scan in scans if scan.table == table])
        return grants

    def grant(self, caller: str, scan: Scan) -> Grant:
        """What the caller may do with a table now, where nothing is read."""
        found = Grant.of(self.party, self._rules(caller, scan.table), scan)
        if found.rules.require_approval:
            return replace(found, approval=self._approvals.kept(caller, scan))
        return found

    def run(
        self, caller: str, session: str, op: Op, grant: Grant, arguments: Mapping[str, Any], *, bound: bool = False
    ) -> None:
        """Refuse an op that would release what the policy forbids; ``bound``: sums may be released only masked."""
        grant.check(op, arguments)
        check_declared(grant, op, arguments)
        _check_sums(op, grant, arguments, bound=bound)
        self._count_use(caller, session, op, grant, arguments)

    def run_on_kept(
        self, caller: str, session: str, op: Op, origin: Origin, arguments: Mapping[str, Any], own: str = ""
    ) -> str:
        """Refuse an op on something kept that the table it comes from does not allow; that table's name.

        ``own`` is the table that the op runs on, for which it is counted already.
        """
        grant = self.grant(caller, origin.scan)
        grant.check_kept(op, arguments, noisy=origin.noisy)
        check_declared(grant, op, arguments)
        _check_sums(op, grant, arguments, bound=False)
        if grant.table.lower() != own.lower():
            self._count_use(caller, session, op, grant, arguments)
        return grant.table

    def _count_use(self, caller: str, session: str, op: Op, grant: Grant, arguments: Mapping[str, Any]) -> None:
        """Count an op against what a session may ask of a table."""
        if op.directions:
            self._count_directions(caller, session, grant, arguments.get(op.directions))
        most = self.policy.limits.max_prediction_rounds
        if op.is_round and not self._counters.use("rounds", caller, session, grant.table, most):
            reason = f"the session has had its {most} rounds; open the relation again, or ask the party's operator"
            raise grant.refusal("max_prediction_rounds", reason)

    def _count_directions(self, caller: str, session: str, grant: Grant, given: object) -> None:
        """Count the columns of vectors that the caller chose."""
        most = self.policy.limits.max_matrix_columns
        columns = int(given) if isinstance(given, Integral) else 1  # as many as the op says it releases
        if isinstance(given, np.ndarray):  # vectors, or places of columns that a function is applied to
            columns = given.shape[1] if given.ndim == 2 else given.size if given.dtype.kind in "iu" else 1
        if not self._counters.use("columns", caller, session, grant.table, most, max(columns, 1)):
            reason = (
                f"the session has had products with {most} vectors of its own choice, or would with these; ask for "
                "fewer, open the relation again for others, or ask the party's operator"
            )
            raise grant.refusal("max_matrix_columns", reason)

    def split(self, caller: str, grant: Grant, chosen: str, rows: int) -> None:
        """Count a choice of rows by their places in the source, of which the table has ``rows`` now."""
        reason = (
            "used {most} distinct splits, which reveal the order of rows; take a seed, share and folds that were "
            "used, over the same rows (TargetEncode and WOE: folds=1), or ask the party's operator"
        )
        self._use("max_splits", caller, grant.table, [chosen], reason, state=f"{rows} rows ")

    def refine(self, caller: str, grant: Grant, refined: Sequence[str]) -> None:
        """Count columns of some rows whose histogram is refined: over rows that differ by one, it reveals that one."""
        reason = (
            "had {most} refined histograms of columns that are not public, or would with these; ask for columns and "
            "rows that were asked for before, or ask the party's operator"
        )
        self._use("max_refinements", caller, grant.table, refined, reason)

    @contextmanager
    def evaluating(self, caller: str, scans: Sequence[Scan]) -> Iterator[None]:
        """Refuse a caller with too many failed queries; at the same time, only as many run as may still fail."""
        most = self.policy.limits.max_failures
        tables = sorted({scan.table.lower() for scan in scans if _may_fail(scan)})
        with ExitStack() as begun:
            for table in tables if most is not None else ():
                self._begin(caller, table, most or 0)
                begun.callback(self._end, caller, table)
            yield

    def _begin(self, caller: str, table: str, most: int) -> None:
        with self._evaluated:
            while (used := self._counters.used("failures", caller, table)) < most:
                if used + self._evaluates[caller, table] < most:
                    self._evaluates[caller, table] += 1
                    return
                check_time()
                self._evaluated.wait(1.0)  # for one that may fail
        reason = (
            f"expressions of caller {caller!r} have failed on its rows {most} times, which reveals some of them; "
            "select plain columns without a filter, or ask the party's operator"
        )
        raise refusal(self.party, "max_failures", reason, table)

    def _end(self, caller: str, table: str) -> None:
        with self._evaluated:
            self._evaluates[caller, table] -= 1
            self._evaluates += Counter()  # forgets those at zero
            self._evaluated.notify_all()

    def failed(self, caller: str, scan: Scan, beside: int = 0) -> None:
        """Count a scan that failed because of row values: the failure itself reveals something about them."""
        if _may_fail(scan):
            most = self.policy.limits.max_failures
            self._counters.use_texts("failures", caller, scan.table, [f"{scan!r} {beside}"], most)

    def close(self, caller: str, session: str) -> None:
        """Free what is remembered of a session."""
        self._counters.forget_session(caller, session)

    def _allowed(self, caller: str, table: str) -> TableRule | None:
        rules = self.policy.table(table)
        return rules if rules and (rules.allow is None or caller in rules.allow) else None

    def _rules(self, caller: str, table: str) -> TableRule:
        rules = self._allowed(caller, table)
        if rules is None:  # the same message for a hidden table and for one that does not exist
            raise refusal(self.party, "allow", f"is not published to caller {caller!r}", table)
        return rules

    def _count(self, caller: str, table: str, scans: Sequence[Scan]) -> None:
        """Count the filters, and the expressions over features, that the caller has not used before."""
        filters = [text for scan in scans for text in filter(None, (*scan.filters, *scan.conditions))]
        self._use("max_filters", caller, table, filters, "used {most} distinct filters, or would with this one")
        if self.policy.limits.max_expressions is not None:
            outputs = [text for scan in scans for text in scan.outputs.values() if _computes(text)]
            self._use(
                "max_expressions", caller, table, outputs, "used {most} distinct expressions, or would with these"
            )

    def _use(self, rule: str, caller: str, table: str, texts: Iterable[str], reason: str, state: str = "") -> None:
        """Count texts that the caller has not used before; PrivacyError if there are then more than a limit allows."""
        most = getattr(self.policy.limits, rule)
        if not self._counters.use_texts(rule.removeprefix("max_"), caller, table, texts, most, state):
            raise refusal(self.party, rule, f"caller {caller!r} has {reason.format(most=most)}", table)

    def _check_names(self, tables: Sequence[SourceTable]) -> None:
        known = {table.name.lower() for table in tables}
        known |= {f"{table.name}.{column}".lower() for table in tables for column in table.columns}
        strange = sorted(self.policy.named - known)
        if strange:  # a misspelled level would leave the column it means public
            raise ConfigError(
                f"party {self.party!r}: levels, bounds or categories name {strange[0]!r}, which is not a table or "
                "column that it publishes"
            )


def _check_sums(op: Op, grant: Grant, arguments: Mapping[str, Any], *, bound: bool) -> None:
    """PrivacyError if an op would release a sum unmasked that must be masked, or cells, of which sums can be made."""
    demanded = grant.rules.secure_sum
    if not demanded and not bound:
        return
    cells = op.releases & (CELLS if demanded else Release.VALUES)
    if cells:
        raise grant.refusal(
            RULE, f"sums over its rows leave only within a sum over shards, so that it does not release {cells.label}"
        )
    if op.releases & SUMS and not (op.summed and SECURE in arguments):
        raise grant.refusal(
            RULE,
            "sums over its rows leave only within a sum over three or more shards; learn with "
            "privacy=tp.Privacy(secure_sum=True), or take rel.matrix(secure_sum=True), over so many shards",
        )


def _may_fail(scan: Scan) -> bool:
    """Whether a scan evaluates anything."""
    keys = [text for key in scan.keys for text in key.expressions]
    return any(map(_computes, [*scan.outputs.values(), *keys])) or any((*scan.filters, *scan.conditions))


def _computes(text: str) -> bool:
    """Whether an expression is more than a column."""
    return not is_column(text)
