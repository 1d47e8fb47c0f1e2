"""A reader of events for notebooks: under a cell stands one block with a bar per stage, and every warning.

The block is updated in place, a few times a second. It needs no widgets. Stages that end at once are not shown, but
for fits, whose end is worth reading. A notebook has one reader for all its federations; elsewhere there is none.
"""

from __future__ import annotations

import contextvars
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from html import escape

from tablepuppet.runs.events import ENDED_BY, Event, Reader
from tablepuppet.short_traceback import running_shell

Bundle = dict[str, str]  # MIME type -> what to show
Update = Callable[[Bundle], None]
GOES_ON_AS = {"prepare": "fit"}  # one line for both
MOST_LINES = 10
_LINE = "display: flex; align-items: center; gap: 0.75em; line-height: 1.6; color: inherit;"
_BAR = "flex: none; width: 10em; height: 0.6em; border: 1px solid rgba(128, 128, 128, 0.6); border-radius: 0.3em;"
_FILL = "height: 100%; border-radius: 0.3em; background: rgb(66, 133, 244);"
_NUMBER = "font-variant-numeric: tabular-nums; white-space: nowrap; opacity: 0.75;"


@dataclass
class _Stage:
    """One stage as it was last heard of."""

    name: str
    message: str
    done: int
    total: int
    begun: float
    now: float
    state: str = "runs"  # "ended" when all is done, "stopped" when its cell ended before

    @property
    def seconds(self) -> float:
        return self.now - self.begun

    def html(self) -> str:
        fill = f'<div style="{_FILL} width: {100 * self.done / max(self.total, 1):.0f}%;"></div>'
        bar = f'<div style="{_BAR}">{fill}</div>' if self.state == "runs" else f"<span>{self._mark()}</span>"
        figures = f'<span style="{_NUMBER}">{self._figures()}</span>'
        return f'<div style="{_LINE}">{bar}<span>{escape(self.message)}</span>{figures}</div>'

    def text(self) -> str:
        filled = 20 * self.done // max(self.total, 1)
        start = f"[{'#' * filled:<20}]" if self.state == "runs" else self._mark()
        return f"{start} {self.message} ({self._figures()})"

    def _mark(self) -> str:
        return "✓" if self.state == "ended" else "✗"

    def _figures(self) -> str:
        steps = "" if self.state == "ended" else f"{self.done} of {self.total}, "
        return f"{steps}{self.seconds:.1f} s" + (", stopped" if self.state == "stopped" else "")


class NotebookReader:
    """Shows stages and warnings of the cell that runs. ``display`` shows a bundle and returns how to update it."""

    def __init__(self, display: Callable[[Bundle], Update], interval: float = 0.2, patience: float = 0.5):
        self._display, self._interval, self._patience = display, interval, patience
        self._lock = threading.Lock()
        self._ticket: object | None = None  # of the thread that refreshes the block
        self._clear()

    def _clear(self) -> None:
        self._stages: list[_Stage] = []
        self._warnings: list[str] = []
        self._update: Update | None = None
        self._shown, self._shown_at, self._ticket = Bundle(), 0.0, None

    def __call__(self, event: Event) -> None:
        """Read one event."""
        with self._lock:
            if event.kind == "progress":
                self._advance(event)
            elif event.kind == "warning" and event.message not in self._warnings:
                self._warnings.append(event.message)
            elif stage := self._running(ENDED_BY.get(event.name, "")):
                stage.message, stage.state = event.message, "ended"
            else:
                return
            self._refresh()

    def _advance(self, event: Event) -> None:
        done, total, now = event.fields["done"], event.fields["total"], time.monotonic()
        stage, taken_up = self._running(event.name), self._before(event.name)
        if stage is None or taken_up is not None or done == 0 or done < stage.done:
            if stage is not None:  # it failed, and the cell went on
                stage.state = "stopped"
            stage = taken_up or _Stage(event.name, event.message, done, total, now, now)
            self._stages += [] if taken_up else [stage]
        stage.name, stage.message, stage.done, stage.total, stage.now = event.name, event.message, done, total, now
        ends = done >= total and event.name not in ENDED_BY.values()
        stage.state = "ended" if ends else "runs"

    def _running(self, name: str) -> _Stage | None:
        return next((stage for stage in reversed(self._stages) if stage.name == name and stage.state == "runs"), None)

    def _before(self, name: str) -> _Stage | None:
        """The stage that one of this name takes up, if there is one."""
        ended = (stage for stage in reversed(self._stages) if stage.state == "ended")
        return next((stage for stage in ended if GOES_ON_AS.get(stage.name) == name), None)

    def _refresh(self) -> None:
        """Show what is new, now or soon: by a thread as long as a stage runs."""
        runs = any(stage.state == "runs" for stage in self._stages)
        if not runs or time.monotonic() >= self._shown_at + self._interval:
            self._show()
        if runs and self._ticket is None:
            self._ticket = object()
            in_this_cell = contextvars.copy_context().run
            threading.Thread(target=in_this_cell, args=(self._keep_showing, self._ticket), daemon=True).start()

    def _keep_showing(self, ticket: object) -> None:
        while True:
            time.sleep(self._interval)
            with self._lock:
                if self._ticket is not ticket:  # its cell has ended
                    return
                if not any(stage.state == "runs" for stage in self._stages):
                    self._ticket = None
                    return
                self._show()

    def _show(self) -> None:
        self._shown_at = now = time.monotonic()
        for stage in self._stages:
            stage.now = now if stage.state == "runs" else stage.now
        bundle = self._bundle()
        if bundle and bundle != self._shown:
            self._shown = bundle
            if self._update is None:
                self._update = self._display(bundle)
            else:
                self._update(bundle)

    def _bundle(self) -> Bundle:
        worth = [stage for stage in self._stages if stage.name in ENDED_BY.values() or stage.seconds >= self._patience]
        if not worth and not self._warnings:
            return {}
        earlier, worth = worth[:-MOST_LINES], worth[-MOST_LINES:]
        left_out = [f"… and {len(earlier)} before"] if earlier else []
        lines = [f'<div style="{_LINE}">{line}</div>' for line in left_out] + [stage.html() for stage in worth]
        lines += [
            f'<div style="{_LINE} align-items: baseline;"><b>Warning</b><span>{escape(text)}</span></div>'
            for text in self._warnings
        ]
        texts = left_out + [stage.text() for stage in worth] + [f"Warning: {text}" for text in self._warnings]
        return {"text/html": f"<div>{''.join(lines)}</div>", "text/plain": "\n".join(texts)}

    def end_cell(self, *_: object) -> None:
        """A cell has ended, or the next begins: what still runs was stopped."""
        with self._lock:
            for stage in self._stages:
                stage.state = "stopped" if stage.state == "runs" else stage.state
            self._show()
            self._clear()


def default_readers() -> list[Reader]:
    """The reader of the notebook that this process runs; none elsewhere, also not in IPython's terminal."""
    shell = running_shell()
    return [] if getattr(shell, "kernel", None) is None else [_reader()]


@cache
def _reader() -> NotebookReader:
    reader = NotebookReader(_display)
    for moment in ("pre_run_cell", "post_run_cell"):
        running_shell().events.register(moment, reader.end_cell)
    # The block shows warnings: without a handler, logging would write them to stderr too.
    logging.getLogger("tablepuppet").addHandler(logging.NullHandler())
    return reader


def _display(bundle: Bundle) -> Update:
    from IPython.display import display  # it runs, so this costs nothing

    handle = display(bundle, raw=True, display_id=True)  # type: ignore[no-untyped-call]
    return lambda changed: handle.update(changed, raw=True)
