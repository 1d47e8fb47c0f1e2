"""Readers of events to give to a federation or a learner: ``tp.callbacks``.

Input: events. Output: files and records of other tools, for the analyst only; events hold no value of a row.
"""

from __future__ import annotations

import atexit
from pathlib import Path

from tablepuppet.errors import ConfigError
from tablepuppet.runs.event_file import EVENTS, EventFile, is_live
from tablepuppet.runs.events import Event


class Keep:
    """Keeps all events of a federation in a folder, for `tablepuppet monitor`, in this process and after it.

    `tablepuppet train` keeps those of a job in its run folder by itself. Raises ConfigError if the folder cannot be
    written, or another process keeps its events there.

    >>> import tempfile, tablepuppet as tp
    >>> folder = tempfile.mkdtemp()
    >>> fed = tp.Federation({"shop": {"items": {"weight": [0.5, 1.5]}}}, callbacks=[tp.callbacks.Keep(folder)])
    >>> relation = fed.sql("SELECT weight FROM items")
    >>> "opened" in (Path(folder) / "events.jsonl").read_text()
    True
    """

    reads_trips = True

    def __init__(self, folder: str | Path):
        path = Path(folder) / EVENTS
        if is_live(path):
            raise ConfigError(f"another program keeps its events in {str(folder)!r}: name another folder")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
        except OSError as error:
            raise ConfigError(f"events cannot be kept in {str(folder)!r}: {error.strerror}") from error
        self._file = EventFile(path, {})
        atexit.register(self._file.end, "finished")

    def __call__(self, event: Event) -> None:
        """Keep one event."""
        self._file(event)
