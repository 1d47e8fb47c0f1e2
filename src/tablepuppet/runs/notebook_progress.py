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
from functools import cache
from html import escape

from tablepuppet.errors import running_shell
from tablepuppet.runs.events import Event, Reader
from tablepuppet.runs.stages import PATIENCE, Stage, Stages

Bundle = dict[str, str]  # MIME type -> what to show
Update = Callable[[Bundle], None]
MOST_LINES = 10
_LINE = "display: flex; align-items: center; gap: 0.75em; line-height: 1.6; color: inherit;"
_BAR = "flex: none; width: 10em; height: 0.6em; border: 1px solid rgba(128, 128, 128, 0.6); border-radius: 0.3em;"
_FILL = "height: 100%; border-radius: 0.3em; background: rgb(66, 133, 244);"
_NUMBER = "font-variant-numeric: tabular-nums;"
_INDENT = " padding-left: 2em; opacity: 0.75;"


def _html(stage: Stage, indent: bool = False) -> str:
    """A stage as a line: a bar if it is known how much is done, a mark when it has ended, and its text."""
    start = "" if stage.state == "runs" else f"<span>{stage.mark}</span>"
    if stage.state == "runs" and stage.share is not None:
        start = f'<div style="{_BAR}"><div style="{_FILL} width: {100 * stage.share:.0f}%;"></div></div>'
    style = f"{_LINE}{_INDENT}" if indent else _LINE
    return f'<div style="{style}">{start}<span style="{_NUMBER}">{escape(stage.text)}</span></div>'


def _text(stage: Stage, indent: bool = False) -> str:
    start = "…" if stage.state == "runs" else stage.mark
    if stage.state == "runs" and stage.share is not None:
        start = f"[{'#' * int(20 * stage.share):<20}]"
    return f"{'  ' if indent else ''}{start} {stage.text}"


class NotebookReader:
    """Shows stages and warnings of the cell that runs. ``display`` shows a bundle and returns how to update it."""

    def __init__(self, display: Callable[[Bundle], Update], interval: float = 0.2, patience: float = PATIENCE):
        self._display, self._interval, self._patience = display, interval, patience
        self._lock = threading.Lock()
        self._ticket: object | None = None  # of the thread that refreshes the block
        self._clear()

    def _clear(self) -> None:
        self._stages = Stages()
        self._warnings: dict[str, str] = {}  # the first of each message, with the part that it is of
        self._update: Update | None = None
        self._shown, self._shown_at, self._ticket = Bundle(), 0.0, None

    def __call__(self, event: Event) -> None:
        """Read one event."""
        with self._lock:
            if event.kind == "warning":
                if event.message in self._warnings:
                    return
                self._warnings[event.message] = event.text
            elif self._stages.read(event) is None:
                return
            self._refresh()

    def _refresh(self) -> None:
        """Show what is new, now or soon: by a thread as long as a stage runs."""
        runs = self._stages.any_runs
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
                self._show()
                if not self._stages.any_runs:
                    self._ticket = None
                    return

    def _show(self) -> None:
        self._shown_at = time.monotonic()
        self._stages.settle()
        bundle = self._bundle()
        if bundle and bundle != self._shown:
            self._shown = bundle
            if self._update is None:
                self._update = self._display(bundle)
            else:
                self._update(bundle)

    def _bundle(self) -> Bundle:
        worth = [stage for stage in self._stages.lines if stage.is_worth_showing(self._patience)]
        if not worth and not self._warnings:
            return {}
        earlier, worth = worth[:-MOST_LINES], worth[-MOST_LINES:]
        before = len(earlier) + self._stages.forgotten
        left_out = [f"… and {before:,} before"] if before else []
        lines = [f'<div style="{_LINE}">{line}</div>' for line in left_out]
        texts = list(left_out)
        for stage in worth:
            inner = [stage.inner] if stage.inner is not None else []
            lines += [_html(stage), *(_html(each, indent=True) for each in inner)]
            texts += [_text(stage), *(_text(each, indent=True) for each in inner)]
        lines += [
            f'<div style="{_LINE} align-items: baseline;"><b>Warning</b><span>{escape(text)}</span></div>'
            for text in self._warnings.values()
        ]
        texts += [f"Warning: {text}" for text in self._warnings.values()]
        return {"text/html": f"<div>{''.join(lines)}</div>", "text/plain": "\n".join(texts)}

    def end_cell(self, *_: object) -> None:
        """A cell has ended, or the next begins: what still runs was stopped."""
        with self._lock:
            self._stages.stop()
            self._show()
            self._clear()


def notebook_readers() -> list[Reader]:
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
