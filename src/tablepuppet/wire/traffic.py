"""The meter: bytes and messages per party, direction and release, and trips, counted where they are sent.

A message has a part for every step it carries, and one for the verb unless that is `run`. The parts of a reply are
those of its request, in the same order. `fed.traffic` shows them for people, and `communication_seconds` says what the
same traffic would cost over the links of the paper's experiments: a latency for every trip, and bytes at their speed.

EXPLAIN ANALYZE adds up trips, bytes and seconds by what was asked together and of whom. Seconds at a party are those
from the request to the reply, the way included. Seconds here are those until the next trip of the same run, so that
nobody's thinking in between counts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from tablepuppet.party.ops import REGISTRY, find_op
from tablepuppet.party.release import Release
from tablepuppet.party.request import Request
from tablepuppet.runs.figures import readable
from tablepuppet.runs.table_view import Records, TableView, aligned

Direction = Literal["up", "down"]  # up: from a party to the coordinator; down: to a party
# Seconds for a request and its reply, and bytes per second, between each party and the coordinator.
LINKS = {"US-UK": (0.136, 0.42e9 / 8), "US-US": (0.067, 1.15e9 / 8)}
_WAYS = {"up": "Sent by parties", "down": "Sent to parties"}


class Traffic:
    """Counts every message; figures are measured, never computed from a formula."""

    def __init__(self) -> None:
        self._totals: dict[tuple[str, Direction, str], list[int]] = {}
        self._lock = threading.Lock()
        self.trips = 0  # how often the coordinator waited for answers
        self.bytes = 0  # of all messages, both ways

    def add(self, party: str, release: str, down: int, up: int, messages: int = 1) -> None:
        """Count a request and its reply, or a part of both: ``messages`` is 0 for all parts but one."""
        ways: tuple[tuple[Direction, int], ...] = (("down", down), ("up", up))
        with self._lock:
            for direction, size in ways:
                total = self._totals.setdefault((party, direction, release), [0, 0])
                total[0] += size
                total[1] += messages
            self.bytes += down + up

    def add_trip(self) -> int:
        """Count one trip, calls of some parties at the same time; its number."""
        with self._lock:
            self.trips += 1
            return self.trips

    def sums(self) -> dict[str, int]:
        """Bytes both ways, and messages, of all parties and releases."""
        found = {"bytes_up": 0, "bytes_down": 0, "messages": 0}
        with self._lock:
            for (_, direction, _), (size, messages) in self._totals.items():
                found[f"bytes_{direction}"] += size
                found["messages"] += messages
        return found

    def to_list(self) -> list[dict[str, Any]]:
        """One dict per party, direction and release."""
        with self._lock:
            return [
                {"party": party, "direction": direction, "release": release, "bytes": size, "messages": messages}
                for (party, direction, release), (size, messages) in sorted(self._totals.items())
            ]


class MessageSizes(NamedTuple):
    """Bytes of a request (down) and its reply (up), those of the reply by release too."""

    down: int
    up: int
    released: Mapping[str, int] = MappingProxyType({})


NOTHING = MessageSizes(0, 0)


def names_of(request: Request) -> tuple[str, ...]:
    """The verb of a request unless that is `run`, and the names of its ops, each once."""
    verb = () if request.verb == "run" else (request.verb,)
    return tuple(dict.fromkeys((*verb, *(step.op for step in request.steps))))


def meter(traffic: Traffic, party: str, request: Request, reply: Sequence[Mapping[str, Any]]) -> MessageSizes:
    """Count a request and its reply, each part with its release; the message itself counts with the last part."""
    parts: list[tuple[Release, tuple[str, str], Mapping[str, Any]]] = []
    if request.verb != "run":
        release = Release.SCHEMA if request.verb == "describe" else Release.COUNTS
        parts.append((release, (request.verb, request.session), request.arguments))
    for step in request.steps:
        op = REGISTRY.get(step.op) or find_op(step.op)
        parts.append((op.releases, (step.op, step.table), step.arguments))
    down, released = 0, dict[str, int]()
    for number, ((release, header, arguments), values) in enumerate(zip(parts, reply, strict=True), start=1):
        sent, received = size_of(header, arguments), size_of((), values)
        traffic.add(party, release.label, sent, received, int(number == len(parts)))
        down += sent
        released[release.label] = released.get(release.label, 0) + received
    return MessageSizes(down, sum(released.values()), released)


def size_of(header: tuple[str, ...], values: Mapping[str, Any]) -> int:
    """Bytes of a part: its arrays as they are, the rest as a msgpack header."""
    arrays, plain = 0, {}
    for name, value in values.items():
        if isinstance(value, np.ndarray):
            arrays += value.nbytes
            plain[name] = (_name(value.dtype), value.shape)
        else:  # dataclasses as the plain values they travel as
            plain[name] = msgspec.to_builtins(value) if name in ("scans", "tables") else value
    return arrays + len(msgspec.msgpack.encode((header, plain), enc_hook=lambda _: None))


@cache
def _name(dtype: np.dtype[Any]) -> str:
    return str(dtype)


def communication_seconds(trips: int, size: int) -> dict[str, float]:
    """Seconds of communication by link.

    >>> round(communication_seconds(trips=10, size=52_500_000)["US-UK"], 6)
    2.36
    """
    return {name: trips * latency + size / speed for name, (latency, speed) in LINKS.items()}


class TrafficRecords(Records):
    """Dicts of party, direction, release, bytes and messages; a notebook shows a table for each direction, in which a
    row is a release and a column a party.
    """

    def table_views(self) -> list[TableView]:
        """What parties sent, then what was sent to them; the largest release first."""
        return [self._way(way, title) for way, title in _WAYS.items()]

    def _repr_html_(self) -> str:
        return "".join(view.html() for view in self.table_views())

    def _way(self, way: str, title: str) -> TableView:
        entries = [entry for entry in self if entry["direction"] == way]
        parties = sorted({entry["party"] for entry in self})
        sizes: dict[str, dict[str, int]] = {}
        for entry in entries:
            sizes.setdefault(entry["release"], {})[entry["party"]] = entry["bytes"]
        largest = sorted(sizes, key=lambda release: -sum(sizes[release].values()))
        totals = {party: sum(entry["bytes"] for entry in entries if entry["party"] == party) for party in parties}
        rows = [_row(_words(release), sizes[release], parties) for release in largest]
        messages = sum(entry["messages"] for entry in entries)
        title = f"{title}: {readable(sum(totals.values()))} in {messages:,} messages"
        return TableView(title, aligned(["what"], [*parties, "all parties"]), [*rows, _row("all", totals, parties)])


def _row(what: str, sizes: dict[str, int], parties: list[str]) -> list[str]:
    return [what, *(readable(sizes[p]) if sizes.get(p) else "-" for p in parties), readable(sum(sizes.values()))]


def _words(release: str) -> str:
    """A release in plain words.

    >>> _words("KEY_DIGESTS|HISTOGRAMS")
    'key digests, histograms'
    """
    return release.lower().replace("|", ", ").replace("_", " ")


MOST_SESSIONS = 100  # that are remembered, the newest


@dataclass
class StepTimes:
    """What was asked together, of all parties."""

    ops: tuple[str, ...]
    trips: int = 0
    waited: float = 0.0  # for the slowest party of each trip
    here: float = 0.0
    parties: dict[str, list[float]] = field(default_factory=dict)  # requests, bytes up, bytes down, seconds

    @property
    def up(self) -> float:
        """Bytes from all parties."""
        return sum(each[1] for each in self.parties.values())

    @property
    def down(self) -> float:
        """Bytes to all parties."""
        return sum(each[2] for each in self.parties.values())


class Stopwatch:
    """Adds up what trips have cost."""

    def __init__(self) -> None:
        self._sessions: dict[str, dict[tuple[str, ...], StepTimes]] = {}
        self._last: tuple[str | None, str, StepTimes, float] | None = None
        self._lock = threading.Lock()

    def begin(self, run: str | None, session: str) -> None:
        """A trip is about to be made: since the last one of the run, time was spent here."""
        with self._lock:
            last, self._last = self._last, None
            if last is not None and run is not None and last[:2] == (run, session):
                last[2].here += time.perf_counter() - last[3]

    def end(
        self,
        run: str | None,
        session: str,
        made: Sequence[tuple[str, tuple[str, ...], int, int, float]],
    ) -> None:
        """A trip was made: party, ops, bytes up and down, seconds of each request."""
        if not session or not made:
            return
        with self._lock:
            known = self._sessions.setdefault(session, {})
            if len(self._sessions) > MOST_SESSIONS:
                del self._sessions[next(iter(self._sessions))]
            ops = tuple(dict.fromkeys(op for _, several, *_ in made for op in several))
            step = known.setdefault(ops, StepTimes(ops))
            step.trips += 1
            step.waited += max(each[4] for each in made)
            for party, _, up, down, spent in made:
                total = step.parties.setdefault(party, [0.0, 0.0, 0.0, 0.0])
                for at, value in enumerate((1, up, down, spent)):
                    total[at] += value
            self._last = run, session, step, time.perf_counter()

    def of(self, session: str) -> list[StepTimes]:
        """What a session has cost, in the order in which it was first asked for."""
        with self._lock:
            return list(self._sessions.get(session, {}).values())
