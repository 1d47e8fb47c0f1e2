"""Where the tables of a matrix compute: at their parties, or here after their cells were collected.

A plan says how that is decided (paper "Federated Data Preparation, Learning, and Debugging in Apache SystemDS", 2.2):

    parties      at the parties, and vectors that have a number for each row of one table stay there (`kept.py`)
    heuristic    at the parties; what they answer is collected: vectors are here
    collect      cells are collected when they are first needed (release VALUES), and everything is computed here
    cost         as heuristic, until what that has cost would have paid for collecting the cells; programs leave vectors
                 at the parties where that is cheaper (`kept.py`)

Costs are seconds: one latency per trip plus bytes over bandwidth, as measured on the trips so far. A table in this
process costs nothing, so that it is never collected. What a policy forbids, by what the catalog publishes, is not
considered; if nothing is left, the error comes before anything is asked.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from tablepuppet.errors import LearnError, PartyError, PrivacyError, TablePuppetError
from tablepuppet.operators.client import Client, Pending, Replies
from tablepuppet.operators.lou import LearningOverUnion
from tablepuppet.prep.encode.encode import Encoding
from tablepuppet.prep.encode.encoded_table import EncodedTable
from tablepuppet.sql.catalog import Shard
from tablepuppet.sql.expression import columns_of

PlanName = Literal["cost", "collect", "heuristic", "parties"]
PLANS: tuple[str, ...] = get_args(PlanName)
COLLECT = "collect cells"
CENTRED = ".centred"  # after the name of an encoding
SLOTS = 8  # functions of columns that parties keep for a matrix
LATENCY = 1e-3  # seconds of a trip, before one was measured
BANDWIDTH = 1.25e8  # bytes per second, before a message was large enough to measure it
LARGE = 1 << 20  # bytes of such a message
ENVELOPE = 110  # bytes of an op at a shard beside its arrays, both ways, about


class ByTables(Protocol):
    """A matrix by tables, as far as costs depend on it."""

    placement: Placement
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
        """X.T @ U."""
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
    placement, sizes = products.placement, products.placement.sizes
    by_column = {alias: 8 * products.width(alias) * count * sizes[alias].shards for alias, count in vectors.items()}
    wire = {alias: np.dtype(placement.wire_of(alias)).itemsize for alias in vectors}
    return by_column, {alias: sizes[alias].rows * count * wire[alias] for alias, count in vectors.items()}


def _exact_bytes(columns: Sequence[int]) -> int:
    """The bytes of a row of cells that travel exactly, of so many numbers and categories: these are 0 and 1."""
    return 8 * columns[0] + 4 * columns[1]


def gram_order(products: ByTables) -> list[str]:
    """Tables by width; each sends its cells to those after it. Those that send sums only are last."""
    return sorted(products.tables, key=lambda alias: (products.placement.is_secured(alias), products.width(alias)))


@dataclass(frozen=True)
class TableSize:
    """The base rows of a table that take part, and their shards; whether some are of a service."""

    rows: int
    shards: int
    is_remote: bool


@dataclass(frozen=True)
class Forbidden:
    """A table, or a column of it, whose cells may not be collected; by which rule, and what helps."""

    where: str
    rule: str
    instead: str

    @property
    def what(self) -> str:
        """Without its party."""
        return self.where.rpartition(", ")[2]


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


class Placement:
    """Where the tables of one matrix compute, and what that has cost.

    ``centres`` are subtracted from a table's columns of numbers at its parties, who keep the result under ``names``:
    whatever is multiplied, sent or collected is of columns about zero.
    """

    def __init__(self, client: Client, encoding: Encoding, wire: str, plan: str = "cost"):
        if plan not in PLANS:
            raise LearnError(f"matrix: plan is one of {', '.join(map(repr, PLANS))}, not {plan!r}")
        self.client, self.plan, self._encoding = client, plan, encoding
        self.lou, self.wire_bytes = LearningOverUnion(client, wire), np.dtype(wire).itemsize
        self.collected: dict[str, EncodedTable] = {}
        self._measured: dict[str, CostSoFar] = {}
        self._on_the_way: list[OnTheWay] = []
        self.line = LineSpeed()
        self._slots: OrderedDict[object, int] = OrderedDict()  # functions by slot, the one used last at the end
        self._name, self._spent = client.new_name(), 0.0
        self.sizes = {alias: self._size(alias) for alias in client.tables}
        self.encoding_id = encoding.id
        self.centres = {alias: encoding.offsets(alias) for alias in encoding.numbers if alias in client.tables}
        self.names = {alias: encoding.id + CENTRED * bool(each.any()) for alias, each in self.centres.items()}

    def _size(self, alias: str) -> TableSize:
        shards = self.client.shards(alias)
        remote = any(self.client.engine.is_service(shard.party) for shard in shards)
        return TableSize(self.client.tables[alias].rows, len(shards), remote)

    def slot(self, key: object) -> tuple[str, bool]:
        """(the name under which parties keep a function of columns, whether they have it already)."""
        is_kept = key in self._slots
        if not is_kept:
            free = len(self._slots) if len(self._slots) < SLOTS else self._slots.popitem(last=False)[1]
            self._slots[key] = free
        self._slots.move_to_end(key)
        return f"{self._name}.{self._slots[key]}", is_kept

    def begin(self, asked: PricedStep) -> Run:
        """Collect what the plan collects before this step; PrivacyError if no plan is left that policies allow."""
        there = [alias for alias in asked.up if alias not in self.collected]
        chosen = self.would_collect(asked, there)
        self._spent += self._cost(asked, there)
        if chosen:
            self._collect(chosen)
        return Run(asked)

    def note(self, run: Run, is_asked: bool) -> None:
        """Note an op of a run: it travels with the next trip, or nobody was asked for it."""
        is_first, run.is_counted = not run.is_counted, True
        if is_asked:
            self._on_the_way.append(OnTheWay(run.step, self.client.engine.traffic.trips, is_first))
        else:
            self._cost_of(run.step).runs += is_first

    def measured(self, step: str) -> CostSoFar:
        """What steps of a kind have cost so far."""
        self._arrived()
        return self._measured.get(step, CostSoFar())

    def _cost_of(self, asked: PricedStep) -> CostSoFar:
        return self._measured.setdefault(asked.step, CostSoFar())

    def _arrived(self) -> list[OnTheWay]:
        """Take steps off the list that were sent, and count their runs."""
        trips = self.client.engine.traffic.trips
        sent = [each for each in self._on_the_way if each.trips < trips]
        self._on_the_way = [each for each in self._on_the_way if each.trips == trips]
        for each in sent:
            self._cost_of(each.step).runs += each.is_first
        return sent

    def would_collect(self, asked: PricedStep, there: Sequence[str]) -> list[str]:
        """Those of the tables that are not here whose cells the plan collects before a step.

        PrivacyError if policies allow neither that nor the step.
        """
        for alias in sorted(asked.cells.intersection(there)):
            if self.is_secured(alias):
                raise PrivacyError(
                    f"{asked.step}: table {self._table(alias)!r}: its cells would come here, and with secure sums they "
                    "do not: a Gram matrix of two such tables is not to be had. Use a learner, products X @ V and "
                    "X.T @ U, or columns of one of the tables (rule secure_sum)",
                    rule="secure_sum",
                )
        if self.plan == "collect" or asked.step == COLLECT:
            for alias in there:
                self._check_values(asked.step, alias)
        if self.plan == "collect":
            return list(there)
        found = []
        for alias in there:
            forbids = self._forbids_products(alias) if asked.is_chosen else None
            if forbids is not None:
                if self.plan != "cost" or self._forbids_values(alias):
                    raise self._refusal(asked.step, alias, forbids)
                found.append(alias)
        if self.plan == "cost":
            remote = [alias for alias in there if self.sizes[alias].is_remote and alias not in found]
            if remote and not any(self._forbids_values(alias) for alias in remote):
                spent = self._spent + self._cost(asked, there)
                if spent >= self.line.seconds(1, sum(map(self.cell_bytes, remote))):
                    found += remote
        return found

    def _cost(self, asked: PricedStep, there: Iterable[str]) -> float:
        """The seconds of a step at the parties of tables elsewhere."""
        remote = [alias for alias in there if self.sizes[alias].is_remote]
        size = sum(asked.down[alias] + asked.up[alias] for alias in remote)
        return self.line.seconds(asked.trips, size) if remote else 0.0

    def cell_bytes(self, alias: str) -> int:
        """The bytes of a table's encoded cells."""
        numbers, categories = len(self._encoding.numbers[alias]), len(self._encoding.categories[alias])
        return self.sizes[alias].rows * (8 * numbers + 4 * categories)

    def centre(self) -> None:
        """Ask the parties to subtract the centres of tables that have any, unless they have; it costs no trip."""
        names = {a: name for a, name in self.names.items() if name != self._encoding.id}
        if self._encoding.id + CENTRED in self.client.encodings or not names:
            return
        by_alias = {alias: {"into": name, "centres": self.centres[alias]} for alias, name in names.items()}
        self.client.widths |= {(alias, name): len(self._encoding.names(alias)) for alias, name in names.items()}
        self.lou.ask("matrix.centre", names, by_alias=by_alias, encoding=self._encoding.id)
        self.client.encodings.add(self._encoding.id + CENTRED)

    def wire_of(self, alias: str) -> str:
        """The precision of arrays over the rows of a table, as they are sent to its parties."""
        return self.lou.wire if self.sizes[alias].is_remote else "float64"

    def is_exact(self, alias: str) -> bool:
        """Whether nothing is rounded on the way to the parties of a table and back, as in this process."""
        return np.dtype(self.wire_of(alias)).itemsize == 8

    def min_rows(self, alias: str) -> dict[str, int]:
        """The fewest rows of a table that each of its parties adds up."""
        return {shard.party: shard.min_rows for shard in self._shards(alias)}

    def _forbids_products(self, alias: str) -> Shard | None:
        """A shard whose policy allows no products with vectors of the caller's choice."""
        return next((shard for shard in self._shards(alias) if not shard.matrix), None)

    def is_secured(self, alias: str) -> bool:
        """Whether sums over a table's rows leave masked only, by a roster or a policy: then its cells do not leave."""
        return alias in self.client.secured.parties or any(shard.secure_sum for shard in self._shards(alias))

    def _forbids_values(self, alias: str) -> Forbidden | None:
        """Why a table's cells may not be collected, if they may not."""
        if demanding := [shard for shard in self._shards(alias) if shard.secure_sum]:
            where = f"party {demanding[0].party!r}, table {demanding[0].name!r}"
            return Forbidden(where, "secure_sum", "since sums over its rows leave only within a sum over shards")
        if self.is_secured(alias):
            where = f"table {self._table(alias)!r}"
            return Forbidden(where, "secure_sum", "or a relation of its own, fed.sql(...).matrix(), without secure_sum")
        for column in self._encoding.encoded:
            for shard in self._shards(alias) if column.alias == alias else ():
                allowed = {name.lower() for name in shard.values}
                missing = [name for name in columns_of(column.expression) if name.lower() not in allowed]
                if missing:
                    where = f"party {shard.party!r}, table {shard.name!r}, column {missing[0]!r}"
                    return Forbidden(where, "uses", "or ask the party's operator for the use value")
        return None

    def _table(self, alias: str) -> str:
        return self.client.plan.tables[alias].name

    def _shards(self, alias: str) -> list[Shard]:
        parties = {shard.party for shard in self.client.shards(alias)}
        return [shard for shard in self.client.plan.tables[alias].shards if shard.party in parties]

    def _check_values(self, step: str, alias: str) -> None:
        found = self._forbids_values(alias)
        if found is not None:
            raise PrivacyError(
                f"{step}: {found.where}: its cells may not be collected; take plan='cost', {found.instead} (policy "
                f"rule {found.rule})",
                rule=found.rule,
            )

    def _refusal(self, step: str, alias: str, shard: Shard) -> PrivacyError:
        """The error for a step that no plan is left for."""
        if shard.require_dp:
            return PrivacyError(
                f"{step}: party {shard.party!r}, table {shard.name!r}: releases only with noise, and products with "
                "vectors of the caller's choice have no form with noise (policy rule require_dp)",
                rule="require_dp",
            )
        values = self._forbids_values(alias)
        other = f", nor may {values.what} be collected (policy rule {values.rule})" if values else ""
        return PrivacyError(
            f"{step}: party {shard.party!r}, table {shard.name!r}: may not be multiplied with vectors of the caller's "
            f"choice; use a learner, or ask its operator to set matrix = true (policy rule matrix){other}",
            rule="matrix",
        )

    def so_far(self) -> dict[str, Any]:
        """What decisions have come to, and what they depend on: for a program that goes on elsewhere (`go_on`)."""
        return {"collected": sorted(self.collected), "spent": self._spent}

    def go_on(self, before: Mapping[str, Any]) -> None:
        """Collect what was collected before, so that the same steps run at the same places."""
        missing = [alias for alias in before["collected"] if alias in self.sizes and alias not in self.collected]
        missing = [alias for alias in missing if not self._forbids_values(alias)]
        if missing:
            self._collect(missing)
        self._spent = max(self._spent, float(before["spent"]))

    def _collect(self, aliases: Sequence[str]) -> None:
        """Fetch the encoded cells of tables; one trip."""
        pending = self.lou.ask(
            "matrix.values", aliases, by_alias={alias: {"encoding": self.names[alias]} for alias in aliases}
        )
        self.note(Run(self.collecting(aliases)), is_asked=True)
        found = self.read(pending)
        for alias in aliases:
            sizes = np.array([encoder.size for encoder in self._encoding.categories[alias]], np.int64)
            width = len(self._encoding.numbers[alias])
            for shard, each in zip(self.client.shards(alias), found[alias], strict=True):
                _check_cells(shard.party, alias, each["numbers"], each["codes"], width, sizes)
            numbers = np.concatenate([each["numbers"] for each in found[alias]]).astype(np.float64)
            codes: NDArray[np.int32] = np.concatenate([each["codes"] for each in found[alias]])
            columns = tuple(np.ascontiguousarray(codes[:, place], np.int32) for place in range(len(sizes)))
            self.collected[alias] = EncodedTable(numbers, columns, tuple(sizes.tolist()))

    def collecting(self, aliases: Iterable[str]) -> PricedStep:
        """The step that collects the cells of tables."""
        cells = {alias: self.cell_bytes(alias) for alias in aliases}
        return PricedStep(COLLECT, dict.fromkeys(cells, 0), cells, is_chosen=False)

    def read(self, pending: Pending) -> Replies:
        """Read replies, and note what the trip has cost, if it is made now.

        Steps that share a trip share its bytes and seconds, by the bytes that each was expected to have.
        """
        traffic, began = self.client.engine.traffic, time.perf_counter()
        self._arrived()  # by trips of others
        trips, size = traffic.trips, traffic.bytes
        try:
            replies = pending.read()
        except TablePuppetError:
            self._on_the_way.clear()  # they did not run
            self._slots.clear()  # nor did a function that was to be kept, perhaps
            raise
        made, moved, seconds = traffic.trips - trips, traffic.bytes - size, time.perf_counter() - began
        if made:
            if any(self.sizes[alias].is_remote for alias in replies if replies[alias]):
                self.line.add(made, moved, seconds)
            self._share(self._arrived(), made, moved, seconds)
        return replies

    def _share(self, carried: Sequence[OnTheWay], trips: int, size: int, seconds: float) -> None:
        steps = list({each.step.step: each.step for each in carried}.values())
        expected = np.array([step.size(step.up, self.sizes) for step in steps])
        shares = expected / expected.sum()
        parts = np.diff(np.rint(size * np.cumsum(shares)), prepend=0)  # whole bytes, which add up to all
        for step, share, part in zip(steps, shares.tolist(), parts.tolist(), strict=True):
            record = self._cost_of(step)
            record.trips += trips if step.trips else 0
            record.bytes, record.seconds = record.bytes + int(part), record.seconds + seconds * share


def _check_cells(
    party: str, alias: str, numbers: NDArray[Any], codes: NDArray[Any], width: int, sizes: NDArray[np.int64]
) -> None:
    """PartyError unless cells are as wide as the encoding, and codes those of its categories."""
    if numbers.shape[1] != width or codes.shape[1] != len(sizes) or (codes >= sizes).any():
        raise PartyError(f"party {party!r}, table {alias!r}: its cells are not those of the encoding")
