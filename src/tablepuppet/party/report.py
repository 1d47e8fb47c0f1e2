"""What a party file would publish, and what is wrong with it, checked before the service starts.

Input: a party file. Output, for the operator only: every table with its callers, columns, uses, levels and releases,
all problems at once, and warnings of what it may not mean. It asks the database for published tables only, and reads
their keys, to count their values; it shows no value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import duckdb
import msgspec

from tablepuppet.errors import ConfigError, PartyError, TablePuppetError
from tablepuppet.party.allowance import Allowance, allowed, interrupted_in_time
from tablepuppet.party.audit import check_log
from tablepuppet.party.blind import read_blinding_key
from tablepuppet.party.config import PartyFile, is_loopback
from tablepuppet.party.database import Database, SourceTable
from tablepuppet.party.databases.delivering import check_database
from tablepuppet.party.databases.names import UnknownNameError, identifier
from tablepuppet.party.delivery import PredictionsEntry, check_place
from tablepuppet.party.ledger import FILE, Account, Budget, Ledger
from tablepuppet.party.policy import ANONYMOUS, CallerLimits, ColumnRule, Embeddings, Level, Policy, TableRule, Use
from tablepuppet.party.published import SEE_MORE, open_published
from tablepuppet.party.state import check_ledger, check_state, is_in_use
from tablepuppet.party.tls_files import TlsFiles, ends_soon, read_tls_files
from tablepuppet.sql.types import Family, family
from tablepuppet.versions import PROTOCOL

Found = TypeVar("Found")


class ColumnReport(msgspec.Struct, frozen=True):
    """A published column: its type, and what may happen to it."""

    name: str
    type: str
    uses: list[str]
    level: str
    releases: list[str]


class TableReport(msgspec.Struct, frozen=True):
    """A published table."""

    name: str
    rows: int
    estimated: bool  # the rows were not counted
    callers: list[str]
    min_rows: int
    min_group: int
    secure_sum: bool
    matrix: bool
    columns: list[ColumnReport]
    budget: Budget
    keys: list[str]  # expressions that may be joined by
    deliver: list[str]  # parties that may get predictions made with its features
    predictions: PredictionsEntry | None  # where predictions about its rows are written
    label_means: bool  # means of its labels may reach other parties
    embeddings: Embeddings | None  # how much of its rows may be released as embeddings
    cross_statistics: bool  # columns may be sent, one number per row


class PartyReport(msgspec.Struct, frozen=True):
    """What a party file means; with ``problems`` the party cannot start, ``warnings`` are likely mistakes."""

    party: str
    protocol: int  # the version that it speaks
    listen: str
    tls: bool
    metrics: str | None  # where they are read
    callers: list[str]
    tables: list[TableReport]
    problems: list[str]
    warnings: list[str]


def inspect(path: Path) -> PartyReport:
    """Try everything that a party needs; ConfigError if the file itself cannot be understood."""
    settings = PartyFile.load(path)
    problems: list[str] = []
    _attempt(problems, lambda: read_blinding_key(Path(settings.blinding_key)))
    certificate = _attempt(problems, lambda: read_tls_files(settings.tls, "party") if settings.tls else None)
    _attempt(problems, lambda: check_log(Path(settings.audit_log)))
    _attempt(problems, lambda: _check_state(settings))
    found = _published(settings, problems)
    if found:
        _check_deliveries(settings, problems)
    policy = settings.policy()
    tables = [_table_report(settings, policy, table) for table in found]
    return PartyReport(
        settings.name,
        PROTOCOL,
        settings.listen,
        settings.tls is not None,
        None if settings.metrics_address is None else _http(*settings.metrics_address),
        sorted(settings.allow),
        tables,
        problems,
        [
            *lint(path, settings, open_published(settings), found),
            *_strangers(settings, certificate),
            *_warnings(settings, tables),
        ],
    )


def first_charges(settings: PartyFile) -> dict[str, str]:
    """When each table of a party was first charged (UTC); those that never were are left out."""
    if settings.state_dir is None or not check_ledger(Path(settings.state_dir)):
        return {}
    ledger = Ledger(Path(settings.state_dir) / FILE, settings.name)
    return {name.lower(): began for name in settings.tables if (began := ledger.began(name)) is not None}


def spent(path: Path) -> list[Account]:
    """What was spent of the budget of every table in a party file; ConfigError if the party keeps no ledger."""
    settings = PartyFile.load(path, None)
    if settings.state_dir is None:
        raise ConfigError(f"party file {str(path)!r}: it names no state_dir, so the party keeps no ledger")
    file, policy = Path(settings.state_dir) / FILE, settings.policy()
    budgets = {name: rules.budget for name in settings.tables if (rules := policy.table(name))}
    if not check_ledger(file.parent):  # nothing was ever charged, and a look must not make the file
        return [Account(name, "", 0.0, b.epsilon, b.epsilon, b.delta) for name, b in budgets.items()]
    ledger = Ledger(file, settings.name)
    return [account for name, budget in budgets.items() for account in ledger.accounts(name, budget)]


def _attempt(problems: list[str], check: Callable[[], Found]) -> Found | None:
    try:
        return check()
    except TablePuppetError as error:
        # What a PartyError keeps from callers, such as the names of hidden columns, its operator may see.
        reason = error.__cause__ if isinstance(error, PartyError) else None
        text = str(error).replace(SEE_MORE, "")  # this is that check
        problems.append(f"{text}: {reason}" if reason is not None else text)
        return None


def _published(settings: PartyFile, problems: list[str]) -> list[SourceTable]:
    """Published tables; if one is not as the file says, those that are, and what is wrong with each of the others."""
    database, found = open_published(settings), []
    try:
        return database.tables()
    except PartyError as error:
        if not isinstance(
            error.__cause__, UnknownNameError
        ):  # as a database that does not answer: all would fail alike
            _attempt(problems, database.tables)
            return []
    for name in settings.tables:
        found += _attempt(problems, partial(database.tables, [name])) or []
    return found


def _check_state(settings: PartyFile) -> None:
    """The state folder, as `serve` checks it."""
    if settings.state_dir is not None:
        check_state(Path(settings.state_dir))


def _check_deliveries(settings: PartyFile, problems: list[str]) -> None:
    """The places for predictions, and the keys written beside them."""
    targets = settings.targets()
    if targets:
        _attempt(problems, lambda: open_published(settings, with_keys=True).tables())
    for name, target in targets.items():
        own: list[str] = []
        if target.file is not None:
            _attempt(own, partial(check_place, settings.name, Path(target.file), target.keys))
        elif target.table is not None:
            taken = target.table.lower() in {table.lower() for table in settings.tables}
            _attempt(own, partial(check_database, settings.name, settings.database, target.table, published=taken))
        problems += [f"tables.{name}.predictions: {text}" for text in own]


def _table_report(settings: PartyFile, policy: Policy, table: SourceTable) -> TableReport:
    rules = policy.table(table.name)
    assert rules is not None, "only tables of the file are published"
    columns = []
    for name, type_name in table.columns.items():
        rule = rules.column(name) or ColumnRule(Use(0))
        uses = [(use.name or "").lower() for use in rule.uses]
        released = [release.name or "" for release in rules.releases(rule)]
        columns.append(ColumnReport(name, type_name, uses, rule.level.name.lower(), released))
    callers = sorted(settings.allow if rules.allow is None else rules.allow)
    entry = next(entry for name, entry in settings.tables.items() if name.lower() == table.name.lower())
    return TableReport(
        table.name,
        table.rows,
        table.estimated,
        callers,
        rules.min_rows,
        rules.min_group,
        rules.secure_sum,
        rules.matrix,
        columns,
        rules.budget,
        sorted(rules.keys or ()),
        sorted(rules.deliver or ()),
        entry.predictions,
        rules.label_means,
        rules.embeddings,
        rules.cross_statistics,
    )


def _strangers(settings: PartyFile, certificate: TlsFiles | None) -> list[str]:
    if certificate is None:
        return []
    found = [text for text in (certificate.warning, ends_soon(certificate.certificate)) if text]
    if certificate.name.lower() != settings.name.lower():
        found.append(
            f"tls.cert belongs to {certificate.name!r}, not to party {settings.name!r}: callers must expect that name"
        )
    return found


def _http(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"


def _warnings(settings: PartyFile, tables: list[TableReport]) -> list[str]:
    found = [] if settings.allow else ["allow is empty: nobody may call"]
    if settings.allow and settings.tls is None and ANONYMOUS not in settings.allow:
        found.append(
            f"there is no [tls], so every caller is {ANONYMOUS!r}, which allow does not name: nobody may call. Add "
            f'[tls], or allow = ["{ANONYMOUS}"] for a trial on this machine'
        )
    if settings.metrics_address is not None and not is_loopback(settings.metrics_address[0]):
        found.append(
            "metrics can be read from other machines, without TLS and by everybody: they show who calls, how often and "
            "how much, so let only your monitoring reach that port"
        )
    if settings.state_dir is None:
        found.append("there is no state_dir: a restart gives every caller a new allowance of filters")
    elif Path(settings.state_dir).is_dir() and is_in_use(Path(settings.state_dir)):
        found.append(
            f"a party is served with the state_dir {settings.state_dir!r} now: stop it before you start another"
        )
    for table in tables:
        if table.rows < table.min_rows and not table.estimated:
            found.append(f"table {table.name}: {table.rows} rows, but min_rows is {table.min_rows}: it cannot be used")
        found += _budget_warnings(table)
        found += _secure_warnings(table)
        for column in table.columns:
            where = f"table {table.name}, column {column.name}"
            if family(column.type) is Family.OTHER:
                found.append(
                    f"{where}: type {column.type} cannot be read; leave it out, or publish a view of the "
                    "database itself that casts it"
                )
            if column.level == Level.PRIVATE.name.lower() and {"label", "feature"} & set(column.uses):
                found.append(f"{where}: a private column can be neither a label nor a feature")
    return found


def _secure_warnings(table: TableReport) -> list[str]:
    """What has no effect for a table whose sums leave masked only, and what reveals its rows all the same."""
    if not table.secure_sum:
        return []
    found = [
        f"table {table.name}, column {column.name}: the use value has no effect: under secure_sum cells are refused"
        for column in table.columns
        if "value" in column.uses
    ]
    if table.cross_statistics:
        found.append(f"table {table.name}: cross_statistics has no effect: under secure_sum columns are refused")
    if table.matrix:
        found.append(
            f"table {table.name}: matrix = true beside secure_sum: X @ V is no sum, and with as many vectors as the "
            "table has columns it is the table; limits.max_matrix_columns bounds them"
        )
    return found


def _budget_warnings(table: TableReport) -> list[str]:
    """What a table that demands privacy still releases without noise."""
    found = []
    if table.budget.delta * table.rows >= 1:
        found.append(
            f"table {table.name}: budget.delta is not below one over its rows: a whole row could be revealed within it"
        )
    if table.matrix and table.budget.require_dp:
        found.append(f"table {table.name}: matrix has no effect: under require_dp such products are refused")
    if table.label_means and table.budget.require_dp:
        found.append(f"table {table.name}: label_means has no effect: under require_dp means of labels are refused")
    revealed = {"key", "filter"}
    for column in table.columns if table.budget.require_dp else ():
        if revealed & set(column.uses) and {"label", "feature"} & set(column.uses):
            uses = " and ".join(sorted(revealed & set(column.uses)))
            found.append(
                f"table {table.name}, column {column.name}: as {uses} it is released without noise, though require_dp "
                "is set"
            )
    return found


# What a party file allows that its operator may not mean, for `party check`. Input: the party file, its settings, what
# it publishes. Output: warnings. Keys are read to count their values; no value is shown.


FEW = 20  # values of a key: how often each occurs tells which it is
PATIENCE = 20.0  # seconds in which a key is read
WIDE = 2  # parties that predictions may go to without a warning


def lint(file: Path, settings: PartyFile, database: Database, tables: Sequence[SourceTable]) -> list[str]:
    """Warnings, the gravest first."""
    policy = settings.policy()
    ruled = [(table, rules) for table in tables if (rules := policy.table(table.name)) is not None]
    found = [text for table, rules in ruled for text in _of_table(table.name, rules)]
    found += [text for table, rules in ruled for text in _few_values(settings, database, table, rules)]
    return [*found, *_open_files(file, settings)]


def _of_table(name: str, rules: TableRule) -> Iterator[str]:
    if rules.budget.is_bounded and not rules.budget.require_dp:
        yield (
            f"table {name}: its budget binds nothing: with require_dp = false callers get everything without noise, "
            "which is not counted; leave require_dp out"
        )
    if rules.min_rows == 0:
        yield f"table {name}: min_rows = 0: a relation over one row of it is allowed, and tells about that row"
    if rules.matrix and not rules.budget.require_dp:
        yield f"table {name}: matrix = true: by products with vectors of their choice callers can have its cells"
    if len(rules.deliver or ()) > WIDE:
        count = len(rules.deliver or ())
        yield f"table {name}: deliver names {count} parties: each may get predictions made with its features"
    for column, rule in rules.columns.items():
        others = rule.uses & (Use.FEATURE | Use.ID)
        if Use.LABEL in rule.uses and others:
            yield (
                f"table {name}, column {column}: it is a label, whose values are released row by row, and also "
                f"{others.label}: name only the use that is meant"
            )


def _few_values(settings: PartyFile, database: Database, table: SourceTable, rules: TableRule) -> Iterator[str]:
    """Keys that can be guessed from how often each value occurs."""
    keys = [name for name in table.columns if (rule := rules.column(name)) is not None and Use.KEY in rule.uses]
    for name in keys if table.estimated or table.rows > FEW else ():
        time = Allowance(settings.name, CallerLimits(request_seconds=PATIENCE))
        try:
            with allowed(time), database.reader() as reader:
                source = reader.source(table.name, {name: table.columns[name]})
                few = f"SELECT DISTINCT {identifier(name)} FROM {source.sql} LIMIT {FEW}"
                with interrupted_in_time(source.connection.interrupt):
                    values = len(source.connection.execute(few).fetchall())
        except (duckdb.Error, TablePuppetError):  # a column that cannot be read is told elsewhere
            if time.left is not None and time.left < 0:
                yield (
                    f"table {table.name}, column {name}: reading it takes more than {PATIENCE:.0f} s, so nothing is "
                    "known of how many values this key has; callers' requests end after limits.request_seconds"
                )
                return
            continue
        if values < FEW:
            yield (
                f"table {table.name}, column {name}: a key with {values} values only: how often each occurs tells "
                "which it is, though it is blinded"
            )


def _open_files(file: Path, settings: PartyFile) -> Iterator[str]:
    state = None if settings.state_dir is None else Path(settings.state_dir)
    secrets = [file, Path(settings.blinding_key), Path(settings.audit_log)]
    secrets += [] if settings.tls is None else [Path(settings.tls.key)]
    secrets += [] if state is None else [state, *(state / name for name in ("row_secret", "ledger.sqlite"))]
    for path in secrets:
        mode = path.stat().st_mode & 0o007 if path.exists() else 0
        if mode:
            what = "change" if mode & 0o002 else "read"
            yield f"{str(path)!r}: every user of this machine can {what} it; run chmod o-rwx on it"
