"""Sessions with planned requests: those that once told something of few rows, or of what was kept of a table.

`run_planned` asks two parties whose tables pool small groups. Each column by itself is the same in both, or the same
but for a few rows; what differs is which few rows have two values together. `run_kept` has neighbours whose table
demands noise, lets ops learn from it with settings up to their limits, and asks a second session, over a table that
demands nothing, for all that was kept under the same names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa

from tablepuppet.errors import PartyError
from tablepuppet.learn.tables.dense import Mlp
from tablepuppet.learn.tables.linear import Linear
from tablepuppet.party.blind import blind
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.ops import REGISTRY, Op, Values
from tablepuppet.party.policy import ColumnRule, Level, Policy, TableRule, Use
from tablepuppet.party.release import Release
from tablepuppet.prep.encode.specs import Fill, Lookup, Product

from .worlds import CANARY, FEATURES, FEW, LABELS, LEAST, Seen, World, neighbour, pooling, random_table, strict

Compare = Callable[[str, Mapping[str, Any], list[Seen], bool, Counter[tuple[str, str]]], None]
HALF = 32  # rows: sums over them are exact
HIGH = 1024.0


def alike(rng: np.random.Generator) -> list[dict[str, list[Any]]]:
    """Two tables of `HALF` + `HALF` rows whose columns are alike, but not what few rows have of two of them."""
    nested = int(rng.integers(1, FEW + 1))
    found: list[dict[str, list[Any]]] = []
    for number, few in enumerate(rng.choice(np.arange(1, FEW + 1), 2, replace=False).tolist()):
        x = [HIGH, 0.0] * HALF
        last = HALF - nested  # the first row that z has and s has not
        x[0], x[last] = (HIGH, 0.0) if number else (0.0, HIGH)
        found.append(
            {
                "id": list(range(2 * HALF)),
                "x": x,
                "t": ["a"] * HALF + ["b"] * HALF,
                "y": ["u"] * (HALF - few) + ["v"] * HALF + ["u"] * few,
                "z": [1] * HALF + [None] * HALF,
                "s": [0.5] * last + [None] * (2 * HALF - last),
                "d": [None] * (2 * HALF - number * few) + [20_000] * (number * few),  # no row has a value, or few have
            }
        )
    return found


def run_planned(folder: Path, seed: int, counts: Counter[tuple[str, str]], compare: Compare) -> None:
    """Statistics of two columns at a time, of steps over them, and of what a model is learned from."""
    rng = np.random.default_rng([seed, 5])
    rules = {name: ColumnRule(Use.FEATURE, Level.AGGREGATE) for name in (*FEATURES, *LABELS)}
    table = replace(pooling(rng).others or TableRule(), columns={**rules, "id": ColumnRule(Use.KEY)}, matrix=False)
    worlds = [
        World(folder / str(n), each, Policy(others=table), {n: n for n in rules}) for n, each in enumerate(alike(rng))
    ]
    rare = [CANARY, "other"]
    words = [
        World(folder / f"w{n}", _rare(word), Policy(others=table), {n: n for n in rules}) for n, word in enumerate(rare)
    ]
    for world in (*worlds, *words):
        assert world.open().error is None
        used = {"view": "v", "chosen": None, "counts": np.ones(world.rows, np.int64)}
        assert world.ask("rows.use", used).error is None
    none = np.zeros((0, 16), np.uint8)
    listed = {f"digests{n}": _digests(worlds[0], *each) for n, each in enumerate((("t", "a", "b"), ("y", "u", "v")))}
    both = {"columns": ["d"], "categories": [("t", "text"), ("y", "text")], **listed}
    flags = [Lookup("t", [1.0, 0.0], 0.0, 0.0), Lookup("y", [0.0, 1.0], 0.0, 0.0), Product(("t", "y"), "both")]
    one = {"means": np.zeros(1), "scales": np.ones(1)}
    pair = {"columns": ["t", "y"], "families": ["text", "text"], "most": 9, "first_pool": none, "second_pool": none}
    asked: list[tuple[str, dict[str, Any]]] = [
        ("statistics.numbers", {"columns": ["z", "s", "d"]}),
        ("statistics.crosstab", {"blinding": "b", **pair}),
        ("statistics.products", {"columns": ["x", "z", "s"]}),
        ("prep.sums", {"blinding": "b", **both, "wanted": ["both"], "steps": flags}),
        ("prep.sums", {"blinding": "b", **both, "wanted": ["d"], "steps": [Fill("d", 3.0)]}),
        *((name, given) for learned in (True, False) for name, given in _learned(both | one, learned)),
        *_learned({"columns": ["x", "z", "s"], "categories": [], "means": np.zeros(3), "scales": np.ones(3)}, True),
    ]
    for op, given in asked:
        compare(op, given, [world.ask(op, {"view": "v", **given}) for world in worlds], False, counts)
    guessed = _guessed(words, counts, compare)
    own = {"columns": [], "means": np.zeros(0), "scales": np.zeros(0), "categories": [("t", "text")]}
    for op, given in (
        ("encode.build", own | {"digests0": guessed}),
        ("model.apply", {"spec": Linear(1), "theta": np.arange(1.0, 1.0 + len(guessed))}),
    ):
        compare(op, given, [world.ask(op, {"view": "v", "encoding": "e", **given}) for world in words], False, counts)


def _learned(given: dict[str, Any], learned: bool) -> list[tuple[str, dict[str, Any]]]:
    built = ("encode.build", {"encoding": "b", **given, "learned": learned})
    return [built, ("matrix.gram", {"encoding": "b", "joined_rows": 1})]


def _rare(word: str) -> dict[str, list[Any]]:
    """A table in which one row has a text of its own."""
    rows = 2 * HALF
    others: dict[str, list[Any]] = {name: [None] * rows for name in "xdys"}
    return {"id": list(range(rows)), "t": [word] + ["a"] * (rows - 1), "z": [1] * HALF + [None] * HALF, **others}


def _guessed(worlds: list[World], counts: Counter[tuple[str, str]], compare: Compare) -> Any:
    """Digests of a text that the caller guesses, under the name of the column in which it may be."""
    guess = {"t": f"CASE WHEN z = 1 THEN '{CANARY}' ELSE 'a' END"}
    asked = {"view": "v", "column": "t", "family": "text", "blinding": "e", "most": None}
    for world in worlds:
        world.turn_to("t", guess)
        used = {"view": "v", "chosen": None, "counts": np.ones(world.rows, np.int64)}
        assert world.ask("rows.use", used).error is None
    seen = [world.ask("statistics.categories", asked) for world in worlds]
    compare("statistics.categories", asked, seen, False, counts)
    for world in worlds:
        world.turn_back()
    return seen[0].reply["digests"]


def _digests(world: World, name: str, *words: str) -> Any:
    return blind([pa.chunked_array([pa.array(words)])], ["text"], world.table.category_key("b", name)).digests


def _careless(table: LocalTable, view: str) -> Values:
    """An op as its author should not write it: it declares itself harmless, reads rows, and fails on some."""
    if table.column("x", view).null_count:
        raise PartyError("a cell is missing")
    return {}


CARELESS = Op(_careless, "careless", asked="never", releases=Release.COUNTS, returns={})
NETWORKS = {"small": Mlp((), 1, "relu", False), "wide": Mlp((3,), 2, "tanh", True)}


def run_kept(folder: Path, seed: int, counts: Counter[tuple[str, str]], compare: Compare) -> None:
    """Whatever ops may keep of a table that demands noise is asked for over another table of the same alias."""
    rng = np.random.default_rng([seed, 6])
    cells = random_table(rng, LEAST + 3) | {"x": rng.normal(size=LEAST + 3).tolist()}
    policy = replace(strict(), tables={"u": TableRule()})
    worlds = [World(folder / n, each, policy) for n, each in (("a", cells), ("b", neighbour(rng, cells, False)))]
    one = {"view": "v", "encoding": "e"}
    lr = float(rng.choice([1e-3, 1.0, 1e34, 1e99]))
    settings = {"batch_size": 1, "lr": lr, "l2": 0.0, "assign_every": 1}
    build = {"columns": ["x"], "means": np.zeros(1), "scales": np.ones(1), "categories": []}
    used = {"view": "v", "chosen": None, "counts": np.ones(LEAST + 3, np.int64)}
    begin: list[tuple[str, dict[str, Any]]] = [("rows.use", used), ("encode.build", {**one, **build})]
    learn: list[tuple[str, dict[str, Any]]] = []
    tell: list[tuple[str, dict[str, Any]]] = []
    for name, spec in NETWORKS.items():
        model = {**one, "model": name}
        learn += [
            ("model.start", {**model, "spec": spec, "seed": 0}),
            ("nat.train", {**model, "seed": 0, "epochs": 3, "settings": settings}),
            ("nat.components", model),
            ("parts.store", {"view": "v", "model": name, "saved": "s", "part": "p", "unit": 1.0}),
        ]
        tell += [("model.parameters", {"view": "v", "model": name}), ("split.embed", model)]
    for world in worlds:
        assert world.open().error is None
    for op, given in (*begin, *learn):
        compare(op, given, [world.ask(op, given) for world in worlds], False, counts)
    for world in worlds:
        world.turn_to("u", {"x": "x"})
    for op, given in (*begin, *tell):
        compare(op, given, [world.ask(op, given) for world in worlds], False, counts)
    for world in worlds:
        world.turn_back()
    with mock.patch.dict(REGISTRY, {"careless": CARELESS}):
        compare("careless", {}, [world.ask("careless", {"view": "v"}) for world in worlds], False, counts)
