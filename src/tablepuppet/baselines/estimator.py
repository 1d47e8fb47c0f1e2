"""Estimators on the joined rows of parties in this process, pooled: what networks across parties are compared with.

Input: a relation of in-process parties. Output: predictions and metrics as learners give them. The rows of all
tables are materialised here, so this is for experiments with data that may be pooled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from tablepuppet.baselines.pooled import joined_tables
from tablepuppet.errors import LearnError
from tablepuppet.learn.learners.estimator import need_relation
from tablepuppet.learn.learners.learner import label_of
from tablepuppet.learn.learners.not_fitted import NotFittedError
from tablepuppet.learn.loss.measures import Metrics, class_measures, number_measures
from tablepuppet.prep.encode.encode import Encoding, apply_encoding

if TYPE_CHECKING:
    from tablepuppet.relation import Relation

Columns = NDArray[np.float32]


class PooledEstimator(BaseEstimator, ABC):  # type: ignore[misc]
    """Fits something to the encoded columns of the join, those of one table or of all, in the order of the query."""

    encoding_: Encoding

    def __init__(self, task: str = "classification", seed: int = 0):
        self.task, self.seed = task, seed

    def fit(self, relation: Relation) -> Self:
        """Materialise the encoded join and learn from it."""
        need_relation(relation, "fit")
        label = label_of(relation)
        if self.task not in ("classification", "regression"):
            raise LearnError(f"task {self.task!r}: it is 'classification' or 'regression'")
        self.tables_ = self._tables(label.alias)
        relation = relation.to_learn()
        self.encoding_ = relation.fit_encoding()
        labels = relation.label()
        if self.task == "classification":
            self.classes_, labels = np.unique(labels, return_inverse=True)
            if len(self.classes_) < 2:
                raise LearnError(f"label {label.qualified} has one class only; there is nothing to learn")
        self._learn(self._columns(relation), labels)
        return self

    def predict(self, relation: Relation) -> NDArray[Any]:
        """The predicted number or class of every joined row, in the order of ``rows()``."""
        scores = self._scores(self._encoded(relation))
        return scores if self.task == "regression" else np.asarray(self.classes_[scores.argmax(axis=1)])

    def predict_proba(self, relation: Relation) -> NDArray[np.float64]:
        """(joined rows, classes)."""
        if self.task == "regression":
            raise LearnError("a regression has no probabilities; use predict")
        return self._scores(self._encoded(relation))

    def evaluate(self, relation: Relation) -> Metrics:
        """{"accuracy", "auc", "log_loss"} or {"rmse", "r2"}, as learners measure them."""
        labels = relation.label()
        scores = self._scores(self._encoded(relation))
        if self.task == "regression":
            return number_measures(labels, scores)
        if len(new := np.setdiff1d(labels, self.classes_)):
            raise LearnError(f"the label has {len(new)} classes here that the model was not fitted on")
        return class_measures(np.searchsorted(self.classes_, labels), scores)

    def _tables(self, label: str) -> list[str] | None:
        """The aliases of the tables whose columns are used; None for all. ``label`` is that of the label's table."""
        return None

    @abstractmethod
    def _learn(self, columns: Columns, labels: NDArray[Any]) -> None:
        """Fit to the columns; labels of classes are their numbers."""

    @abstractmethod
    def _scores(self, columns: Columns) -> NDArray[np.float64]:
        """Numbers, (rows,), or probabilities, (rows, classes)."""

    def _encoded(self, relation: Relation) -> Columns:
        if not hasattr(self, "encoding_"):
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet: call fit before it is used")
        apply_encoding(relation.client, self.encoding_)
        return self._columns(relation)

    def _columns(self, relation: Relation) -> Columns:
        """The encoded columns of every joined row, (rows, columns)."""
        tables = joined_tables(relation.client, self.encoding_)
        chosen = tables if self.tables_ is None else {alias: tables[alias] for alias in self.tables_ if alias in tables}
        parts = [table.matrix().astype(np.float32) for table in chosen.values()]
        return np.concatenate([np.zeros((len(relation), 0), np.float32), *parts], axis=1)
