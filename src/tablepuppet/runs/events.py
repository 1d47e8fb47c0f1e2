"""`Event`s: what happens in a run. Progress bars, logs, histories and monitors all read the same ones.

An event names parties, tables, columns and counts, never a value of a row. Whoever emits one gives neither its time nor
the id of its run: it has them by itself.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal

from tablepuppet.errors import ConfigError, without_controls
from tablepuppet.runs import interrupts
from tablepuppet.runs.records import TripRecord

ENDED_BY = {"fitted": "fit"}  # a stage that ends when it is good enough, by the event that says so
Kind = Literal["progress", "info", "warning", "trip"]
_LOG = logging.getLogger("tablepuppet")
_RUN: ContextVar[str | None] = ContextVar("run", default=None)
_LEVELS = {"progress": logging.DEBUG, "trip": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING}


@dataclass(frozen=True)
class Event:
    """One thing that happened."""

    kind: Kind
    name: str  # what happened, e.g. "column.dropped"; docs/events.md lists them all
    message: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    time: float = field(default_factory=time.time)  # seconds since 1970
    run: str | None = field(default_factory=_RUN.get)  # id of the fit, search or program; None outside of one


Reader = Callable[[Event], None]


@contextmanager
def one_run() -> Iterator[None]:
    """Events within the block are of one run, with a random id; within another run it begins with the id of that."""
    outer, new = _RUN.get(), secrets.token_hex(4)
    token = _RUN.set(new if outer is None else f"{outer}.{new}")
    try:
        yield
    finally:
        _RUN.reset(token)


class Events:
    """Hands each event to every reader, and to the log ``tablepuppet``."""

    def __init__(self, readers: Iterable[Reader] = ()):
        self._readers, self._trip_readers = [_callable(each) for each in readers], list[Reader]()
        self._lock = threading.Lock()

    def subscribe(self, reader: Reader, *, trips: bool = False) -> Callable[[], None]:
        """Add a reader; call the result to remove it. With ``trips`` it also gets an event for each call of a party."""
        _callable(reader)
        lists = [self._readers, self._trip_readers] if trips else [self._readers]
        with self._lock:
            for each in lists:
                each.append(reader)

        def remove() -> None:
            for each in lists:
                each.remove(reader)

        return remove

    def progress(self, name: str, message: str, total: int) -> Callable[[int], None]:
        """A stage of ``total`` steps begins; call the result with the number of steps that are done."""

        def done(steps: int) -> None:
            self.emit("progress", name, message, done=steps, total=total)

        done(0)
        return done

    @property
    def wants_trips(self) -> bool:
        """Whether somebody reads trips, a reader or the log: else no event of them need be made."""
        return bool(self._trip_readers) or _LOG.isEnabledFor(logging.DEBUG)

    def emit_trip(self, trip: TripRecord) -> None:
        """Emit what one call of a party has cost."""
        size = trip.bytes_up + trip.bytes_down
        outcome = f"{size:,} bytes" if trip.answered else "no reply"
        message = f"party {trip.party!r}: {', '.join(trip.ops)}: {outcome} in {trip.seconds:.3g} s"
        self.emit("trip", "trip", message, **trip.to_dict())

    def emit(self, kind: Kind, name: str, message: str, **fields: Any) -> Event:
        """Call every reader, and return the event; a signal to stop that got lost is raised here."""
        interrupts.check()
        message = without_controls(message)  # parties write names in it
        event = Event(kind, name, message, fields)
        _LOG.log(_LEVELS[kind], "%s", message)
        for reader in list(self._trip_readers if kind == "trip" else self._readers):
            reader(event)
        return event


def _callable(reader: Reader) -> Reader:
    if not callable(reader):
        raise ConfigError(f"events are read by functions that take an event, such as print, not by {reader!r}")
    return reader
