"""A reader of events for the terminal: progress bars there, plain lines elsewhere."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from tablepuppet.runs.events import Event


class ProgressReader:
    """Shows stages as they advance, and warnings. Use as a context; it writes to stderr."""

    _ended = {"fitted": "fit"}  # noqa: RUF012 - never changed

    def __init__(self, console: Console | None = None):
        self._console = console or Console(stderr=True)
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        self._bars = Progress(*columns, console=self._console, disable=not self._console.is_terminal)
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> ProgressReader:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def __call__(self, event: Event) -> None:
        """Read one event."""
        if event.kind == "progress":
            self._advance(event)
        elif event.name in self._ended:  # a stage that ends when it is good enough
            task = self._tasks.get(self._ended[event.name])
            if task is not None:
                done = self._bars.tasks[task].completed
                self._bars.update(task, total=done, description=event.message)
            elif not self._console.is_terminal:
                self._console.print(event.message, markup=False, highlight=False)
        elif event.kind == "warning":
            self._console.print(f"warning: {event.message}", style="yellow", markup=False, highlight=False)

    def _advance(self, event: Event) -> None:
        done, total = event.fields["done"], event.fields["total"]
        if not self._console.is_terminal:
            if event.name in self._ended.values():  # each step of it has something of its own to say
                self._console.print(event.message, markup=False, highlight=False)
            elif done == total:
                self._console.print(f"{event.message}: done", markup=False, highlight=False)
            return
        if done == 0 or event.name not in self._tasks:
            self._tasks[event.name] = self._bars.add_task(event.message, total=total)
        self._bars.update(self._tasks[event.name], completed=done, description=event.message)
