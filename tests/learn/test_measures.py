"""Metrics over rows, with weights and without: those of scikit-learn, to 1e-12."""

from __future__ import annotations

import copy
import json
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics
from sklearn.dummy import DummyClassifier, DummyRegressor

from tablepuppet.errors import LearnError
from tablepuppet.learn.loss.measures import class_measures, number_measures, probabilities, roc_area
from tests.terminal import on_terminal


@settings(deadline=None, max_examples=60, derandomize=True)
@given(st.integers(0, 999), st.integers(2, 60), st.integers(2, 4), st.integers(0, 2))
def test_classes(seed: int, rows: int, classes: int, digits: int) -> None:
    """Accuracy, area and log loss, with equal scores among them; weights count rows several times."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, rows)
    chances = probabilities(np.round(rng.normal(size=rows if classes == 2 else (rows, classes)), digits))
    weights = rng.integers(1, 5, rows)
    for times, given_weights in ((np.ones(rows, int), None), (weights, weights.astype(float))):
        found = class_measures(labels, chances, given_weights)
        truth, told = np.repeat(labels, times), np.repeat(chances, times, axis=0)
        assert found["accuracy"] == pytest.approx(metrics.accuracy_score(truth, told.argmax(axis=1)), abs=1e-12)
        loss = metrics.log_loss(truth, told, labels=np.arange(classes))
        assert found["log_loss"] == pytest.approx(loss, abs=1e-12)
        if len(np.unique(labels)) < classes:
            assert np.isnan(found["auc"])
            continue
        area = metrics.roc_auc_score(truth, told[:, 1] if classes == 2 else told, multi_class="ovr")
        assert found["auc"] == pytest.approx(area, abs=1e-12)


@settings(deadline=None, max_examples=40, derandomize=True)
@given(st.integers(0, 999), st.integers(2, 60))
def test_numbers(seed: int, rows: int) -> None:
    """Root mean squared error and R2."""
    rng = np.random.default_rng(seed)
    labels, predicted, weights = rng.normal(size=rows), rng.normal(size=rows), rng.integers(1, 5, rows)
    found = number_measures(labels, predicted, weights.astype(float))
    truth, told = np.repeat(labels, weights), np.repeat(predicted, weights)
    assert found["rmse"] == pytest.approx(metrics.root_mean_squared_error(truth, told), rel=1e-12)
    assert found["r2"] == pytest.approx(metrics.r2_score(truth, told), rel=1e-10)
    assert number_measures(truth, told) == pytest.approx(found, rel=1e-10)


def test_edges() -> None:
    """Labels that are all equal, one row, and probabilities of exactly 0 and 1."""
    ones = np.ones(3)
    assert number_measures(ones, ones)["r2"] == 1.0
    assert number_measures(ones, 2 * ones)["r2"] == 0.0
    assert np.isnan(number_measures(np.ones(1), np.ones(1))["r2"])
    sure = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    labels = np.array([0, 1, 0])
    assert class_measures(labels, sure)["log_loss"] == pytest.approx(metrics.log_loss(labels, sure), rel=1e-12)
    assert roc_area(np.array([0.0, 1.0]), np.array([False, True])) == 1.0


def test_single_precision_and_no_rows() -> None:
    """Probabilities of single precision have the same area; without rows there is an error that says so."""
    chance, positive = np.array([0.1, 0.4, 0.4, 0.8], np.float32), np.array([False, False, True, True])
    assert roc_area(chance, positive) == 0.875  # type: ignore[arg-type]
    assert np.isnan(roc_area(chance[:0].astype(float), positive[:0]))
    with pytest.raises(LearnError, match="no joined rows"):
        class_measures(np.zeros(0, int), np.zeros((0, 2)))
    with pytest.raises(LearnError, match="no joined rows"):
        number_measures(np.zeros(0), np.zeros(0))


@settings(deadline=None, max_examples=30, derandomize=True)
@given(st.integers(0, 999), st.integers(2, 60), st.integers(2, 4))
def test_a_constant_beside_classes(seed: int, rows: int, classes: int) -> None:
    """``constant`` is what scikit-learn measures of a model that predicts the shares of the classes; rows may count
    several times, and a class may have none."""
    rng = np.random.default_rng(seed)
    labels, weights = rng.integers(0, classes, rows), rng.integers(1, 5, rows)
    chances = probabilities(rng.normal(size=rows if classes == 2 else (rows, classes)))
    found = class_measures(labels, chances, weights.astype(float)).constant
    truth = np.repeat(labels, weights)
    guess = DummyClassifier(strategy="prior").fit(np.zeros((len(truth), 1)), truth)
    told = guess.predict_proba(np.zeros((len(truth), 1)))
    assert found["accuracy"] == pytest.approx(guess.score(np.zeros((len(truth), 1)), truth), abs=1e-12)
    if len(guess.classes_) > 1:
        assert found["log_loss"] == pytest.approx(metrics.log_loss(truth, told), abs=1e-12)
    assert found["auc"] == 0.5


def test_a_constant_beside_numbers() -> None:
    """``constant`` is what scikit-learn measures of a model that predicts the mean."""
    rng = np.random.default_rng(0)
    labels, weights = rng.normal(size=40), rng.integers(1, 5, 40)
    truth = np.repeat(labels, weights)
    told = DummyRegressor().fit(np.zeros((len(truth), 1)), truth).predict(np.zeros((len(truth), 1)))
    found = number_measures(labels, labels, weights.astype(float)).constant
    assert found["rmse"] == pytest.approx(metrics.root_mean_squared_error(truth, told), rel=1e-12)
    assert found["r2"] == pytest.approx(metrics.r2_score(truth, told), abs=1e-12)


def test_metrics_are_a_dict_that_prints_both() -> None:
    """A score stands beside that of a constant, in text and in a notebook; programs have a dict of the usual keys."""
    labels = np.array([0, 0, 0, 1])
    found = class_measures(labels, np.array([[0.9, 0.1], [0.9, 0.1], [0.2, 0.8], [0.3, 0.7]]))
    assert str(found) == repr(found)
    assert str(found).startswith("accuracy 0.7500 (constant 0.7500), AUC 0.6667 (constant 0.5000), log loss 0.")
    assert dict(found) == found
    assert set(json.loads(json.dumps(found))) == {"accuracy", "auc", "log_loss"}
    assert "<th" in found._repr_html_()
    assert found._repr_html_().count("0.7500") == 2
    alone = class_measures(np.zeros(2, int), np.array([[0.9, 0.1], [0.8, 0.2]]))
    assert "AUC not known, log loss" in str(alone)  # and no constant beside it
    assert pickle.loads(pickle.dumps(found)).constant == copy.copy(found).constant == found.constant


def test_metrics_fit_a_terminal(tmp_path: Path) -> None:
    """A metric stays in one line with its name and that of the constant."""
    program = """if True:
        import numpy as np
        from tablepuppet.learn.loss.measures import number_measures
        print(number_measures(np.arange(9.0), np.ones(9)))
    """
    code, text = on_terminal([sys.executable, "-c", program], 50, 24, tmp_path)
    assert code == 0
    assert [line.split(" ")[0] for line in text.splitlines()] == ["RMSE", "R2"]
