"""Mini-batch SGD over a relation: the very steps of SGD on the materialised join, told once per distinct base row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import tablepuppet as tp
from tablepuppet.learn.loss.losses import Logistic, Squared
from tablepuppet.learn.loss.softmax import Softmax
from tablepuppet.mapping.batches import batches
from tablepuppet.mapping.joined_rows import JoinedRows
from tests.learn.labelled import Labelled
from tests.learn.materialised import ALL, JOIN, Array, JoinedTable, class_numbers, learner, shop, theta_of
from tests.relations import federation, record_wire

TASKS: dict[str, int | None] = {"paid": None, "returned": 2, "grade": 4}
SIZE, SEED = 37, 5


@pytest.fixture(scope="module", params=[1, 3], ids=["one shard", "three shards"])
def any_shop(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[tp.Federation, Any]:
    parties = shop(request.param, together=True)
    return federation(tmp_path_factory.mktemp("shop"), parties, wire="float64"), parties


def relation_of(fed: tp.Federation, label: str) -> tp.Relation:
    return fed.sql(f"SELECT {ALL}, o.{label} {JOIN}", label=label)


def loss_of(labels: NDArray[Any], classes: int | None) -> Labelled:
    if classes is None:
        return Labelled(Squared(), labels.astype(float))
    return Labelled(Logistic() if classes == 2 else Softmax(classes), class_numbers(labels)[1])


def plain_sgd(
    table: Array, loss: Labelled, epochs: int, lr: float, momentum: float, l2: float
) -> tuple[Array, Array, float]:
    """Textbook SGD with momentum on joined rows, with the batches and the learning rates of the learner.

    (parameters, intercept, mean objective of the last epoch's batches as they came).
    """
    several = () if loss.outputs == 1 else (loss.outputs,)
    theta, velocity = np.zeros((table.shape[1], *several)), np.zeros((table.shape[1], *several))
    intercept, drift = loss.best_constant(), np.zeros(loss.outputs)
    for epoch in range(1, epochs + 1):
        rate = lr / (1 + (epoch - 1) / 2)
        order, total = np.random.default_rng([SEED, epoch]).permutation(len(table)), 0.0
        for start in range(0, len(order), SIZE):
            rows = order[start : start + SIZE]
            scores = table[rows] @ theta + intercept
            total += len(rows) * (loss.at(rows).value(scores) + 0.5 * l2 * float(np.sum(theta**2)))
            gradient = loss.at(rows).gradient(scores)
            velocity = momentum * velocity + table[rows].T @ gradient + l2 * theta
            drift = momentum * drift + gradient.sum(axis=0)
            theta, intercept = theta - rate * velocity, intercept - rate * drift
    return theta, intercept, total / len(table)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("label", TASKS)
def test_trajectory_of_the_materialised_join(any_shop: tuple[tp.Federation, Any], label: str, momentum: float) -> None:
    """After one epoch and after three: parameters and objective of plain SGD on the same batches, to 1e-10."""
    fed, parties = any_shop
    relation = relation_of(fed, label)
    table = JoinedTable(relation, parties)
    loss = loss_of(table.labels, TASKS[label])
    for epochs in (1, 3):
        theta, intercept, objective = plain_sgd(table.matrix, loss, epochs, lr=0.05, momentum=momentum, l2=1e-3)
        model = learner(
            TASKS[label], solver="sgd", rounds=epochs, batch_size=SIZE, lr=0.05, momentum=momentum, l2=1e-3, seed=SEED
        ).fit(relation)
        np.testing.assert_allclose(theta_of(model, table.names), theta, rtol=0, atol=1e-10)
        np.testing.assert_allclose(model.intercept_, intercept, rtol=0, atol=1e-10)
        assert model.history_[-1]["objective"] == pytest.approx(objective, rel=1e-10)


def test_without_reduction(any_shop: tuple[tp.Federation, Any]) -> None:
    """VFL-SGD, reduce=False: the same trajectory, with more bytes."""
    relation = relation_of(any_shop[0], "grade")
    settings: dict[str, Any] = {"solver": "sgd", "rounds": 2, "batch_size": SIZE, "seed": SEED}
    reduced = tp.LogisticRegression(**settings).fit(relation)
    whole = tp.LogisticRegression(**settings, reduce=False).fit(relation)
    np.testing.assert_allclose(whole.predict_proba(relation), reduced.predict_proba(relation), rtol=0, atol=1e-10)
    assert whole.history_[1]["bytes_up"] > 1.2 * reduced.history_[1]["bytes_up"]


def test_one_whole_batch_is_a_gradient_step(any_shop: tuple[tp.Federation, Any]) -> None:
    """With one batch of all rows, parameters move by the learning rate times the gradient of the join."""
    fed, parties = any_shop
    relation = relation_of(fed, "returned")
    table = JoinedTable(relation, parties)
    loss = loss_of(table.labels, 2)
    model = tp.LogisticRegression(solver="sgd", rounds=1, batch_size=10_000, lr=1.0, l2=0.0).fit(relation)
    gradient = table.matrix.T @ loss.gradient(np.zeros(len(relation)) + loss.best_constant())
    np.testing.assert_allclose(theta_of(model, table.names), -gradient, rtol=0, atol=1e-12)


def test_bytes_follow_distinct_base_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch names every distinct base row once, sends one number for it, and gets one prediction back."""
    relation = relation_of(federation(tmp_path, shop(1), wire="float32"), "returned")
    expected = [
        {alias: len(places) for alias, places in batch.places.items()}
        for batch in batches(relation.joined_rows, list(relation.mapping.tables), SIZE, SEED, 1)
    ]
    messages = record_wire(monkeypatch)
    assert tp.LogisticRegression(solver="sgd", rounds=1, batch_size=SIZE, seed=SEED).fit(relation).coef_
    steps = [message for message in messages if message.request.op == "sgd.step"]
    assert len(steps) == 3 * (len(expected) + 1)  # one exchange before the first batch
    for alias in relation.mapping.tables:
        exchanges = [step for step in steps if step.request.table == alias]
        told = [step.request.arguments["rows"] for step in exchanges]
        asked = [step.request.arguments["next_places"] for step in exchanges]
        answered = [step.reply["outputs"] for step in exchanges if step.reply is not None]
        counts = [batch[alias] for batch in expected]
        assert [len(rows) for rows in told] == [0, *counts]
        assert [len(rows) for rows in asked] == [len(rows) for rows in answered] == [*counts, 0]
        assert {rows.dtype for rows in (*told, *answered)} == {
            np.dtype(np.float64)
        }  # nothing is rounded in one process
        assert all(len(np.unique(rows)) == len(rows) for rows in asked)
    assert sum(counts) < len(relation)


@pytest.mark.parametrize("size", [1, 8, 33, 10_000])
def test_batches_of_secured_tables(tmp_path: Path, size: int) -> None:
    """Every batch has rows of three shards of each of them, the last one too; an epoch takes each joined row once."""
    mapping = relation_of(federation(tmp_path, shop(4)), "paid").mapping
    tables = list(mapping.tables)
    drawn = list(batches(JoinedRows(mapping), tables, size, SEED, 1, ["o", "c"]))
    for batch in drawn:
        assert all(len(set(mapping.tables[alias].owners[batch.rows].tolist())) >= 3 for alias in ("o", "c"))
    assert sorted(np.concatenate([batch.rows for batch in drawn]).tolist()) == list(range(len(mapping)))
    plain = list(batches(JoinedRows(mapping), tables, size, SEED, 1))
    assert (drawn[0].rows[:size] == plain[0].rows).all()
    assert len(drawn) < len(plain) or size > 8


def test_batches_cover_every_joined_row(any_shop: tuple[tp.Federation, Any]) -> None:
    """An epoch takes each joined row once, in an order that seed and epoch decide; scatter adds up by base row."""
    mapping = relation_of(any_shop[0], "paid").mapping
    tables = list(mapping.tables)
    drawn = list(batches(JoinedRows(mapping), tables, SIZE, SEED, 1))
    rows = np.concatenate([batch.rows for batch in drawn])
    assert sorted(rows.tolist()) == list(range(len(mapping)))
    again = np.concatenate([batch.rows for batch in batches(JoinedRows(mapping), tables, SIZE, SEED, 1)])
    other = np.concatenate([batch.rows for batch in batches(JoinedRows(mapping), tables, SIZE, SEED, 2)])
    assert (rows == again).all()
    assert (rows != other).any()
    for batch in drawn[:2]:
        for alias in tables:
            index = mapping.tables[alias].index[batch.rows]
            assert (batch.places[alias][batch.base[alias]] == index).all()
            values = np.random.default_rng(0).normal(size=(len(batch.rows), 2))
            sums = [values[index == place].sum(axis=0) for place in batch.places[alias]]
            np.testing.assert_allclose(batch.scatter(alias, values), sums, atol=1e-12)


def test_default_learning_rate_converges(tmp_path: Path) -> None:
    """With lr="auto" the loss falls to within a few per cent of the best, for every task."""
    fed = federation(tmp_path, shop(1, together=True))
    for label, classes in TASKS.items():
        relation = relation_of(fed, label)
        best = learner(classes).fit(relation).history_[-1]["loss"]
        history = learner(classes, solver="sgd", rounds=12, batch_size=30).fit(relation).history_
        assert history[-1]["loss"] < history[0]["loss"]
        assert history[-1]["loss"] < 1.08 * best
