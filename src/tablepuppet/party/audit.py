"""The audit log of a party: one line of JSON for every request, on disk before its reply leaves.

Each line has the time, the caller, its address, the run and its purpose, the session, the verb and op, the tables,
columns and rows, keyed digests of the query and its filters, the releases and their bytes, and the outcome; never a
value or an argument, and SQL text only if the operator wants it. Lines are a chain (`audit_chain.py`). A request that
cannot be logged is refused. A request that is computed again after a restart has a line too, with the outcome
``restored``: nothing was sent. If the party has metrics, every line is counted there too, and syslog gets every line if
the operator names one.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec
import numpy as np

from tablepuppet.errors import ConfigError, PartyError, PrivacyError, TablePuppetError
from tablepuppet.party.audit_chain import Chain
from tablepuppet.party.metrics import Metrics
from tablepuppet.party.release import Release
from tablepuppet.party.request import Declared
from tablepuppet.party.syslog import Syslog
from tablepuppet.runs import spans
from tablepuppet.sql.plan import Scan, text_of

SYNC_SECONDS = 1.0
DISK = "disk"  # what ran out where a file cannot be written
_MOST_TEXT = 200  # of a name that the caller chose
_MOST_NAMES = 100  # of tables, or of columns, in one line
_MOST_SQL = 20_000  # letters of a query
_DIGEST = 16  # hexadecimal digits of that of a query
_NOTHING = Release(0)
EVERY = ("*",)  # for columns: all that the session's `open` lists
Reply = TypeVar("Reply")
Outcome = Literal["ok", "restored"]  # of a request that was answered


_ADDRESS: ContextVar[str] = ContextVar("address", default="")


@contextmanager
def calling_from(address: str) -> Iterator[None]:
    """Whatever is logged inside was asked from this address."""
    before = _ADDRESS.set(address)
    try:
        yield
    finally:
        _ADDRESS.reset(before)


class About(NamedTuple):
    """What all lines of a session say: its run and purpose, digests of its query and filters; ``text`` only `open`."""

    run: str = ""
    purpose: str = ""
    query: str = ""
    filter: str = ""
    text: str = ""


NO_SESSION = About()


@dataclass
class Entry:
    """One request, while it is answered; it is logged when it leaves its context, however that ends."""

    log: AuditLog
    caller: str
    session: str
    verb: str
    releases: Release = _NOTHING
    outcome: Outcome = "ok"  # if it ends well
    op: str = ""
    tables: Sequence[str] = ()
    columns: Sequence[str] = ()
    rows: int = 0
    about: About = NO_SESSION
    size: int = field(default=0, init=False)  # bytes
    received: int = field(default=0, init=False)  # bytes of arguments
    began: float = field(default_factory=time.perf_counter, init=False)

    def __enter__(self) -> Entry:
        """The entry; more can be added to it."""
        return self

    @property
    def seconds(self) -> float:
        """How long it takes so far."""
        return time.perf_counter() - self.began

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Log it; PartyError if that is impossible."""
        self.log.write(self, *((self.outcome, "") if error is None else _refused(error)))

    def ask(self, op: str, releases: Release, arguments: Mapping[str, Any]) -> None:
        """Note which op is asked for, and with how much."""
        self.op, self.releases = op, releases
        self.received = 0 if self.log.metrics is None else _size(arguments)

    def reply(self, values: Reply) -> Reply:
        """Note the size of what is about to leave."""
        self.size = 0 if self.log.path is None and self.log.metrics is None else _size(values)
        return values

    def line(self, outcome: str, rule: str) -> bytes:
        """The entry as a line of the log, without its place in the chain."""
        left = outcome == "ok"
        record = {
            "time": _time(),
            "caller": self.caller[:_MOST_TEXT],
            "address": _ADDRESS.get(),
            "run": self.about.run[:_MOST_TEXT],
            "purpose": self.about.purpose[:_MOST_TEXT],
            "session": self.session[:_MOST_TEXT],
            "verb": self.verb,
            "op": self.op,
            "tables": _listed(self.tables),
            "columns": _listed(self.columns),
            "rows": self.rows if left else 0,
            "query": self.about.query,
            "filter": self.about.filter,
            "releases": self.releases.names if left else [],
            "bytes": self.size if left else 0,
            "outcome": outcome,
            "rule": rule,
        }
        return msgspec.json.encode(record)


class Refusing(NamedTuple):
    """Logs what is refused inside its context, and nothing else. It may be entered again: every request does."""

    log: AuditLog
    caller: str
    session: str
    verb: str

    def __enter__(self) -> None:
        """Nothing is logged yet."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Log a refusal."""
        if isinstance(error, TablePuppetError):
            self.log.refusal(self.caller, self.session, self.verb, error)


def check_log(path: Path) -> None:
    """ConfigError unless a line could be written to the log; a file that was not there is not left there."""
    try:
        is_new = not path.exists() and not path.is_symlink()
        os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o600))
        if is_new:
            path.unlink()
    except OSError as error:
        raise ConfigError(
            f"audit_log: {str(path)!r} is not a file that can be written ({error.strerror}); make its folder, or name "
            "another"
        ) from error


class AuditLog:
    """An append-only file; ``None`` keeps no log, as inside the analyst's own process.

    A line is handed to the operating system before the reply leaves, so the end of the process loses nothing. It is
    forced to disk at once for everything but ops, and for those once in `SYNC_SECONDS`. A file that was moved away
    is begun anew, so that logs can be rotated: the chain goes on. ``metrics`` count whatever is written here. ``state``
    is the party's state folder, with the secret of the chain. With ``with_text``, lines of `open` have the SQL that a
    caller asked for; ``syslog`` gets them without.
    """

    def __init__(
        self,
        path: Path | None,
        metrics: Metrics | None = None,
        state: Path | None = None,
        *,
        with_text: bool = False,
        syslog: Syslog | None = None,
    ):
        self.path, self.metrics = path, metrics
        self._state, self._with_text, self._syslog = state, with_text, syslog
        self._sessions: dict[tuple[str, str], About] = {}
        self._lock = threading.Lock()
        self._file: int | None = None
        self._opened_as: os.stat_result | None = None
        self._chain = None if path is None else Chain(path, state)
        self._torn = self._chain is not None and self._chain.is_torn  # the last line may be incomplete
        self._synced = 0.0

    def about(self, declared: Declared, scans: Sequence[Scan]) -> About:
        """What lines say of a session over these scans."""
        if self._chain is None:
            return NO_SESSION
        made = {scan.view.rows_text for scan in scans if scan.view is not None}
        filters = sorted({text for scan in scans for text in (*scan.filters, *scan.conditions)} | made)
        key = self._chain.key
        return About(
            declared.run,
            declared.purpose,
            key.digest(b"query\n" + msgspec.json.encode(scans), _DIGEST) if scans else "",
            key.digest("\n".join(["filter", *filters]).encode(), _DIGEST) if any(filters) else "",
            "; ".join(map(text_of, scans))[:_MOST_SQL] if self._with_text else "",
        )

    def begin(self, caller: str, session: str, about: About) -> None:
        """A session was opened: all its lines say what it is about."""
        if self.path is not None:
            self._sessions[caller, session] = about

    def end(self, caller: str, session: str) -> None:
        """A session was closed."""
        self._sessions.pop((caller, session), None)

    def entry(
        self, caller: str, session: str, verb: str, releases: Release = _NOTHING, outcome: Outcome = "ok"
    ) -> Entry:
        """Log what happens inside, however it ends; ``outcome`` if it ends well."""
        about = self._sessions.get((caller, session), NO_SESSION)
        return Entry(self, caller, session, verb, releases, outcome, about=about)

    def refusal(self, caller: str, session: str, verb: str, error: Exception) -> None:
        """Log a request that never came to be answered."""
        with suppress(PartyError):  # nothing leaves with it, so a log that cannot be written changes nothing
            self.write(self.entry(caller, session, verb), *_refused(error))

    def refusing(self, caller: str, session: str, verb: str) -> Refusing:
        """Log what is refused inside, and nothing else."""
        return Refusing(self, caller, session, verb)

    def reached(self, limit: str) -> None:
        """Count a limit that ran out where no request was refused because of it."""
        if self.metrics is not None:
            self.metrics.reached(limit)

    def close(self) -> None:
        """Close the file, which is opened again when it is needed, and send syslog what waits."""
        with self._lock:
            if self._file is not None:
                os.close(self._file)
            self._file = None
            if self._chain is not None:
                self._chain.close()
        if self._syslog is not None:
            self._syslog.close()

    def write(self, entry: Entry, outcome: str, rule: str) -> None:
        """Log how a request has ended; PartyError if that is impossible."""
        if self.path is None or self._chain is None:
            self._count(entry, outcome, rule)
            return
        body = entry.line(outcome, rule)
        text = entry.about.text if entry.verb == "open" else ""
        try:
            with self._lock:
                at_once = outcome in ("denied", "failed") or entry.verb != "run"
                whole = body[:-1] + b',"text":' + msgspec.json.encode(text) + b"}" if text else body
                line, link = self._chain.sealed(whole)
                self._append(self.path, line, at_once=at_once)
                self._chain.advance(link)
            self._count(entry, outcome, rule)
            if self._syslog is not None:
                self._syslog.send(body[:-1] + line[len(whole) - 1 : -1])  # without the text
        except OSError as error:
            self._count(entry, "failed", DISK)
            raise PartyError(
                "the party cannot write its audit log, so it answers nothing; its operator must make room for it",
                limit=DISK,
            ) from error

    def _count(self, entry: Entry, outcome: str, rule: str) -> None:
        facts = {"verb": entry.verb, "op": entry.op, "release": entry.releases.label, "rule": rule, "sent": entry.size}
        spans.answered(facts, outcome, entry.seconds)
        if self.metrics is not None:
            labels = (entry.caller, entry.verb, entry.op, entry.releases.label, outcome, rule)
            self.metrics.ended(*labels, entry.seconds, entry.received, entry.size)

    def _append(self, path: Path, line: bytes, *, at_once: bool) -> None:
        file = self._opened(path)
        whole = b"\n" + line if self._torn else line
        self._torn = True
        if os.write(file, whole) != len(whole):
            raise OSError("the disk is full")
        self._torn = False
        if at_once or time.monotonic() - self._synced > SYNC_SECONDS:
            os.fsync(file)
            self._synced = time.monotonic()

    def _opened(self, path: Path) -> int:
        """The open file; opened again if it is no longer the one at ``path``."""
        if self._file is not None:
            if self._is_at(path):
                return self._file
            os.close(self._file)
            self._file = None
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._opened_as = os.fstat(self._file)
        return self._file

    def _is_at(self, path: Path) -> bool:
        try:
            found = os.stat(path)
        except FileNotFoundError:
            return False
        return self._opened_as is not None and os.path.samestat(self._opened_as, found)


def _listed(names: Sequence[str]) -> list[str]:
    """Names, which a caller may have chosen, as a line has them: callers do not decide how long it is."""
    found = [name[:_MOST_TEXT] for name in names[:_MOST_NAMES]]
    return found if len(names) <= _MOST_NAMES else [*found, f"and {len(names) - _MOST_NAMES} more"]


def _refused(error: BaseException) -> tuple[str, str]:
    """Outcome and rule of a request that met an error; a limit that ran out is a rule."""
    if isinstance(error, PrivacyError):
        return "denied", error.rule
    limit = error.limit if isinstance(error, PartyError) else ""
    return ("denied" if limit and limit != DISK else "failed"), limit or type(error).__name__


def _time() -> str:
    """Now, to a millisecond, as `datetime.isoformat` writes it."""
    seconds, thousandths = divmod(time.time_ns() // 1_000_000, 1000)
    return f"{_second(seconds)}.{thousandths:03d}+00:00"


@lru_cache(2)
def _second(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


_ENCODER = msgspec.msgpack.Encoder(enc_hook=str)


def _size(values: Any) -> int:
    """Bytes of a reply: its arrays as they are, the rest as msgpack."""
    if not isinstance(values, dict):
        return len(_ENCODER.encode(values))
    arrays = sum(value.nbytes for value in values.values() if isinstance(value, np.ndarray))
    plain = {name: value for name, value in values.items() if not isinstance(value, np.ndarray)}
    return arrays + len(_ENCODER.encode(plain))
