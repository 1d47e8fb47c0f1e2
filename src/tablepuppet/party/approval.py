"""Jobs that wait for their operator: what a policy with ``require_approval`` lets nobody have unseen.

A job is what a caller declares when it opens a relation: for whom and what for, what is read of which tables, by which
learner, for how much privacy. Its name is a digest of all of this, so that an approval holds for exactly this. What is
declared binds: the scans are those that are read, only ops of the declared learner run, and no more epsilon is spent.
An approval ends at a day, or when the operator withdraws it, also for sessions that are open and models that are kept.

Two files of the state folder, each with a digest of its content: jobs that were asked for, which the party writes, and
decisions, which the operator's commands write. The party reads decisions again whenever they change.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

import msgspec

from tablepuppet.errors import ApprovalError, ConfigError, PartyError, PrivacyError
from tablepuppet.party.ledger import Spend
from tablepuppet.party.request import Declared
from tablepuppet.runs.figures import number
from tablepuppet.sql.plan import Scan, text_of
from tablepuppet.store.files import DamagedFileError, read_checked, write_checked

ASKED, DECIDED = "jobs_asked.json", "jobs_decided.json"
RULE = "require_approval"
MOST_WAITING = 50  # jobs of one caller
MOST_TEXT = 20_000  # letters of what is read: an operator has to read it
USUAL_DAYS, FORGOTTEN_DAYS = 30, 90
SHORT = 12  # letters of a name that are shown

_READING = frozenset({"keys", "secure", "rows.use", "rows.sample"})
_STATISTICS = _READING | {"statistics", "categories", "columns", "private", "prep", "encode"}
_LEARNING = _STATISTICS | {"rows.alike", "label", "model", "parts", "deliver"}
WORK = {"": _STATISTICS, "matrix": _STATISTICS | {"rows.alike", "label", "matrix", "model", "parts"}}
"""What may run for each declared learner: names of ops, or the first part of their names.

An op that reads columns beside those of the scan, as `rows.ids` does, is in no job: the operator did not see them.
"""


def add_work(learners: Iterable[str], *ops: str) -> None:
    """Let jobs of these learners run these ops, beside those that every learner of a label asks for."""
    WORK.update(dict.fromkeys(learners, _LEARNING | set(ops)))


class Job(msgspec.Struct, frozen=True):
    """What a caller asks an operator for. ``sql`` is what is read of this party's tables, in words of SQL."""

    id: str
    caller: str
    purpose: str
    learner: str
    epsilon: float | None
    delta: float
    tables: list[str]
    sql: list[str]
    scans: list[str]  # digests
    asked: str  # when it was last asked for (UTC)

    @classmethod
    def of(cls, caller: str, declared: Declared, scans: Iterable[Scan]) -> Job:
        """The job of a caller that opens these scans."""
        listed = list(scans)
        digests = sorted(map(_digest, listed))
        named = [caller, declared.purpose, declared.learner, declared.epsilon, declared.delta, digests]
        return cls(
            hashlib.sha256(msgspec.json.encode(named)).hexdigest(),
            caller,
            declared.purpose,
            declared.learner,
            declared.epsilon,
            declared.delta,
            sorted({scan.table for scan in listed}),
            [text_of(scan) for scan in listed],
            digests,
            _now(),
        )

    def covers(self, other: Job) -> bool:
        """Whether all of another job is in this one: it may ask for less epsilon, and nothing else."""
        mine, its = ((job.caller, job.purpose, job.learner, job.scans) for job in (self, other))
        if mine != its or other.epsilon is None:
            return mine == its
        return self.epsilon is not None and other.epsilon <= self.epsilon and other.delta == self.delta

    def runs(self, op: str) -> bool:
        """Whether an op belongs to the job."""
        allowed = WORK.get(self.learner, _READING)
        return op in allowed or op.partition(".")[0] in allowed

    @property
    def work(self) -> str:
        """What it is for, in a word."""
        return self.learner or "statistics"


class Decision(msgspec.Struct, frozen=True):
    """What an operator said about a job: until when it is approved (UTC), or None: it is refused."""

    job: Job
    until: str | None
    decided: str

    @property
    def state(self) -> str:
        """In a word."""
        if self.until is None:
            return "refused"
        return "approved" if _now() < self.until else "ended"


class Approvals:
    """The jobs of a party, and what its operator has decided; in memory without a state folder."""

    def __init__(self, party: str, state: Path | None):
        self._party, self._state = party, state
        self._asked = {} if state is None else _by_id(_read(state / ASKED, list[Job]))
        self._decided: dict[str, Decision] = {}
        self._seen: tuple[int, ...] | None = None
        self._lock = threading.Lock()

    def approved(self, caller: str, declared: Declared, scans: Sequence[Scan]) -> Approval:
        """The approval under which scans may be opened; ApprovalError if there is none yet, or it was refused."""
        job = Job.of(caller, declared, scans)
        if declared.learner not in WORK:
            raise self.refusal(f"it knows no learner {declared.learner!r} that could be approved")
        if sum(map(len, job.sql)) > MOST_TEXT:
            raise self.refusal("the query is too long for its operator to read; select and filter less")
        decided = self.decisions()
        covering = [each for each in decided.values() if each.job.covers(job)]
        for each in covering:
            if each.state == "approved":
                return Approval(self, caller, (), each.job.id)
        own = decided.get(job.id)
        if own is not None and own.state == "refused":
            raise ApprovalError(
                f"party {self._party!r}: its operator has refused job {job.id[:SHORT]}; ask its operator", rule=RULE
            )
        self._ask(job)
        ended = " again: the approval has ended" if any(each.state == "ended" for each in covering) else ""
        raise ApprovalError(
            f"waiting for approval of the operator of party {self._party!r}{ended}, job {job.id[:SHORT]}; ask again "
            "later, with the same query, learner and privacy",
            rule=RULE,
        )

    def kept(self, caller: str, scan: Scan) -> Approval:
        """The approvals under which something may be used that was computed from a scan."""
        return Approval(self, caller, (_digest(scan),))

    def _ask(self, job: Job) -> None:
        """Write a job down for the operator."""
        with self._lock:
            old = (datetime.now(UTC) - timedelta(days=FORGOTTEN_DAYS)).isoformat(timespec="seconds")
            asked = {each.id: each for each in self._asked.values() if each.asked > old} | {job.id: job}
            waiting = [each for each in asked.values() if each.caller == job.caller and each.id not in self._decided]
            if len(waiting) > MOST_WAITING:
                raise self.refusal(f"{MOST_WAITING} other jobs of caller {job.caller!r} wait for its operator")
            if self._state is not None:
                try:
                    _write(self._state / ASKED, list(asked.values()))
                except OSError as error:
                    raise PartyError(
                        f"party {self._party!r} cannot write down a job that needs approval; its operator must make "
                        "room",
                        limit="disk",
                    ) from error
            self._asked = asked

    def decisions(self) -> dict[str, Decision]:
        """What the operator has decided, as of now; PartyError if that cannot be read."""
        if self._state is None:
            return self._decided
        path = self._state / DECIDED
        try:
            found = path.stat()
            seen: tuple[int, ...] = (found.st_mtime_ns, found.st_ino, found.st_size)
        except FileNotFoundError:
            seen = ()
        if seen != self._seen:
            try:
                self._decided = {each.job.id: each for each in _read(path, list[Decision])}
            except ConfigError as error:
                raise PartyError(
                    f"party {self._party!r} cannot read which jobs are approved, so it refuses; its operator must "
                    "restore the file"
                ) from error
            self._seen = seen
        return self._decided

    def ended(self) -> ApprovalError:
        """The error for a job whose approval is over while it runs."""
        return ApprovalError(
            f"party {self._party!r}: the approval has ended or was withdrawn, so the job ends here; run the same "
            f"command, or open the relation again, to ask for it once more (policy rule {RULE})",
            rule=RULE,
        )

    def refusal(self, reason: str) -> PrivacyError:
        """The error for what an approval does not allow."""
        return PrivacyError(f"party {self._party!r}: {reason} (policy rule {RULE})", rule=RULE)


@dataclass(frozen=True)
class Approval:
    """What a caller may do under the approval of a job, or of any of its jobs that read ``scans``."""

    approvals: Approvals
    caller: str
    scans: tuple[str, ...]
    id: str = ""

    def _decisions(self) -> list[Decision]:
        found = self.approvals.decisions()
        if self.id:
            return [found[self.id]] if self.id in found else []
        return [d for d in found.values() if d.job.caller == self.caller and set(self.scans) <= set(d.job.scans)]

    def check(self, op: str) -> None:
        """PrivacyError unless an approval that has not ended allows an op."""
        jobs = [each.job for each in self._decisions() if each.state == "approved"]
        if any(job.runs(op) for job in jobs):
            return
        if jobs:
            what = f"job {jobs[0].id[:SHORT]} is approved for {jobs[0].work}, which does not ask for op {op!r}"
            raise self.approvals.refusal(f"{what}; open the relation by fed.sql(..., learner=...) for another job")
        raise self.approvals.ended()

    def spend(self) -> Spend:
        """What may be spent in all on a table."""
        for each in self._decisions():
            if each.state == "approved":
                return Spend(f"job {each.job.id} {each.decided}", each.job.epsilon, each.job.delta)
        raise self.approvals.ended()


class Listed(msgspec.Struct, frozen=True):
    """A job as its operator sees it."""

    job: Job
    state: str  # waiting, approved, refused, ended
    until: str | None


def list_jobs(state: Path) -> list[Listed]:
    """All jobs of a state folder: those that wait first, then by when they were asked for."""
    asked, decided = _by_id(_read(state / ASKED, list[Job])), _read(state / DECIDED, list[Decision])
    found = [Listed(each.job, each.state, each.until) for each in decided]
    known = {each.job.id: each for each in decided}
    again = [job for job in asked.values() if job.id not in known or _asked_again(job, known[job.id])]
    names = {job.id for job in again}
    waiting = [Listed(job, "waiting", None) for job in again]
    found = [each for each in found if each.job.id not in names]
    return sorted(waiting, key=lambda each: each.job.asked) + sorted(found, key=lambda each: each.job.asked)


def _asked_again(job: Job, decision: Decision) -> bool:
    return decision.state == "ended" and job.asked > (decision.until or "")


def decide(state: Path, name: str, until: str | None, *, deny: bool = False) -> Listed:
    """Approve the job whose name begins so until a day, or refuse it; ConfigError unless there is one such job."""
    try:
        lock = os.open(state / f"{DECIDED}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise ConfigError(f"state_dir: cannot write into {str(state)!r}: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = [each for each in list_jobs(state) if each.job.id.startswith(name)]
        if len(found) != 1 or not name:
            count = "no job" if not found else f"{len(found)} jobs"
            raise ConfigError(f"there is {count} whose name begins with {name!r}; `tablepuppet party jobs` lists them")
        end = None if deny else _end(until)
        decision = Decision(found[0].job, end, datetime.now(UTC).isoformat(timespec="microseconds"))
        others = [each for each in _read(state / DECIDED, list[Decision]) if each.job.id != decision.job.id]
        _write(state / DECIDED, [*others, decision])
        return Listed(decision.job, decision.state, end)
    except OSError as error:
        raise ConfigError(f"cannot write {str(state / DECIDED)!r}: {error.strerror}") from error
    finally:
        os.close(lock)


def _end(until: str | None) -> str:
    """The moment at which an approval ends: after that day, or at that moment; a month from now by default."""
    if until is None:
        return (datetime.now(UTC) + timedelta(days=USUAL_DAYS)).isoformat(timespec="seconds")
    try:
        found = datetime.fromisoformat(until)
    except ValueError as error:
        raise ConfigError(f"--until {until!r}: give a day or a moment, such as 2026-12-31") from error
    found = found.replace(tzinfo=found.tzinfo or UTC).astimezone(UTC)
    found += timedelta(days=1) if len(until) <= len("2026-12-31") else timedelta()
    if found <= datetime.now(UTC):
        raise ConfigError(f"--until {until!r} is past; give a day to come, or `--deny` to end an approval")
    return found.isoformat(timespec="seconds")


def check_files(state: Path) -> None:
    """ConfigError if a file of jobs is damaged."""
    _read(state / ASKED, list[Job])
    _read(state / DECIDED, list[Decision])


def epsilon_text(job: Job) -> str:
    """How much privacy a job asks for, for people."""
    return "none" if job.epsilon is None else f"{number(job.epsilon)} at delta {job.delta:g}"


Content = TypeVar("Content")


def _read(path: Path, kind: type[list[Content]]) -> list[Content]:
    try:
        return msgspec.json.decode(read_checked(path), type=kind)
    except FileNotFoundError:
        return []
    except (DamagedFileError, OSError, msgspec.MsgspecError) as error:
        raise ConfigError(
            f"{str(path)!r}, which lists jobs and their approvals, is damaged: `tablepuppet party restore` brings it "
            "back from a backup; or remove it, and jobs must be asked for and approved again"
        ) from error


def _write(path: Path, content: object) -> None:
    """Replace the file."""
    write_checked(path, msgspec.json.encode(content))


def _by_id(jobs: Iterable[Job]) -> dict[str, Job]:
    return {job.id: job for job in jobs}


def _digest(scan: Scan) -> str:
    return hashlib.sha256(msgspec.json.encode(scan, order="sorted")).hexdigest()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
