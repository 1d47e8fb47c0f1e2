"""What a party was asked, and what left it: its audit log, folded line by line as it grows. For its operator only.

Input: lines of the log. Output: sums by day and caller, the newest lines, refusals by rule. Lines hold no value of a
row; what is remembered is bounded, however long the log.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from tablepuppet.party.audit_report import AuditLine

NEWEST = 2000  # lines that are remembered
PIECE = 1 << 22  # bytes that are read at a time
MOST_DAYS = 400
MOST_CALLERS = 1000  # of a day; others are counted together
OTHERS = "(others)"
FIELDS = (
    *("time", "caller", "address", "run", "purpose", "session", "verb", "op", "tables", "columns", "rows"),
    *("releases", "bytes", "outcome", "rule"),
)
_DECODER = msgspec.json.Decoder(AuditLine)


@dataclass
class Tally:
    """Requests of one caller on one day."""

    requests: int = 0
    refused: int = 0
    bytes: int = 0
    releases: dict[tuple[str, str], list[int]] = field(default_factory=dict)  # (release, table): requests, bytes
    rules: dict[str, int] = field(default_factory=dict)
    ops: dict[str, int] = field(default_factory=dict)
    last: str = ""

    def add(self, line: AuditLine) -> None:
        """Count a line."""
        self.requests += 1
        self.last = max(self.last, line.time)
        self.ops[line.op or line.verb] = self.ops.get(line.op or line.verb, 0) + 1
        if line.outcome in ("denied", "failed"):
            self.refused += 1
            rule = line.rule or line.outcome
            self.rules[rule] = self.rules.get(rule, 0) + 1
            return
        self.bytes += line.bytes
        for release in line.releases:
            found = self.releases.setdefault((release, ", ".join(line.tables)), [0, 0])
            found[0] += 1
            found[1] += line.bytes

    def merge(self, other: Tally) -> None:
        """Add another one."""
        self.requests, self.refused, self.bytes = (
            self.requests + other.requests, self.refused + other.refused, self.bytes + other.bytes,
        )  # fmt: skip
        self.last = max(self.last, other.last)
        for key, (times, size) in other.releases.items():
            found = self.releases.setdefault(key, [0, 0])
            found[0], found[1] = found[0] + times, found[1] + size
        for mine, theirs in ((self.rules, other.rules), (self.ops, other.ops)):
            for name, count in theirs.items():
                mine[name] = mine.get(name, 0) + count


class AuditState:
    """An audit log, as far as it was read."""

    def __init__(self, log: Path):
        self.log = log
        self.days: dict[tuple[str, str], Tally] = {}  # by day and caller
        self.newest: deque[AuditLine] = deque(maxlen=NEWEST)
        self._at, self._file, self._rest = 0, (0, 0), b""

    def look(self) -> None:
        """Read what is new. A log that was rotated meanwhile is read from the beginning of the new file."""
        with suppress(OSError), self.log.open("rb") as file:
            stat = os.fstat(file.fileno())
            if (stat.st_dev, stat.st_ino) != self._file or stat.st_size < self._at:
                self._file, self._at, self._rest = (stat.st_dev, stat.st_ino), 0, b""
            file.seek(self._at)
            while piece := file.read(PIECE):
                self._at += len(piece)
                *lines, self._rest = (self._rest + piece).split(b"\n")
                self.read(lines)

    def read(self, lines: Iterable[bytes]) -> None:
        """Fold lines in; what is none is left out, and `tablepuppet party audit` names it."""
        for raw in lines:
            with suppress(msgspec.DecodeError):
                line = _DECODER.decode(raw)
                self.newest.append(line)
                self._tally(line.time[:10], line.caller).add(line)

    def _tally(self, day: str, caller: str) -> Tally:
        if (day, caller) not in self.days and sum(each == day for each, _ in self.days) >= MOST_CALLERS:
            caller = OTHERS
        found = self.days.setdefault((day, caller), Tally())
        if len(self.days) > MOST_DAYS * 10:
            oldest = min(each for each, _ in self.days)
            self.days = {key: tally for key, tally in self.days.items() if key[0] != oldest}
        return found

    @property
    def callers(self) -> list[str]:
        """Who has asked."""
        return sorted({caller for _, caller in self.days})

    def sums(self, caller: str = "", day: str = "") -> dict[str, Tally]:
        """Sums by caller, of one caller and of the days from one on, if they are given."""
        found: dict[str, Tally] = {}
        for (of_day, who), tally in self.days.items():
            if caller in ("", who) and of_day >= day:
                found.setdefault(who, Tally()).merge(tally)
        return found

    def lines(self, caller: str = "", day: str = "", *, refused: bool = False) -> Iterator[AuditLine]:
        """The newest lines first, of one caller and from a day on."""
        for line in reversed(self.newest):
            is_refused = line.outcome in ("denied", "failed")
            if caller in ("", line.caller) and line.time[:10] >= day and (is_refused or not refused):
                yield line


def csv_lines(log: Path, caller: str = "", day: str = "") -> Iterator[str]:
    """The lines of a log as CSV, from its file; a text that a spreadsheet would take for a formula is quoted."""
    yield ",".join(FIELDS) + "\r\n"
    with suppress(OSError), log.open("rb") as file:
        for raw in file:
            with suppress(msgspec.DecodeError):
                line = _DECODER.decode(raw)
                if caller in ("", line.caller) and line.time[:10] >= day:
                    yield ",".join(_cell(getattr(line, name)) for name in FIELDS) + "\r\n"


def _cell(value: object) -> str:
    """A value in CSV.

    >>> _cell("=SUM(A1)"), _cell(["a", "b"]), _cell("one, two"), _cell(3)
    ("'=SUM(A1)", 'a b', '"one, two"', '3')
    """
    text = " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    text = text.replace("\r", " ").replace("\n", " ")
    if text[:1] in ("=", "+", "-", "@", "\t"):
        text = "'" + text
    return f'"{text.replace(chr(34), chr(34) * 2)}"' if any(each in text for each in ',"') else text


def used_up(left: float, spent: float, since: str, now: datetime) -> str:
    """When a budget will be used up at its pace since it was first charged.

    >>> used_up(1.0, 1.0, "2026-01-01 00:00:00", datetime(2026, 1, 11, tzinfo=UTC))
    '2026-01-21'
    >>> used_up(0.0, 1.0, "2026-01-01 00:00:00", datetime(2026, 1, 11, tzinfo=UTC))
    'used up'
    """
    if left <= 0:
        return "used up"
    try:
        began = datetime.fromisoformat(since).replace(tzinfo=UTC)
    except ValueError:
        return ""
    days = max((now - began).total_seconds(), 1.0) / 86_400
    ahead = left / spent * days if spent > 0 else float("inf")
    return (now + timedelta(days=ahead)).date().isoformat() if ahead < 36_500 else "not in sight"
