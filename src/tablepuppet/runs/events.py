"""`Event`s: what happens in a run. Progress bars, logs, histories and monitors all read the same ones.

An event names parties, tables, columns and counts, never a value of a row. Whoever emits one gives neither its time nor
the id of its run: it has them by itself. What a round and a call of a party have cost are records, from which the
fields of `fit` and `trip` events are made.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from msgspec import Struct
from msgspec.structs import asdict

from tablepuppet.errors import ConfigError, without_controls
from tablepuppet.runs import interrupts, spans
from tablepuppet.runs.figures import number
from tablepuppet.runs.fitted_text import print_beside
from tablepuppet.spelling import hides

ENDED_BY = {"fitted": "fit", "searched": "search", "validated": "folds"}  # a stage that ends by the event that says how
UP_TO = frozenset({"fit", "pretrain"})  # stages that end when they are good enough: their total is a limit
Kind = Literal["progress", "info", "warning", "trip"]
State = Literal["runs", "ended", "stopped"]
_LOG = logging.getLogger("tablepuppet")
_RUN: ContextVar[str | None] = ContextVar("run", default=None)
_PART: ContextVar[str] = ContextVar("part", default="")
_LIVE: set[str] = set()  # runs that have not ended
_FAILED: deque[str] = deque(maxlen=1000)  # the last runs that an exception ended
_LEVELS = {"progress": logging.DEBUG, "trip": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING}


class RoundRecord(Struct, frozen=True, kw_only=True):
    """One round of a fit; `history_` is a list of these as dicts."""

    round: int
    seconds: float
    loss: float
    objective: float  # loss and penalty
    metric: float
    validation_loss: float | None = None
    validation_metric: float | None = None
    bytes_up: int = 0  # from parties
    bytes_down: int = 0  # to parties
    messages: int = 0
    epsilon: float | None = None  # spent until then; None without feature privacy
    solver: str | None  # None: the learner has none
    converged: bool
    lost: list[str] = []  # parties that were lost in this round

    def to_dict(self) -> dict[str, Any]:
        """The entry of `history_`."""
        return asdict(self)


class TripRecord(Struct, frozen=True, kw_only=True):
    """One party's part of a trip: a request, and what came of it."""

    trip: int  # calls made at the same time have the same number
    party: str
    ops: tuple[str, ...]  # of the request, each once; a verb other than `run` comes first
    bytes_up: int  # from the party
    bytes_down: int  # to the party
    released: dict[str, int] = {}  # bytes from the party by release
    seconds: float
    answered: bool  # no: the party was lost, or refused; bytes are not counted then

    def to_dict(self) -> dict[str, Any]:
        """The fields of the event."""
        return asdict(self)


@dataclass(frozen=True)
class Event:
    """One thing that happened."""

    kind: Kind
    name: str  # what happened, e.g. "column.dropped"; docs/events.md lists them all
    message: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    time: float = field(default_factory=time.time)  # seconds since 1970
    run: str | None = field(default_factory=_RUN.get)  # id of the fit, search or program; None outside of one
    part: str = field(default_factory=_PART.get)  # which part of a search or cross-validation it is of, for people

    @property
    def text(self) -> str:
        """The message, after the part that it is of."""
        return f"{self.part}: {self.message}" if self.part else self.message


Reader = Callable[[Event], None]


class Advance(Protocol):
    """Tells of a stage how many steps are done, and what there is to say of the last one."""

    def __call__(self, steps: int, message: str = ..., **fields: Any) -> None: ...


@contextmanager
def one_run(part: str = "") -> Iterator[None]:
    """Events within the block are of one run, with a random id; within another run it begins with the id of that.

    ``part`` says for people which part of the outer run it is.
    """
    outer, new = _RUN.get(), secrets.token_hex(4)
    run = new if outer is None else f"{outer}.{new}"
    tokens = _RUN.set(run), _PART.set(", ".join(filter(None, (_PART.get(), part))))
    _LIVE.add(run)
    try:
        with spans.of_run(run, _PART.get()):
            yield
    except BaseException:
        _FAILED.append(run)
        raise
    finally:
        _LIVE.discard(run)
        _RUN.reset(tokens[0])
        _PART.reset(tokens[1])


def current_run() -> str | None:
    """The id of the run that goes on here; None outside of one."""
    return _RUN.get()


def state_of(run: str) -> State:
    """Whether a run goes on, has ended, or was stopped by an exception."""
    return "runs" if run in _LIVE else "stopped" if run in _FAILED else "ended"


@hides("emit", "emit_trip", "wants_trips")
class Events:
    """Hands each event to every reader, and to the log ``tablepuppet``."""

    def __init__(self, readers: Iterable[Reader] = ()):
        self._readers = [_callable(each) for each in readers]
        self._trip_readers = [each for each in self._readers if getattr(each, "reads_trips", False)]
        self._said = set[tuple[str, str]]()  # (search, message) of warnings that were printed
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

    def progress(self, name: str, message: str, total: int) -> Advance:
        """A stage of ``total`` steps begins; call the result with the number of steps that are done.

        The stage is of the run in which it began, wherever its steps are done. A step may say something of its own.
        """
        run, part = _RUN.get(), _PART.get()

        def done(steps: int, message: str = message, **fields: Any) -> None:
            fields = {"done": steps, "total": total, **fields}
            self._hand_out(Event("progress", name, without_controls(message), fields, run=run, part=part))

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
        message = f"party {trip.party!r}: {', '.join(trip.ops)}: {outcome} in {number(trip.seconds, 3)} s"
        self.emit("trip", "trip", message, **trip.to_dict())

    def emit(self, kind: Kind, name: str, message: str, **fields: Any) -> Event:
        """Call every reader, and return the event; a signal to stop that got lost is raised here."""
        event = Event(kind, name, without_controls(message), fields)  # parties write names in the message
        self._hand_out(event)
        return event

    def _hand_out(self, event: Event) -> None:
        interrupts.check()
        if event.kind == "warning" and _LOG.isEnabledFor(logging.WARNING) and not _LOG.hasHandlers():
            self._print(event)
        else:
            _LOG.log(_LEVELS[event.kind], "%s", event.text, extra={"event": event.name, "run": event.run})
        if event.run is not None and spans.is_traced():
            spans.heard(event.run, event.name, event.fields)
        for reader in list(self._trip_readers if event.kind == "trip" else self._readers):
            reader(event)

    def _print(self, warning: Event) -> None:
        """Print a warning, as logging does where nobody set it up: but in whole words, and not for each fold again."""
        if warning.part:
            said = ((warning.run or "").split(".")[0], warning.message)
            if said in self._said:
                return
            self._said.add(said)
        print_beside(warning.text)


def _callable(reader: Reader) -> Reader:
    if not callable(reader):
        raise ConfigError(f"events are read by functions that take an event, such as print, not by {reader!r}")
    return reader
