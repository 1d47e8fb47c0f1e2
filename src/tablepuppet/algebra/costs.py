"""What a step on a matrix costs: the bytes and trips that are expected, and what steps of its kind have cost so far."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from tablepuppet.errors import TablePuppetError
from tablepuppet.operators.client import Pending, Replies
from tablepuppet.wire.traffic import Traffic

LATENCY = 1e-3  # seconds of a trip, before one was measured
BANDWIDTH = 1.25e8  # bytes per second, before a message was large enough to measure it
LARGE = 1 << 20  # bytes of such a message
ENVELOPE = 110  # bytes of an op at a shard beside its arrays, both ways, about


@dataclass(frozen=True)
class TableSize:
    """The base rows of a table that take part, and their shards; whether some are of a service."""

    rows: int
    shards: int
    is_remote: bool
    wire: str  # the precision of arrays over its rows, as they are sent to its parties
    cell_bytes: int  # of all its encoded cells


class Tables(Protocol):
    """Where tables compute, as far as costs depend on it."""

    sizes: Mapping[str, TableSize]

    def is_secured(self, alias: str) -> bool:
        """Whether sums over a table's rows leave masked only."""


class ByTables(Protocol):
    """A matrix by tables."""

    @property
    def placement(self) -> Tables:
        """Where they compute."""

    tables: list[str]

    def width(self, alias: str) -> int:
        """Columns of a table."""

    def numbers(self, alias: str) -> int:
        """Those of them that are numbers, not categories."""


@dataclass(frozen=True)
class PricedStep:
    """A step: what parties of each table are sent, and what they answer, in bytes; how many trips it takes."""

    step: str
    down: Mapping[str, int]
    up: Mapping[str, int]
    trips: int = 1  # 0: what is computed stays at the parties
    is_chosen: bool = True  # whether tables are multiplied with vectors of the caller's choice
    cells: frozenset[str] = frozenset()  # tables that answer with their cells, as products with unit vectors
    ops: Mapping[str, int] = field(default_factory=dict)  # that each shard of a table runs, if they are not one

    def seconds(self, aliases: Iterable[str], sizes: Mapping[str, TableSize], line: LineSpeed) -> float:
        """What it takes at the parties of some tables, without those in this process."""
        remote = [alias for alias in aliases if sizes[alias].is_remote]
        size = sum(self.down[alias] + self.up[alias] for alias in remote)
        return line.seconds(self.trips, size) if remote else 0.0

    def size(self, aliases: Iterable[str], sizes: Mapping[str, TableSize]) -> int:
        """The bytes that move for some of its tables."""
        envelopes = {alias: ENVELOPE * self.ops.get(alias, 1) * sizes[alias].shards for alias in aliases}
        return sum(self.down[alias] + self.up[alias] + envelope for alias, envelope in envelopes.items())

    @classmethod
    def times(cls, vectors: Mapping[str, int], products: ByTables) -> PricedStep:
        """X @ V, with so many vectors for each table."""
        by_column, by_row = _sizes(vectors, products)
        return cls("X @ V", by_column, by_row)

    @classmethod
    def transposed(cls, vectors: Mapping[str, int], products: ByTables) -> PricedStep:
        by_column, by_row = _sizes(vectors, products)
        return cls("X.T @ U", by_row, by_column)

    @classmethod
    def extremes(
        cls, products: ByTables, with_places: bool = False, aliases: Iterable[str] | None = None
    ) -> PricedStep:
        """The least or largest number of every row, of some tables; or its place, which needs the number too."""
        asked = 2 if with_places else 1
        by_column, up = _sizes(dict.fromkeys(products.tables if aliases is None else aliases, 1), products)
        if with_places:
            for alias in up:
                place = np.min_scalar_type(products.width(alias)).itemsize
                up[alias] += products.placement.sizes[alias].rows * place
        down = {alias: asked * 3 * size for alias, size in by_column.items()}  # places, scales and shifts
        step = "X.argmax(axis=1)" if with_places else "X.max(axis=1)"
        return cls(step, down, up, ops=dict.fromkeys(up, asked))

    @classmethod
    def statistic(cls, kind: str, products: ByTables) -> PricedStep:
        """Sums of columns, or of their squares."""
        up, _ = _sizes(dict.fromkeys(products.tables, 1), products)
        return cls("X.sum(axis=0)" if kind == "sums" else "(X * X).sum(axis=0)", dict.fromkeys(up, 0), up)

    @classmethod
    def gram(cls, products: ByTables, weighted: bool) -> PricedStep:
        """X.T @ X: blocks within tables, then cells of narrow ones to wide ones."""
        order, sizes = gram_order(products), products.placement.sizes
        by_column, _ = _sizes(dict.fromkeys(order, 1), products)
        down, up, ops = dict.fromkeys(order, 0), dict.fromkeys(order, 0), dict.fromkeys(order, 1)
        before = [0, 0]  # columns of numbers and of categories of the tables whose cells a table is sent
        for alias in order:
            numbers, is_last, rows = products.numbers(alias), alias == order[-1], sizes[alias].rows
            parts = [numbers, products.width(alias) - numbers]
            down[alias] = rows * (8 * (sum(before) + 1) if weighted else _exact_bytes(before))
            up[alias] = by_column[alias] * (sum(before) + sum(parts))
            if not is_last:
                down[alias] += sum(parts) * by_column[alias]
                up[alias] += rows * _exact_bytes(parts)
                ops[alias] += sum(map(bool, parts))
            ops[alias] += sum(map(bool, before))
            before = [one + other for one, other in zip(before, parts, strict=True)]
        name = "X.T @ (w[:, None] * X)" if weighted else "X.T @ X"
        return cls(name, down, up, min(len(order), 2), cells=frozenset(order[:-1]), ops=ops)


def _sizes(vectors: Mapping[str, int], products: ByTables) -> tuple[dict[str, int], dict[str, int]]:
    """By table, the bytes of vectors with a number for each column, at every shard; of those with one for each row."""
    sizes = products.placement.sizes
    by_column = {alias: 8 * products.width(alias) * count * sizes[alias].shards for alias, count in vectors.items()}
    return by_column, {a: sizes[a].rows * count * np.dtype(sizes[a].wire).itemsize for a, count in vectors.items()}


def _exact_bytes(columns: Sequence[int]) -> int:
    """The bytes of a row of cells that travel exactly, of so many numbers and categories: these are 0 and 1."""
    return 8 * columns[0] + 4 * columns[1]


def gram_order(products: ByTables) -> list[str]:
    """Tables by width; each sends its cells to those after it. Those that send sums only are last."""
    return sorted(products.tables, key=lambda alias: (products.placement.is_secured(alias), products.width(alias)))


@dataclass
class CostSoFar:
    """What a kind of step has cost so far."""

    runs: int = 0
    trips: int = 0
    bytes: int = 0
    seconds: float = 0.0


@dataclass
class Run:
    """A step that is asked for now, by one op or several, one after another: it counts with the first."""

    step: PricedStep
    is_counted: bool = False


@dataclass(frozen=True)
class OnTheWay:
    """An op of a step that is queued for the trip after ``trips``; with the first op of a run the run is counted."""

    step: PricedStep
    trips: int
    is_first: bool


@dataclass
class LineSpeed:
    """The way to the parties, as measured."""

    latency: float = LATENCY
    bandwidth: float = BANDWIDTH
    _is_measured: bool = field(default=False, repr=False)

    def add(self, trips: int, size: int, seconds: float) -> None:
        """Learn from trips that have taken so long together."""
        each = seconds / trips
        if size < LARGE:
            self.latency = min(self.latency, each) if self._is_measured else each
            self._is_measured = True
        elif seconds > trips * self.latency:
            self.bandwidth = size / (seconds - trips * self.latency)

    def seconds(self, trips: int, size: int) -> float:
        """What so many trips and bytes would take."""
        return trips * self.latency + size / self.bandwidth


class Moved(NamedTuple):
    """Trips that were made for some replies, their bytes and seconds."""

    trips: int
    size: int
    seconds: float


class Meter:
    """What steps have cost so far, by their kind. Steps that share a trip share its bytes and seconds."""

    def __init__(self, traffic: Traffic, sizes: Mapping[str, TableSize]):
        self._traffic, self._sizes = traffic, sizes
        self._measured: dict[str, CostSoFar] = {}
        self._on_the_way: list[OnTheWay] = []

    def note(self, run: Run, is_asked: bool) -> None:
        """Note an op of a run: it travels with the next trip, or nobody was asked for it."""
        is_first, run.is_counted = not run.is_counted, True
        if is_asked:
            self._on_the_way.append(OnTheWay(run.step, self._traffic.trips, is_first))
        else:
            self._cost_of(run.step).runs += is_first

    def measured(self, step: str) -> CostSoFar:
        """What steps of a kind have cost so far."""
        self._arrived()
        return self._measured.get(step, CostSoFar())

    def read(self, pending: Pending) -> tuple[Replies, Moved]:
        """Read replies, and note what the trip has cost, if it is made now."""
        began = time.perf_counter()
        self._arrived()  # by trips of others
        trips, size = self._traffic.trips, self._traffic.bytes
        try:
            replies = pending.read()
        except TablePuppetError:
            self._on_the_way.clear()  # they did not run
            raise
        moved = Moved(self._traffic.trips - trips, self._traffic.bytes - size, time.perf_counter() - began)
        if moved.trips:
            self._share(self._arrived(), moved)
        return replies, moved

    def _cost_of(self, asked: PricedStep) -> CostSoFar:
        return self._measured.setdefault(asked.step, CostSoFar())

    def _arrived(self) -> list[OnTheWay]:
        """Take steps off the list that were sent, and count their runs."""
        trips = self._traffic.trips
        sent = [each for each in self._on_the_way if each.trips < trips]
        self._on_the_way = [each for each in self._on_the_way if each.trips == trips]
        for each in sent:
            self._cost_of(each.step).runs += each.is_first
        return sent

    def _share(self, carried: Sequence[OnTheWay], moved: Moved) -> None:
        """Divide what was moved, by the bytes that each step was expected to have."""
        steps = list({each.step.step: each.step for each in carried}.values())
        sizes = [step.size(step.up, self._sizes) for step in steps] if len(steps) != 1 else [1]
        shares = np.array(sizes) / max(sum(sizes), 1)
        parts = np.diff(np.rint(moved.size * np.cumsum(shares)), prepend=0)  # whole bytes, which add up to all
        for step, share, part in zip(steps, shares.tolist(), parts.tolist(), strict=True):
            record = self._cost_of(step)
            record.trips += moved.trips if step.trips else 0
            record.bytes, record.seconds = record.bytes + int(part), record.seconds + moved.seconds * share
