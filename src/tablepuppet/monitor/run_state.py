"""What a run has come to, folded from its events one by one: pure, and the same for a live run and an old one.

Input: `KeptEvent`s in their order. Output: a `RunState` with stages, rounds, parties, trips, warnings; sizes of its
lists are bounded, however long the run. No value of a row is in events, and none is here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tablepuppet.runs.event_file import BEGINS, ENDS, KeptEvent, ops_of
from tablepuppet.runs.events import UP_TO

STAGES = ("open", "join", "prepare", "fit", "predict")
TRIPS = 4000  # that the timeline shows, the last ones
ROUNDS = 20_000  # of a fit that are remembered; a file of events holds fewer
FITS = 2000
MARKS = 500
PartyStatus = Literal["answering", "silent", "lost", "not asked yet"]
Status = Literal["waiting", "running", "finished", "failed", "stopped", "died"]


@dataclass
class StageState:
    """One stage of a run, as it was last heard of."""

    name: str
    message: str = ""
    done: int = 0
    total: int = 0
    begun: float = 0.0
    last: float = 0.0
    ended: bool = False


@dataclass
class PartyState:
    """What is known of a party from its answers."""

    name: str
    status: PartyStatus = "not asked yet"
    heard: float = 0.0  # when it last answered
    last_seconds: float = 0.0  # its last answer took so long
    trips: int = 0
    lost: int = 0
    seconds: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0
    released: dict[str, int] = field(default_factory=dict)
    ops: dict[str, tuple[int, float]] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)  # replies by the power of two of their bytes
    over_time: dict[int, int] = field(default_factory=dict)  # bytes both ways by minute


@dataclass
class Fit:
    """One fit of a run: a job has one, a search many."""

    run: str
    part: str = ""  # which candidate and fold
    begins: dict[str, Any] = field(default_factory=dict)
    rounds: list[dict[str, Any]] = field(default_factory=list)
    fitted: dict[str, Any] = field(default_factory=dict)
    message: str = ""
    limit: int = 0
    begun: float = 0.0
    last: float = 0.0

    @property
    def constant(self) -> float | None:
        """The loss of the best constant."""
        found = self.begins.get("constant", {}).get("loss")
        return None if found is None else float(found)


@dataclass
class Warned:
    """A warning, and how often it came."""

    name: str
    text: str
    last: float
    times: int = 1


@dataclass
class Mark:
    """A party was lost, silent, or came back."""

    time: float
    party: str
    what: str
    round: int


@dataclass
class RoundTime:
    """Where the time of a round went."""

    parties: dict[str, float] = field(default_factory=dict)  # seconds from requests to answers
    waited: float = 0.0  # for the slowest party of each trip


@dataclass
class RunState:
    """All that is known of a run."""

    name: str
    facts: dict[str, Any] = field(default_factory=dict)
    begun: float = 0.0
    last: float = 0.0  # event
    attempts: int = 0
    outcome: str | None = None
    ending: str = ""
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    stages: dict[str, StageState] = field(default_factory=dict)
    parties: dict[str, PartyState] = field(default_factory=dict)
    fits: dict[str, Fit] = field(default_factory=dict)
    warnings: list[Warned] = field(default_factory=list)
    marks: deque[Mark] = field(default_factory=lambda: deque(maxlen=MARKS))
    trips: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=TRIPS))
    times: dict[int, RoundTime] = field(default_factory=dict)  # of the main fit, by round; 0 is what came before
    candidates: list[str] = field(default_factory=list)  # messages of a search, one for each fit of it
    waiting: str = ""  # what it waits for, while it does
    _trip: tuple[int, float] = (-1, 0.0)

    def read(self, events: Iterable[KeptEvent]) -> None:
        """Fold events in."""
        for event in events:
            self._read(event)

    @property
    def main(self) -> Fit | None:
        """The fit that the run is about: the last that is not a part of a search."""
        whole = [fit for fit in self.fits.values() if not fit.part]
        return whole[-1] if whole else next(reversed(self.fits.values()), None)

    @property
    def parts(self) -> list[Fit]:
        """The fits of a search or a cross-validation."""
        return [fit for fit in self.fits.values() if fit.part]

    @property
    def stage(self) -> StageState | None:
        """What goes on, or went on last."""
        return max(self.stages.values(), key=lambda each: each.last, default=None)

    def _read(self, event: KeptEvent) -> None:
        if event.name == BEGINS:
            self._begin(event)
            return
        self.last = max(self.last, event.time)
        self.begun = self.begun or event.time
        if event.name == ENDS:
            self._end(event)
        elif event.kind in ("trip", "trips"):
            self._read_trip(event)
        elif event.kind == "progress":
            self._progress(event)
        elif event.kind == "warning":
            self._warn(event)
        elif event.name == "fit.begins":
            fit = self._fit(event)
            fit.begins, fit.limit = dict(event.fields), int(event.fields.get("rounds") or 0)
            for parties in event.fields.get("tables", {}).values():
                for party in parties:
                    self._party(str(party))
        elif event.name == "fitted":
            fit = self._fit(event)
            fit.fitted, fit.message = dict(event.fields), event.message
            self._ended("fit")
        elif event.name == "party.back":
            self._mark(event, "back")
        elif event.name == "joined":
            self._ended("join")
        elif event.name == "opened":
            self._ended("open")

    def _begin(self, event: KeptEvent) -> None:
        """A new attempt: what was heard of an earlier one is over."""
        attempts, name = self.attempts + 1, self.name
        self.__init__(name)  # type: ignore[misc]
        self.attempts, self.facts, self.begun, self.last = attempts, dict(event.fields), event.time, event.time

    def _end(self, event: KeptEvent) -> None:
        self.outcome, self.ending = str(event.fields.get("outcome", "")), event.message
        self.metrics, self.waiting = dict(event.fields.get("metrics") or {}), ""

    def _party(self, name: str) -> PartyState:
        return self.parties.setdefault(name, PartyState(name))

    def _fit(self, event: KeptEvent) -> Fit:
        run = event.run or ""
        fit = self.fits.get(run)
        if fit is None:
            fit = self.fits[run] = Fit(run, event.part, begun=event.time)
            if len(self.fits) > FITS:
                del self.fits[next(iter(self.fits))]
            if not event.part:
                self.times.clear()
        fit.last = event.time
        return fit

    def _ended(self, name: str) -> None:
        if name in self.stages:
            self.stages[name].ended = True

    def _progress(self, event: KeptEvent) -> None:
        fields, name = event.fields, event.name
        done, total = int(fields.get("done", 0)), int(fields.get("total", 0))
        stage = self.stages.setdefault(name, StageState(name, begun=event.time))
        if done == 0 and stage.ended:
            stage.begun, stage.ended = event.time, False
        stage.message, stage.done, stage.total, stage.last = event.message, done, total, event.time
        stage.ended = bool(total) and done >= total and name not in UP_TO
        self.waiting = ""
        if "loss" in fields:
            fit = self._fit(event)
            fit.limit = total or fit.limit
            if len(fit.rounds) < ROUNDS:
                fit.rounds.append(fields)
            for early in ("open", "join", "prepare"):
                self._ended(early)
        elif name in ("search", "folds") and done:
            self.candidates = [*self.candidates[-FITS:], event.message]

    def _warn(self, event: KeptEvent) -> None:
        if event.name == "party.silent":
            self._mark(event, "silent")
            self.waiting = event.message
        elif event.name == "party.lost":
            self._mark(event, "lost")
        text = f"{event.part}: {event.message}" if event.part else event.message
        for known in self.warnings:
            if (known.name, known.text) == (event.name, text):
                known.times, known.last = known.times + 1, event.time
                return
        if len(self.warnings) < MARKS:
            self.warnings.append(Warned(event.name, text, event.time))

    def _mark(self, event: KeptEvent, what: str) -> None:
        name = str(event.fields.get("party", ""))
        if name:
            status: Mapping[str, PartyStatus] = {"lost": "lost", "silent": "silent", "back": "answering"}
            self._party(name).status = status[what]
        main = self.main
        self.marks.append(Mark(event.time, name, what, len(main.rounds) + 1 if main is not None else 0))

    def _read_trip(self, event: KeptEvent) -> None:
        fields = event.fields
        party, spent = self._party(str(fields.get("party", ""))), float(fields.get("seconds", 0.0))
        count, lost = int(fields.get("trips", 1)), int(fields.get("lost", not fields.get("answered", True)))
        party.trips, party.lost, party.seconds = party.trips + count, party.lost + lost, party.seconds + spent
        up, down = int(fields.get("bytes_up", 0)), int(fields.get("bytes_down", 0))
        party.bytes_up, party.bytes_down = party.bytes_up + up, party.bytes_down + down
        for release, size in fields.get("released", {}).items():
            party.released[release] = party.released.get(release, 0) + int(size)
        for op, (times, seconds) in ops_of(fields).items():
            before = party.ops.get(op, (0, 0.0))
            party.ops[op] = (before[0] + times, before[1] + seconds)
        minute = int(event.time // 60)
        party.over_time[minute] = party.over_time.get(minute, 0) + up + down
        if event.kind == "trips":
            party.heard = max(party.heard, event.time)
            return
        power = max(0, up).bit_length()
        party.sizes[power] = party.sizes.get(power, 0) + 1
        party.last_seconds = spent
        if fields.get("answered", True):
            party.status, party.heard = "answering", event.time
        elif party.status != "lost":
            party.status = "silent"
        self.trips.append({**fields, "time": event.time})
        self._time(int(fields.get("trip", 0)), party.name, spent)

    def _time(self, trip: int, party: str, spent: float) -> None:
        """Count a trip for the round that is under way."""
        main = self.main
        number = 0 if main is None or main.part or main.fitted else len(main.rounds) + 1
        found = self.times.setdefault(number, RoundTime())
        found.parties[party] = found.parties.get(party, 0.0) + spent
        before = self._trip[1] if self._trip[0] == trip else 0.0
        found.waited += max(0.0, spent - before)
        self._trip = (trip, max(before, spent))
