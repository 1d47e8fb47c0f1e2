"""Metrics by their names equal scikit-learn's on the same labels and predictions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from sklearn import metrics as sk

import tablepuppet as tp
from tablepuppet.learn.loss.named_metrics import _OF_CLASSES, _OF_NUMBERS, measure

RNG = np.random.default_rng(5)


def chances(rows: int, classes: int) -> NDArray[np.float64]:
    """Probabilities of classes."""
    raw = RNG.random((rows, classes))
    return np.asarray(raw / raw.sum(axis=1, keepdims=True))


def by_scikit(name: str, labels: Any, values: Any) -> float:
    """The metric of scikit-learn's function."""
    guessed, classes = values.argmax(axis=1), range(values.shape[1])
    two = values.shape[1] == 2
    kind, _, how = name.partition("_")
    if kind in ("f1", "precision", "recall"):
        function = getattr(sk, f"{kind}_score")
        return float(function(labels, guessed, average=how or "binary", zero_division=0))
    right = np.eye(values.shape[1])[labels]
    functions: dict[str, Callable[[], Any]] = {
        "accuracy": lambda: sk.accuracy_score(labels, guessed),
        "auc": lambda: (
            sk.roc_auc_score(labels, values[:, 1]) if two else sk.roc_auc_score(labels, values, multi_class="ovr")
        ),
        "roc_auc": lambda: by_scikit("auc", labels, values),
        "log_loss": lambda: sk.log_loss(labels, values),
        "balanced_accuracy": lambda: sk.balanced_accuracy_score(labels, guessed),
        "average_precision": lambda: (
            sk.average_precision_score(labels, values[:, 1]) if two else sk.average_precision_score(right, values)
        ),
        "brier_score": lambda: (
            sk.brier_score_loss(labels, values[:, 1]) if two else np.square(values - right).sum(axis=1).mean()
        ),
        "matthews_corrcoef": lambda: sk.matthews_corrcoef(labels, guessed),
        "top_2_accuracy": lambda: 1.0 if two else sk.top_k_accuracy_score(labels, values, k=2, labels=list(classes)),
    }
    return float(functions[name]())


@pytest.mark.parametrize("classes", [2, 4])
def test_metrics_of_classes_are_those_of_scikit_learn(classes: int) -> None:
    """Every name but those by class, with two and with four classes; a constant predicts the shares."""
    labels, values = RNG.integers(0, classes, 300), chances(300, classes)
    skipped = ("f1", "precision", "recall") if classes > 2 else ()
    names = [
        name for name in _OF_CLASSES
        if name not in skipped and "by_class" not in name and (not name.startswith("top_") or name == "top_2_accuracy")
    ]  # fmt: skip
    found = measure(names, labels, values, np.arange(classes), None)
    shares = np.broadcast_to(np.bincount(labels) / 300, values.shape)
    assert dict(found) == pytest.approx({name: by_scikit(name, labels, values) for name in names})
    assert found.constant == pytest.approx({name: by_scikit(name, labels, shares) for name in names})


def test_metrics_of_numbers_are_those_of_scikit_learn() -> None:
    """Every name, and a pinball loss."""
    labels, values = RNG.normal(size=200) * 30, RNG.normal(size=200)
    names = [*_OF_NUMBERS, "pinball_0.25"]
    expected = {
        "rmse": sk.root_mean_squared_error(labels, values),
        "r2": sk.r2_score(labels, values),
        "explained_variance": sk.explained_variance_score(labels, values),
        "pinball_0.25": sk.mean_pinball_loss(labels, values, alpha=0.25),
    }
    expected |= {name: getattr(sk, name)(labels, values) for name in names if name not in expected}
    assert dict(measure(names, labels, values, None, None)) == pytest.approx(expected)


def test_a_threshold_and_metrics_by_class() -> None:
    """A threshold moves the class that a row is taken for; by class there is one figure for each name."""
    labels, values = np.array([0, 0, 1, 1]), np.array([[0.9, 0.1], [0.6, 0.4], [0.7, 0.3], [0.2, 0.8]])
    names = ["recall_by_class", "precision"]
    assert measure(names, labels, values, np.array(["no", "yes"]), None) == {
        "recall=no": 1.0, "recall=yes": 0.5, "precision": 1.0,
    }  # fmt: skip
    assert measure(names, labels, values, np.array(["no", "yes"]), 0.25)["recall=yes"] == 1.0


@pytest.fixture(scope="module")
def orders() -> tp.Relation:
    """Orders that join parts, with a label of two classes."""
    orders = pa.table({
        "item": np.arange(200) % 7, "price": np.arange(200) % 13 + 0.5, "back": np.arange(200) * 37 % 11 > 5,
    })  # fmt: skip
    items = pa.table({"item": np.arange(20) % 9, "weight": np.arange(20) * 1.5})
    fed = tp.Federation({"store": {"orders": orders}, "supplier": {"items": items}})
    text = "SELECT o.price, i.weight, o.back FROM orders o JOIN items i USING (item)"
    return fed.sql(text, label="back")


def test_evaluate_and_folds_take_names(orders: tp.Relation) -> None:
    """`evaluate` and `cross_validate` measure what is named, `score` is the accuracy, over joined rows."""
    model = tp.LogisticRegression().fit(orders)
    labels, values = orders.label(), model.predict_proba(orders)
    found = model.evaluate(orders, metrics=["average_precision", "f1"], threshold=0.4)
    assert found["average_precision"] == pytest.approx(sk.average_precision_score(labels, values[:, 1]))
    assert found["f1"] == pytest.approx(sk.f1_score(labels, values[:, 1] > 0.4))
    assert model.score(orders) == model.evaluate(orders)["accuracy"]
    folds = tp.cross_validate(tp.LogisticRegression(), orders, folds=3, metrics=["f1"])
    assert {"train_f1", "test_f1"} <= set(folds.column_names)


def test_a_search_goes_by_a_name(orders: tp.Relation) -> None:
    """Candidates are in the order of the metric; one with several figures, or that there is not, is refused."""
    search = tp.GridSearch(tp.LogisticRegression(), {"l2": [1e-3, 100.0]}, folds=3, metric="brier_score").fit(orders)
    means = [row["mean_test_brier_score"] for row in search.results_]
    assert means == sorted(means)
    assert search.best_score_ == means[0]
    for metric, message in (("f1_by_class", "several figures"), ("rmse", "no metric of a classifier")):
        with pytest.raises(tp.LearnError, match=message):
            tp.GridSearch(tp.LogisticRegression(), {"l2": [1.0]}, metric=metric).fit(orders)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"metrics": ["f1_marco"]}, "no metric of a classifier; did you mean 'f1_macro'"),
        ({"metrics": ["rmse"]}, "no metric of a classifier"),
        ({"metrics": ["neg_log_loss"]}, "write 'log_loss'"),
        ({"metrics": "f1"}, "metrics is a list"),
        ({"threshold": 2}, "between 0 and 1"),
        ({"metrics": ["f1"], "at_party": True}, "has its own metrics"),
    ],
)
def test_names_are_checked(orders: tp.Relation, given: dict[str, Any], message: str) -> None:
    """A wrong name or threshold is refused before labels are asked for, with the names that there are."""
    model = tp.LogisticRegression(rounds=1).fit(orders)
    with pytest.raises(tp.LearnError, match=message):
        model.evaluate(orders, **given)
