"""Private ops are total: whatever is asked, neighbours differ in noisy values only, by no more than noise is for.

``TABLEPUPPET_FUZZ_SESSIONS`` says how many sessions of each kind are run; `python -m benchmarks.fuzz` runs for longer.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from benchmarks.fuzz import __main__ as fuzzing
from benchmarks.fuzz import worlds
from benchmarks.fuzz.holes import HOLES
from benchmarks.fuzz.worlds import World, difference, strict
from tablepuppet.errors import PartyError
from tablepuppet.learn.private.steps import NoisySteps
from tablepuppet.learn.tables.linear import Linear
from tablepuppet.party.arguments import GramNoise, PredictionNoise, SumNoise
from tablepuppet.party.groups import Grouped, rows_of
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.ops import REGISTRY, Op, Values
from tablepuppet.party.policy import Policy
from tablepuppet.party.release import Release
from tablepuppet.party.returns import OfGroups, Plain
from tablepuppet.privacy.accountant import Spending

SESSIONS = int(os.environ.get("TABLEPUPPET_FUZZ_SESSIONS", "14"))
SEED = 20


def table_of(x: list[Any], **others: list[Any]) -> dict[str, list[Any]]:
    """Cells of a table whose other columns hold the same in every row."""
    same: dict[str, Any] = {"z": 1, "t": "a", "d": 0, "y": "a", "s": 0.5}
    return {"id": list(range(len(x))), "x": x, **{name: [cell] * len(x) for name, cell in same.items()}, **others}


def begun(folder: Path, cells: dict[str, list[Any]], policy: Policy | None = None, **asked: Any) -> World:
    """A session whose rows take part and are encoded."""
    world = World(folder, cells, policy or strict())
    assert world.open().error is None
    world.ask("rows.use", {"view": "v", "chosen": None, "counts": np.ones(world.rows, np.int32)})
    given = {"columns": ["x"], "means": np.zeros(1), "scales": np.ones(1), "categories": []} | asked
    built = world.ask("encode.build", {"view": "v", "encoding": "e", **given})
    assert built.error is None
    return world


def test_neighbours_differ_in_noisy_values_only() -> None:
    """Every op that is registered, with arguments of all kinds, over every kind of expression: before noise a row
    changes a release by no more than is stated, and errors, their texts, shapes and charges do not depend on it. No op
    crashes, quotes a value, or answers without bound.
    """
    counts = fuzzing.fuzz(SEED, sessions=SESSIONS)
    answered = {op for (op, how), _ in counts.items() if how == "answered"}
    missed = {op.name for op in REGISTRY.values() if op.private} - answered
    assert not missed, "never answered: teach benchmarks/fuzz/arguments.py what these take"
    assert len({op for op, _ in counts} & REGISTRY.keys()) > 0.9 * len(REGISTRY)


def loose(steps: NoisySteps, theta: Any) -> Any:
    """A step that takes parameters of any shape that rows can be multiplied with."""
    steps.rows.predict(theta, steps.data.empty)
    noise = steps.noise
    chosen = steps.table.sample(steps.data.rows, noise.sampling, steps.given + theta.tobytes())
    told = steps.table.noisy(
        lambda: steps.parts(theta, chosen), theta.shape, noise.clip, noise.multiplier, "gradient", noise.sampling
    )
    return told / noise.table_rows


def test_parameters_of_another_shape_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions with these ops find one that mixes what it remembers with later arguments of another shape."""
    monkeypatch.setattr(NoisySteps, "gradient", loose)
    monkeypatch.setattr(fuzzing, "OTHER_SHAPES", 40)  # found whatever other ops are registered, and so drawn
    asked = {name: op for name, op in REGISTRY.items() if not op.private or name.startswith(("steps.", "ridge."))}
    monkeypatch.setattr(fuzzing, "REGISTRY", asked)
    with pytest.raises(fuzzing.FoundError, match=r"steps.gradient.*(it fails after it was charged|neighbours differ)"):
        fuzzing.fuzz(SEED, sessions=10 * SESSIONS)  # it ends at the first


def nobody(table: LocalTable, outputs: Any, view: str) -> Any:
    return np.zeros(len(table.view(view).row_ids), bool)


def fails(table: LocalTable, *_: Any) -> None:
    if table.snapshot._cells["x"].null_count:
        raise PartyError("a cell is missing")


def half(noisy: Any) -> Any:
    def changed(table: LocalTable, parts: Any, shape: Any, sensitivity: float, *rest: Any, **named: Any) -> Any:
        return noisy(table, parts, shape, sensitivity / 2, *rest, **named)

    return changed


@pytest.mark.parametrize(
    ("where", "instead"),
    [
        ("null_rows", nobody),
        ("noisy", half(LocalTable.noisy)),
        ("charge", fails),
    ],
    ids=["null records count", "half the sensitivity is stated", "an error that depends on rows"],
)
def test_what_breaks_the_promise_is_found(monkeypatch: pytest.MonkeyPatch, where: str, instead: Any) -> None:
    """The same sessions find an op that forgets null records, states too little, or fails for some rows."""
    monkeypatch.setattr(LocalTable, where, instead)
    with pytest.raises(fuzzing.FoundError, match="neighbours differ"):
        fuzzing.fuzz(SEED, sessions=SESSIONS)


def works(table: LocalTable) -> None:
    for _ in range(0 if table.snapshot.outputs["x"].null_count else 10_000):
        abs(0)


def sleeps(table: LocalTable) -> None:
    time.sleep(0.0 if table.snapshot.outputs["x"].null_count else 0.3)


@pytest.mark.parametrize(("passes", "what"), [(works, "work"), (sleeps, "time")])
def test_time_that_depends_on_a_cell_is_found(monkeypatch: pytest.MonkeyPatch, passes: Any, what: str) -> None:
    """Sessions find an op with noise of which nothing follows from a cell but its work, or only its time."""

    def sums(table: LocalTable, view: str) -> Values:
        def parts() -> Iterator[NDArray[np.float64]]:
            passes(table)
            yield np.zeros(1)

        return {"sums": table.noisy(parts, (1,), 1.0, 1.0, "sums")}

    op = Op(sums, "careless.sums", asked="never", releases=Release.STATISTICS, private=True)
    monkeypatch.setitem(REGISTRY, "careless.sums", op)
    begin = ("encode.build", "model.start", "ridge.start", "rows.use")
    monkeypatch.setattr(fuzzing, "REGISTRY", {name: REGISTRY[name] for name in (*begin, "careless.sums")})
    monkeypatch.setattr(fuzzing, "COUNTED", 1)
    with pytest.raises(fuzzing.FoundError, match=rf"careless.sums.*neighbours differ in their class of {what}"):
        fuzzing.fuzz(SEED, sessions=SESSIONS, kinds=[fuzzing.run_private])


def test_what_was_slower_once_is_no_finding() -> None:
    """A busy machine, or a module that is imported when it is first used: the session is run anew, and forgiven."""
    runs = []

    def run(folder: Path, seed: int, counts: Counter[tuple[str, str]]) -> None:
        runs.append(seed)
        if len(runs) < 4:
            raise fuzzing.SuspectError(f"request {len(runs) % 2}")

    fuzzing.fuzz(SEED, sessions=1, kinds=[run])
    assert runs == [SEED] * 4


@pytest.mark.parametrize("forgetful", ["statistics.numbers", "statistics.crosstab", "prep.sums", "columns.numbers"])
def test_statistics_of_small_groups_are_found(monkeypatch: pytest.MonkeyPatch, forgetful: str) -> None:
    """Sessions with a table that pools small groups find an op that forgets ``min_group``."""
    begin = ("encode.build", "model.start")
    asked = {name: op for name, op in REGISTRY.items() if name in (forgetful, *begin)}
    monkeypatch.setattr(fuzzing, "REGISTRY", asked)
    fuzzing.fuzz(SEED, sessions=2, kinds=[fuzzing.run_pooled])
    rules = worlds.pooling(np.random.default_rng(SEED)).others
    assert rules is not None
    monkeypatch.setattr(fuzzing, "pooling", lambda _: Policy(others=replace(rules, min_group=0)))
    with pytest.raises(fuzzing.FoundError, match=rf"{forgetful}.*neighbours differ"):
        fuzzing.fuzz(SEED, sessions=SESSIONS, kinds=[fuzzing.run_pooled])


def test_a_wrong_statement_of_groups_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """An op says itself how many rows a number rests on. One that says more than there are, though no more than the
    relation has, passes the final check, and sessions find it.
    """

    def counts(table: LocalTable, view: str, column: str) -> Values:
        cells, rows = table.column(column, view), table.view(view)
        return {"count": Grouped(len(cells) - cells.null_count, rows_of(rows, rows.firsts))}

    returns = {"count": OfGroups(Plain(int, 0))}
    op = Op(counts, "careless.counts", asked="never", releases=Release.STATISTICS, columns=("column",), returns=returns)
    monkeypatch.setitem(REGISTRY, op.name, op)
    begin = ("encode.build", "model.start")
    monkeypatch.setattr(fuzzing, "REGISTRY", {name: REGISTRY[name] for name in (*begin, op.name)})
    with pytest.raises(fuzzing.FoundError, match=r"careless.counts.*neighbours differ in replies"):
        fuzzing.fuzz(SEED, sessions=SESSIONS, kinds=[fuzzing.run_pooled])


@pytest.mark.parametrize("name", HOLES)
def test_holes_are_found(name: str) -> None:
    """Each guard that closed a leak, taken out again: sessions find what it guards, and nothing while it is in."""
    hole = HOLES[name]
    fuzzing.fuzz(SEED, sessions=1, kinds=[kind for kind in fuzzing.KINDS if kind.__name__ == hole.kind])
    assert "neighbours differ" in fuzzing.find(name, SEED)


@pytest.mark.parametrize("kind", [ValueError, KeyError, OverflowError, pa.ArrowInvalid])
def test_an_error_inside_noise_is_none_outside(tmp_path: Path, kind: type[Exception], caplog: Any) -> None:
    """A function whose sum gets noise fails on some rows: the reply, its size and its cost are as if it did not; the
    operator reads where it was, and no value.
    """
    found = []
    for x in (1.0, 2.0):

        def parts(x: float = x) -> Iterator[NDArray[np.float64]]:
            if x > 1.0:
                raise kind(f"secret {x}")
            yield np.full(3, x)

        world, charges = begun(tmp_path / str(x), table_of([x])), list[Any]()
        world.table.charged = lambda *given, charges=charges: charges.append(given[:2])
        told = world.table.noisy(parts, (3,), 1.0, 2.0, "sums")
        found.append((told.shape, told.dtype, charges, bool(np.isfinite(told).all())))
    assert found[0] == found[1]
    assert "noisy sums of table 't'" in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize("theta", [1e-320, 1e-168, 1e-100, 1.0, 1e100])
@pytest.mark.parametrize("scale", [1e-155, 1.0, 1e155])
def test_lengths_do_not_vanish(tmp_path: Path, theta: float, scale: float) -> None:
    """Squares of tiny numbers are zero, but a row's prediction and gradient are cut to their bounds all the same."""
    both = [begun(tmp_path / str(x), table_of([x, 3.0]), scales=np.array([scale])) for x in (2.0, None)]
    asked: list[tuple[str, dict[str, Any]]] = [
        ("model.apply", {"spec": Linear(2), "theta": np.array([[theta, theta]]), "noise": PredictionNoise(1.0, 1e-60)}),
        ("model.gradient", {"spec": Linear(2), "rows": np.full((2, 2), theta), "noise": SumNoise(1, 1e-60, 1.0)}),
        ("matrix.gram", {"joined_rows": 2, "noise": GramNoise(2, 1.0)}),
    ]
    for op, given in asked:
        seen = [world.ask(op, {"view": "v", "encoding": "e", **given}) for world in both]
        assert seen[0].error is None
        assert difference(op, seen, labels=False) is None


@pytest.mark.parametrize("bound", [1e-168, 1e-300, 1e300, np.inf, np.nan, 0.0, -1.0])
def test_bounds_that_are_none_are_refused(tmp_path: Path, bound: float) -> None:
    """Before anything is computed or charged."""
    world = begun(tmp_path / "w", table_of([1.0]))
    noise = {"multiplier": 1.0, "bound": bound}
    given = {"view": "v", "encoding": "e", "spec": Linear(1), "theta": np.ones(1), "noise": noise}
    seen = world.ask("model.apply", given)
    assert seen.error is not None
    assert "'noise'" in seen.error[1]
    assert not seen.charges


def test_no_value_overflows(tmp_path: Path) -> None:
    """Whether a cell is huge does not show in whether a prediction can be computed."""
    for x in (1.0, 1e300, np.inf, np.nan):
        world = begun(tmp_path / str(x), table_of([x, 1.0]))
        given = {"spec": Linear(1), "theta": np.full(1, 1e100), "noise": PredictionNoise(1.0, 1.0)}
        seen = world.ask("model.apply", {"view": "v", "encoding": "e", **given})
        assert seen.error is None
        assert len(seen.charges) == 1


@pytest.mark.parametrize("x", [None, 1.0])
def test_equal_bounds_are_refused_by_themselves(tmp_path: Path, x: float | None) -> None:
    """Moments between two equal bounds are an error whether there is a value or not, and cost nothing."""
    world, same = begun(tmp_path / "w", table_of([x])), np.ones(1)
    seen = world.ask("private.moments", {"view": "v", "columns": ["x"], "lows": same, "highs": same, "multiplier": 1.0})
    assert seen.error is not None
    assert "a low and a higher number" in seen.error[1]
    assert not seen.charges


def test_the_number_of_categories_is_not_told(tmp_path: Path) -> None:
    """Neither by what is refused as it cannot be rounded, nor by what is charged."""
    given = {"view": "v", "column": "t", "family": "text", "blinding": "b"}
    for multiplier in (1.0, 1e6):
        seen = []
        for kinds in (1, 40):
            world = begun(
                tmp_path / f"{multiplier}{kinds}", table_of([1.0] * 40, t=[f"t{i % kinds}" for i in range(40)])
            )
            seen.append(world.ask("private.categories", {**given, "multiplier": multiplier}))
        assert seen[0].error == seen[1].error
        assert seen[0].charges == seen[1].charges


def test_a_demand_for_noise_is_the_policys(tmp_path: Path) -> None:
    """Where the policy demands noise, rows are encoded for it though the caller says otherwise; else noise refuses."""
    given = {"view": "v", "encoding": "e", "joined_rows": 1, "noise": GramNoise(1, 1.0)}
    told = begun(tmp_path / "strict", table_of([1.7e308]), private=False).ask("matrix.gram", given)
    assert told.error is None
    assert begun(tmp_path / "open", table_of([1.0]), Policy(), private=True).ask("matrix.gram", given).error is None
    bare = begun(tmp_path / "bare", table_of([1.0]), Policy(), private=False).ask("matrix.gram", given)
    assert bare.error is not None
    assert "not encoded for noise" in bare.error[1]


def test_rows_announced_anew_are_not_those_that_were_encoded(tmp_path: Path) -> None:
    """A row that was encoded many times cannot pass as many rows."""
    world = World(tmp_path / "w", table_of([1.0, 2.0, 3.0]), strict())
    world.open()
    for ids in ([0, 0, 0], [0, 1, 2]):
        world.ask("rows.use", {"view": "v", "chosen": np.array(ids, np.int32), "counts": np.ones(3, np.int32)})
        given = {"columns": ["x"], "means": np.zeros(1), "scales": np.ones(1), "categories": []}
        if ids[1] == 0:
            world.ask("encode.build", {"view": "v", "encoding": "e", **given})
    seen = world.ask("matrix.gram", {"view": "v", "encoding": "e", "joined_rows": 3, "noise": GramNoise(3, 1.0)})
    assert seen.error is not None
    assert "has not encoded the rows" in seen.error[1]


def test_a_category_that_is_listed_twice_is_refused(tmp_path: Path) -> None:
    """Else the code of a category that is not listed would depend on other rows' categories."""
    world = World(tmp_path / "w", table_of([1.0, 1.0], t=["p", "q"]), strict())
    world.open()
    world.ask("rows.use", {"view": "v", "chosen": None, "counts": np.ones(2, np.int32)})
    given = {"columns": [], "means": np.zeros(0), "scales": np.ones(0), "categories": [("t", "text")]}
    seen = world.ask("encode.build", {"view": "v", "encoding": "e", **given, "digests0": np.zeros((3, 16), np.uint8)})
    assert seen.error is not None
    assert "listed twice" in seen.error[1]


def test_an_expression_that_fails_is_null(tmp_path: Path) -> None:
    """Where the policy demands noise, a cell that an expression fails on is NULL; else it is an error."""
    for z in (1, 2**62):
        assert World(tmp_path / f"strict{z}", table_of([1.0], z=[z]), strict()).open().error is None
    failed = World(tmp_path / "open", table_of([1.0], z=[2**62]), Policy()).open()
    assert failed.error is not None
    assert "fails on its rows" in failed.error[1]


def test_what_is_computed_of_a_row_depends_on_no_other(tmp_path: Path) -> None:
    """NaN is above all numbers, whatever a file says of the largest value that it holds in other rows."""
    for x in (1.0, None):
        world = World(tmp_path / str(x), table_of([np.nan, x]), strict())
        assert world.open().error is None
        assert world.table.snapshot.outputs["case"].to_pylist()[0] == 5


def test_singletons_are_not_listed(tmp_path: Path) -> None:
    """Noise that is drawn for many numbers is larger than its multiplier; categories are listed by what is drawn, and
    what may still go wrong is in the cost.
    """
    rows = 250_000
    world = begun(tmp_path / "w", table_of([1.0] * rows, t=[str(i) for i in range(rows)]))
    charges: list[Any] = []

    def charge(cost: Spending, purpose: str, release: str | None, line: str) -> None:
        charges.append(cost)

    world.table.charged = charge
    given = {"view": "v", "column": "t", "family": "text", "blinding": "b", "multiplier": 1e6}
    told = world.party.run(worlds.CALLER, worlds.SESSION, "private.categories", "t", given)
    assert told["distinct"] == 0
    assert charges[0].tail == 1e-12


def test_a_model_without_noise_is_not_told(tmp_path: Path) -> None:
    """Ops with noise work on models that were made with noise only."""
    world = begun(tmp_path / "w", table_of([1.0, 2.0]), Policy(), private=True)
    given = {"view": "v", "encoding": "e", "model": "m"}
    assert world.ask("ridge.start", {**given, "joined_rows": 2, "spec": Linear(1)}).error is None
    noise = {"noise": PredictionNoise(1.0, None)}
    for op, more in (("model.predict", noise), ("ridge.size", {}), ("model.parameters", {"noisy": True})):
        asked = {name: value for name, value in given.items() if name in REGISTRY[op].parameters.hints}
        seen = world.ask(op, {**asked, **more})
        assert seen.error is not None
        assert "not learned with noise" in seen.error[1]


def test_counts_of_a_run_are_told() -> None:
    """A fuzzing run says how often each op answered and was refused."""
    counts: Counter[tuple[str, str]] = fuzzing.fuzz(SEED, sessions=1)
    assert counts["sessions", "run"] == len(fuzzing.KINDS)
    assert counts["rows.use", "answered"] >= len(fuzzing.KINDS)


@pytest.mark.parametrize(
    "noisy", [None, False, 0, 1, "", "yes", [], [True], np.bool_(True), np.bool_(False), np.ones(1)]
)
def test_only_noise_that_is_asked_for_makes_an_op_private(noisy: Any) -> None:
    """An argument that stands for noise is true or a mapping; whatever else is there, the op counts as one without."""
    assert not REGISTRY["model.parameters"].is_private({"noisy": noisy})
    assert not REGISTRY["ridge.direction"].is_private({"noise": SumNoise(1, 1.0, 1.0), "prediction_noise": noisy})
    assert REGISTRY["model.parameters"].is_private({"noisy": True})
