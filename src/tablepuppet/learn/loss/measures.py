"""How good predictions are: scikit-learn's metrics over joined rows; a row may count several times.

The area under the ROC curve needs one sort, of whole numbers that contain probability and label. That is several times
faster than sorting row indices.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tablepuppet.arrays import Array
from tablepuppet.errors import LearnError
from tablepuppet.pieces import over_pieces
from tablepuppet.runs.figures import metric, metric_name, metrics_line
from tablepuppet.runs.fitted_text import in_window
from tablepuppet.runs.table_view import ArrowStream, TableView, aligned

Classes = NDArray[np.integer[Any]]
SMALLEST = float(np.finfo(np.float64).eps)  # of probabilities in a log loss, as in scikit-learn


class Metrics(dict[str, float], ArrowStream):
    """Metrics by name, and in ``constant`` those of the best model without features on the same labels.

    It predicts the shares of the classes, or the mean of the labels. Both are printed; in a notebook they are a table.
    """

    def __init__(self, values: Mapping[str, float], constant: Mapping[str, float]):
        super().__init__(values)
        self.constant = dict(constant)

    def to_arrow(self) -> pa.Table:
        """One row per metric: its name, of the model, of the constant."""
        columns = [list(self), list(self.values()), [self.constant[name] for name in self]]
        return pa.table(dict(zip(("metric", "model", "constant"), columns, strict=True)))

    def table_view(self) -> TableView:
        """One row per metric."""
        rows = [[metric_name(name), metric(name, self[name]), metric(name, self.constant[name])] for name in self]
        return TableView("", aligned(["metric"], ["model", "constant"]), rows)

    def __repr__(self) -> str:
        return metrics_line(self, self.constant)

    def __str__(self) -> str:
        return in_window(repr(self))

    def _repr_html_(self) -> str:
        return self.table_view().html()


def constant_classes(rows: Array) -> dict[str, float]:
    """Metrics of a model that predicts the share of each class, from the number of rows of each class.

    >>> constant_classes(np.array([3.0, 1.0, 0.0]))
    {'accuracy': 0.75, 'auc': 0.5, 'log_loss': 0.5623351446188083}
    """
    shares = rows[rows > 0] / rows.sum()
    return {"accuracy": float(shares.max()), "auc": 0.5, "log_loss": float(-shares @ np.log(shares))}


def constant_number(rows: float, spread: float) -> dict[str, float]:
    """Metrics of a model that predicts the mean; ``spread`` is the sum of squares of labels less their mean."""
    return {"rmse": float(np.sqrt(max(spread, 0.0) / rows)), "r2": 0.0}


def probabilities(scores: Array) -> Array:
    """(rows, classes): the probability of each class, from log odds, or from one score per class."""
    from scipy.special import expit, softmax  # parties have the rest of this file, and no SciPy

    if scores.ndim == 1:
        probability = expit(scores)
        return np.stack([1 - probability, probability], axis=1)
    return np.asarray(softmax(scores, axis=1))


def class_measures(labels: Classes, chances: Array, weights: Array | None = None) -> Metrics:
    """Accuracy, area under the ROC curve (the mean of one against the rest for several classes), log loss.

    ``chances`` are (rows, classes). The area is NaN where a class has no row.
    """
    _check_rows(len(labels))

    def sums(part: slice) -> tuple[float, float]:
        """(rows that are right, their log likelihood)."""
        here, numbers = chances[part], labels[part].astype(np.intp)
        own = np.take_along_axis(here, numbers[:, None], axis=1)[:, 0]
        logs = np.log(np.clip(own, SMALLEST, 1 - SMALLEST))
        some = None if weights is None else weights[part]
        return _sum(here.argmax(axis=1) == numbers, some), _sum(logs, some)

    rows = len(labels) if weights is None else float(weights.sum())
    right, logs = np.sum([found for _, found in over_pieces(sums, len(labels))], axis=0)
    with_area = range(1, 2) if chances.shape[1] == 2 else range(chances.shape[1])
    areas = [roc_area(chances[:, number], labels == number, weights) for number in with_area]
    found = {"accuracy": float(right / rows), "auc": float(np.mean(areas)), "log_loss": float(-logs / rows)}
    return Metrics(found, constant_classes(np.bincount(labels, weights, chances.shape[1]).astype(np.float64)))


def number_measures(labels: Array, predicted: Array, weights: Array | None = None) -> Metrics:
    """Root mean squared error and R2, which is NaN for a single row."""
    _check_rows(len(labels))
    rows = len(labels) if weights is None else float(weights.sum())
    mean = _sum(labels, weights) / rows
    error, spread = _sum((labels - predicted) ** 2, weights), _sum((labels - mean) ** 2, weights)
    r2 = 1 - error / spread if spread else float(not error)
    found = {"rmse": float(np.sqrt(error / rows)), "r2": r2 if rows > 1 else float("nan")}
    return Metrics(found, constant_number(rows, spread))


def _check_rows(rows: int) -> None:
    if not rows:
        raise LearnError("there are no joined rows to measure predictions on")


def _sum(values: NDArray[Any], weights: Array | None) -> float:
    return float(values.sum() if weights is None else weights @ values)


def roc_area(chance: Array, positive: NDArray[np.bool_], weights: Array | None = None) -> float:
    """The share of pairs, one positive and one not, whose probabilities are in this order; equal ones count half.

    >>> roc_area(np.array([0.1, 0.4, 0.4, 0.8]), np.array([False, False, True, True]))
    0.875
    """
    if not len(chance):
        return float("nan")
    words: NDArray[Any]
    if weights is None:
        exact = np.ascontiguousarray(chance, np.float64)
        words = exact.view(np.int64) * 2  # numbers from 0 to 1 are in the order of their bits
        words += positive
        words.sort()
        ones = np.cumsum(words & 1, dtype=np.float64)
        words >>= 1
        total = np.arange(1, len(words) + 1, dtype=np.float64)
    else:
        order = np.argsort(chance)
        words, weights = chance[order], weights[order]
        ones, total = np.cumsum(weights * positive[order]), np.cumsum(weights)
    ends = np.append(np.flatnonzero(words[1:] != words[:-1]), len(words) - 1)  # of equal probabilities
    ones = np.append(0.0, ones[ends])
    zeros = np.append(0.0, total[ends]) - ones
    if not ones[-1] or not zeros[-1]:
        return float("nan")
    below = np.diff(ones) @ (zeros[1:] + zeros[:-1]) / 2
    return float(below / (ones[-1] * zeros[-1]))
