"""`Event`s: what happens in a run. Progress bars, logs, histories and monitors all read the same ones.

An event names parties, tables, columns and counts, never a value of a row.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tablepuppet.errors import without_controls
from tablepuppet.runs import interrupts

Kind = Literal["progress", "info", "warning"]
_LOG = logging.getLogger("tablepuppet")
_LEVELS = {"progress": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING}


@dataclass(frozen=True)
class Event:
    """One thing that happened."""

    kind: Kind
    name: str  # what happened, e.g. "column.dropped"; docs/events.md lists them all
    message: str
    fields: Mapping[str, Any] = field(default_factory=dict)


Reader = Callable[[Event], None]


class Events:
    """Hands each event to every reader, and to the log ``tablepuppet``."""

    def __init__(self, readers: Iterable[Reader] = ()):
        self._readers = list(readers)
        self._lock = threading.Lock()

    def subscribe(self, reader: Reader) -> Callable[[], None]:
        """Add a reader; the answer takes it away again."""
        with self._lock:
            self._readers.append(reader)
        return lambda: self._readers.remove(reader)

    def progress(self, name: str, message: str, total: int) -> Callable[[int], None]:
        """A stage of ``total`` steps begins; the answer tells readers how many are done."""

        def done(steps: int) -> None:
            self.emit("progress", name, message, done=steps, total=total)

        done(0)
        return done

    def emit(self, kind: Kind, name: str, message: str, **fields: Any) -> None:
        """Tell every reader; a signal to stop that got lost is raised here."""
        interrupts.check()
        message = without_controls(message)  # parties write names in it
        event = Event(kind, name, message, fields)
        _LOG.log(_LEVELS[kind], "%s", message)
        for reader in list(self._readers):
            reader(event)
