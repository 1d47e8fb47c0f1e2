"""Where the tables of a matrix compute: at their parties, or here after their cells were collected.

A plan says how that is decided (paper "Federated Data Preparation, Learning, and Debugging in Apache SystemDS", 2.2):

    parties      at the parties, and vectors that have a number for each row of one table stay there (`kept.py`)
    heuristic    at the parties; what they answer is collected: vectors are here
    collect      cells are collected when they are first needed (release VALUES), and everything is computed here
    cost         as heuristic, until what that has cost would have paid for collecting the cells; programs leave vectors
                 at the parties where that is cheaper (`kept.py`)

Costs are seconds: one latency per trip plus bytes over bandwidth, as measured on the trips so far (`costs.py`). A table
in this process costs nothing, so that it is never collected. What a policy forbids, by what the catalog publishes, is
not considered; if nothing is left, the error comes before anything is asked.

`to_collect` decides, and does nothing else; `Placement` does what was decided; `explain_array` shows it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from tablepuppet.algebra.costs import ByTables, LineSpeed, Meter, PricedStep, Run, TableSize
from tablepuppet.errors import LearnError, PartyError, PrivacyError, TablePuppetError
from tablepuppet.operators.client import Client, Pending, Replies
from tablepuppet.operators.lou import LearningOverUnion
from tablepuppet.prep.encode.encode import Encoding
from tablepuppet.prep.encode.encoded_table import EncodedTable
from tablepuppet.runs.figures import shown
from tablepuppet.runs.table_view import Align, ShownAsTable, TableView
from tablepuppet.sql.catalog import Shard
from tablepuppet.sql.expression import columns_of

PlanName = Literal["cost", "collect", "heuristic", "parties"]
PLANS: tuple[str, ...] = get_args(PlanName)
COLLECT = "collect cells"
CENTRED = ".centred"  # after the name of an encoding
SLOTS = 8  # functions of columns that parties keep for a matrix


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


@dataclass(frozen=True)
class TableRules:
    """What policies say of a table: those that forbid something, by what the catalog publishes."""

    name: str
    is_secured: bool  # sums over its rows leave masked only: then its cells do not leave
    forbids_products: Shard | None  # a shard that allows no products with vectors of the caller's choice
    forbids_values: Forbidden | None  # why its cells may not be collected


def to_collect(
    plan: str, step: PricedStep, sizes: Mapping[str, TableSize], rules: Mapping[str, TableRules], spent: float,
    line: LineSpeed,
) -> list[str]:  # fmt: skip
    """Those of the tables whose cells a plan collects before a step; ``rules`` are of tables that are not here yet.

    ``spent`` are the seconds that steps have taken so far. PrivacyError if policies allow neither that nor the step.
    """
    for alias in sorted(step.cells.intersection(rules)):
        if rules[alias].is_secured:
            raise PrivacyError(
                f"{step.step}: table {rules[alias].name!r}: its cells would come here, and with secure sums they "
                "do not: a Gram matrix of two such tables is not to be had. Use a learner, products X @ V and "
                "X.T @ U, or columns of one of the tables (rule secure_sum)",
                rule="secure_sum",
            )
    if plan == "collect" or step.step == COLLECT:
        for table in rules.values():
            if (found := table.forbids_values) is not None:
                raise PrivacyError(
                    f"{step.step}: {found.where}: its cells may not be collected; take plan='cost', {found.instead} "
                    f"(policy rule {found.rule})",
                    rule=found.rule,
                )
    if plan == "collect":
        return list(rules)
    chosen = []
    for alias, table in rules.items():
        if step.is_chosen and table.forbids_products is not None:
            if plan != "cost" or table.forbids_values:
                raise _refusal(step.step, table.forbids_products, table.forbids_values)
            chosen.append(alias)
    if plan == "cost":
        remote = [alias for alias in rules if sizes[alias].is_remote and alias not in chosen]
        if remote and not any(rules[alias].forbids_values for alias in remote):
            cells = sum(sizes[alias].cell_bytes for alias in remote)
            if spent + step.seconds(rules, sizes, line) >= line.seconds(1, cells):
                chosen += remote
    return chosen


def _refusal(step: str, shard: Shard, values: Forbidden | None) -> PrivacyError:
    """The error for a step that no plan is left for."""
    if shard.require_dp:
        return PrivacyError(
            f"{step}: party {shard.party!r}, table {shard.name!r}: releases only with noise, and products with "
            "vectors of the caller's choice have no form with noise (policy rule require_dp)",
            rule="require_dp",
        )
    other = f", nor may {values.what} be collected (policy rule {values.rule})" if values else ""
    return PrivacyError(
        f"{step}: party {shard.party!r}, table {shard.name!r}: may not be multiplied with vectors of the caller's "
        f"choice; use a learner, or ask its operator to set matrix = true (policy rule matrix){other}",
        rule="matrix",
    )


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
        self.sizes: Mapping[str, TableSize] = {alias: self._size(alias) for alias in client.tables}
        self.meter, self.line, self._spent = Meter(client.engine.traffic, self.sizes), LineSpeed(), 0.0
        self.collected: dict[str, EncodedTable] = {}
        self._name, self._slots = client.new_name(), OrderedDict[object, int]()  # functions by slot, the last used last
        self.encoding_id = encoding.id
        self.centres = {alias: encoding.offsets(alias) for alias in encoding.numbers if alias in client.tables}
        self.names = {alias: encoding.id + CENTRED * bool(each.any()) for alias, each in self.centres.items()}
        self._published: dict[str, TableRules] = {}

    def _size(self, alias: str) -> TableSize:
        shards, rows = self.client.shards(alias), self.client.tables[alias].rows
        is_remote = any(self.client.engine.is_service(shard.party) for shard in shards)
        numbers, categories = len(self._encoding.numbers[alias]), len(self._encoding.categories[alias])
        wire = self.lou.wire if is_remote else "float64"
        return TableSize(rows, len(shards), is_remote, wire, rows * (8 * numbers + 4 * categories))

    # ---- what policies say

    def rules(self, alias: str) -> TableRules:
        """What policies, and rosters of secure sums, say of a table."""
        if alias not in self._published:
            shards = self._shards(alias)
            self._published[alias] = TableRules(
                self.client.plan.tables[alias].name,
                any(shard.secure_sum for shard in shards),
                next((shard for shard in shards if not shard.matrix), None),
                self._forbids_values(alias),
            )
        found = self._published[alias]
        if found.is_secured or alias not in self.client.secured.parties:
            return found
        instead = "or a relation of its own, fed.sql(...).matrix(), without secure_sum"
        return replace(found, is_secured=True, forbids_values=Forbidden(f"table {found.name!r}", "secure_sum", instead))

    def _forbids_values(self, alias: str) -> Forbidden | None:
        for shard in self._shards(alias):
            if shard.secure_sum:
                where = f"party {shard.party!r}, table {shard.name!r}"
                return Forbidden(where, "secure_sum", "since sums over its rows leave only within a sum over shards")
        for column in self._encoding.encoded:
            for shard in self._shards(alias) if column.alias == alias else ():
                allowed = {name.lower() for name in shard.values}
                missing = [name for name in columns_of(column.expression) if name.lower() not in allowed]
                if missing:
                    where = f"party {shard.party!r}, table {shard.name!r}, column {missing[0]!r}"
                    return Forbidden(where, "uses", "or ask the party's operator for the use value")
        return None

    def _shards(self, alias: str) -> list[Shard]:
        parties = {shard.party for shard in self.client.shards(alias)}
        return [shard for shard in self.client.plan.tables[alias].shards if shard.party in parties]

    def is_secured(self, alias: str) -> bool:
        """Whether sums over a table's rows leave masked only, by a roster or a policy: then its cells do not leave."""
        return self.rules(alias).is_secured

    def min_rows(self, alias: str) -> dict[str, int]:
        """The fewest rows of a table that each of its parties adds up."""
        return {shard.party: shard.min_rows for shard in self._shards(alias)}

    # ---- before and after a step

    def would_collect(self, step: PricedStep) -> list[str]:
        """The tables whose cells the plan collects before a step; PrivacyError if no plan is left for it."""
        rules = {alias: self.rules(alias) for alias in step.up if alias not in self.collected}
        return to_collect(self.plan, step, self.sizes, rules, self._spent, self.line)

    def begin(self, step: PricedStep) -> Run:
        """Collect what the plan collects before this step; PrivacyError if no plan is left that policies allow."""
        chosen = self.would_collect(step)
        self._spent += step.seconds([alias for alias in step.up if alias not in self.collected], self.sizes, self.line)
        if chosen:
            self._collect(chosen)
        return Run(step)

    def read(self, pending: Pending) -> Replies:
        """Read replies, and learn from the trip, if one is made now."""
        try:
            replies, moved = self.meter.read(pending)
        except TablePuppetError:
            self._slots.clear()  # a function that was to be kept did not run, perhaps
            raise
        if moved.trips and any(self.sizes[alias].is_remote for alias in replies if replies[alias]):
            self.line.add(*moved)
        return replies

    def collecting(self, aliases: Iterable[str]) -> PricedStep:
        """The step that collects the cells of tables."""
        cells = {alias: self.sizes[alias].cell_bytes for alias in aliases}
        return PricedStep(COLLECT, dict.fromkeys(cells, 0), cells, is_chosen=False)

    def _collect(self, aliases: Sequence[str]) -> None:
        """Fetch the encoded cells of tables; one trip."""
        pending = self.lou.ask(
            "matrix.values", aliases, by_alias={alias: {"encoding": self.names[alias]} for alias in aliases}
        )
        self.meter.note(Run(self.collecting(aliases)), is_asked=True)
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

    def so_far(self) -> dict[str, Any]:
        """What decisions have come to, and what they depend on: for a program that goes on elsewhere (`go_on`)."""
        return {"collected": sorted(self.collected), "spent": self._spent}

    def go_on(self, before: Mapping[str, Any]) -> None:
        """Collect what was collected before, so that the same steps run at the same places."""
        missing = [alias for alias in before["collected"] if alias in self.sizes and alias not in self.collected]
        missing = [alias for alias in missing if not self.rules(alias).forbids_values]
        if missing:
            self._collect(missing)
        self._spent = max(self._spent, float(before["spent"]))

    # ---- what parties keep, and how numbers travel

    def centre(self) -> None:
        """Ask the parties to subtract the centres of tables that have any, unless they have; it costs no trip."""
        names = {a: name for a, name in self.names.items() if name != self._encoding.id}
        if self._encoding.id + CENTRED in self.client.encodings or not names:
            return
        by_alias = {alias: {"into": name, "centres": self.centres[alias]} for alias, name in names.items()}
        self.client.widths |= {(alias, name): len(self._encoding.names(alias)) for alias, name in names.items()}
        self.lou.ask("matrix.centre", names, by_alias=by_alias, encoding=self._encoding.id)
        self.client.encodings.add(self._encoding.id + CENTRED)

    def slot(self, key: object) -> tuple[str, bool]:
        """(the name under which parties keep a function of columns, whether they have it already)."""
        is_kept = key in self._slots
        if not is_kept:
            free = len(self._slots) if len(self._slots) < SLOTS else self._slots.popitem(last=False)[1]
            self._slots[key] = free
        self._slots.move_to_end(key)
        return f"{self._name}.{self._slots[key]}", is_kept

    def is_exact(self, alias: str) -> bool:
        """Whether nothing is rounded on the way to the parties of a table and back, as in this process."""
        return np.dtype(self.sizes[alias].wire).itemsize == 8


def _check_cells(
    party: str, alias: str, numbers: NDArray[Any], codes: NDArray[Any], width: int, sizes: NDArray[np.int64]
) -> None:
    """PartyError unless cells are as wide as the encoding, and codes those of its categories."""
    if numbers.shape[1] != width or codes.shape[1] != len(sizes) or (codes >= sizes).any():
        raise PartyError(f"party {party!r}, table {alias!r}: its cells are not those of the encoding")


@dataclass(frozen=True)
class StepCost:
    """One kind of step: where it would run now, its trips and bytes, and what steps of this kind have cost."""

    step: str
    where: str
    trips: int
    bytes: int
    runs: int
    measured_trips: int
    measured_bytes: int
    seconds: float


class StepCosts(ShownAsTable):
    """A line for each kind of step; ``steps`` has them by name."""

    def __init__(self, plan: str, steps: list[StepCost]):
        self.plan, self.steps = plan, {each.step: each for each in steps}

    def table_view(self) -> TableView:
        sides: dict[str, Align] = {
            "step": "left", "where": "left", "trips": "right", "bytes": "right", "runs so far": "right",
            "their trips": "right", "their bytes": "right", "seconds": "right",
        }  # fmt: skip
        rows = [
            [
                each.step, each.where, shown(each.trips), shown(each.bytes), shown(each.runs),
                shown(each.measured_trips), shown(each.measured_bytes), f"{each.seconds:.3f}",
            ]
            for each in self.steps.values()
        ]  # fmt: skip
        return TableView(f"Steps by plan {self.plan!r}", sides, rows)


def explain_array(placement: Placement, products: ByTables, vectors: int, kept: Sequence[PricedStep] = ()) -> StepCosts:
    """The steps that can be asked of a matrix, for a number of vectors; ``kept`` are those on vectors at parties."""
    many = dict.fromkeys(products.tables, vectors)
    steps = [
        PricedStep.times(many, products), PricedStep.transposed(many, products), PricedStep.statistic("sums", products),
        PricedStep.statistic("squares", products), PricedStep.gram(products, weighted=False),
        PricedStep.gram(products, weighted=True), PricedStep.extremes(products),
        PricedStep.extremes(products, with_places=True),
    ]  # fmt: skip
    steps = [each for each in steps if each.step not in {other.step for other in kept}] + list(kept)
    if products.tables:
        steps.append(placement.collecting(products.tables))
    return StepCosts(placement.plan, [_cost(placement, each) for each in steps])


def _cost(placement: Placement, asked: PricedStep) -> StepCost:
    """What a step would cost now."""
    there = [alias for alias in asked.up if alias not in placement.collected]
    first = sorted(there)
    trips, size, where = asked.trips if there else 0, 0, "here"
    if there:
        where = "at parties" if asked.trips else "kept at parties"
        size = asked.size(there, placement.sizes)
    try:
        collected = placement.would_collect(asked)
    except PrivacyError as error:
        collected, where, trips, size = [], f"nowhere: policy rule {error.rule}", 0, 0
    if collected:
        rest = [alias for alias in there if alias not in collected]
        cells = placement.collecting(collected)
        trips = 1 + (asked.trips if rest else 0)
        size = cells.size(collected, placement.sizes) + asked.size(rest, placement.sizes)
        where = "here, after cells are collected" if not rest else f"here: {', '.join(collected)}; else at parties"
    elif there and len(there) < len(asked.up):
        where = f"at parties: {', '.join(first)}; else here"
    done = placement.meter.measured(asked.step)
    return StepCost(asked.step, where, trips, size, done.runs, done.trips, done.bytes, done.seconds)
