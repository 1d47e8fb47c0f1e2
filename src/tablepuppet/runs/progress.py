"""Readers of events for people: lines that move on a terminal, plain lines in a file or pipe, and of a script.

On a terminal lines move only while something goes on. Whoever prints calls `rest` first: what has ended then stays,
text comes below it, and what happens next is shown below that. `default_readers` are those that a federation has where
nobody was asked to show progress: the notebook's, or a script's on standard error.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from tablepuppet.runs.events import ENDED_BY, Event, Reader
from tablepuppet.runs.fitted_text import fitted, print_beside
from tablepuppet.runs.notebook_progress import notebook_readers
from tablepuppet.runs.stages import PATIENCE, Stage, Stages

BAR = 12  # letters of a bar
SILENCE = 5.0  # seconds after which a line is printed where rounds of a search are not
LONGEST_SILENCE = 60.0  # of a script, which is silent for twice as long after each line


class ProgressReader:
    """Shows stages as they advance, and warnings; it writes to stderr."""

    def __init__(self, console: Console | None = None, patience: float = PATIENCE):
        self._console, self._patience = console or Console(stderr=True), patience
        self._lock = threading.Lock()
        self._lines = None if self._console.is_terminal else LineReader(self._line)
        self._stages, self._spinner = Stages(), Spinner("dots")
        self._drawn: Live | None = None
        self._warned: set[str] = set()

    def rest(self) -> None:
        """Stop drawing: what is printed now comes below what has ended."""
        drawn, self._drawn = self._drawn, None
        if drawn is not None:
            with self._lock:
                self._stages.stop()
            drawn.stop()
            with self._lock:
                self._stages = Stages()

    def __call__(self, event: Event) -> None:
        """Read one event."""
        if event.kind == "warning":
            self._warn(event)
        elif self._lines is not None:
            self._lines(event)
        else:
            with self._lock:
                stage = self._stages.read(event)
            if stage is not None and self._drawn is None:
                self._drawn = Live(console=self._console, get_renderable=self._draw, refresh_per_second=8)
                self._drawn.start()

    def _warn(self, event: Event) -> None:
        """Print a warning, once: fits of a search repeat it. That a party is silent is news each time."""
        if event.message not in self._warned or event.name.startswith("party."):
            self._warned.add(event.message)
            self._line(f"warning: {event.text}", "yellow")

    def _line(self, text: str, style: str | None = None) -> None:
        """Print a text, in a file or pipe as one line."""
        whole = not self._console.is_terminal
        text = text if whole else fitted(text, self._console.width)
        self._console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    def _draw(self) -> RenderableType:
        with self._lock:
            self._stages.settle()
            return Group(*(each for stage in self._stages.lines for each in self._drawn_lines(stage)))

    def _drawn_lines(self, stage: Stage) -> list[RenderableType]:
        if stage.state == "ended" and not stage.is_worth_showing(self._patience):
            return []
        width = self._console.width
        inner = [] if stage.inner is None else [_line_of(stage.inner, Text("  ·"), width - 4)]
        return [_line_of(stage, self._spinner, width - 2), *inner]


def _line_of(stage: Stage, moving: RenderableType, width: int) -> Table:
    """A stage as a line: a mark or what moves, a bar if it is known how much is done, and a text that fits.

    What runs has no bar where its text would take a second line then: it would jump up and down with every step.
    """
    runs, share = stage.state == "runs", stage.share
    cells: list[RenderableType] = [moving if runs else Text(stage.mark)]
    if runs and share is not None and cell_len(stage.fitted(width - BAR - 1)) < width - BAR:
        cells.append(ProgressBar(total=1.0, completed=share, width=BAR))
        width -= BAR + 1
    line = Table.grid(padding=(0, 1, 0, 0))
    for _ in cells:
        line.add_column(no_wrap=True)
    line.add_column(overflow="fold")
    line.add_row(*cells, Text(fitted(stage.fitted(width), width)))
    return line


class LineReader:
    """Prints a line whenever a stage has something to say, or has ended: for files, pipes and scripts.

    Of fits within a search or a cross-validation it is silent, unless nothing else was printed for a while.
    """

    def __init__(self, print_line: Callable[[str], None]):
        self._print, self._stages, self._said_at = print_line, Stages(), time.monotonic()

    def __call__(self, event: Event) -> None:
        """Read one event."""
        stage = self._stages.read(event)
        if stage is None:
            return
        if stage.is_inner:
            if time.monotonic() - self._said_at >= SILENCE:
                self._say(stage.message)
        elif event.name in ENDED_BY:
            self._say(stage.message)
        elif stage.has_news:
            self._say(stage.message if stage.share is None else f"{stage.message} ({stage.done} of {stage.total})")
        elif stage.state == "ended":
            self._say(f"{stage.message}: done")

    def _say(self, text: str) -> None:
        self._said_at = time.monotonic()
        self._print(text)


class SlowReader:
    """Prints a line now and then about what takes long, and how that ended; nothing about what does not.

    It is silent for twice as long after each line. If no event arrives meanwhile, as in a round that takes minutes, it
    repeats what was last heard of the run, with its age.
    """

    def __init__(self, print_line: Callable[[str], None], silence: float = SILENCE):
        self._print, self._stages, self._first = print_line, Stages(), silence
        self._about: Stage | None = None  # the stage that lines are about
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None

    def __call__(self, event: Event) -> None:
        """Read one event."""
        with self._lock:
            stage = self._stages.read(event)
            if stage is not None:
                self._hear(stage)

    def _hear(self, stage: Stage) -> None:
        is_next = stage is not self._about and not stage.is_inner
        if self._about is None or (is_next and self._about.state != "runs"):
            self._about, self._silence, self._said, self._said_at = stage, self._first, False, stage.begun
        ends = stage is self._about and stage.state != "runs"
        if self._said if ends else self._left() <= 0:
            self._say(stage)
        self._watch(self._about)

    def _left(self) -> float:
        """Seconds of silence that are left."""
        return self._said_at + self._silence - time.monotonic()

    def _say(self, stage: Stage) -> None:
        self._print(stage.text)
        self._said, self._said_at = True, time.monotonic()
        self._silence = min(2 * self._silence, LONGEST_SILENCE)

    def _watch(self, about: Stage) -> None:
        """Look again after the silence, if something goes on of which is known when it ends: a run."""
        if self._timer is None and about.run is not None and about.state == "runs":
            self._timer = threading.Timer(max(self._left(), 0.0), self._look)
            self._timer.daemon = True
            self._timer.start()

    def _look(self) -> None:
        with self._lock:
            self._timer, about = None, self._about
            self._stages.settle()
            if about is not None and about.state == "runs":
                if self._left() <= 0:
                    self._say(about.inner or about)
                self._watch(about)


def default_readers(verbose: bool | None, *, has_callbacks: bool) -> list[Reader]:
    """Readers of a federation beside its callbacks: of everything, of nothing, or of what takes long (None).

    A notebook shows everything unless it is to show nothing. A script that has callbacks, or logs every event, has
    others that show it.
    """
    if verbose is False:
        return []
    if found := notebook_readers():
        return found
    if verbose:
        return [LineReader(_print)]
    has_others = has_callbacks or logging.getLogger("tablepuppet").isEnabledFor(logging.DEBUG)
    return [] if has_others else [SlowReader(_print)]


def _print(text: str) -> None:
    print_beside(f"tablepuppet: {text}")
