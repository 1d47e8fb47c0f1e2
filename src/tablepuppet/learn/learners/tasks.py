"""The two tasks, regression and classification: from labels to a loss, from scores to predictions and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.errors import LearnError
from tablepuppet.learn.labels.metrics import class_metrics, regression_metrics
from tablepuppet.learn.labels.noisy import check_label, class_question, kept, number_question
from tablepuppet.learn.learners.learner import Array, Learner, label_of
from tablepuppet.learn.learners.predictions import Predictions
from tablepuppet.learn.loss.joined_loss import JoinedLoss
from tablepuppet.learn.loss.logistic import Logistic
from tablepuppet.learn.loss.losses import Squared
from tablepuppet.learn.loss.measures import class_measures, number_measures, probabilities
from tablepuppet.learn.loss.softmax import Softmax
from tablepuppet.operators.client import Client, Pending
from tablepuppet.operators.joined_rows import SCORES, Block, JoinedRows
from tablepuppet.prep.label import (
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
from tablepuppet.spelling import names_checked
from tablepuppet.sql.plan import Plan
from tablepuppet.sql.query import OutputColumn


class Regressor(Learner):
    """Learns a number by least squares."""

    metric_name = "rmse"
    error_kinds = ("squared", "absolute")

    def check_label(self, plan: Plan) -> None:
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
        return JoinedLoss(Squared(), client.joined_rows(1, joined_numbers(client, label, asked)))

    def _held_out(
        self, client: Client, label: OutputColumn, asked: Pending, where: str = "in the validation relation"
    ) -> JoinedLoss:
        return self._prepare(client, label, asked)

    def metric(self, loss: JoinedLoss, value: float) -> float:
        return float(np.sqrt(2 * max(value, 0.0)))

    def predictions(self, relation: Relation) -> Predictions:
        """The predicted number of every joined row; each party is asked once."""
        return Predictions(self._scores(relation))

    @names_checked
    def evaluate(self, relation: Relation, *, at_party: bool = False) -> dict[str, float]:
        """Root mean squared error and R2; ``at_party``: measured by the label's party, as for classifiers."""
        self.check_relation(relation, "evaluate")
        if at_party:
            self._note_measured_at_party()
            return regression_metrics(relation.client, label_of(relation), self.predict(relation))
        return number_measures(*self._beside_labels(relation))

    def measures(self, rows: JoinedRows) -> dict[str, float]:
        """The metrics of `evaluate`, for rows with labels and scores."""
        block = rows.whole()
        return number_measures(block.labels, block[SCORES], block.weights)

    def _beside_labels(self, relation: Relation) -> tuple[Array, Array]:
        """(label, prediction) of every joined row."""
        self.check_promise(relation)
        label = label_of(relation)
        asked = self._ask_labels(relation.client, label)
        predicted = self.predict(relation)
        labels = joined_numbers(relation.client, label, asked)
        self._note_labels(relation)
        return labels, predicted

    def row_errors(self, relation: Relation, kind: str) -> Array:
        """The error of every joined row: ``squared`` or ``absolute``."""
        labels, predicted = self._beside_labels(relation)
        away = np.abs(labels - predicted)
        return away**2 if kind == "squared" else away


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

    def check_label(self, plan: Plan) -> None:
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
        return self._log_loss(client, found.numbers)

    def _held_out(
        self, client: Client, label: OutputColumn, asked: Pending, where: str = "in the validation relation"
    ) -> JoinedLoss:
        return self._log_loss(client, self._known(client, label, asked, where))

    def _log_loss(self, client: Client, numbers: NDArray[np.integer]) -> JoinedLoss:
        keep = kept(self.privacy, len(self.classes_)) if self.label_correction else 1.0
        if len(self.classes_) == 2:
            return JoinedLoss(Logistic(keep), client.joined_rows(1, numbers))
        return JoinedLoss(Softmax(len(self.classes_), keep), client.joined_rows(len(self.classes_), numbers))

    def _known(self, client: Client, label: OutputColumn, asked: Pending, where: str) -> NDArray[np.integer]:
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

    def predict_proba(self, relation: Relation) -> Array:
        """(joined rows, classes): the probability of each class, in the order of ``classes_``."""
        self.check_relation(relation, "predict_proba")
        return probabilities(self._scores(relation))

    def predictions(self, relation: Relation) -> Predictions:
        """The probability of each class for every joined row; each party is asked once."""
        return Predictions(self.predict_proba(relation), self.classes_)

    @names_checked
    def evaluate(self, relation: Relation, *, at_party: bool = False) -> dict[str, float]:
        """Accuracy, area under the ROC curve (one against the rest for several classes), log loss.

        The area is NaN where a class has no row. With ``at_party`` the label's party measures on its true labels and
        returns only the metrics; these have no noise. The area is then also NaN if rows of its table are joined more
        than once, or if the table has several shards.
        """
        self.check_relation(relation, "evaluate")
        if at_party:
            self._note_measured_at_party()
            probability = self.predict_proba(relation)
            return class_metrics(relation.client, label_of(relation), self.classes_, probability)
        return class_measures(*self._beside_labels(relation))

    def measures(self, rows: JoinedRows) -> dict[str, float]:
        """The metrics of `evaluate`, for rows with labels and scores."""
        block = rows.whole()
        return class_measures(block.labels, probabilities(block[SCORES]), block.weights)

    def _beside_labels(self, relation: Relation) -> tuple[NDArray[np.integer], Array]:
        """(class number, probabilities) of every joined row."""
        self.check_promise(relation)
        label = label_of(relation)
        asked = self._ask_labels(relation.client, label)
        probability = self.predict_proba(relation)
        numbers = self._known(relation.client, label, asked, "here")
        self._note_labels(relation)
        return numbers, probability

    def row_errors(self, relation: Relation, kind: str) -> Array:
        """The error of every joined row: ``wrong``, 0 or 1, or ``log_loss``."""
        numbers, probability = self._beside_labels(relation)
        if kind == "wrong":
            return np.asarray(probability.argmax(axis=1) != numbers, np.float64)
        own = np.take_along_axis(probability, numbers[:, None].astype(np.intp), axis=1)[:, 0]
        return np.asarray(-np.log(np.clip(own, np.finfo(own.dtype).eps, 1.0)))
