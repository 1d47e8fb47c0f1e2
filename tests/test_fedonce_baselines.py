"""Solo, Combine and boosted trees train on the pooled join, or on the label's table alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.exceptions import NotFittedError
from sklearn.metrics import roc_auc_score

import tablepuppet as tp
from benchmarks.baselines.fedonce import Boosted, Combine, Solo, linear_combine, priv_baseline, splitnn_at
from tests.learn.materialised import ALL, JOIN, JoinedTable, shop
from tests.relations import federation

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def a_shop(tmp_path_factory: pytest.TempPathFactory) -> tuple[tp.Federation, Any]:
    parties = shop(1, together=True)
    return federation(tmp_path_factory.mktemp("shop"), parties), parties


def relation(fed: tp.Federation, label: str) -> tp.Relation:
    return fed.sql(f"SELECT {ALL}, o.{label} {JOIN}", label=label)


def test_trees_are_scikit_learns_on_the_materialised_join(a_shop: tuple[tp.Federation, Any]) -> None:
    """The same predictions as HistGradientBoostingRegressor on columns that DuckDB joined, encoded alike."""
    fed, parties = a_shop
    train, test = relation(fed, "paid").split(test=0.25)
    table = JoinedTable(train, parties)
    model = Boosted("regression").fit(train)
    expected = HistGradientBoostingRegressor(random_state=0).fit(table.encode(train).astype(np.float32), train.label())
    found = model.predict(test)
    np.testing.assert_allclose(found, expected.predict(table.encode(test).astype(np.float32)), rtol=1e-3)
    assert model.evaluate(test)["rmse"] == pytest.approx(np.sqrt(np.mean((found - test.label()) ** 2)))


@pytest.mark.parametrize(("label", "task"), [("paid", "regression"), ("returned", "classification")])
def test_combine_sees_more_than_solo(a_shop: tuple[tp.Federation, Any], label: str, task: str) -> None:
    """Solo has the columns of the label's table only; both learn, and twice the same from one seed."""
    fed, _ = a_shop
    train = relation(fed, label)
    combine, solo = (kind(task, hidden=(16,), epochs=40, lr=0.01).fit(train) for kind in (Combine, Solo))
    widths = [next(model.network_.parameters()).shape[1] for model in (combine, solo)]
    names = {alias: len(combine.encoding_.names(alias)) for alias in train.mapping.tables}
    assert widths == [sum(names.values()), names["o"]]
    for model in (combine, solo):
        again = clone(model).fit(train)
        np.testing.assert_array_equal(again.predict(train), model.predict(train))
    measure = "r2" if task == "regression" else "accuracy"
    assert combine.evaluate(train)[measure] > solo.evaluate(train)[measure]
    linear = linear_combine(task).fit(train)
    assert (
        combine.evaluate(train).keys()
        == linear.evaluate(train).keys()
        == Boosted(task).fit(train).evaluate(train).keys()
    )
    if task == "classification":
        area = roc_auc_score(train.label(), combine.predict_proba(train)[:, 1])
        assert combine.evaluate(train)["auc"] == pytest.approx(area)
        np.testing.assert_allclose(combine.predict_proba(train).sum(axis=1), 1)


def test_errors_say_what_is_wrong(a_shop: tuple[tp.Federation, Any], tmp_path: Path) -> None:
    """No label, another task, not fitted, probabilities of numbers."""
    fed, _ = a_shop
    with pytest.raises(tp.LearnError, match="no label"):
        Combine().fit(fed.sql(f"SELECT {ALL} {JOIN}"))
    with pytest.raises(tp.LearnError, match="'classification' or 'regression'"):
        Combine("ranking").fit(relation(fed, "paid"))
    with pytest.raises(tp.LearnError, match="'classification' or 'regression'"):
        linear_combine("ranking")
    with pytest.raises(NotFittedError, match="not fitted yet"):
        Combine().predict(relation(fed, "paid"))
    with pytest.raises(tp.LearnError, match="no probabilities"):
        Boosted("regression").fit(relation(fed, "paid")).predict_proba(relation(fed, "paid"))


def test_epsilon_is_divided_simply_or_bytes_are_equal(a_shop: tuple[tp.Federation, Any]) -> None:
    """Each of three tables has a third of epsilon; SplitNN at equal bytes takes one epoch at half the width."""
    fed, _ = a_shop
    train = relation(fed, "returned")
    learner = tp.FedOnceClassifier(embedding=6, epochs=1, guest_epochs=1)
    divided = priv_baseline(learner, train, 3.0)
    assert divided.privacy is not None
    assert divided.privacy.feature_epsilon == 1.0
    assert learner.privacy is None
    found = splitnn_at(learner.fit(train))
    assert found.epochs == 1
    assert found.bottom.outputs == 3  # type: ignore[union-attr]
