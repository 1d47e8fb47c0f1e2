"""Events on disk: a run writes its events to a file as it goes, and another process reads them, live or later.

Input: events. Output: a file of JSON lines, the first of which says what the run is, and the last how it ended. A
line is with the operating system before the run goes on, so the end of a process loses none of them. The writer holds
a lock on the file: so a reader knows whether a run that has no last line goes on, or has died. A file that has grown to
`MOST` bytes is written anew with less detail, so that a run of any length has one of bounded size.
Only the user may read it.
What events hold is in `events.py`: names, counts and measures, no value of a row.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import msgspec

from tablepuppet.runs.events import Event

EVENTS, FAILED = "events.jsonl", "failed.jsonl"  # of a run that goes on or has finished, and of one that has failed
BEGINS, ENDS = "run.begins", "run.ends"  # names of the first line of a run, and of its last
MOST = 16_000_000  # bytes of a file
LONGEST = 4000  # letters of a message
MOST_WARNINGS = 2000
Outcome = Literal["finished", "failed", "stopped"]
_LOG = logging.getLogger("tablepuppet")


def sayable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a learner that events may hold: numbers and names, but no list of classes and no weight of one.

    >>> sayable({"l2": 0.1, "solver": "sgd", "hidden": (16,), "class_weight": {"ill": 2.0}})
    {'l2': 0.1, 'solver': 'sgd', 'hidden': [16]}
    >>> sayable({"privacy": {"label_epsilon": 1.0, "label_classes": ["ill", "well"], "label_bounds": [0, 1]}})
    {'privacy': {'label_epsilon': 1.0}}
    """
    found: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping) and name in ("privacy", "solver"):
            found[name] = {inner: each for inner, each in value.items() if isinstance(each, bool | int | float)}
        elif isinstance(value, bool | int | float | str | None):
            found[name] = value
        elif isinstance(value, list | tuple) and all(isinstance(each, int | float) for each in value):
            found[name] = list(value)
    return found


class KeptEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of the file; see `Event`."""

    time: float
    kind: str
    name: str
    message: str = ""
    fields: dict[str, Any] = {}
    run: str | None = None
    part: str = ""


def _plain(value: Any) -> Any:
    """What JSON has no form for: a number of numpy, or a name."""
    return value.item() if hasattr(value, "item") else str(value)


_ENCODER = msgspec.json.Encoder(enc_hook=_plain)
_DECODER = msgspec.json.Decoder(KeptEvent)


class EventFile:
    """A reader of events that writes them to a file; `end` says how the run ended.

    Where the file cannot be written the run goes on without it, and the log says so once.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / EVENTS
    >>> with EventFile(path, {"job": "job.toml"}) as file:
    ...     file(Event("info", "joined", "the mapping is ready"))
    >>> [event.name for event in EventTail(path).read()], is_live(path)
    (['run.begins', 'joined', 'run.ends'], False)
    """

    reads_trips = True  # `Events` gives it those too

    def __init__(self, path: Path, facts: Mapping[str, Any], most: int = MOST, begun: float | None = None):
        self.path, self._most, self._lock = path, most, threading.Lock()
        self._file: int | None = None
        self._size = 0
        self.outcome: Outcome | None = None  # once it has ended
        self.has_opened = False  # whether parties were asked for rows
        try:
            self._file = _opened(path)
            self._size = os.fstat(self._file).st_size
        except OSError as error:
            self._give_up(error)
        self._write(KeptEvent(begun or time.time(), "info", BEGINS, fields={**facts, "pid": os.getpid()}))

    def __enter__(self) -> EventFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self.end("finished" if error is None else "failed", "" if error is None else str(error))

    def __call__(self, event: Event) -> None:
        """Write one event."""
        self.has_opened |= event.name == "open"
        message = event.message if event.kind != "trip" else ""  # its fields say the same
        fields = dict(event.fields)
        self._write(KeptEvent(event.time, event.kind, event.name, message[:LONGEST], fields, event.run, event.part))

    def end(self, outcome: Outcome, message: str = "", **fields: Any) -> None:
        """The run has ended; nothing is written after that."""
        self.outcome, kind = outcome, "info" if outcome == "finished" else "warning"
        self._write(KeptEvent(time.time(), kind, ENDS, message[:LONGEST], {"outcome": outcome, **fields}))
        self.close()

    def close(self) -> None:
        """Write no more: without `end`, readers take the run for dead."""
        with self._lock:
            self._close()

    def move(self, path: Path) -> None:
        """Keep the file under another name, in place of what has it."""
        with suppress(OSError):
            self.path.replace(path)

    def _write(self, event: KeptEvent) -> None:
        line = _ENCODER.encode(event) + b"\n"
        with self._lock:
            if self._file is None:
                return
            try:
                if self._size + len(line) > self._most:
                    self._thin()
                os.write(self._file, line)
                self._size += len(line)
            except OSError as error:
                self._give_up(error)

    def _thin(self) -> None:
        """Write the file anew, with half the rounds and with trips in sums."""
        content = b"".join(_ENCODER.encode(each) + b"\n" for each in thinned(read_events(self.path), self._most // 2))
        draft = self.path.with_name(f"{self.path.name}.new")
        with suppress(FileNotFoundError):
            draft.unlink()
        new = _opened(draft)
        os.write(new, content)
        draft.replace(self.path)
        self._close()
        self._file, self._size = new, len(content)

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)  # which gives up the lock
            self._file = None

    def _give_up(self, error: OSError) -> None:
        _LOG.warning("events cannot be kept in %s: %s", self.path, error.strerror)
        self._close()


def _opened(path: Path) -> int:
    """The file to append to, locked for this process."""
    found = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(found, fcntl.LOCK_EX)  # a reader that looks whether it is locked has it for an instant
    size = os.fstat(found).st_size
    if size and os.pread(found, 1, size - 1) != b"\n":
        os.write(found, b"\n")  # the last line of a process that died within it
    return found


def thinned(events: Iterable[KeptEvent], most: int) -> list[KeptEvent]:
    """Events with less detail, in at most so many bytes: all trips but the last tenth as sums by party, every second
    round, of other stages how they began and ended, and of warnings the last ones.
    """
    kept = list(events)
    trips = [each for each in kept if each.kind in ("trip", "trips")]
    others = [each for each in kept if each.kind not in ("trip", "trips")]
    warnings = [each for each in others if each.kind == "warning"]
    old = {id(each) for each in warnings[: max(0, len(warnings) - MOST_WARNINGS)]}
    others = [each for each in others if id(each) not in old]
    early = len(trips) - len(trips) // 10
    sums, late, left = _summed(trips[:early]), trips[early:], most
    left -= _size(sums) + _size(late)
    while True:
        fewer = _every_second(others)
        if _size(fewer) <= left or len(fewer) == len(others):
            break
        others = fewer
    if _size(fewer) > left:  # a script of a million fits: the first line, and the last fits
        fewer = [*fewer[:1], *fewer[-len(fewer) // 4 :]]
    return sorted([*fewer, *sums, *late], key=lambda each: each.time)


def _size(events: Iterable[KeptEvent]) -> int:
    return sum(len(_ENCODER.encode(each)) + 1 for each in events)


def _every_second(events: list[KeptEvent]) -> list[KeptEvent]:
    """Every second step of each stage, and the last."""
    found, seen, last = [], dict[tuple[str, str | None], int](), dict[tuple[str, str | None], int]()
    for at, event in enumerate(events):
        last[event.name, event.run] = at
    for at, event in enumerate(events):
        key, done = (event.name, event.run), event.fields.get("done", 0)
        if event.kind == "progress" and 0 < done < max(event.fields.get("total", 0), 1) and at != last[key]:
            seen[key] = seen.get(key, 0) + 1
            if seen[key] % 2 == 0:
                continue
        found.append(event)
    return found


def _summed(trips: list[KeptEvent]) -> list[KeptEvent]:
    """Trips, and sums of trips, as one sum for each party."""
    found: dict[str, KeptEvent] = {}
    for trip in trips:
        fields, party = trip.fields, str(trip.fields.get("party", ""))
        sums = found.get(party)
        if sums is None:
            zeros = {"party": party, "trips": 0, "lost": 0, "seconds": 0.0, "bytes_up": 0, "bytes_down": 0}
            sums = found[party] = KeptEvent(trip.time, "trips", "trips", fields={**zeros, "released": {}, "ops": {}})
        total = sums.fields
        total["trips"] += fields.get("trips", 1)
        total["lost"] += fields.get("lost", 0 if fields.get("answered", True) else 1)
        for name in ("seconds", "bytes_up", "bytes_down"):
            total[name] += fields.get(name, 0)
        for release, size in fields.get("released", {}).items():
            total["released"][release] = total["released"].get(release, 0) + size
        for op, (count, spent) in ops_of(fields).items():
            before = total["ops"].get(op, (0, 0.0))
            total["ops"][op] = [before[0] + count, before[1] + spent]
        found[party] = msgspec.structs.replace(sums, time=trip.time)
    return list(found.values())


def ops_of(fields: Mapping[str, Any]) -> dict[str, tuple[int, float]]:
    """How often each op was in trips, and the seconds of these: one that has several counts for the last of them."""
    ops = fields.get("ops", ())
    if isinstance(ops, dict):
        return {op: (int(count), float(spent)) for op, (count, spent) in ops.items()}
    return {op: (1, fields.get("seconds", 0.0) if op == ops[-1] else 0.0) for op in ops}


def is_live(path: Path) -> bool:
    """Whether a process is writing the file.

    >>> is_live(Path("nothing"))
    False
    """
    try:
        found = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(found, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(found)
    return False


class EventTail:
    """Reads a file as it grows. ``again`` counts how often it was written anew: then everything is read once more."""

    def __init__(self, path: Path):
        self.path, self.again = path, 0
        self._at, self._known = 0, (0, 0)
        self._rest = b""

    def read(self) -> list[KeptEvent]:
        """The events since the last call; lines that are none are left out."""
        try:
            with self.path.open("rb") as file:
                stat = os.fstat(file.fileno())
                if (stat.st_dev, stat.st_ino) != self._known or stat.st_size < self._at:
                    self.again += self._known != (0, 0)
                    self._known, self._at, self._rest = (stat.st_dev, stat.st_ino), 0, b""
                file.seek(self._at)
                data = file.read()
        except OSError:
            return []
        self._at += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        found = []
        for line in lines:
            with suppress(msgspec.DecodeError):
                found.append(_DECODER.decode(line))
        return found


def read_events(path: Path) -> list[KeptEvent]:
    """All events of a file; none if it cannot be read."""
    return EventTail(path).read()
