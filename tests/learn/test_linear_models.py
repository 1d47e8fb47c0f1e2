"""Linear models over relations: the same as on the materialised join, however tables are cut, joined and solved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import sklearn.linear_model
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tablepuppet as tp
from tests.learn.materialised import (
    ALL,
    JOIN,
    PLAIN,
    Array,
    JoinedTable,
    class_numbers,
    expected,
    learner,
    predictions,
    shards_of,
    shop,
    side_by_side,
    solved,
    theta_of,
)
from tests.relations import federation, record_wire

TASKS: dict[str, int | None] = {"paid": None, "returned": 2, "grade": 4}
EVERY_SOLVER = ["auto", "admm"]  # "lbfgs" is what "auto" picks
tasks = pytest.mark.parametrize("label", TASKS)
solvers = pytest.mark.parametrize("solver", EVERY_SOLVER)
SELF_JOIN = (
    "SELECT o.price, q.price AS other_price, c.credit, c.age, o.{} FROM orders o JOIN cards c ON o.card_id = c.card_id "
    "JOIN orders q ON q.card_id = o.card_id AND q.item_id = o.item_id"
)
UNION = f"SELECT {ALL}, o.{{0}} {JOIN} WHERE o.quantity > 3 UNION ALL SELECT {ALL}, o.{{0}} {JOIN} WHERE o.price > 6"


class Shop:
    """A federation of the shop, its raw tables, and relations over it that are made once."""

    def __init__(self, folder: Path, shards: int, wire: str):
        self.parties = shop(shards, together=shards > 1)
        self.fed = federation(folder, self.parties, wire=wire)
        self._made: dict[tuple[str, str], tuple[tp.Relation, JoinedTable]] = {}

    def relation(self, sql: str, label: str) -> tuple[tp.Relation, JoinedTable]:
        if (sql, label) not in self._made:
            relation = self.fed.sql(sql, label=label)
            self._made[sql, label] = relation, JoinedTable(relation, self.parties)
        return self._made[sql, label]


@pytest.fixture(scope="module", params=[1, 3], ids=["one shard", "three shards"])
def any_shop(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Shop:
    return Shop(tmp_path_factory.mktemp("shop"), request.param, "float64")


@pytest.fixture(scope="module")
def rough_shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """With the precision of the wire that is the default."""
    return Shop(tmp_path_factory.mktemp("rough"), 2, "float32")


def check(model: Any, relation: tp.Relation, table: JoinedTable, classes: int | None, within: float = 1e-6) -> None:
    """Objective and predictions of every joined row are those of the direct solve; so are metrics."""
    best, value = solved(table, model.l2, classes)
    assert model.history_[-1]["objective"] == pytest.approx(value, rel=within, abs=within)
    wanted = expected(best, table.matrix, classes)
    np.testing.assert_allclose(predictions(model, relation), wanted, rtol=0, atol=within)
    told = model.evaluate(relation)
    if classes is None:
        assert told["rmse"] == pytest.approx(np.sqrt(np.mean((wanted - table.labels) ** 2)), rel=within)
    else:
        numbers = class_numbers(table.labels)[1]
        chance = np.maximum(wanted[np.arange(len(wanted)), numbers], 1e-15)
        assert told["log_loss"] == pytest.approx(-np.mean(np.log(chance)), rel=within, abs=within)


@solvers
@tasks
def test_coefficients_of_the_materialised_join(any_shop: Shop, label: str, solver: str) -> None:
    """Without collinear columns: coefficients and intercept to 1e-6, for one shard per table and several."""
    relation, table = any_shop.relation(f"SELECT {PLAIN}, o.{label} {JOIN}", label)
    model = learner(TASKS[label], solver=solver).fit(relation)
    best, _ = solved(table, model.l2, TASKS[label])
    np.testing.assert_allclose(theta_of(model, table.names), best.theta, rtol=0, atol=1e-6)
    shift = model.intercept_ - best.intercept
    np.testing.assert_allclose(shift - shift.mean() if TASKS[label] == 4 else shift, 0, atol=1e-6)
    assert model.converged_
    check(model, relation, table, TASKS[label])


@solvers
@tasks
def test_collinear_columns(any_shop: Shop, label: str, solver: str) -> None:
    """With 0/1 columns that add up to one: objective and predictions row by row to 1e-6."""
    relation, table = any_shop.relation(f"SELECT {ALL}, o.{label} {JOIN}", label)
    check(learner(TASKS[label], solver=solver).fit(relation), relation, table, TASKS[label])


@tasks
@pytest.mark.parametrize("sql", [SELF_JOIN, UNION], ids=["self-join", "union"])
def test_self_joins_and_unions(any_shop: Shop, label: str, sql: str) -> None:
    """A table used twice and a union with duplicates are relations like any other."""
    relation, table = any_shop.relation(sql.format(label), label)
    for solver in ("auto", "admm"):
        check(learner(TASKS[label], solver=solver, l2=1e-3).fit(relation), relation, table, TASKS[label])


@pytest.mark.parametrize("l2", [1e-6, 1e-3, 1.0])
def test_l2_is_that_of_scikit_learn(any_shop: Shop, l2: float) -> None:
    """Ridge with alpha = l2 * N, LogisticRegression with C = 1 / (l2 * N)."""
    relation, table = any_shop.relation(f"SELECT {PLAIN}, o.paid {JOIN}", "paid")
    reference = sklearn.linear_model.Ridge(alpha=l2 * len(relation)).fit(table.matrix, table.labels)
    model = tp.LinearRegression(l2=l2).fit(relation)
    np.testing.assert_allclose(theta_of(model, table.names), reference.coef_, atol=1e-6)
    assert model.intercept_[0] == pytest.approx(reference.intercept_, abs=1e-6)
    for label in ("returned", "grade"):
        relation, table = any_shop.relation(f"SELECT {PLAIN}, o.{label} {JOIN}", label)
        reference = sklearn.linear_model.LogisticRegression(
            C=1 / (l2 * len(relation)), solver="newton-cholesky", tol=1e-12, max_iter=1000
        ).fit(table.matrix, table.labels)
        classifier = tp.LogisticRegression(l2=l2).fit(relation)
        np.testing.assert_allclose(classifier.predict_proba(relation), reference.predict_proba(table.matrix), atol=1e-6)
        assert (classifier.predict(relation) == reference.predict(table.matrix)).mean() > 0.999
        assert classifier.classes_.tolist() == reference.classes_.tolist()


@solvers
@tasks
def test_single_precision_on_the_wire(rough_shop: Shop, label: str, solver: str) -> None:
    """With wire="float32" losses differ by less than 1e-4, and the fit still says that it converged."""
    relation, table = rough_shop.relation(f"SELECT {ALL}, o.{label} {JOIN}", label)
    model = learner(TASKS[label], solver=solver).fit(relation)
    assert model.converged_
    best, value = solved(table, model.l2, TASKS[label])
    assert model.history_[-1]["objective"] == pytest.approx(value, rel=1e-4)
    np.testing.assert_allclose(
        predictions(model, relation), expected(best, table.matrix, TASKS[label]), rtol=0, atol=1e-4
    )


@tasks
def test_without_reduction(any_shop: Shop, label: str) -> None:
    """reduce=False gives the same numbers, but every table sends a row for every joined row."""
    sql = f"SELECT {ALL}, o.{label} {JOIN}"
    relation, _ = any_shop.relation(sql, label)
    for solver in ("auto", "admm"):
        reduced = learner(TASKS[label], solver=solver).fit(relation)
        whole = learner(TASKS[label], solver=solver, reduce=False).fit(relation)
        np.testing.assert_allclose(predictions(whole, relation), predictions(reduced, relation), atol=1e-7)
        outputs = TASKS[label] if TASKS[label] == 4 else 1
        assert outputs is not None
        for model, rows in (
            (whole, 3 * len(relation)),
            (reduced, sum(table.rows for table in relation.mapping.tables.values())),
        ):
            up, down = (model.history_[1][name] for name in ("bytes_up", "bytes_down"))
            assert up >= 8 * rows * outputs
            assert down >= 8 * rows * outputs
            messages = model.history_[1]["messages"]
            assert up + down <= 16 * rows * outputs + 1500 * messages


def test_a_table_without_features(any_shop: Shop) -> None:
    """A table that only joins takes part in the mapping, not in the model."""
    sql = f"SELECT i.weight, o.paid {JOIN}"
    relation, table = any_shop.relation(sql, "paid")
    model = tp.LinearRegression().fit(relation)
    assert list(model.coef_) == ["i.weight"]
    check(model, relation, table, None)


def test_no_feature_at_all(any_shop: Shop) -> None:
    """Without any column to learn from, the model is its intercept."""
    fed = any_shop.fed
    for label, classes in TASKS.items():
        relation = fed.sql(f"SELECT o.{label} {JOIN}", label=label)
        table = JoinedTable(relation, any_shop.parties)
        model = learner(classes).fit(relation)
        assert model.coef_ == {}
        assert model.converged_
        check(model, relation, table, classes)


# Random small relations


@st.composite
def small_worlds(draw: st.DrawFn) -> tuple[dict[str, dict[str, pa.Table]], str, int | None]:
    """(parties, SQL, classes): a few tables that share keys, in one to three shards, with missing values."""
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    tables, classes = draw(st.integers(1, 4)), draw(st.sampled_from([None, 2, 3]))
    parties: dict[str, dict[str, pa.Table]] = {}
    for number in range(tables):
        rows = draw(st.integers(2, 14))
        columns = {
            "k": pa.array(rng.integers(0, 4, rows)),
            "x": pa.array(rng.normal(size=rows), mask=rng.random(rows) < 0.15),
            "w": pa.array(rng.choice([1.0, 2.0, 5.0], rows)),
            "c": pa.array(rng.choice(np.array(["u", "v", "w"]), rows), mask=rng.random(rows) < 0.2),
        }
        if number == 0:
            columns["y"] = pa.array(rng.normal(size=rows) if classes is None else rng.integers(0, classes, rows))
        for place, part in enumerate(shards_of(pa.table(columns), draw(st.integers(1, 3)))):
            parties[f"p{number}_{place}"] = {f"t{number}": part}
    used = [0, *(draw(st.integers(0, tables - 1)) for _ in range(draw(st.integers(0, 3))))]
    aliases = [f"a{place}" for place in range(len(used))]
    select = ", ".join(f"{alias}.{name} AS {alias}_{name}" for alias in aliases for name in "xwc")
    joins = "".join(
        f" JOIN t{table} {alias} ON {alias}.k = a0.k" for alias, table in zip(aliases[1:], used[1:], strict=True)
    )
    return parties, f"SELECT {select}, a0.y AS y FROM t0 a0{joins}", classes


@settings(deadline=None, max_examples=12, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(small_worlds(), st.sampled_from([1e-3, 0.1]), st.sampled_from(["auto", "admm"]))
def test_random_relations(
    tmp_path_factory: pytest.TempPathFactory,
    world: tuple[dict[str, dict[str, pa.Table]], str, int | None],
    l2: float,
    solver: str,
) -> None:
    """Over random tables, shards, keys and self-joins: objective and predictions of the direct solve, to 1e-6."""
    parties, sql, classes = world
    relation = federation(tmp_path_factory.mktemp("world"), parties, wire="float64").sql(sql, label="y")
    if not len(relation):
        with pytest.raises(tp.LearnError, match="no joined rows"):
            learner(classes).fit(relation)
        return
    table = JoinedTable(relation, parties)
    found = len(set(table.labels.tolist()))
    if classes is not None and found < 2:
        with pytest.raises(tp.LearnError, match="one class"):
            learner(classes).fit(relation)
        return
    classes = None if classes is None else found
    model = learner(classes, solver=solver, l2=l2).fit(relation)
    best, value = solved(table, l2, classes)
    assert model.history_[-1]["objective"] == pytest.approx(value, rel=1e-6, abs=1e-9)
    wanted: Array = expected(best, table.matrix, classes)
    np.testing.assert_allclose(predictions(model, relation), wanted, rtol=0, atol=1e-6)


def test_inner_products_are_sent_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many steps a table stores, it returns inner products of direction, last step and parameters only."""
    parties, sql = side_by_side(3, 4, 200, 0.9, classes=2)
    relation = federation(tmp_path, parties).sql(sql, label="y")
    messages = record_wire(monkeypatch)
    model = tp.LogisticRegression().fit(relation)
    replies = [each.reply for each in messages if each.request.op == "ridge.direction"]
    shapes = [reply["products"].shape for reply in replies if reply is not None]
    assert len(model.history_) > 5
    assert {rows for rows, _ in shapes} == {2, 3}  # two before the first step
    assert max(columns for _, columns in shapes) == len(model.history_) + 1
