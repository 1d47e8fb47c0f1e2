"""The runs below some folders: which there are, how each stands, and their events as they come.

Input: paths that the analyst names: run folders, or folders with run folders. Output: `Run`s. Files are read again
only if they have changed; of a thousand runs only the beginning and end of each file, until one is opened.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from tablepuppet.monitor.run_state import Fit, RunState, Status
from tablepuppet.runs.event_file import EVENTS, FAILED, EventTail, KeptEvent, is_live
from tablepuppet.runs.figures import readable, seconds

RECORD = "record"  # of a run that is under way
FINISHED, HISTORY, METRICS = "run.json", "history.json", "metrics.json"
DEPTH, MOST = 4, 5000  # folders below each other that are searched, and runs that are listed
ENDS = 65_536  # bytes of the beginning and of the end of a file that an overview reads
LOOK = 3.0  # seconds after which folders are searched again
_DECODER = msgspec.json.Decoder(KeptEvent)


@dataclass
class Run:
    """A run folder, and what is known of it."""

    path: Path
    name: str
    state: RunState
    status: Status = "finished"
    whole: bool = False  # whether all its events were read
    changed: int = 0  # grows with every change
    problem: str = ""  # why it cannot be read
    _tail: EventTail | None = field(default=None, repr=False)
    _again: int = 0
    _stamp: tuple[Any, ...] = ()

    @property
    def key(self) -> str:
        """Its name in addresses."""
        return hashlib.sha256(str(self.path).encode()).hexdigest()[:12]

    @property
    def file(self) -> Path | None:
        """Its newest file of events."""
        names = (Path(RECORD) / EVENTS, FAILED, EVENTS)
        found = [self.path / name for name in names if (self.path / name).is_file()]
        if not found:
            return None
        return found[0] if found[0].parent.name == RECORD else max(found, key=lambda each: each.stat().st_mtime)

    @property
    def resumable(self) -> bool:
        """Whether `tablepuppet resume` continues it."""
        return self.status in ("stopped", "died") and (self.path / RECORD / FINISHED).exists()

    def look(self, *, whole: bool) -> None:
        """Read what is new; without ``whole`` only enough for an overview."""
        with suppress(OSError):
            file = self.file
            if file is None:
                self._look_at_results()
                return
            stat = file.stat()
            stamp = (str(file), stat.st_ino, stat.st_size, stat.st_mtime_ns)
            live = is_live(file)
            if stamp != self._stamp or (whole and not self.whole):
                self._read(file, whole=whole or self.whole)
                self._stamp, self.changed = stamp, self.changed + 1
            status = self._status(live)
            if status != self.status:
                self.status, self.changed = status, self.changed + 1

    def _read(self, file: Path, *, whole: bool) -> None:
        if not whole:
            self.state = RunState(self.name)
            self.state.read(_ends_of(file))
            return
        if self._tail is None or self._tail.path != file:
            self._tail, self._again = EventTail(file), 0
            self.state = RunState(self.name)
        events = self._tail.read()
        if self._tail.again != self._again:  # it was written anew, with less detail
            self._again, self.state = self._tail.again, RunState(self.name)
        self.state.read(events)
        self.whole = True

    def _status(self, live: bool) -> Status:
        if live:
            return "waiting" if self.state.waiting else "running"
        known: dict[str | None, Status] = {"finished": "finished", "failed": "failed", "stopped": "stopped"}
        return known.get(self.state.outcome, "died")

    def _look_at_results(self) -> None:
        """A run of before there were files of events: what it has come to."""
        if self.whole:
            return
        self.whole, self.changed = True, self.changed + 1
        try:
            history = json.loads((self.path / HISTORY).read_text())
            metrics = json.loads((self.path / METRICS).read_text())
            stamp = (self.path / FINISHED).stat().st_mtime
        except (OSError, ValueError):
            self.status, self.problem = "died", "its files cannot be read: train the job again, with --overwrite"
            return
        self.state = RunState(self.name, begun=stamp, last=stamp, outcome="finished", metrics=metrics)
        rounds = [each for each in history if isinstance(each, dict) and "loss" in each]
        self.state.fits[""] = Fit("", rounds=rounds, fitted={"rounds": len(rounds)}, begun=stamp, last=stamp)


def _ends_of(file: Path) -> list[KeptEvent]:
    """The first events of a file, and the last."""
    size = file.stat().st_size
    with file.open("rb") as opened:
        data = opened.read(ENDS)
        lines = data.split(b"\n")
        if size > ENDS:
            lines.pop()
            opened.seek(max(ENDS - len(data.rsplit(b"\n", 1)[-1]), size - ENDS))
            last = opened.read().split(b"\n")
            lines += last if size <= 2 * ENDS else last[1:]
    found = []
    for line in lines:
        with suppress(msgspec.DecodeError):
            found.append(_DECODER.decode(line))
    return found


class Runs:
    """The runs below some folders."""

    def __init__(self, places: Sequence[Path]):
        self.places = [place.resolve() for place in places]
        self._runs: dict[Path, Run] = {}
        self._searched = 0.0

    def look(self) -> list[Run]:
        """All runs, the newest first, as they are now."""
        if time.monotonic() - self._searched > LOOK or not self._runs:
            found = {path: None for place in self.places for path in _run_folders(place)}
            self._runs = {path: self._runs.get(path) or self._new(path) for path in found}
            self._searched = time.monotonic()
        for run in self._runs.values():
            run.look(whole=False)
        order = {"running": 2, "waiting": 2}
        return sorted(self._runs.values(), key=lambda run: (order.get(run.status, 1), run.state.begun), reverse=True)

    def run(self, key: str) -> Run | None:
        """The run with a name of addresses, all its events read."""
        found = next((run for run in self._runs.values() if run.key == key), None)
        if found is not None:
            found.look(whole=True)
        return found

    def _new(self, path: Path) -> Run:
        name = path.name
        for place in self.places:
            if path != place and path.is_relative_to(place):
                name = str(path.relative_to(place))
        return Run(path, name, RunState(name))


def _run_folders(place: Path) -> list[Path]:
    found: list[Path] = []
    level = [place]
    for _ in range(DEPTH):
        below: list[Path] = []
        for folder in level:
            names = _names(folder)
            if names & {EVENTS, FAILED, FINISHED} or (RECORD in names and _names(folder / RECORD) & {EVENTS, FINISHED}):
                found.append(folder)
            elif len(found) < MOST:
                below += [folder / name for name in sorted(names) if not name.startswith(".")]
        level = [each for each in below if each.is_dir() and not each.is_symlink()][:MOST]
    return found[:MOST]


def _names(folder: Path) -> set[str]:
    try:
        return set(os.listdir(folder))
    except OSError:
        return set()


def process_figures(pid: int) -> tuple[str, str]:
    """Memory and processor time of a process of this machine, in words; empty where that is not known."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        return readable(int(fields[21]) * os.sysconf("SC_PAGE_SIZE")), seconds(ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, IndexError, ValueError):
        return "", ""
