"""What one caller could learn from a party and ask it for: `tablepuppet party check --as`.

Input: a party file, the name of a caller, and a query if one is to be tried. Output, for the operator only: the tables
that the caller knows of, what may be released of each column, what is left of budgets and limits, and whether the query
would be accepted, or which rule refuses it. It reads the database's catalog and counts rows, as `party check` does.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec

from tablepuppet.errors import PrivacyError, TablePuppetError
from tablepuppet.party.config import PartyFile
from tablepuppet.party.counters import Counters
from tablepuppet.party.guard import Guard
from tablepuppet.party.ledger import FILE, Account, Ledger
from tablepuppet.party.published import open_published
from tablepuppet.party.report import PartyReport, TableReport
from tablepuppet.party.service import Party
from tablepuppet.party.state import check_ledger
from tablepuppet.sql.catalog import Catalog
from tablepuppet.sql.parse import parse
from tablepuppet.sql.plan import plan, text_of

COUNTED = ("max_filters", "max_expressions", "max_splits", "max_refinements", "max_failures")


class LimitReport(msgspec.Struct, frozen=True):
    """A limit by caller and table, and what the caller has used of it; None: there is no limit."""

    table: str
    limit: str
    used: int
    most: int | None


class SelectedReport(msgspec.Struct, frozen=True):
    """A selected expression, and what may be released of it."""

    name: str
    columns: list[str]
    uses: list[str]
    level: str
    releases: list[str]


class QueryReport(msgspec.Struct, frozen=True):
    """Whether a query would be opened; if not, the rule that refuses it and why."""

    accepted: bool
    rule: str
    reason: str
    reads: list[str]
    selected: list[SelectedReport]


class Outlook(msgspec.Struct, frozen=True):
    """What a caller could learn and ask."""

    party: str
    caller: str
    admitted: bool
    needs_purpose: bool
    needs_approval: list[str]  # tables
    tables: list[TableReport]
    budgets: list[Account]
    limits: list[LimitReport]
    query: QueryReport | None


def outlook(path: Path, report: PartyReport, caller: str, sql: str | None = None) -> Outlook:
    """What a caller could learn from the party of a file, and ask it for; ``report`` is what `inspect` found."""
    settings = PartyFile.load(path)
    policy, state = settings.policy(), None if settings.state_dir is None else Path(settings.state_dir)
    admitted = policy.allow is None or caller in policy.allow
    tables = [table for table in report.tables if admitted and caller in table.callers]
    used = Counters.seen(state)
    limits = [
        LimitReport(table.name, name, used.used(name.removeprefix("max_"), caller, table.name), most)
        for table in tables
        for name in COUNTED
        if (most := getattr(policy.limits, name)) is not None
    ]
    needed = [table.name for table in tables if (rules := policy.table(table.name)) and rules.require_approval]
    return Outlook(
        settings.name,
        caller,
        admitted,
        settings.require_purpose,
        needed,
        tables,
        _budgets(settings, tables, caller, state),
        limits,
        None if sql is None else _tried(settings, caller, sql, used),
    )


def _budgets(settings: PartyFile, tables: list[TableReport], caller: str, state: Path | None) -> list[Account]:
    """What the caller, and all together, have spent of each table's budget."""
    ledger = Ledger(state / FILE, settings.name) if state is not None and _has_ledger(state) else None
    found = []
    for table in tables:
        budget = table.budget
        accounts = [] if ledger is None else ledger.accounts(table.name, budget)
        known = {account.caller: account for account in accounts}
        for who, most in (("", budget.epsilon), (caller, budget.epsilon_per_caller)):
            if most is not None or who in known:
                found.append(known.get(who, Account(table.name.lower(), who, 0.0, most, most, budget.delta)))
    return found


def _has_ledger(state: Path) -> bool:
    return state.is_dir() and check_ledger(state)


def _tried(settings: PartyFile, caller: str, sql: str, used: Counters) -> QueryReport:
    """Whether a query over the party's own tables would be opened. Nothing is read, counted or written."""
    policy = settings.policy()
    tables = {name: replace(rules, require_approval=False) for name, rules in policy.tables.items()}
    policy = replace(policy, tables=tables, require_purpose=False)  # both are told apart
    reads: list[str] = []
    try:
        party = Party(settings.name, open_published(settings), b"", policy)
        catalog = Catalog(party.describe(caller))
        scans = plan(parse(sql, catalog), catalog).scans
        reads = [text_of(scan) for scan in scans]
        grants = Guard(settings.name, policy, counters=used).open(caller, scans)
    except TablePuppetError as error:
        rule = error.rule if isinstance(error, PrivacyError) else type(error).__name__
        return QueryReport(False, rule, str(error), reads, [])
    selected = [
        SelectedReport(
            name,
            sorted(output.columns),
            [(use.name or "").lower() for use in output.rule.uses],
            output.rule.level.name.lower(),
            list(grant.rules.releases(output.rule).names),
        )
        for grant in grants.values()
        for name, output in grant.outputs.items()
    ]
    return QueryReport(True, "", "", reads, selected)
