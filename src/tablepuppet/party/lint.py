"""What a party file allows that its operator may not mean, for `party check`.

Input: the party file, its settings, what it publishes. Output: warnings. Keys are read to count their values; no value
is shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import duckdb

from tablepuppet.errors import TablePuppetError
from tablepuppet.party.allowance import Allowance, allowed, interrupted_in_time
from tablepuppet.party.config import PartyFile
from tablepuppet.party.database import Database, SourceTable
from tablepuppet.party.databases.names import identifier
from tablepuppet.party.limits import CallerLimits
from tablepuppet.party.policy import TableRule, Use

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
