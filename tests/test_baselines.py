"""The centralised baseline trains the same function on the pooled join."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import tablepuppet as tp
from tablepuppet.baselines import Centralized
from tests.learn.materialised import ALL, JOIN, JoinedTable, expected, learner, predictions, shop, solved
from tests.relations import federation

TASKS: dict[str, int | None] = {"paid": None, "returned": 2, "grade": 4}


@pytest.fixture(scope="module", params=[1, 3], ids=["one shard", "three shards"])
def any_shop(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[tp.Federation, Any]:
    parties = shop(request.param, together=True)
    return federation(tmp_path_factory.mktemp("shop"), parties, wire="float64"), parties


@pytest.mark.parametrize("label", TASKS)
def test_centralised_is_federated(any_shop: tuple[tp.Federation, Any], label: str) -> None:
    """The same predictions and metrics as a direct solve and as the learner, on train and test."""
    fed, parties = any_shop
    train, test = fed.sql(f"SELECT {ALL}, o.{label} {JOIN}", label=label).split(test=0.25)
    pooled = Centralized(learner(TASKS[label], l2=1e-3)).fit(train)
    federated = learner(TASKS[label], l2=1e-3).fit(train)
    table = JoinedTable(train, parties)
    best, _ = solved(table, 1e-3, TASKS[label])
    for relation in (train, test):
        wanted = expected(best, table.encode(relation), TASKS[label])
        np.testing.assert_allclose(predictions(pooled.learner_, relation), wanted, atol=1e-6)
        np.testing.assert_allclose(predictions(federated, relation), wanted, atol=1e-6)
        assert pooled.evaluate(relation) == pytest.approx(federated.evaluate(relation), abs=1e-6)
    assert pooled.coef_.keys() == federated.coef_.keys()


def test_refusals_are_those_of_the_learner(tmp_path: Path) -> None:
    """No label, no rows: the same errors; before fitting there is nothing to ask for."""
    fed = federation(tmp_path, shop(1))
    with pytest.raises(tp.LearnError, match="no label"):
        Centralized(tp.LinearRegression()).fit(fed.sql(f"SELECT {ALL} {JOIN}"))
    with pytest.raises(tp.LearnError, match="not known"):
        Centralized(tp.LinearRegression(solver="newton")).fit(fed.sql(f"SELECT {ALL}, o.paid {JOIN}", label="paid"))
    for wrong in ("linear", tp.SplitNNRegressor()):
        with pytest.raises(tp.LearnError, match=rf"trains linear models and tp.MLP\*, not {type(wrong).__name__}"):
            Centralized(wrong).fit(fed.sql(f"SELECT {ALL}, o.paid {JOIN}", label="paid"))  # type: ignore[arg-type]


def test_in_the_manner_of_scikit_learn(tmp_path: Path) -> None:
    """Settings, clone, repr and NotFittedError as of any estimator; history, and a model that can be saved."""
    fed = federation(tmp_path, shop(1), wire="float64")
    relation = fed.sql(f"SELECT {ALL}, o.returned {JOIN}", label="returned")
    baseline = Centralized(tp.LogisticRegression(l2=1e-3))
    assert "l2=0.001" in repr(baseline)
    assert clone(baseline).set_params(learner__l2=0.1).get_params()["learner__l2"] == 0.1
    for name in ("coef_", "predict", "predict_proba", "save"):
        with pytest.raises(NotFittedError, match=name) as refused:
            getattr(baseline, name)
        assert isinstance(refused.value, tp.LearnError)
    assert not hasattr(baseline, "nothing_of_the_kind")
    baseline.fit(relation)
    assert baseline.converged_
    assert baseline.stopped_ == "converged"
    federated = tp.LogisticRegression(l2=1e-3).fit(relation)
    [entry], last = baseline.history_, federated.history_[-1]
    assert entry.keys() == last.keys()
    assert entry["objective"] == pytest.approx(last["objective"], abs=1e-9)
    assert entry["metric"] == last["metric"]
    baseline.save(tmp_path / "model")
    again = tp.load(tmp_path / "model", fed).predict_proba(relation)
    np.testing.assert_allclose(again, baseline.predict_proba(relation), atol=1e-12)
    with pytest.raises(tp.LearnError, match="no label"):
        baseline.fit(fed.sql(f"SELECT {ALL} {JOIN}"))
    np.testing.assert_array_equal(baseline.predict_proba(relation).shape, again.shape)  # as it was before


def test_history_of_networks(tmp_path: Path) -> None:
    """An entry for every epoch of sgd, the penalty in its objective, as the learner writes it; no coef_."""
    pytest.importorskip("torch")
    relation = federation(tmp_path, shop(1), wire="float64").sql(f"SELECT {ALL}, o.paid {JOIN}", label="paid")
    learned = tp.MLPRegressor(hidden=(4,), solver="sgd", rounds=3, batch_size=50, l2=1e-2)
    pooled, federated = Centralized(learned).fit(relation), clone(learned).fit(relation)
    for name in ("round", "loss", "objective", "metric", "solver"):
        assert [e[name] for e in pooled.history_] == pytest.approx([e[name] for e in federated.history_])
    assert federated.history_[0]["objective"] > federated.history_[0]["loss"]
    assert hasattr(federated, "coefs_")
    assert not hasattr(federated, "coef_")
    assert not hasattr(pooled, "coef_")


def test_no_feature_at_all(tmp_path: Path) -> None:
    """Without any column to learn from, the model is its intercept."""
    fed = federation(tmp_path, shop(1), wire="float64")
    for label, classes in TASKS.items():
        relation = fed.sql(f"SELECT o.{label} {JOIN}", label=label)
        pooled, federated = Centralized(learner(classes)).fit(relation), learner(classes).fit(relation)
        np.testing.assert_allclose(predictions(pooled.learner_, relation), predictions(federated, relation), atol=1e-9)
