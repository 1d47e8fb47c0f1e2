"""The centralised baseline trains the same function on the pooled join."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

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
        Centralized(tp.LinearRegression(solver="newton")).fit(  # type: ignore[arg-type]
            fed.sql(f"SELECT {ALL}, o.paid {JOIN}", label="paid")
        )
    with pytest.raises(AttributeError):
        Centralized(tp.LinearRegression()).coef_  # noqa: B018


def test_no_feature_at_all(tmp_path: Path) -> None:
    """Without any column to learn from, the model is its intercept."""
    fed = federation(tmp_path, shop(1), wire="float64")
    for label, classes in TASKS.items():
        relation = fed.sql(f"SELECT o.{label} {JOIN}", label=label)
        pooled, federated = Centralized(learner(classes)).fit(relation), learner(classes).fit(relation)
        np.testing.assert_allclose(predictions(pooled.learner_, relation), predictions(federated, relation), atol=1e-9)
