"""A reader of events for the terminal: progress bars there, plain lines elsewhere.

Bars are alive only while something goes on. Whoever prints calls `rest` first: the bars so far then stay as they are,
text comes below them, and what happens next has bars of its own below that.
"""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column

from tablepuppet.runs.events import ENDED_BY, Event


class ProgressReader:
    """Shows stages as they advance, and warnings; it writes to stderr."""

    def __init__(self, console: Console | None = None):
        self._console = console or Console(stderr=True)
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}

    def rest(self) -> None:
        """Stop drawing: what is printed now comes below the bars."""
        bars, self._bars, self._tasks = self._bars, None, {}
        if bars is not None:
            bars.stop()

    def __call__(self, event: Event) -> None:
        """Read one event."""
        if event.kind == "progress":
            self._advance(event)
        elif event.name in ENDED_BY:
            task = self._tasks.get(ENDED_BY[event.name])
            if task is not None and self._bars is not None:
                done = self._bars.tasks[task].completed
                self._bars.update(task, total=done, description=event.message)
            elif not self._console.is_terminal:
                self._line(event.message)
        elif event.kind == "warning":
            self._line(f"warning: {event.message}", "yellow")

    def _line(self, text: str, style: str | None = None) -> None:
        """Print a text, in a file or pipe as one line."""
        whole = not self._console.is_terminal
        self._console.print(text, style=style, markup=False, highlight=False, soft_wrap=whole)

    def _advance(self, event: Event) -> None:
        done, total = event.fields["done"], event.fields["total"]
        if not self._console.is_terminal:
            if event.name in ENDED_BY.values():  # each step of it has something of its own to say
                self._line(event.message)
            elif done == total:
                self._line(f"{event.message}: done")
            return
        if self._bars is None:
            self._bars = _new_bars(self._console)
            self._bars.start()
        if done == 0 or event.name not in self._tasks:
            self._tasks[event.name] = self._bars.add_task(event.message, total=total)
        self._bars.update(self._tasks[event.name], completed=done, description=event.message)


def _new_bars(console: Console) -> Progress:
    """Bars that suit the width: on a narrow terminal they are short and what they say takes several lines."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False, table_column=Column(overflow="fold")),
        BarColumn(bar_width=max(8, min(40, console.width - 70))),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        TimeElapsedColumn(table_column=Column(no_wrap=True)),
        console=console,
    )
