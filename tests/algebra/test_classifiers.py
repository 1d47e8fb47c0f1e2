"""Classifiers over the joined matrix equal SciPy's and scikit-learn's on the materialised join."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn import linear_model, metrics, svm

import tablepuppet as tp
from tests.learn.materialised import ALL, JOIN, Array, shop
from tests.relations import federation


@pytest.fixture(scope="module", params=[1, 3])
def fed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tp.Federation:
    return federation(tmp_path_factory.mktemp("shop"), shop(request.param, together=True), wire="float64")


@pytest.fixture(scope="module")
def relation(fed: tp.Federation) -> tp.Relation:
    return fed.sql(f"SELECT {ALL}, o.grade {JOIN}", label="grade")


@pytest.fixture(scope="module")
def matrix(relation: tp.Relation) -> Any:
    return relation.matrix()


@pytest.fixture(scope="module")
def dense(matrix: Any) -> Array:
    return np.asarray(matrix @ np.eye(matrix.shape[1]))


@pytest.fixture(scope="module")
def grades(relation: tp.Relation) -> Any:
    return relation.label()


def test_machines_have_the_least_loss(matrix: Any, dense: Array, grades: Any) -> None:
    """Coefficients are those of SciPy's BFGS to 1e-4, and the loss is no larger; scikit-learn's machine agrees."""
    y, l2 = np.where(grades < "good", "low", "high"), 1e-2
    model = tp.linalg.l2svm(matrix, y, l2=l2, tol=1e-9)
    signs = np.where(y == "low", 1.0, -1.0)
    assert model.classes.tolist() == ["high", "low"]

    def loss(b: Array) -> float:
        hinge = np.maximum(1 - signs * (dense @ b[1:] + b[0]), 0)
        return float(np.mean(hinge**2) / 2 + l2 / 2 * np.sum(b[1:] ** 2))

    ours = np.append(model.intercept, np.asarray(model.coef))
    known = minimize(loss, np.zeros(len(ours)), options={"gtol": 1e-8})
    np.testing.assert_allclose(ours, known.x, atol=1e-4)
    assert loss(ours) <= known.fun + 1e-12
    theirs = svm.LinearSVC(C=1 / (2 * l2 * len(y)), dual=False, intercept_scaling=100.0, tol=1e-8).fit(dense, y)
    assert np.mean(model.predict(matrix) == theirs.predict(dense)) > 0.99
    np.testing.assert_allclose(model.scores(matrix), dense @ ours[1:] + ours[0], atol=1e-9)
    assert model.objective == pytest.approx(loss(ours))
    assert model.accuracy == pytest.approx(np.mean(model.predict(matrix) == y))
    assert model.support == np.sum(signs * model.scores(matrix) < 1)
    assert all(word in str(model.summary()) for word in ("intercept", matrix.columns[-1], f"{ours[1]:.4g}", "margin"))


@pytest.mark.parametrize("classes", [2, 4])
def test_probabilities_are_scikit_learns(matrix: Any, dense: Array, grades: Any, classes: int) -> None:
    """To 1e-5; coefficients to 1e-4."""
    y, l2 = (grades if classes == 4 else grades < "good"), 1e-3
    model = tp.linalg.multilogreg(matrix, y, l2=l2, tol=1e-9)
    known = linear_model.LogisticRegression(C=1 / (l2 * len(y)), tol=1e-10, max_iter=10_000).fit(dense, y)
    assert list(model.coef) == matrix.columns
    assert model.classes.tolist() == known.classes_.tolist()
    np.testing.assert_allclose(model.predict_proba(matrix), known.predict_proba(dense), atol=1e-5)
    expected = known.coef_[0] if classes == 2 else known.coef_.T
    np.testing.assert_allclose(np.asarray(model.coef), expected, atol=1e-4)
    assert np.array_equal(model.predict(matrix), known.predict(dense))
    assert model.log_likelihood == pytest.approx(-metrics.log_loss(y, known.predict_proba(dense), normalize=False))
    assert model.accuracy == pytest.approx(known.score(dense, y))
    assert "log-likelihood" in str(model.summary())


@pytest.mark.parametrize("program", ["l2svm", "multilogreg"])
def test_predictions_for_another_relation(fed: tp.Federation, matrix: Any, grades: Any, program: str) -> None:
    """Classes of its rows; the relation needs no label."""
    model = getattr(tp.linalg, program)(matrix, grades < "good")
    other = fed.sql(f"SELECT {ALL} {JOIN} WHERE o.quantity > 3")
    assert model.predict(other).dtype == bool
    assert model.predict(other).shape == (len(other),)


@pytest.mark.parametrize("program", ["l2svm", "multilogreg"])
@pytest.mark.parametrize(
    ("y", "settings", "message"),
    [
        (["a"], {}, "y has one class only"),
        ([np.nan], {}, "y has values that are not finite"),
        (None, {}, r"y has shape \(2,\), and X has"),
        (["a"], {"l2": -1.0}, "l2 is a number from 0, not -1.0"),
        (["a"], {"tol": 0}, "tol is a number above 0, not 0"),
        (["a"], {"max_iter": 1.5}, "max_iter is a whole number from 1, not 1.5"),
    ],
)
def test_what_does_not_fit(matrix: Any, program: str, y: Any, settings: dict[str, Any], message: str) -> None:
    """Labels and settings: an error says what would."""
    label = ["a", "b"] if y is None else y * matrix.shape[0]
    with pytest.raises(tp.LearnError, match=f"{program}: {message}"):
        getattr(tp.linalg, program)(matrix, label, **settings)


def test_machines_for_two_classes(matrix: Any, grades: Any) -> None:
    """More are for multilogreg; steps that do not suffice are an error."""
    with pytest.raises(tp.LearnError, match="y has 4 classes; it takes two, multilogreg takes more"):
        tp.linalg.l2svm(matrix, grades)
    with pytest.raises(tp.LearnError, match=r"multilogreg: a derivative is still .* after 1 steps; raise max_iter"):
        tp.linalg.multilogreg(matrix, grades, max_iter=1)
