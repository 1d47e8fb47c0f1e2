"""Metrics that a user names, by the names of scikit-learn's scorers: scikit-learn computes them over the joined rows.

Input: labels and predictions, as long as the join, at the coordinator. Output: `Metrics`, each beside that of a model
without features.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array
from tablepuppet.errors import LearnError
from tablepuppet.learn.loss.measures import Metrics, class_measures, number_measures
from tablepuppet.spelling import did_you_mean

Measured = Mapping[str, float]


@dataclass(frozen=True)
class Chances:
    """Labels as class numbers, probabilities of classes (rows, classes), and the class that each row is taken for."""

    labels: NDArray[np.intp]
    values: Array
    guessed: NDArray[np.intp]
    names: Sequence[str]  # of classes

    @property
    def classes(self) -> NDArray[np.intp]:
        """The numbers of all classes, with rows or without."""
        return np.arange(self.values.shape[1])


@dataclass(frozen=True)
class Numbers:
    """Labels and predicted numbers."""

    labels: Array
    values: Array


def measure(
    names: Sequence[str], labels: NDArray[Any], predicted: Array, classes: NDArray[Any] | None, threshold: float | None
) -> Metrics:
    """The metrics ``names`` of predictions: probabilities where there are ``classes``, else numbers.

    >>> chances = np.array([[0.9, 0.1], [0.4, 0.6], [0.3, 0.7]])
    >>> measure(["f1", "recall_by_class"], np.array([0, 1, 0]), chances, np.array(["no", "yes"]), None)
    f1 0.6667 (constant 0.0000), recall=no 0.5000 (constant 1.0000), recall=yes 1.0000 (constant 0.0000)
    """
    check(names, classes, threshold)
    if not len(labels):
        raise LearnError("there are no joined rows to measure predictions on")
    if classes is None:
        mean = np.full(len(labels), labels.mean())
        both: list[Any] = [Numbers(labels, each) for each in (predicted, mean)]
    else:
        shares = np.bincount(labels, minlength=predicted.shape[1]) / len(labels)
        both = [
            Chances(labels.astype(np.intp), each, _guessed(each, threshold), [str(name) for name in classes])
            for each in (predicted, np.broadcast_to(shares, predicted.shape))
        ]
    model, constant = ({k: v for name in names for k, v in _measured(name, each).items()} for each in both)
    return Metrics(model, constant)


def check(names: Sequence[str], classes: NDArray[Any] | None, threshold: float | None) -> None:
    """LearnError unless metrics of these names can be measured for the task."""
    known = _OF_NUMBERS if classes is None else _OF_CLASSES
    if isinstance(names, str) or not names:
        raise LearnError(f"metrics is a list of names, such as {list(known)[:2]}")
    for name in names:
        if str(name).startswith("neg_"):
            raise LearnError(f"metrics are not negated here: write {str(name).removeprefix('neg_')!r}")
        if name not in known and not _is_pinball(name, known):
            kind = "regressor" if classes is None else "classifier"
            listed = [*known, *(["pinball_0.9"] if classes is None else [])]
            raise LearnError(f"{name!r} is no metric of a {kind}{did_you_mean(str(name), listed)}")
        if name in _KINDS and classes is not None and len(classes) != 2:
            raise LearnError(f"{name!r} is of two classes, and there are {len(classes)}: write '{name}_macro'")
    if threshold is not None and (classes is None or len(classes) != 2):
        raise LearnError("threshold is a probability of the second of two classes; there are no two classes here")
    if threshold is not None and not 0 <= threshold <= 1:
        raise LearnError(f"threshold must be between 0 and 1, not {threshold!r}")


def is_error(name: str) -> bool:
    """Whether less of the metric is better.

    >>> is_error("mean_absolute_error"), is_error("f1"), is_error("pinball_0.9")
    (True, False, True)
    """
    return name in ("log_loss", "rmse", "brier_score") or "_error" in name or name.startswith("pinball_")


def _is_pinball(name: object, known: Mapping[str, Any]) -> bool:
    """Whether it is the pinball loss of a quantile between 0 and 1, such as pinball_0.9."""
    try:
        return known is _OF_NUMBERS and 0 < float(str(name).removeprefix("pinball_")) < 1
    except ValueError:
        return False


def _guessed(chances: Array, threshold: float | None) -> NDArray[np.intp]:
    if threshold is None:
        return np.asarray(chances.argmax(axis=1), np.intp)
    return (chances[:, 1] > threshold).astype(np.intp)


def _measured(name: str, predicted: Chances | Numbers) -> Measured:
    known = _OF_CLASSES if isinstance(predicted, Chances) else _OF_NUMBERS
    if isinstance(predicted, Numbers) and name not in known:
        return {name: _pinball(predicted, float(name.removeprefix("pinball_")))}
    found = known[name](predicted)
    return found if isinstance(found, Mapping) else {name: float(found)}


def _accuracy(predicted: Chances) -> float:
    return float(np.mean(predicted.guessed == predicted.labels))


def _of_chances(predicted: Chances, name: str) -> float:
    """A metric that `evaluate` measures by default."""
    return class_measures(predicted.labels, predicted.values)[name]


def _of_numbers(predicted: Numbers, name: str) -> float:
    """A metric that `evaluate` measures by default."""
    return number_measures(predicted.labels, predicted.values)[name]


def _by_scikit(function: str, **settings: Any) -> Callable[[Any], Any]:
    """A metric of scikit-learn over labels and numbers, or over labels and the classes that rows are taken for."""

    def compute(predicted: Any) -> Any:
        from sklearn import metrics  # takes a while to load

        values = predicted.guessed if isinstance(predicted, Chances) else predicted.values
        return getattr(metrics, function)(predicted.labels, values, **settings)

    return compute


def _of_guesses(predicted: Chances, kind: str, average: str = "binary") -> Any:
    """F1, precision or recall: of the second of two classes, a mean over classes, or by class."""
    from sklearn import metrics

    how = None if average == "by_class" else average
    found = getattr(metrics, f"{kind}_score")(
        predicted.labels, predicted.guessed, average=how, labels=None if how == "binary" else predicted.classes,
        zero_division=0.0,
    )  # fmt: skip
    if how is not None:
        return found
    return {f"{kind}={name}": float(value) for name, value in zip(predicted.names, found, strict=True)}


def _average_precision(predicted: Chances) -> float:
    """Of the second of two classes; the mean of one against the rest for several; NaN where a class has no row."""
    from sklearn.metrics import average_precision_score

    chosen = [1] if len(predicted.classes) == 2 else predicted.classes
    found = [
        average_precision_score(predicted.labels == each, predicted.values[:, each])
        if np.any(predicted.labels == each)
        else np.nan
        for each in chosen
    ]
    return float(np.mean(found))


def _brier(predicted: Chances) -> float:
    """The mean squared error of probabilities, as scikit-learn scales it: of one class of two, summed over several."""
    right = predicted.labels[:, None] == predicted.classes
    errors = np.square(predicted.values - right).sum(axis=1)
    return float(errors.mean() / (2 if len(predicted.classes) == 2 else 1))


def _top(predicted: Chances, k: int) -> float:
    """How often the true class is among the k most probable ones; of equally probable ones the first count."""
    order = np.argsort(-predicted.values, axis=1, kind="stable")[:, :k]
    return float(np.mean(np.any(order == predicted.labels[:, None], axis=1)))


def _pinball(predicted: Numbers, alpha: float) -> float:
    from sklearn.metrics import mean_pinball_loss

    return float(mean_pinball_loss(predicted.labels, predicted.values, alpha=alpha))


_KINDS, _AVERAGES = ("f1", "precision", "recall"), ("macro", "micro", "weighted", "by_class")
_OF_CLASSES: dict[str, Callable[[Any], Any]] = {
    "accuracy": _accuracy,
    **{name: partial(_of_chances, name=name) for name in ("auc", "log_loss")},
    "roc_auc": partial(_of_chances, name="auc"),
    **{kind: partial(_of_guesses, kind=kind) for kind in _KINDS},
    **{f"{kind}_{how}": partial(_of_guesses, kind=kind, average=how) for kind in _KINDS for how in _AVERAGES},
    "balanced_accuracy": _by_scikit("balanced_accuracy_score"),
    "average_precision": _average_precision,
    "brier_score": _brier,
    "matthews_corrcoef": _by_scikit("matthews_corrcoef"),
    **{f"top_{k}_accuracy": partial(_top, k=k) for k in (2, 3, 5, 10)},
}
_OF_NUMBERS: dict[str, Callable[[Any], Any]] = {
    **{name: partial(_of_numbers, name=name) for name in ("rmse", "r2")},
    "mean_absolute_error": _by_scikit("mean_absolute_error"),
    "mean_squared_error": _by_scikit("mean_squared_error"),
    "median_absolute_error": _by_scikit("median_absolute_error"),
    "mean_absolute_percentage_error": _by_scikit("mean_absolute_percentage_error"),
    "max_error": _by_scikit("max_error"),
    "explained_variance": _by_scikit("explained_variance_score"),
}
