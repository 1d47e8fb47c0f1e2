"""What one caller could learn from a party and ask it for: `tablepuppet party check --as`.

Input: a party file, the name of a caller, and a query if one is to be tried. Output, for the operator only: the tables
that the caller knows of, what may be released of each column, what is left of budgets and limits, and whether the query
would be accepted, or which rule refuses it. It reads the database's catalog and counts rows, as `party check` does.
Tables of other parties are what the operator says: names and types of columns, which is all that a query needs of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import duckdb
import msgspec
from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

from tablepuppet.errors import ConfigError, PrivacyError, TablePuppetError
from tablepuppet.party.config import PartyFile
from tablepuppet.party.counters import Counters
from tablepuppet.party.guard import Guard
from tablepuppet.party.ledger import FILE, Account, Ledger
from tablepuppet.party.published import open_published
from tablepuppet.party.report import PartyReport, TableReport
from tablepuppet.party.service import Party
from tablepuppet.party.state import check_ledger
from tablepuppet.sql.catalog import Catalog, Shard
from tablepuppet.sql.dialect import AsWritten
from tablepuppet.sql.parameters import Parameters
from tablepuppet.sql.parse import parse
from tablepuppet.sql.plan import plan, text_of
from tablepuppet.sql.quiet_duckdb import scratch

ANOTHER = "another party"
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


def outlook(
    path: Path, report: PartyReport, caller: str, sql: str | None = None, others: Sequence[str] = (),
    params: Parameters | None = None,
) -> Outlook:  # fmt: skip
    """What a caller could learn from the party of a file, and ask it for; ``report`` is what `inspect` found.

    ``others`` are tables of other parties that a query joins, as `stated_table` reads them, ``params`` the values of
    its parameters.
    """
    settings = PartyFile.load(path)
    elsewhere = [stated_table(text) for text in others]
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
        None if sql is None else _tried(settings, caller, sql, elsewhere, params, used),
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


def stated_table(text: str) -> Shard:
    """A table of another party as an operator writes it, with the party's name or without; ConfigError if it is none.

    >>> stated_table("shop.orders(card INT, amount DECIMAL(8, 2))").columns
    {'card': 'INTEGER', 'amount': 'DECIMAL(8,2)'}
    """
    try:
        created = parse_one(f"CREATE TABLE {text}", dialect=AsWritten)
        made = created.this
        if (
            created.expression
            or not isinstance(made, exp.Schema)
            or not all(isinstance(each, exp.ColumnDef) for each in made.expressions)
        ):
            raise SqlglotError("it has other words")
        names = [each.name for each in made.expressions]
        if len({name.lower() for name in names}) < len(names):
            raise SqlglotError("a column is listed twice")
        types = ", ".join(f"CAST(NULL AS {each.kind.sql(AsWritten)})" for each in made.expressions)
        with scratch() as connection:
            kinds = map(str, connection.sql(f"SELECT {types}").types)
    except (SqlglotError, duckdb.Error, AttributeError):
        example = "--with 'shop.orders(customer_id BIGINT, amount DOUBLE)'"
        raise ConfigError(f"--with {text!r}: name a table, its columns and their types, as in {example}") from None
    columns = dict(zip(names, kinds, strict=True))
    return Shard(made.this.db or ANOTHER, made.this.name, columns, rows=0)


def _tried(
    settings: PartyFile, caller: str, sql: str, elsewhere: Sequence[Shard], params: Parameters | None, used: Counters
) -> QueryReport:
    """Whether this party would open its part of a query. Nothing is read, counted or written."""
    policy = settings.policy()
    tables = {name: replace(rules, require_approval=False) for name, rules in policy.tables.items()}
    policy = replace(policy, tables=tables, require_purpose=False)  # both are told apart
    reads: list[str] = []
    try:
        party = Party(settings.name, open_published(settings), b"", policy)
        catalog = Catalog([*party.describe(caller), *elsewhere])
        scans = plan(parse(sql, catalog, params=params), catalog).of_party(settings.name)
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
