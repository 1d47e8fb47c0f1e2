"""What steps declare is what parties are asked: all of it known before, each question once, and nothing else."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tablepuppet as tp
from tablepuppet import prep
from tablepuppet.prep.encode.specs import Scale
from tablepuppet.prep.pipelines.draft import Column, Draft
from tablepuppet.prep.pipelines.needs import AfterSteps, AskedAnswers, Dropped, Later, Question, given
from tablepuppet.prep.pipelines.pipeline import declared, foresee, refuse_with_noise
from tablepuppet.prep.pipelines.steps.step import PrepStep
from tablepuppet.sql.query import OutputColumn
from tests.relations import federation, record_wire

SQL = "SELECT x, w, k, c, y FROM t"


def table(rows: int = 60) -> pa.Table:
    """Two numbers, a constant, a text, and a label."""
    draw = np.random.default_rng(3)
    return pa.table(
        {
            "x": pa.array(draw.normal(2.0, 3.0, rows), mask=draw.random(rows) < 0.2), "w": draw.gamma(2.0, 3.0, rows),
            "k": [4.0] * rows, "c": draw.choice(list("aab"), rows), "y": draw.integers(0, 2, rows),
        }
    )  # fmt: skip


def told(question: Question[Any]) -> tuple[str, str, int]:
    """A question as it can be compared: its kind, its column and its trip."""
    about: Any = question
    column = about.cells.column if hasattr(question, "cells") else about.column
    return type(question).__name__, column.name, question.trip


PIPELINES: dict[str, list[Any]] = {
    "the usual ones": [],
    "ranks of what a step has filled": [prep.Impute("median"), prep.Robust(), prep.Winsorize()],
    "sums after what a step has learned": [prep.Winsorize(), prep.Standardize(), prep.Power(), prep.Standardize()],
    "ranks after values were taken out": [prep.Outliers("iqr", "null"), prep.Log(9.0), prep.Robust()],
    "labels by what a step has made": [prep.Bin(3, "height", columns=["w"]), prep.TargetEncode(columns=["w", "c"])],
    "names": [prep.Impute("constant", fill="b", columns=["c"]), prep.Ordinal(), prep.MinMax(columns=["c"])],
    "products": [prep.Polynomial(columns=["x", "w"]), prep.MinMax(), prep.Impute("mean", indicator=True)],
}


@pytest.mark.parametrize("name", PIPELINES)
def test_what_is_declared_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Before the first trip all questions and their trips are known: a fit asks these, each once, and no others."""
    fed = federation(tmp_path, {"p": {"t": table()}})
    relation = fed.sql(SQL, label="y", prep=prep.Pipeline(PIPELINES[name]))
    assert len(relation) == 60
    messages = record_wire(monkeypatch)
    foreseen = foresee(relation.prep, relation.plan, 256)
    assert not messages
    batches: list[list[Question[Any]]] = []
    answer = AskedAnswers.answer

    def recording(answers: AskedAnswers, questions: Sequence[Question[Any]]) -> None:
        batches.append(list(questions))
        answer(answers, questions)

    monkeypatch.setattr(AskedAnswers, "answer", recording)
    before = fed.engine.traffic.trips
    relation.fit_encoding()
    asked = [told(each) for batch in batches for each in batch]
    assert sorted(asked) == sorted(map(told, foreseen.questions))
    assert [{each.trip for each in batch} for batch in batches] == [{trip} for trip in range(1, len(batches) + 1)]
    assert fed.engine.traffic.trips - before <= foreseen.trips


def test_nothing_is_asked_about_a_column_that_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A question about the result of a step waits for steps before it that may leave the column out."""
    fed = federation(tmp_path, {"p": {"t": table()}})
    steps = [prep.DropConstant(), prep.Clip(0.0, 9.0), prep.Standardize()]
    relation = fed.sql(SQL, label="y", prep=prep.Pipeline(steps))
    messages = record_wire(monkeypatch)
    relation.fit_encoding()
    [asked] = [each.request.arguments["wanted"] for each in messages if each.request.op == "prep.sums"]
    assert asked == ["x", "w"]
    wanted = {q.column.name for q in foresee(relation.prep, relation.plan, 256).questions if isinstance(q, AfterSteps)}
    assert wanted == {"x", "w", "k"}


def test_no_error_is_learned_from_a_column_that_is_left_out(tmp_path: Path) -> None:
    """A number with too many values for a mode is an error, but not if an earlier step has left it out."""
    fed = federation(tmp_path, {"p": {"t": table(3000)}})
    mode = prep.Impute("mode", columns=["x"])
    with pytest.raises(tp.LearnError, match="too many different numbers"):
        fed.sql(SQL, prep=prep.Pipeline([mode])).fit_encoding()
    encoding = fed.sql(SQL, prep=prep.Pipeline([prep.DropMissing(0.1), mode])).fit_encoding()
    assert {each.name for each in encoding.encoded} == {"w", "k", "c", "y"}


@dataclass(frozen=True)
class Centre(PrepStep):
    """Subtract the median: a step that somebody adds."""

    def declare(self, column: Column, draft: Draft) -> None:
        """It learns the median."""
        DECLARED.append(column.name)
        name = column.name

        def fitted(found: list[float]) -> Scale:
            LEARNED.append(name)
            if found[0] > 1000:
                raise tp.LearnError(f"Centre: column {name} is too large")
            return Scale(name, found[0], 1.0)

        draft.apply(column, fitted, draft.quantiles(column, [0.5]))


DECLARED: list[str] = []
LEARNED: list[str] = []


def test_a_new_step(tmp_path: Path) -> None:
    """A class with `declare` is all of it: it is declared once for each column and learns once, in the trips that it
    needs; later steps go on from it, errors are the caller's, and noise is refused until somebody has thought of it.
    """
    fed = federation(tmp_path, {"p": {"t": table()}}, wire="float64")
    steps = prep.Pipeline([Centre(columns=["w"]), prep.Clip(None, 0.5, columns=["w"]), prep.MinMax(columns=["w"])])
    relation = fed.sql("SELECT w FROM t", prep=steps)
    DECLARED.clear()
    LEARNED.clear()
    matrix = relation.matrix()
    assert (DECLARED, LEARNED) == (["w"], ["w"])
    values = table()["w"].to_numpy()
    moved = np.minimum(values - np.median(values), 0.5)
    expected = (moved - moved.min()) / (moved.max() - moved.min())
    np.testing.assert_allclose((matrix @ np.eye(1))[:, 0], expected, atol=1e-12)
    with pytest.raises(tp.LearnError, match="Centre: column v is too large"):
        fed.sql("SELECT w * 1000 + 1000 AS v FROM t", prep=prep.Pipeline([Centre()])).fit_encoding()
    with pytest.raises(tp.PrivacyError, match="step Centre: it has no form with noise"):
        refuse_with_noise(steps)


def test_a_column_costs_few_objects(tmp_path: Path) -> None:
    """Fewer than 60 objects are kept for each column of a wide table: garbage collections go through all of them."""
    columns = 200
    names = [f"x{number}" for number in range(columns)]
    wide = pa.table({name: np.arange(3.0) for name in names})
    relation = federation(tmp_path, {"p": {"t": wide}}).sql(f"SELECT {', '.join(names)} FROM t")
    gc.collect()
    gc.disable()
    try:
        before = len(gc.get_objects())
        draft = declared(relation.prep, Draft(relation.plan, 256))
        kept = len(gc.get_objects()) - before
    finally:
        gc.enable()
    assert len(draft.columns) == columns
    assert kept < 60 * columns


def test_what_is_known_is_an_input_too() -> None:
    """A value may be made of values that are known already, beside those that come later."""
    assert Later(lambda one, other: (one, other), "known", given(2.0)).get() == ("known", 2.0)
    assert Later(lambda one: one, "known").trip == 0


def test_values_are_computed_once() -> None:
    """A value that several others need is computed once; what is lost is lost for all that need it."""
    column = OutputColumn("x", "t", "x", "DOUBLE")
    calls: list[float] = []

    def twice(value: float) -> float:
        calls.append(value)
        return 2 * value

    def drop(_: float) -> float:
        raise Dropped(column, "is empty")

    shared = Later(twice, given(2.0))
    assert Later(lambda one, other: one + other, shared, Later(lambda value: value, shared)).get() == 8.0
    assert calls == [2.0]
    lost = Later(twice, Later(drop, shared))
    for _ in range(2):
        with pytest.raises(Dropped, match="is empty"):
            lost.get()
    assert calls == [2.0]
