"""What is learned: a number, or a class. How labels become a loss, and scores become predictions and metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax
from sklearn import metrics

from tablepuppet.learn.estimator import Array, Learner
from tablepuppet.learn.labels import joined_classes, joined_numbers
from tablepuppet.learn.losses import Logistic, Loss, Softmax, Squared
from tablepuppet.operators.client import Client
from tablepuppet.sql.query import OutputColumn

if TYPE_CHECKING:
    from tablepuppet.relation import Relation


class Regressor(Learner):
    """Learns a number by least squares."""

    metric_name = "rmse"

    def _prepare(self, client: Client, label: OutputColumn) -> Loss:
        self._labels = joined_numbers(client, label)
        return Squared(self._labels)

    def _metric(self, scores: Array) -> float:
        error = scores - self._labels
        return float(np.sqrt(error @ error / len(error)))

    def predict(self, relation: Relation) -> Array:
        """The predicted label of every joined row, in the order of ``rows()``."""
        return self._scores(relation)

    def evaluate(self, relation: Relation) -> dict[str, float]:
        """Root mean squared error and R2."""
        predicted = self.predict(relation)
        assert relation.query.label is not None
        labels = joined_numbers(relation.client, relation.query.label)
        return {
            "rmse": float(metrics.root_mean_squared_error(labels, predicted)),
            "r2": float(metrics.r2_score(labels, predicted)),
        }


class Classifier(Learner):
    """Learns a class by log loss: of one score for two classes, of a score for each class for more."""

    metric_name = "accuracy"

    def _prepare(self, client: Client, label: OutputColumn) -> Loss:
        found = joined_classes(client, label)
        self.classes_, self._numbers = found.values, found.numbers
        if len(found.values) == 2:
            return Logistic(found.numbers.astype(np.float64))
        return Softmax(found.numbers, len(found.values))

    def _metric(self, scores: Array) -> float:
        guess = (scores > 0).astype(self._numbers.dtype) if scores.ndim == 1 else scores.argmax(axis=1)
        return float(np.mean(guess == self._numbers))

    def predict_proba(self, relation: Relation) -> Array:
        """(joined rows, classes): the probability of each class, in the order of ``classes_``."""
        scores = self._scores(relation)
        if scores.ndim == 1:
            probability = expit(scores)
            return np.stack([1 - probability, probability], axis=1)
        return np.asarray(softmax(scores, axis=1))

    def predict(self, relation: Relation) -> NDArray[Any]:
        """The most probable class of every joined row, in the order of ``rows()``."""
        probability = self.predict_proba(relation)
        chosen: NDArray[Any] = self.classes_[probability.argmax(axis=1)]
        return chosen

    def evaluate(self, relation: Relation) -> dict[str, float]:
        """Accuracy, area under the ROC curve (one against the rest for several classes), log loss."""
        probability = self.predict_proba(relation)
        assert relation.query.label is not None
        found = joined_classes(relation.client, relation.query.label)
        labels = found.values[found.numbers]
        two = len(self.classes_) == 2
        auc = metrics.roc_auc_score(
            labels,
            probability[:, 1] if two else probability,
            multi_class="raise" if two else "ovr",
            labels=self.classes_,
        )
        return {
            "accuracy": float(np.mean(self.classes_[probability.argmax(axis=1)] == labels)),
            "auc": float(auc),
            "log_loss": float(metrics.log_loss(labels, probability, labels=self.classes_)),
        }
