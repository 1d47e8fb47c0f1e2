"""What users of pandas, scikit-learn and NumPy try first: an error of Python's kind that says what to write instead."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from sklearn.base import clone

import tablepuppet as tp
from tests.learn.materialised import ALL, JOIN, shop
from tests.relations import federation


@pytest.fixture(scope="module")
def fed(tmp_path_factory: pytest.TempPathFactory) -> tp.Federation:
    return federation(tmp_path_factory.mktemp("shop"), shop(2))


@pytest.fixture(scope="module")
def relation(fed: tp.Federation) -> Any:
    return fed.sql(f"SELECT {ALL}, o.paid {JOIN}", label="paid")


@pytest.fixture(scope="module")
def model(relation: Any) -> Any:
    return tp.LinearRegression().fit(relation)


def test_names_that_a_result_lacks(relation: Any, model: Any) -> None:
    """They are KeyErrors with the names that there are, or the nearest one."""
    linear = tp.linalg.lm(relation.matrix(), relation.label())
    for call, told in (
        (lambda: relation.correlation()["price", "kind"], "has no 'kind'; there are: price, "),
        (lambda: relation.correlation()["price", "weigth"], "did you mean 'weight'"),
        (lambda: relation.correlation()["price"], r"a pair of columns is meant, such as found\['price', 'quantity'\]"),
        (lambda: relation.quantile([0.5])["pric"], "quantile has no 'pric'; did you mean 'price'"),
        (lambda: relation.outlier_by_iqr()["pric"], "outliers has no 'pric'; did you mean 'price'"),
        (lambda: tp.drift(relation, relation)["pric"], "drift has no 'pric'; did you mean 'price'"),
        (lambda: tp.cross_validate(model, relation, folds=2)["test_f1"], "has no 'test_f1'; .*test_r2"),
        (lambda: model.coef_["price"], "did you mean 'o.price'"),
        (lambda: linear.coef["price"], "did you mean 'o.price'"),
    ):
        with pytest.raises(KeyError, match=told) as found:
            call()
        assert isinstance(found.value, tp.LearnError)
    assert "price" not in model.coef_
    assert model.coef_.get("price") is None


def test_transposed(relation: Any) -> None:
    """X.T has products; what it lacks is told as for X."""
    X = relation.matrix()
    with pytest.raises(
        tp.LearnError, match=r"X\.T is .* and other .*; other has a row for each .* X\.T @ X is the Gram"
    ):
        X.T @ X.T
    with pytest.raises(tp.LearnError, match=r"X\[:, columns\]\.T"):
        X.T[0]
    with pytest.raises(AttributeError, match="no sum: write it with X"):
        X.T.sum()


def test_models_are_not_pickled(fed: tp.Federation, relation: Any, model: Any) -> None:
    """A fitted model says how it is saved; clones, and learners that are not fitted, are copied as ever."""
    linear = tp.linalg.lm(relation.matrix(), relation.label())
    for each in (model, linear):
        for call in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match=r"model\.save\(folder\) and tp\.load\(folder, fed\)"):
                call(each)
    for thing in (fed, relation, relation.matrix()):
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(thing)
    assert clone(model).get_params() == model.get_params()
    assert pickle.loads(pickle.dumps(clone(model))).get_params() == model.get_params()


def test_attributes_of_others(fed: tp.Federation, relation: Any, model: Any) -> None:
    """An AttributeError that says what to write here; other errors of attributes stay as they are."""
    for thing, name, told in (
        (model, "test", r"model\.evaluate\(relation\)"),
        (model, "n_iter_", r"model\.history_"),
        (relation, "shape", r"len\(rel\), rel\.columns"),
        (relation, "head", r"rel\.describe\(\)"),
        (relation, "corr", r"rel\.correlation\(\)"),
        (fed, "tables", r"fed\.catalog\(\)"),
    ):
        assert not hasattr(thing, name)
        with pytest.raises(AttributeError, match=told):
            getattr(thing, name)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        relation.nonsense  # noqa: B018
    with pytest.raises(tp.LearnError, match="not fitted yet"):
        tp.LinearRegression().coef_  # noqa: B018
