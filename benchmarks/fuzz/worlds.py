"""A party with a small hostile table, its neighbour in which one row's cells differ, and what can be seen of both.

Noise is caught where it is drawn: what it would be added to is written down, and the same value is told in both worlds,
so that whatever differs after that does not come from noise.
"""

from __future__ import annotations

import cProfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import tablepuppet.learn.party_ops  # noqa: F401 - registers all ops, as a party's service does
import tablepuppet.party.local_table as local_table
import tablepuppet.privacy.label as label_noise
from tablepuppet.errors import TablePuppetError
from tablepuppet.learn.tables.dense import Mlp, Network
from tablepuppet.learn.tables.linear import Linear
from tablepuppet.learn.tables.model import Bottom, Spec
from tablepuppet.learn.trees.splits import Splits
from tablepuppet.party.arguments import GramNoise
from tablepuppet.party.blind import blind
from tablepuppet.party.databases.urls import open_database
from tablepuppet.party.ledger import Budget
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.ops import REGISTRY
from tablepuppet.party.policy import ColumnRule, Level, Policy, TableRule, Use
from tablepuppet.party.service import Party
from tablepuppet.privacy.accountant import Spending
from tablepuppet.privacy.noise import SLACK, gaussian_grid, summed_steps
from tablepuppet.sql.plan import KeySpec, Scan
from tablepuppet.sql.view import View

from .arguments import Maker, Shapes

CALLER, SESSION, CANARY = "analyst", "s", "canary-кана́рейка"
TYPES = {"id": "BIGINT", "x": "DOUBLE", "z": "BIGINT", "t": "VARCHAR", "d": "DATE", "y": "VARCHAR", "s": "DOUBLE"}
FEATURES, LABELS = ("x", "z", "t", "d"), ("y", "s")
NUMBERS = {
    "x": "x", "z": "z", "d": "d", "coalesce": "COALESCE(x, -1)", "both": "COALESCE(x, z, 7)", "missing": "x IS NULL",
    "case": "CASE WHEN x > 0 THEN 5 ELSE -5 END", "one": "1", "sum": "x * 2 + z", "cast": "CAST(z AS UTINYINT)",
    "product": "z * 9223372036854775807", "far": "CASE WHEN t IS NULL THEN 1e300 ELSE -1e300 END",
}  # fmt: skip
TEXTS = {"t": "t", "none": "COALESCE(t, 'none')", "kind": "CASE WHEN x IS NULL THEN 'a' ELSE t END", "word": "'w'"}
ANSWERS = {"y": "y", "filled": "COALESCE(y, 'a')", "hole": "CASE WHEN y = 'a' THEN NULL ELSE y END", "s": "s"}
SELECTED = {**NUMBERS, **TEXTS, **ANSWERS}
CELLS: Mapping[str, tuple[Any, ...]] = {
    "x": (
        None,
        float("nan"),
        float("inf"),
        -float("inf"),
        0.0,
        1e-320,
        1e-170,
        1.0,
        -2.5,
        1e6,
        1e170,
        1.7e308,
        -1.7e308,
    ),
    "z": (None, 0, 1, -1, 255, 256, 2**62, -(2**62)),
    "t": (None, "a", "b", "c", "", CANARY),
    "d": (None, 0, 20_000, -20_000),
    "y": (None, "a", "b", "c", CANARY),
    "s": (None, float("nan"), 0.0, 0.25, 1.0, -1e300),
}


@dataclass(frozen=True)
class Noised:
    """What noise was to be added to, in steps of a grid, and what one row may change."""

    values: Any
    step: float
    sensitivity: float
    labels: int | None = None  # how many classes there are, 0 for numbers; None: it is of features


@dataclass
class Seen:
    """All that can be seen of one request."""

    reply: Any = None
    error: tuple[str, str] | None = None
    charges: list[tuple[Spending, str]] = field(default_factory=list)
    noised: list[Noised] = field(default_factory=list)
    failed: str = ""  # what was raised while values were computed that noise is added to
    calls: int = 0  # of functions, of Python and of C, if they are counted
    seconds: float = 0.0


def random_table(rng: np.random.Generator, rows: int) -> dict[str, list[Any]]:
    """Cells by column."""
    found: dict[str, list[Any]] = {"id": list(range(rows))}
    for name, cells in CELLS.items():
        found[name] = [cells[int(rng.integers(len(cells)))] for _ in range(rows)]
    return found


def neighbour(rng: np.random.Generator, table: Mapping[str, list[Any]], labels: bool) -> dict[str, list[Any]]:
    """The same but for one row: its features are NULL, or its labels are others."""
    found = {name: list(cells) for name, cells in table.items()}
    if not found["id"]:
        return found
    row = int(rng.integers(len(found["id"])))
    for name in LABELS if labels else FEATURES:
        found[name][row] = CELLS[name][int(rng.integers(len(CELLS[name])))] if labels else None
    return found


def strict() -> Policy:
    """Nothing of features or labels leaves without noise."""
    uses = {"id": Use.KEY, **dict.fromkeys(FEATURES, Use.FEATURE), **dict.fromkeys(LABELS, Use.LABEL)}
    rules = {name: ColumnRule(use, Level.PUBLIC) for name, use in uses.items()}
    return Policy(others=TableRule(rules, others=None, budget=Budget(require_dp=True)))


LEAST = 5  # rows of a group that may be released, of `pooling`
FEW = LEAST - 1  # rows whose cells nothing may depend on


def few_cells(rng: np.random.Generator) -> list[dict[str, list[Any]]]:
    """A table some of whose columns and categories have a value in few rows only; and the same without these cells.

    The first rows have such a number or text, whether or not they are joined many times.
    """
    rows = int(rng.integers(2 * LEAST, 4 * LEAST))
    full: dict[str, list[Any]] = {
        "id": list(range(rows)),
        "z": rng.integers(0, 3, rows).tolist(),
        "y": ["a", "b"] * rows,
        "s": [0.5] * rows,
    }
    rare: dict[str, list[Any]] = {name: [None] * rows for name in ("x", "t", "d")}
    if rng.random() < 0.5:  # beside a category that many rows have
        rare["t"][FEW:] = ["a"] * (rows - FEW)
    told = {name: list(cells) for name, cells in rare.items()}
    for name, cells in {"x": (1.0, -2.5, 1e6), "t": ("b", "c", CANARY), "d": (0, 20_000)}.items():
        for row in range(int(rng.integers(1, FEW + 1))):
            told[name][row] = cells[int(rng.integers(len(cells)))]
    return [{name: cells[:rows] for name, cells in (full | each).items()} for each in (told, rare)]


def few_together(rng: np.random.Generator) -> list[dict[str, list[Any]]]:
    """Two tables whose columns are alike, but not which few rows have the values of both t and y, nor where in x a few
    rows lie that are far from all others.
    """
    half, few = int(rng.integers(2 * LEAST, 4 * LEAST)), int(rng.integers(1, FEW + 1))
    near = rng.uniform(0.0, 2.0, 2 * half - few).tolist()
    found = []
    for both in rng.choice(np.arange(1, FEW + 1), 2, replace=False).tolist():
        far = rng.choice([3.0, 1e3, 1e9, 1e300]) * rng.uniform(1.0, 1.5, few)
        cells: dict[str, list[Any]] = {name: [None] * (2 * half) for name in TYPES} | {"id": list(range(2 * half))}
        cells |= {"t": ["a"] * half + [None] * half, "x": [*near, *far.tolist()]}
        found.append(cells | {"y": [None] * (half - both) + ["b"] * half + [None] * both})
    return found


def pooling(rng: np.random.Generator) -> Policy:
    """Everything is allowed of groups that have enough rows; levels are drawn."""
    uses = {"id": Use.KEY, **dict.fromkeys(FEATURES, Use.FEATURE), **dict.fromkeys(LABELS, Use.LABEL)}
    levels = [Level.PUBLIC, Level.AGGREGATE]
    rules = {name: ColumnRule(use, levels[int(rng.integers(2))]) for name, use in uses.items()}
    return Policy(others=TableRule(rules, others=None, min_group=LEAST))


GROUPED = View({"id": "id", **{name: f"max({name})" for name in TYPES if name != "id"}}, TYPES, groups=("id",))
"""A subquery whose groups are the rows of the table."""


class Query(NamedTuple):
    """What a query is, beside what it selects."""

    outer: bool = False  # an outer join, by which the table has the missing row
    grouped: bool = False  # over a subquery

    @classmethod
    def drawn(cls, seed: int, grouped: bool = True) -> Query:
        """One of a seed; ``grouped``: whether it may be over a subquery."""
        outer, over = np.random.default_rng([seed, 9]).random(2) < 0.3
        return cls(bool(outer), bool(over) and grouped)


PLAIN = Query()


class World:
    """A party with one table, and one session with it, over columns that ``outputs`` names."""

    def __init__(
        self, folder: Path, cells: Mapping[str, list[Any]], policy: Policy, outputs: Mapping[str, str] = SELECTED,
        query: Query = PLAIN,
    ):  # fmt: skip
        folder.mkdir(parents=True)
        types = {"BIGINT": pa.int64(), "DOUBLE": pa.float64(), "VARCHAR": pa.string(), "DATE": pa.date32()}
        arrays = {name: pa.array(cells[name], types[kind]) for name, kind in TYPES.items()}
        pq.write_table(pa.table(arrays), folder / "t.parquet")
        others = {name: array if name == "id" else pa.nulls(len(array), array.type) for name, array in arrays.items()}
        others["x"] = pa.array(np.linspace(0.0, 1.0, len(arrays["id"])))
        pq.write_table(pa.table(others), folder / "u.parquet")  # the same in every world
        self.party = Party("p", open_database("p", f"parquet://{folder}"), b"k" * 32, policy)
        self.party._noise_secret = b"n" * 32  # both worlds draw the same samples
        key = KeySpec("id", ("id",), ("number",))
        view = GROUPED if query.grouped else None
        self.scan = Scan("p", "t", "t", TYPES, outputs, ("",), (key,), (), (), missing=query.outer, view=view)
        self.rows, self._seen, self._session = len(cells["id"]) + query.outer, Seen(), SESSION
        self.counts_calls = False  # which doubles the time of a session

    def open(self) -> Seen:
        """What is seen when the table is read."""
        return self._observed(lambda: self.party.open(CALLER, SESSION, [self.scan], nonce="n", again=True))

    def turn_to(self, table: str, outputs: Mapping[str, str]) -> None:
        """Ask a second session from now on, over a table under the alias of the first."""
        scan, self._session = replace(self.scan, table=table, outputs=outputs), "second"
        self.party.open(CALLER, self._session, [scan], nonce="m", again=True)

    def turn_back(self) -> None:
        """Ask the first session again."""
        self._session = SESSION

    @property
    def table(self) -> LocalTable:
        """For the eyes of the party."""
        return self.party.table(self._session, "t", CALLER)

    def ask(self, op: str, arguments: Mapping[str, Any], seed: int = 0) -> Seen:
        """What is seen of a request."""
        self.table.charged = self._charge
        with self._caught(seed):
            return self._observed(lambda: self.party.run(CALLER, self._session, op, "t", arguments))

    def _observed(self, ask: Any) -> Seen:
        self._seen = Seen()
        counter, begun = cProfile.Profile(subcalls=False), time.perf_counter()
        try:
            if self.counts_calls:
                counter.enable()
            self._seen.reply = ask()
        except TablePuppetError as error:  # whatever else is raised is a crash
            self._seen.error = (type(error).__name__, str(error))
        finally:
            counter.disable()
        self._seen.seconds = time.perf_counter() - begun
        self._seen.calls = sum(each.callcount for each in counter.getstats())
        return self._seen

    def _charge(self, cost: Spending, purpose: str, release: str | None, line: str) -> None:
        self._seen.charges.append((cost, purpose))

    @contextmanager
    def _caught(self, seed: int) -> Iterator[None]:
        """Write down what noise would be added to, and tell something that no row has changed instead."""
        grids: list[tuple[float, float]] = []

        def chosen_grid(sigma: float, sensitivity: float) -> float:
            grids.append((gaussian_grid(sigma, sensitivity), sensitivity))
            return grids[-1][0]

        def sums(*asked: Any) -> Any:
            try:
                values = summed_steps(*asked)
            except Exception as error:
                self._seen.failed = repr(error)
                raise
            self._seen.noised.append(Noised(values, *grids[-1]))
            return np.zeros_like(values)

        def noise(_: Any, count: int, sigma: float) -> Any:
            drawn = np.random.default_rng([seed, len(self._seen.noised)]).normal(size=count)
            return (np.clip(drawn, -5, 5) * sigma).astype(np.int64)

        def classes(codes: Any, number: int, *_: Any) -> Any:
            self._seen.noised.append(Noised(codes, 1.0, 1.0, number))
            return np.zeros_like(codes)

        def numbers(values: Any, bounds: tuple[float, float], *_: Any) -> Any:
            self._seen.noised.append(Noised((values - bounds[0]) / (bounds[1] - bounds[0]), 1.0, 1.0, 0))
            return np.zeros_like(values)

        label: dict[str, Any] = {"randomised_response": classes, "laplace_argmax": classes, "laplace_numbers": numbers}
        both: dict[str, Any] = {"gaussian_grid": chosen_grid, "summed_steps": sums, "discrete_gaussian": noise}
        with mock.patch.multiple(local_table, **both), mock.patch.multiple(label_noise, **label):
            yield


MODELS: dict[str, Spec | Bottom] = {
    "plain": Linear(1), "wide": Linear(2), "net": Network((3,), 1), "deep": Network((2, 3), 2),
    "embedding": Mlp((3,), 2, "tanh", True), "number": Mlp((2, 2), 1, "relu", False),
}  # fmt: skip


def prepare(worlds: list[World], rng: np.random.Generator) -> tuple[Maker, list[tuple[str, dict[str, Any]]]]:
    """What makes arguments that fit, and the requests that a session begins with: rows, encodings, models."""
    rows = worlds[0].rows
    maker = Maker(rng, Shapes(rows, [*NUMBERS, *TEXTS, *ANSWERS], list(NUMBERS), list(TEXTS), list(ANSWERS)))
    table = worlds[0].table
    for word in ("a", "b", "none"):
        column = pa.chunked_array([pa.array([word])])
        maker.shapes.digests[word] = blind([column], ["text"], table.category_key("e0", "t")).digests[0]
    chosen = np.sort(rng.choice(rows, rows - rows // 3, replace=False)).astype(np.int32) if rng.random() < 0.5 else None
    counts = rng.integers(1, 4, rows if chosen is None else len(chosen))
    maker.shapes.rows = len(counts)
    twice = np.zeros(3 if rows else 0, np.int32)
    asked: list[tuple[str, dict[str, Any]]] = [
        ("rows.use", {"view": "v", "chosen": chosen, "counts": counts}),
        ("rows.use", {"view": "w", "chosen": twice, "counts": np.ones_like(twice)}),
    ]
    calm = Maker(rng, maker.shapes, wild=0.0)
    for number in range(3):
        given = calm.arguments(REGISTRY["encode.build"], view="v", encoding=f"e{number}", private=True, steps=[])
        maker.shapes.widths[f"e{number}"] = len(given["columns"]) + sum(
            len(digests) for name, digests in given.items() if name.startswith("digests")
        )
        if number == 2:
            given, maker.shapes.widths["e2"] = calm.prepared(given)
        asked.append(("encode.build", given))
        for kind, spec in MODELS.items():
            name = f"{kind}{number}"
            maker.shapes.models[name] = (f"e{number}", spec)
            begun = {"view": "v", "encoding": f"e{number}", "model": name, "seed": 1, "zero": kind != "embedding"}
            asked.append(("model.start", {**begun, "spec": spec}))
        for outputs in (1, 2):
            name, spec = f"ridge{outputs}{number}", Linear(outputs)
            maker.shapes.models[name] = (f"e{number}", spec)
            noise = calm.noise(GramNoise)
            begun = {"view": "v", "encoding": f"e{number}", "model": name, "joined_rows": 1 + maker.shapes.rows}
            asked.append(("ridge.start", {**begun, "spec": spec, "noise": noise}))
    some = {"columns": ["x", "z", "sum"], "categories": [("t", "text")], "digests0": maker.shapes.digests["a"][None]}
    asked += trees(maker, rng, "e0", some)
    return maker, asked


def trees(maker: Maker, rng: np.random.Generator, encoding: str, read: dict[str, Any]) -> list[tuple[str, Any]]:
    """The requests by which a model of trees begins over an encoding's name: a root, two children, its bits, sums."""
    rows, columns = maker.shapes.rows, len(read["columns"]) + len(read["categories"])
    one: dict[str, Any] = {"view": "v", "encoding": encoding}
    model, bins = f"trees{encoding[1:]}", int(rng.integers(2, 9))
    maker.shapes.models[model] = (encoding, Splits(1, 1))
    child = np.flatnonzero(rng.random(rows) < 0.5).astype(np.int32)
    rule = {"l2": 1.0, "min_leaf": 1, "min_gain": 0.0}
    nodes: list[dict[str, Any]] = []
    for number, (parent, sibling, places) in enumerate(((-1, -1, None), (0, 2, child))):
        entries = rows if places is None else len(places)
        node = {"built": number, "parents": parent, "siblings": sibling, "sizes": entries}
        arrays = {name: np.array([value], np.int32) for name, value in node.items()}
        nodes.append(one | arrays | {"rows": rng.normal(size=(entries, 2)) ** [1, 2], "places": places})
    sums = [{name: node[name] for name in (*one, "built", "sizes", "rows", "places")} for node in nodes]
    sizes = [[rows], [len(child), rows]]  # a sibling's rows are its parent's, where some are joined twice
    return [
        ("trees.read", one | {"learned": encoding == "e0"} | read),
        ("trees.bin", one | {"max_bins": bins}),
        ("trees.start", one | {"model": model}),
        *(
            ("trees.split", node | {"model": model, "rule": rule, "evaluated": len(size), "bytes": _bytes(size)})
            for node, size in zip(nodes, sizes, strict=True)
        ),
        *(("trees.sums", each | {"cells": columns * (bins + 1)}) for each in sums),
        ("trees.keep", one | {"model": model, "nodes": np.zeros(1, np.int32), "first": 0}),
        ("trees.predict", one | {"model": model}),
        ("trees.apply", one | {"spec": Splits(1, 0), "theta": np.array([[0.0, 0.5, 1.0, 0.0]])}),
    ]


def _bytes(sizes: list[int]) -> int:
    return sum(-(-size // 8) for size in sizes)


def prepare_pooled(world: World, maker: Maker, rng: np.random.Generator) -> list[tuple[str, dict[str, Any]]]:
    """Encodings of a table that pools small groups, and models: ``e0`` is of rows to learn from, others are not."""
    asked: list[tuple[str, dict[str, Any]]] = []
    for number, learned in enumerate((True, False)):
        name = f"e{number}"
        listed = blind([pa.chunked_array([pa.array(["a", "b", "c"])])], ["text"], world.table.category_key(name, "t"))
        given: dict[str, Any] = {
            "view": "v",
            "encoding": name,
            "columns": ["x", "z", "d"],
            "categories": [("t", "text")],
        }
        given |= {"means": np.zeros(3), "scales": np.ones(3), "digests0": listed.digests}
        asked.append(("encode.build", given | {"learned": learned, "private": not learned and rng.random() < 0.5}))
        maker.shapes.widths[name] = 6
        maker.shapes.digests |= {f"{name}{place}": each for place, each in enumerate(listed.digests)}
        for kind in ("plain", "net", "number"):
            model, spec = f"{kind}{number}", MODELS[kind]
            maker.shapes.models[model] = (name, spec)
            begun = {"view": "v", "encoding": name, "model": model, "spec": spec, "seed": 1, "zero": False}
            asked.append(("model.start", begun))
        read = {"columns": ["x", "z", "d"], "categories": [("t", "text")], "digests0": listed.digests}
        asked += trees(maker, rng, name, read)
    return asked


def difference(op: str, seen: list[Seen], labels: bool) -> str | None:
    """What tells the worlds apart beyond what noise hides; None if nothing does."""
    here, there = seen
    if here.error != there.error:
        return f"errors: {here.error} or {there.error}"
    if here.charges != there.charges:
        return "charges"
    if not same(here.reply, there.reply):
        return "replies"
    if len(here.noised) != len(there.noised):
        return "the number of noisy releases"
    for one, other in zip(here.noised, there.noised, strict=True):
        found = _too_far(op, one, other, labels)
        if found:
            return found
    return None


MORE_CALLS, MANY_CALLS = 4, 2_000  # times as many, and so many more, are another class of work
MORE_SECONDS, MANY_SECONDS = 10, 0.2


def slower(seen: list[Seen]) -> str | None:
    """In which class of work or time the worlds differ; None if in none.

    Something else may be the reason, once: a module that is imported, a busy machine. What it is of must be asked for
    again in the same session, run anew.
    """
    here, there = seen
    for what, one, other, times, least in (
        ("work", here.calls, there.calls, MORE_CALLS, MANY_CALLS),
        ("time", here.seconds, there.seconds, MORE_SECONDS, MANY_SECONDS),
    ):
        if abs(one - other) > least and max(one, other) > times * min(one, other):
            return f"their class of {what}: {'more' if one > other else 'less'} in the first world"
    return None


def _too_far(op: str, one: Noised, other: Noised, labels: bool) -> str | None:
    if (one.step, one.sensitivity, one.labels) != (other.step, other.sensitivity, other.labels):
        return "the noise"
    if one.labels is not None:
        if not all(((values >= 0) & (values <= max(1, one.labels - 1))).all() for values in (one.values, other.values)):
            return "labels are outside of their domain"
        return "labels" if np.count_nonzero(one.values != other.values) > labels else None
    here, there = one.values.astype(np.float64).ravel(), other.values.astype(np.float64).ravel()
    if op == "private.categories":  # which count is whose is told by digests: put them in order
        size = max(len(here), len(there))
        here, there = (np.sort(np.pad(each, (0, size - len(each)))) for each in (here, there))
    if here.shape != there.shape:
        return "the shape of a noisy release"
    far, allowed = float(np.linalg.norm(here - there)) * one.step, 0.0 if labels else one.sensitivity
    most = allowed * (1 + SLACK) + np.sqrt(here.size) * one.step
    return f"a row changes a release by {far:.6g}, {allowed:.6g} is stated" if far > most else None


def same(one: Any, other: Any) -> bool:
    """Whether two replies are equal, to the last bit."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    here, there = np.asarray(one), np.asarray(other)
    if here.shape != there.shape or here.dtype != there.dtype:
        return False
    return bool(np.array_equal(here, there, equal_nan=here.dtype.kind == "f"))


def size_of(reply: Any) -> int:
    """Bytes of a reply."""
    if isinstance(reply, dict):
        return sum(size_of(value) for value in reply.values())
    if isinstance(reply, list | tuple):
        return sum(size_of(value) for value in reply)
    return int(reply.nbytes) if isinstance(reply, np.ndarray) else len(str(reply))
