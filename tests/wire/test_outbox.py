"""The outbox: what is asked before an answer is read is one trip, and errors reach whoever reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tablepuppet as tp
import tablepuppet.wire.outbox
from tablepuppet.party.request import Reply, Request, Step
from tablepuppet.wire.engine import Engine, try_all
from tablepuppet.wire.outbox import Outbox
from tablepuppet.wire.protocol import LostError
from tests.learn.materialised import ALL, JOIN, shop
from tests.relations import federation

ROWS = {"t": pa.table({"k": [1, 2, 2], "x": [0.5, 1.5, 2.5], "c": ["a", "b", "b"]})}


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The ops of every trip from now on."""
    made: list[list[str]] = []

    def counting(
        engine: Engine, calls: Sequence[tuple[str, Request]], patience: float | None = None
    ) -> list[Reply | LostError]:
        made.append([step.op for _, request in calls for step in request.steps])
        return try_all(engine, calls, patience)

    monkeypatch.setattr(tablepuppet.wire.outbox, "try_all", counting)
    return made


def test_steps_wait_for_a_reader(tmp_path: Path, trips: list[list[str]]) -> None:
    """Nothing travels until an answer is read; then everything does, in the order it was asked."""
    relation = federation(tmp_path, {"p": ROWS}).sql("SELECT x, c FROM t")
    outbox = Outbox(relation.client.engine, relation.client.session)
    blinded = outbox.ask("p", Step("keys.blind", "t"))
    used = outbox.ask("p", Step("rows.use", "t", {"view": "w", "chosen": None, "counts": np.ones(3, np.uint8)}))
    assert trips == []
    assert used.read() == {}
    assert trips == [["keys.blind", "rows.use"]]
    assert blinded.read() == {}
    assert len(trips) == 1


def test_an_error_reaches_every_reader(tmp_path: Path) -> None:
    """If a step fails, whoever reads an answer of its trip is told why; later steps are not harmed."""
    relation = federation(tmp_path, {"p": ROWS}).sql("SELECT x, c FROM t")
    outbox = Outbox(relation.client.engine, relation.client.session)
    fine, wrong = outbox.ask("p", Step("keys.blind", "t")), outbox.ask("p", Step("keys.blind", "nowhere"))
    for answer in (fine, wrong, fine):
        with pytest.raises(tp.PartyError, match="'nowhere'"):
            answer.read()
    assert outbox.ask("p", Step("keys.blind", "t")).read() == {}


@pytest.mark.parametrize("error", [MemoryError, ValueError, KeyboardInterrupt, SystemExit, tp.PartyError])
@pytest.mark.parametrize("where", ["trip", "check"])
def test_no_answer_is_left_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException], where: str
) -> None:
    """Whatever goes wrong on a trip, or when its first reply is looked at, every reader is told it; later steps are
    not harmed.
    """
    relation = federation(tmp_path, {"p": ROWS, "q": ROWS}).sql("SELECT a.x, b.c FROM p.t a JOIN q.t b USING (k)")
    outbox = Outbox(relation.client.engine, relation.client.session)

    def fail(*_: object) -> Any:
        raise error("in the middle")

    check = fail if where == "check" else None
    answers = [outbox.ask(party, Step("keys.blind", alias), check=check) for party, alias in (("p", "a"), ("q", "b"))]
    answers.append(outbox.ask("q", Step("keys.blind", "b"), check=check))
    with monkeypatch.context() as patch:
        if where == "trip":
            patch.setattr(tablepuppet.wire.outbox, "try_all", fail)
        with pytest.raises(error, match="in the middle"):
            answers[0].read()
    for answer in answers:
        with pytest.raises(error, match="in the middle"):
            answer.read()
    assert "digests0" in outbox.ask("q", Step("keys.blind", "b")).read()


def test_statistics_of_all_columns_are_one_trip(tmp_path: Path, trips: list[list[str]]) -> None:
    """`describe` makes one trip, however many columns there are, and one for the names of public categories."""
    federation(tmp_path, {"p": ROWS, "q": ROWS}).sql(
        "SELECT a.x, a.c, b.c AS d FROM p.t a JOIN q.t b USING (k)"
    ).describe()
    assert len(trips) == 2
    assert set(trips[1]) == {"categories.names"}


@pytest.mark.parametrize(("shards", "a_round"), [(1, 1), (2, 2)])
@pytest.mark.parametrize("solver", ["lbfgs", "admm"])
def test_trips_of_a_fit(tmp_path: Path, trips: list[list[str]], shards: int, a_round: int, solver: str) -> None:
    """A fit is one trip for statistics and labels, and one for every round (two where tables have several shards)."""
    relation = federation(tmp_path, shop(shards)).sql(f"SELECT {ALL}, o.returned {JOIN}", label="returned")
    assert len(relation)
    trips.clear()
    model = tp.LogisticRegression(solver=solver, rounds=3, tol=0.0).fit(relation)
    assert len(trips) == 1 + 3 * a_round
    assert {"rows.use", "statistics.numbers", "statistics.categories", "label.classes"} <= set(trips[0])
    assert "encode.build" in trips[1]
    assert model.evaluate(relation)["accuracy"] > 0.5
    assert len(trips) == 1 + 3 * a_round + 1  # labels and predictions


def test_steps_of_a_model_that_failed_are_not_sent(tmp_path: Path, trips: list[list[str]]) -> None:
    """What a failed block has queued for its model is withdrawn; what was queued before, or by others, is sent."""
    relation = federation(tmp_path, {"p": ROWS}).sql("SELECT x, c FROM t")
    outbox = Outbox(relation.client.engine, relation.client.session)
    before = outbox.ask("p", Step("keys.blind", "t"))

    def fail() -> None:
        with outbox.withdrawn_if_it_fails():
            outbox.ask("p", Step("rows.use", "t", {"view": "w", "chosen": None, "counts": np.ones(3, np.uint8)}))
            asked.append(outbox.ask("p", Step("model.keep", "t", {"view": "w", "model": "gone"})))
            raise ValueError("it failed")

    asked: list[Any] = []
    with pytest.raises(ValueError, match="it failed"):
        fail()
    assert before.read() == {}
    assert trips == [["keys.blind", "rows.use"]]
    with pytest.raises(ValueError, match="it failed"):
        asked[0].read()


def test_steps_are_told_apart_though_answers_are_gone(tmp_path: Path, trips: list[list[str]]) -> None:
    """Answers that nobody holds are freed on a trip; steps that are queued after it are not taken for theirs."""
    relation = federation(tmp_path, {"p": ROWS}).sql("SELECT x, c FROM t")
    outbox = Outbox(relation.client.engine, relation.client.session)

    def fail() -> None:
        with outbox.withdrawn_if_it_fails():
            outbox.ask("p", Step("keys.blind", "t")).read()
            for _ in range(20):
                outbox.ask("p", Step("model.keep", "t", {"view": "w", "model": "gone"}))
            raise ValueError("it failed")

    for _ in range(5):
        for _ in range(20):
            outbox.ask("p", Step("keys.blind", "t"))
        with pytest.raises(ValueError, match="it failed"):
            fail()
    outbox.ask("p", Step("keys.blind", "t")).read()
    assert "model.keep" not in {op for made in trips for op in made}


@pytest.mark.parametrize("shards", [1, 2])
def test_a_relation_is_as_good_as_before_after_a_fit_failed(tmp_path: Path, shards: int) -> None:
    """What a fit had begun when it failed does not fail again with the next call."""
    fed, sql = federation(tmp_path, shop(shards)), f"SELECT {ALL}, o.returned {JOIN}"
    relation = fed.sql(sql, label="returned")
    with pytest.raises(tp.LearnError, match="'nope'"):
        tp.SplitNNClassifier(bottom=tp.bottom.registered("nope", embedding=4), epochs=1).fit(relation)
    relation.describe()
    with pytest.raises(tp.LearnError, match=r"learning diverged in epoch 1: .* lower lr"):
        tp.LogisticRegression(solver="sgd", lr=1e30).fit(relation)
    found = tp.LogisticRegression(rounds=3).fit(relation).evaluate(relation)
    assert found == tp.LogisticRegression(rounds=3).fit(fed.sql(sql, label="returned")).evaluate(relation)
