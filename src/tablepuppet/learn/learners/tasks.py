"""The two tasks, regression and classification: from labels to a loss, from scores to predictions and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array
from tablepuppet.errors import LearnError
from tablepuppet.learn.labels.metrics import class_metrics, regression_metrics
from tablepuppet.learn.labels.noisy import check_label, class_question, kept, number_question
from tablepuppet.learn.learners.learner import Learner
from tablepuppet.learn.loss.joined_loss import JoinedLoss
from tablepuppet.learn.loss.losses import Logistic, Squared
from tablepuppet.learn.loss.measures import Metrics, class_measures, number_measures, probabilities
from tablepuppet.learn.loss.softmax import Softmax
from tablepuppet.mapping.joined_rows import SCORES, Block, JoinedRows
from tablepuppet.operators.client import Client, Pending
from tablepuppet.prep.columns.label import (
    ask_classes,
    ask_numbers,
    check_classes,
    check_numbers,
    class_number_type,
    is_continuous,
    joined_classes,
    joined_numbers,
)
from tablepuppet.relation import Relation
from tablepuppet.sql.plan import Plan
from tablepuppet.sql.query import OutputColumn


class Regressor(Learner):
    """Learns a number by least squares."""

    metric_name = "rmse"
    error_kinds = ("squared", "absolute")

    def _check_label(self, plan: Plan) -> None:
        """Raise LearnError or PrivacyError if the label cannot be learned, as far as the catalog shows."""
        if plan.query.label is not None:
            check_numbers(plan.query.label)
        if self.privacy is not None and self.privacy.is_label_private:
            check_label(self.privacy, plan, classes=False)

    def _ask_labels(self, client: Client, label: OutputColumn) -> Pending:
        if self.privacy is None or not self.privacy.is_label_private:
            return ask_numbers(client, label)
        return ask_numbers(client, label, number_question(self.privacy))

    def _prepare(self, client: Client, label: OutputColumn, asked: Pending) -> JoinedLoss:
        return self._loss(client, joined_numbers(client, label, asked))

    def _labels(self, client: Client, label: OutputColumn, asked: Pending, where: str) -> Array:
        return joined_numbers(client, label, asked)

    def _loss(self, client: Client, labels: NDArray[Any]) -> JoinedLoss:
        return JoinedLoss(Squared(), client.rows.of_scores(1, labels))

    def metric(self, loss: JoinedLoss, value: float) -> float:
        return float(np.sqrt(2 * max(value, 0.0)))

    def _constant_metric(self, loss: JoinedLoss, value: float) -> float:
        return self.metric(loss, value)

    def _predicted(self, scores: Array) -> Array:
        return scores

    def _measured(self, labels: NDArray[Any], predicted: Array) -> Metrics:
        return number_measures(labels, predicted)

    def _measures(self, rows: JoinedRows) -> Metrics:
        return rows.at_once(_number_measures)

    def _measured_at_party(self, client: Client, label: OutputColumn, predicted: Array) -> Metrics:
        return regression_metrics(client, label, predicted)

    def _errors(self, labels: NDArray[Any], predicted: Array, kind: str) -> Array:
        away = np.abs(labels - predicted)
        return away**2 if kind == "squared" else away


def _number_measures(block: Block) -> Metrics:
    return number_measures(block.labels, block[SCORES], block.weights)


def _class_measures(block: Block) -> Metrics:
    return class_measures(block.labels, probabilities(block[SCORES]), block.weights)


def _right(block: Block) -> float:
    """How many joined rows have their highest score at their true class."""
    scores, numbers, weights = block[SCORES], block.labels, block.weights
    if scores.ndim == 1:
        right = (scores > 0) == numbers
    else:
        highest, guess = scores[:, 0].copy(), np.zeros_like(numbers)
        for number, column in enumerate(scores.T[1:], start=1):
            np.copyto(guess, number, where=column > highest)
            np.maximum(highest, column, out=highest)
        right = guess == numbers
    return float(np.count_nonzero(right) if weights is None else weights @ right)


class Classifier(Learner):
    """Learns a class by log loss: one score for two classes, one score per class for more."""

    metric_name = "accuracy"
    error_kinds = ("wrong", "log_loss")
    learns_classes = True

    def _check_label(self, plan: Plan) -> None:
        """Raise LearnError or PrivacyError if the label cannot be learned, as far as the catalog shows."""
        if plan.query.label is not None:
            check_classes(plan.query.label)
        if self.privacy is not None and self.privacy.is_label_private:
            check_label(self.privacy, plan, classes=True)

    def _ask_labels(self, client: Client, label: OutputColumn) -> Pending:
        if self.privacy is None or not self.privacy.is_label_private:
            return ask_classes(client, label)
        return ask_classes(client, label, class_question(self.privacy))

    def _prepare(self, client: Client, label: OutputColumn, asked: Pending) -> JoinedLoss:
        found = joined_classes(client, label, asked)
        if is_continuous(found.values):
            raise LearnError(
                f"label {label.qualified} has {len(found.values):,} values that are not whole numbers, which are no "
                f"classes; use a regressor, or make classes of it in SELECT, by CASE {client.owners(label.alias)}"
            )
        self.classes_ = found.values
        return self._loss(client, found.numbers)

    def _loss(self, client: Client, labels: NDArray[Any]) -> JoinedLoss:
        keep = kept(self.privacy, len(self.classes_)) if self.label_correction else 1.0
        if len(self.classes_) == 2:
            return JoinedLoss(Logistic(keep), client.rows.of_scores(1, labels))
        return JoinedLoss(Softmax(len(self.classes_), keep), client.rows.of_scores(len(self.classes_), labels))

    def _labels(self, client: Client, label: OutputColumn, asked: Pending, where: str) -> NDArray[np.integer]:
        """The class number of every joined row; LearnError for a class that the model was not fitted on."""
        found = joined_classes(client, label, asked, least=1)
        new = np.setdiff1d(found.values, self.classes_)
        if len(new):
            raise LearnError(
                f"label {label.qualified} has {len(new)} classes {where} that the model was not fitted on "
                f"{client.owners(label.alias)}"
            )
        places = np.searchsorted(self.classes_, found.values)
        return np.asarray(places.astype(class_number_type(len(self.classes_)))[found.numbers])

    def facts(self) -> dict[str, Any]:
        """Facts of the fit to save, with the classes."""
        values = self.classes_.tolist()
        return super().facts() | {"classes": values, "class_type": type(values[0]).__name__}

    def restore(self, facts: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore facts and arrays; classes that are dates are parsed, since JSON stores them as text."""
        super().restore(facts, arrays)
        read = {"date": date.fromisoformat, "datetime": datetime.fromisoformat}.get(facts["class_type"])
        self.classes_ = np.array(facts["classes"] if read is None else [read(each) for each in facts["classes"]])

    def metric(self, loss: JoinedLoss, value: float) -> float:
        return float(loss.rows.total(_right) / loss.rows.joined)

    def _constant_metric(self, loss: JoinedLoss, value: float) -> float:
        constant = loss.best_constant()
        return float(probabilities(constant if loss.outputs == 1 else constant[None]).max())  # the largest share

    def predict_proba(self, relation: Relation) -> Array:
        """(joined rows, classes): the probability of each class, in the order of ``classes_``."""
        self.check_relation(relation, "predict_proba")
        return self._predicted(self._scores(relation))

    def _predicted(self, scores: Array) -> Array:
        return probabilities(scores)

    def _measured(self, labels: NDArray[Any], predicted: Array) -> Metrics:
        return class_measures(labels, predicted)

    def _measures(self, rows: JoinedRows) -> Metrics:
        return rows.at_once(_class_measures)

    def _measured_at_party(self, client: Client, label: OutputColumn, predicted: Array) -> Metrics:
        return class_metrics(client, label, self.classes_, predicted)

    def _errors(self, labels: NDArray[Any], predicted: Array, kind: str) -> Array:
        if kind == "wrong":
            return np.asarray(predicted.argmax(axis=1) != labels, np.float64)
        own = np.take_along_axis(predicted, labels[:, None].astype(np.intp), axis=1)[:, 0]
        return np.asarray(-np.log(np.clip(own, np.finfo(own.dtype).eps, 1.0)))
