"""Consensus among shards: the model of exact sums, while no party lets out a sum over its rows."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sklearn.base import clone

import tablepuppet as tp
from tests.learn.materialised import (
    ALL,
    JOIN,
    Array,
    JoinedTable,
    expected,
    learner,
    predictions,
    shards_of,
    shop,
    side_by_side,
    solved,
)
from tests.relations import Parties, federation

TASKS: dict[str, int | None] = {"paid": None, "returned": 2, "grade": 4}
ROUNDS = 300  # consensus with one inner round needs many
tasks = pytest.mark.parametrize("label", TASKS)
solvers = pytest.mark.parametrize("solver", ["auto", "admm"])


class Shop:
    """A federation of the shop in some shards."""

    def __init__(self, folder: Path, shards: int, wire: str = "float64"):
        self.parties = shop(shards, together=True)
        self.fed = federation(folder, self.parties, wire=wire)
        self._made: dict[str, tuple[tp.Relation, JoinedTable]] = {}

    def relation(self, label: str) -> tuple[tp.Relation, JoinedTable]:
        if label not in self._made:
            relation = self.fed.sql(f"SELECT {ALL}, o.{label} {JOIN}", label=label)
            self._made[label] = relation, JoinedTable(relation, self.parties)
        return self._made[label]


@pytest.fixture(scope="module", params=[2, 3], ids=["two shards", "three shards"])
def any_shop(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Shop:
    return Shop(tmp_path_factory.mktemp("shop"), request.param)


@pytest.fixture(scope="module")
def two_shards(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    return Shop(tmp_path_factory.mktemp("two"), 2)


def releases(fed: tp.Federation) -> dict[str, int]:
    """Messages from parties so far, by release."""
    found: dict[str, int] = {}
    for entry in fed.traffic:
        if entry["direction"] == "up":
            found[entry["release"]] = found.get(entry["release"], 0) + entry["messages"]
    return found


def unlike(shards: int, rows: int, classes: int | None, seed: int = 0) -> tuple[Parties, str]:
    """(parties, SQL): two correlated tables whose shards differ in scale, place and correlation of their columns."""
    rng = np.random.default_rng(seed)
    places = np.array_split(np.arange(rows), shards)
    left = np.zeros((rows, 4))
    for number, here in enumerate(places):
        turn = np.eye(4) + 0.9 * rng.normal(size=(4, 4))
        left[here] = rng.normal(size=(len(here), 4)) @ turn * 10.0**-number + 2 * rng.normal(size=4)
    right = 0.6 * left[:, :2] + rng.normal(size=(rows, 2))
    drive = left @ rng.normal(size=4) / 4 + right @ rng.normal(size=2) / 3 + rng.normal(size=rows)
    label = drive if classes is None else np.digitize(drive, np.quantile(drive, np.arange(1, classes) / classes))
    parties: dict[str, dict[str, pa.Table]] = {}
    for number, here in enumerate(places):
        x, z = (
            {f"{name}{k}": side[here, k] for k in range(side.shape[1])} for name, side in (("x", left), ("z", right))
        )
        parties[f"a{number}"] = {"t0": pa.table({"id": here, **x, "y": label[here]})}
        parties[f"b{number}"] = {"t1": pa.table({"id": here, **z})}
    return parties, "SELECT t0.x0, t0.x1, t0.x2, t0.x3, t1.z0, t1.z1, t0.y FROM t0 JOIN t1 ON t0.id = t1.id"


def check(model: Any, relation: tp.Relation, table: JoinedTable, classes: int | None) -> None:
    """It came to an end, at the objective and the predictions of the direct solve; its objective never rose."""
    best, value = solved(table, model.l2, classes)
    reached = [entry["objective"] for entry in model.history_]
    assert model.converged_
    assert reached[-1] == pytest.approx(value, rel=1e-9)
    assert all(later <= earlier + 1e-9 for earlier, later in pairwise(reached))
    wanted: Array = expected(best, table.matrix, classes)
    np.testing.assert_allclose(predictions(model, relation), wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("inner_rounds", [1, 4])
@solvers
@tasks
def test_agrees_with_exact_sums(any_shop: Shop, label: str, solver: str, inner_rounds: int) -> None:
    """Run to tolerance, the loss is that of exact sums and of the direct solve, with collinear columns, too."""
    relation, table = any_shop.relation(label)
    exact = learner(TASKS[label], solver=solver).fit(relation)
    model = learner(TASKS[label], solver=solver, inner_rounds=inner_rounds, rounds=ROUNDS).fit(relation)
    assert model.history_[-1]["loss"] == pytest.approx(exact.history_[-1]["loss"], rel=1e-6)
    check(model, relation, table, TASKS[label])


@solvers
@pytest.mark.parametrize("shards", [2, 3])
@pytest.mark.parametrize("classes", [None, 2, 3])
def test_shards_that_are_not_alike(tmp_path: Path, shards: int, classes: int | None, solver: str) -> None:
    """Shards whose columns differ in scale, mean and correlation agree on the same model."""
    parties, sql = unlike(shards, 240, classes)
    relation = federation(tmp_path, parties, wire="float64").sql(sql, label="y")
    model = learner(classes, solver=solver, inner_rounds=2, rounds=ROUNDS).fit(relation)
    check(model, relation, JoinedTable(relation, parties), classes)


@pytest.mark.parametrize("classes", [None, 2])
def test_some_tables_with_one_shard(tmp_path: Path, classes: int | None) -> None:
    """Correlated tables of which one has three shards and one has as many columns as a shard has rows."""
    parties, sql = side_by_side(3, 6, 60, 0.5, classes=classes)
    cut = {f"q{number}": {"t1": part} for number, part in enumerate(shards_of(parties.pop("p1")["t1"], 3))}
    relation = federation(tmp_path, parties | cut, wire="float64").sql(sql, label="y")
    model = learner(classes, inner_rounds=3, l2=1e-3, rounds=ROUNDS).fit(relation)
    check(model, relation, JoinedTable(relation, parties | cut), classes)


@pytest.mark.parametrize("inner_rho", [0.03, 1.0])
def test_any_penalty(two_shards: Shop, inner_rho: float) -> None:
    """inner_rho changes how many rounds it takes, not where they end."""
    for label, classes in TASKS.items():
        relation, table = two_shards.relation(label)
        model = learner(classes, inner_rounds=4, inner_rho=inner_rho, rounds=1000).fit(relation)
        check(model, relation, table, classes)


@solvers
@tasks
def test_only_parameters_leave_a_shard(tmp_path: Path, label: str, solver: str) -> None:
    """No Gram matrix and no sum of gradients: beside predictions parties let out parameters, in every inner round."""
    fed = Shop(tmp_path, 2).fed
    relation = fed.sql(f"SELECT {ALL}, o.{label} {JOIN}", label=label)
    len(relation)
    before = releases(fed)
    model = learner(TASKS[label], solver=solver, inner_rounds=3, rounds=4, tol=0.0).fit(relation)
    model.evaluate(relation)
    names = {name for release in releases(fed) for name in release.split("|")}
    assert not names & {"GRAM", "GRADIENT_SUMS"}
    told = sum(count for name, count in releases(fed).items() if "PARAMETERS" in name)
    told -= sum(count for name, count in before.items() if "PARAMETERS" in name)
    assert told == 4 * 3 * 2  # rounds, inner rounds, parties
    learner(TASKS[label], solver=solver, rounds=1).fit(relation)
    assert {"GRAM", "GRADIENT_SUMS"} <= {name for release in releases(fed) for name in release.split("|")}


def test_trips(two_shards: Shop) -> None:
    """A round costs a trip for every inner round and one for predictions."""
    relation, _ = two_shards.relation("returned")
    for inner_rounds in (1, 4):
        model = tp.LogisticRegression(inner_rounds=inner_rounds, rounds=4, tol=0.0).fit(relation)
        assert [entry["messages"] for entry in model.history_[1:]] == [2 * 2 * (inner_rounds + 1)] * 3


def test_one_shard_needs_no_agreement(tmp_path: Path) -> None:
    """Where every table has one shard, inner_rounds changes nothing."""
    relation = federation(tmp_path, shop(1)).sql(f"SELECT {ALL}, o.paid {JOIN}", label="paid")
    one, two = tp.LinearRegression(tol=1e-9), tp.LinearRegression(tol=1e-9, inner_rounds=5, inner_rho=0.3)
    np.testing.assert_array_equal(one.fit(relation).predict(relation), two.fit(relation).predict(relation))


@tasks
def test_single_precision_on_the_wire(tmp_path: Path, label: str) -> None:
    """With wire="float32" losses differ by less than 1e-4, and the fit still says that it converged."""
    rough = Shop(tmp_path, 2, "float32")
    relation, table = rough.relation(label)
    model = learner(TASKS[label], inner_rounds=3).fit(relation)
    assert model.converged_
    assert model.history_[-1]["objective"] == pytest.approx(solved(table, model.l2, TASKS[label])[1], rel=1e-4)


def test_too_few_rounds_are_said(two_shards: Shop) -> None:
    """It is not called converged before shards have agreed, even where a step has little left to gain."""
    relation, table = two_shards.relation("grade")
    _, value = solved(table, 1e-6, 4)
    for tol in (1e-3, 1e-6, 1e-9):
        model = tp.LogisticRegression(inner_rounds=1, rounds=ROUNDS, tol=tol).fit(relation)
        assert model.converged_
        assert model.history_[-1]["objective"] <= value * (1 + 10 * tol)
    assert not tp.LogisticRegression(inner_rounds=1, rounds=5).fit(relation).converged_


def test_same_result_twice_and_after_saving(two_shards: Shop, tmp_path: Path) -> None:
    """Two fits give the same numbers bit by bit; a saved model predicts them again."""
    relation, _ = two_shards.relation("returned")
    model = tp.LogisticRegression(inner_rounds=2).fit(relation)
    first = model.predict_proba(relation)
    np.testing.assert_array_equal(clone(model).fit(relation).predict_proba(relation), first)
    model.save(tmp_path / "model")
    again = tp.load(tmp_path / "model", two_shards.fed)
    np.testing.assert_allclose(again.predict_proba(relation), first, atol=1e-12)
    assert again.get_params()["inner_rounds"] == 2


def test_sgd_asks_no_gram_matrix(tmp_path: Path) -> None:
    """With inner_rounds even the learning rate of SGD is found without Gram matrices."""
    fed = Shop(tmp_path, 2).fed
    relation = fed.sql(f"SELECT {ALL}, o.paid {JOIN}", label="paid")
    model = tp.LinearRegression(solver="sgd", inner_rounds=1, rounds=5, batch_size=50, local_steps=3).fit(relation)
    assert model.history_[-1]["loss"] < model.history_[0]["loss"]
    assert not any("GRAM" in release.split("|") for release in releases(fed))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"inner_rounds": 0}, "'auto' or a whole number"),
        ({"inner_rounds": "many"}, "'auto' or a whole number"),
        ({"inner_rounds": 1.5}, "'auto' or a whole number"),
        ({"inner_rho": 0.0}, "'auto' or a number above 0"),
        ({"local_steps": 0}, "local_steps"),
    ],
)
def test_settings_out_of_range(two_shards: Shop, settings: dict[str, Any], told: str) -> None:
    """Refused with what would be allowed."""
    with pytest.raises(tp.LearnError, match=told):
        tp.LinearRegression(**settings).fit(two_shards.relation("paid")[0])
