"""The audit log as its operator reads it: `tablepuppet party audit`.

Input: a party file, and which lines are wanted. Output, for the operator only: these lines, and whether the chain of
all lines is whole.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from tablepuppet.errors import ConfigError, plain_text
from tablepuppet.party.audit_chain import read_trail
from tablepuppet.party.config import PartyFile
from tablepuppet.runs.figures import readable


class AuditLine(msgspec.Struct, frozen=True, rename={"number": "n"}):
    """A line of the log; older ones have fewer fields."""

    time: str
    caller: str
    address: str = ""
    run: str = ""
    purpose: str = ""
    session: str = ""
    verb: str = ""
    op: str = ""
    tables: list[str] = []
    columns: list[str] = []
    rows: int = 0
    query: str = ""
    filter: str = ""
    releases: list[str] = []
    bytes: int = 0
    outcome: str = ""
    rule: str = ""
    text: str = ""
    number: int = 0

    @property
    def cells(self) -> list[str]:
        """The line in a table for people."""
        how = f"{self.outcome} ({self.rule})" if self.rule else self.outcome
        what, tables, released = self.op or self.verb, ", ".join(self.tables), ", ".join(self.releases)
        size = readable(self.bytes) if self.bytes else ""
        moment, rows = self.time[:19].replace("T", " "), f"{self.rows:,}" if self.rows else ""
        return [moment, self.caller, what, tables, rows, size, released, how, plain_text(self.purpose)]


class AuditReport(msgspec.Struct, frozen=True):
    """Lines of a log, and whether all its lines are there as they were written."""

    party: str
    lines: list[dict[str, Any]]
    first: int
    last: int
    whole: bool
    keyed: bool
    problems: list[str]
    notes: list[str]

    @property
    def entries(self) -> list[AuditLine]:
        """The lines as they are shown."""
        return [msgspec.convert(line, AuditLine) for line in self.lines]

    @property
    def verdict(self) -> str:
        """Whether the log can be believed, in one line."""
        span = f"lines {self.first:,} to {self.last:,}" if self.last else "no line"
        if self.problems:
            return f"Verdict: the log is broken: {len(self.problems):,} errors in {span}."
        weak = "" if self.keyed else "; without a state_dir, somebody who can write the log could have made another"
        return f"Verdict: {span}, all as they were written{weak}."


def read_audit(path: Path, since: str | None = None, caller: str | None = None) -> AuditReport:
    """The lines of a party's audit log from a moment on, and of a caller; ConfigError if there is no log."""
    settings = PartyFile.load(path, None)
    log, state = Path(settings.audit_log), None if settings.state_dir is None else Path(settings.state_dir)
    start = None if since is None else _moment(since)
    if not log.parent.is_dir():
        raise ConfigError(f"audit_log: {str(log.parent)!r} is no folder, so there is no log yet")

    def wanted(line: dict[str, object]) -> bool:
        return (caller is None or line.get("caller") == caller) and (start is None or str(line.get("time")) >= start)

    trail = read_trail(log, state, wanted)
    return AuditReport(
        settings.name,
        trail.lines,
        trail.first,
        trail.last,
        not trail.problems,
        trail.keyed,
        trail.problems,
        trail.notes,
    )


def _moment(text: str) -> str:
    """A day or moment as lines write theirs.

    >>> _moment("2026-01-31")
    '2026-01-31T00:00:00.000+00:00'
    """
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(
            f"--since {text!r}: give a day or a moment, such as 2026-01-31 or 2026-01-31T09:30"
        ) from error
    return found.replace(tzinfo=found.tzinfo or UTC).astimezone(UTC).isoformat(timespec="milliseconds")
