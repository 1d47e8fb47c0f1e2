"""What goes on, read from events: a line for each stage, keyed by the run that it is of.

Terminal, notebook and script show the same lines, each in its own way. A fit within a search or a cross-validation
is shown below that, and only as long as it runs.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from rich.cells import cell_len

from tablepuppet.runs.events import ENDED_BY, UP_TO, Event, State, state_of
from tablepuppet.runs.figures import number, seconds

GOES_ON_AS = {"prepare": "fit"}  # one line for both
_ENDS_BEFORE = UP_TO - set(ENDED_BY.values())  # by the next stage of its run, without an event of its own
REMEMBERED = 100  # stages that have ended
PATIENCE = 0.5  # seconds: what ends sooner is not worth a line, but for what says how it ended


@dataclass
class Stage:
    """One stage as it was last heard of."""

    name: str
    run: str | None
    message: str
    done: int
    total: int
    begun: float = field(default_factory=time.monotonic)
    now: float = field(default_factory=time.monotonic)
    state: State = "runs"
    rate: float | None = None  # steps per second
    inner: Stage | None = None  # what goes on within it now: of several fits that take turns, the last heard of
    is_inner: bool = False  # whether it goes on within another
    has_news: bool = False  # whether the last step has said something of its own
    _since: tuple[float, int] | None = None  # when its steps were first counted, and how many they were
    _within: dict[str | None, Stage] = field(default_factory=dict)  # fits within it that have not ended, by their run

    @property
    def seconds(self) -> float:
        """How long it has taken."""
        return self.now - self.begun

    @property
    def share(self) -> float | None:
        """How much of it is done; None where that is not known, since its total is a limit."""
        return None if self.name in UP_TO or self.total < 2 else min(1.0, self.done / self.total)

    @property
    def mark(self) -> str:
        """How it ended."""
        return "✗" if self.state == "stopped" else "✓"

    @property
    def text(self) -> str:
        """What is known of it.

        >>> Stage("open", None, "reading", 1, 4, 0.0, 1.5).text
        'reading (1 of 4, 1.5 s)'
        >>> Stage("fit", "5e0c41d2", "round 52 · loss 0.5000", 52, 400, 0.0, 8.6, rate=6.04).text
        'round 52 · loss 0.5000 · 6/s · at most 400 (8.6 s)'
        """
        return self.fitted()

    def fitted(self, width: int | None = None) -> str:
        """`text`, without what is least worth knowing where it would be longer than a line.

        >>> stage = Stage("fit", "5e0c41d2", "round 52 · loss 0.5000", 52, 400, 0.0, 8.6, rate=6.04)
        >>> stage.fitted(45), stage.fitted(30), stage.fitted(20)
        ('round 52 · loss 0.5000 · at most 400 (8.6 s)', 'round 52 · loss 0.5000 (8.6 s)', 'round 52 (8.6 s)')
        """
        more, facts = [], list[str]()
        if self.state != "ended":
            if self.name in UP_TO:
                more += [_rate(self.rate)] if self.rate else []
                more += [f"at most {self.total:,}"] if self.total else []
            elif self.total > 1:
                facts.append(f"{self.done:,} of {self.total:,}")
        facts += [seconds(self.seconds)] + ["stopped"] * (self.state == "stopped")
        parts = self.message.split(" · ")
        shorter = [parts[:end] for end in range(len(parts) - 1, 0, -1)] if self.state == "runs" else []
        texts = [[self.message, *more[start:]] for start in range(len(more) + 1)] + shorter
        lines = [f"{' · '.join(text)} ({', '.join(facts)})" for text in texts]
        return next((line for line in lines if width is None or cell_len(line) <= width), lines[-1])

    def advance(self, event: Event) -> None:
        """Read how far it is."""
        text = event.text if self.is_inner else event.message
        self.has_news = event.fields["done"] > 0 and (self.total == 0 or text != self.message)
        self.name, self.message, self.now = event.name, text, time.monotonic()
        self.done, self.total = event.fields["done"], event.fields.get("total", 0)
        if event.name in UP_TO:
            begun, before = self._since = self._since or (self.now, self.done)
            if self.done > before and self.now > begun:
                self.rate = (self.done - before) / (self.now - begun)
        ends = self.done >= self.total and event.name not in ENDED_BY.values()
        self.state = "ended" if ends else "runs"

    def within(self, event: Event) -> Stage:
        """Read how far a fit within it is."""
        stage = self._within.get(event.run)
        if stage is None:
            stage = self._within[event.run] = Stage(event.name, event.run, event.text, 0, 0, is_inner=True)
        stage.advance(event)
        if stage.state == "ended" and stage.name not in GOES_ON_AS:
            self.forget(event.run)
        self.inner = stage
        return stage

    def forget(self, run: str | None) -> None:
        """A fit within it has ended."""
        self._within.pop(run, None)

    def end_within(self) -> None:
        """Nothing goes on within it any more."""
        self.inner = None
        self._within.clear()

    def is_worth_showing(self, patience: float = PATIENCE) -> bool:
        """Whether it says how it ended, or takes its time."""
        return self.name in ENDED_BY.values() or self.seconds >= patience


def _rate(steps_per_second: float) -> str:
    return f"{number(steps_per_second, 2)}/s" if steps_per_second >= 1 else f"{number(1 / steps_per_second, 2)} s each"


class Stages:
    """The stages so far, in the order in which they began; of many that have ended, the last ones."""

    def __init__(self) -> None:
        self.lines: list[Stage] = []
        self.forgotten = 0  # stages worth showing that are no longer among the lines

    @property
    def any_runs(self) -> bool:
        """Whether something goes on."""
        return any(stage.state == "runs" for stage in self.lines)

    def read(self, event: Event) -> Stage | None:
        """Read one event; the stage that it is about, if it is about one."""
        self.settle()
        if len(self.lines) > 2 * REMEMBERED:
            self._forget()
        outer = self._around(event)
        if event.kind == "progress":
            return self._advance(event) if outer is None else outer.within(event)
        name = ENDED_BY.get(event.name)
        if name is not None and outer is not None:
            outer.forget(event.run)
        stage = None if name is None or outer is not None else self._running(event.run, name)
        if stage is not None:
            stage.message, stage.state, stage.now = event.message, "ended", time.monotonic()
            stage.end_within()
        return stage

    def settle(self) -> None:
        """End stages whose run has ended: an exception has stopped them, or they end with it."""
        now = time.monotonic()
        for stage in self.lines:
            if stage.state != "runs":
                continue
            stage.now = now
            if stage.run is not None:
                stage.state = state_of(stage.run)
            if stage.state != "runs":
                stage.end_within()
            elif stage.inner is not None:
                stage.inner.now = now

    def stop(self) -> None:
        """Nobody will hear of what still runs: it was stopped."""
        self.settle()
        for stage in self.lines:
            stage.state = "stopped" if stage.state == "runs" else stage.state
            stage.end_within()

    def _forget(self) -> None:
        """Forget stages that ended long ago: a script may predict a million times."""
        old, self.lines = self.lines[:-REMEMBERED], self.lines[-REMEMBERED:]
        running = [stage for stage in old if stage.state == "runs"]
        self.forgotten += sum(stage.state != "runs" and stage.is_worth_showing() for stage in old)
        self.lines = running + self.lines

    def _around(self, event: Event) -> Stage | None:
        """The running stage of a run around that of the event."""
        for stage in reversed(self.lines):
            if stage.state == "runs" and stage.run and event.run and event.run.startswith(f"{stage.run}."):
                return stage
        return None

    def _running(self, run: str | None, name: str) -> Stage | None:
        for stage in reversed(self.lines):
            if stage.state == "runs" and stage.run == run and stage.name == name:
                return stage
        return None

    def _advance(self, event: Event) -> Stage:
        stage = earlier = None  # the stage that runs under this name; one of the run that has ended and goes on so
        for other in reversed(self.lines):
            if other.run != event.run:
                continue
            if other.name != event.name and other.name in _ENDS_BEFORE and other.state == "runs":
                other.state = "ended"  # it was good enough, and the next of its run goes on
                other.end_within()
            if stage is None and other.name == event.name and other.state == "runs":
                stage = other
            if earlier is None and other.state == "ended" and GOES_ON_AS.get(other.name) == event.name:
                earlier = other
        done = event.fields["done"]
        if stage is not None and (earlier is not None or done == 0 or done < stage.done):
            stage.end_within()
            stage.state, stage = "stopped", None  # it failed, and its caller went on
        stage = stage or earlier
        if stage is None:
            stage = Stage(event.name, event.run, event.message, 0, 0)
            self.lines.append(stage)
        stage.advance(event)
        if stage.state != "runs":
            stage.end_within()
        return stage
