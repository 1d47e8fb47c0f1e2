"""The baselines of the FedOnce paper (section 5.1) on the pooled rows of parties in this process: Solo, Combine, trees.

Input: a relation of in-process parties. Output: predictions and metrics as learners give them. The rows of all
tables are materialised here, so this is for experiments with data that may be pooled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self

import msgspec
import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from tablepuppet.arrays import Array
from tablepuppet.baselines import Centralized, joined_tables
from tablepuppet.errors import LearnError
from tablepuppet.learn.learners.estimator import need_relation
from tablepuppet.learn.learners.fedonce import FedOnce, FedOnceClassifier
from tablepuppet.learn.learners.learner import label_of
from tablepuppet.learn.learners.linear import LinearRegression, LogisticRegression
from tablepuppet.learn.learners.not_fitted import NotFittedError, check_fitted
from tablepuppet.learn.learners.planner import tables_of
from tablepuppet.learn.learners.solver_learner import SolverLearner
from tablepuppet.learn.learners.split import SplitNN, SplitNNClassifier, SplitNNRegressor
from tablepuppet.learn.loss.measures import Metrics, class_measures, number_measures
from tablepuppet.learn.threads import need_torch, one_thread
from tablepuppet.prep.encode.encode import Encoding, apply_encoding
from tablepuppet.privacy.settings import Privacy
from tablepuppet.relation import Relation

if TYPE_CHECKING:
    from torch.nn import Module

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


class Combine(PooledEstimator):
    """One network on the columns of all tables, with layers of the widths ``hidden``, trained by Adam."""

    def __init__(
        self, task: str = "classification", hidden: Sequence[int] = (30, 30), epochs: int = 100, batch_size: int = 100,
        lr: float = 1e-3, l2: float = 1e-5, seed: int = 0,
    ):  # fmt: skip
        super().__init__(task, seed)
        self.hidden, self.epochs, self.batch_size, self.lr, self.l2 = hidden, epochs, batch_size, lr, l2

    def _learn(self, columns: Columns, labels: NDArray[Any]) -> None:
        torch = need_torch()
        classes = self.task == "classification"
        self.centre_, self.unit_ = (0.0, 1.0) if classes else (float(labels.mean()), float(labels.std()) or 1.0)
        rows = torch.from_numpy(columns)
        wanted = torch.from_numpy(labels if classes else ((labels - self.centre_) / self.unit_).astype(np.float32))
        loss = torch.nn.functional.cross_entropy if classes else _squared
        with one_thread(torch), torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            self.network_ = self._network(columns.shape[1], len(self.classes_) if classes else 1)
            adam = torch.optim.Adam(self.network_.parameters(), self.lr, weight_decay=self.l2, fused=True)
            for epoch in range(self.epochs):
                order = np.random.default_rng([self.seed, epoch]).permutation(len(rows))
                for places in np.array_split(order, max(1, round(len(rows) / self.batch_size))):
                    here = torch.from_numpy(places)
                    adam.zero_grad()
                    loss(self.network_(rows[here]), wanted[here]).backward()
                    adam.step()

    def _network(self, width: int, outputs: int) -> Module:
        torch = need_torch()
        layers: list[Any] = []
        for into, out in pairwise((width, *self.hidden, outputs)):
            layers += [torch.nn.Linear(into, out), torch.nn.ReLU()]
        network: Module = torch.nn.Sequential(*layers[:-1])
        return network

    def _scores(self, columns: Columns) -> Array:
        torch = need_torch()
        with one_thread(torch), torch.no_grad():
            outputs = self.network_(torch.from_numpy(columns))
            if self.task == "regression":
                return np.asarray(self.unit_ * outputs[:, 0].numpy().astype(np.float64) + self.centre_)
            return np.asarray(torch.softmax(outputs.double(), dim=1).numpy())


class Solo(Combine):
    """The same on the columns of the label's table alone: what its owner reaches without the others."""

    def _tables(self, label: str) -> list[str] | None:
        return [label]


class Boosted(PooledEstimator):
    """Gradient-boosted trees on the columns of all tables, with scikit-learn's settings (the paper has SecureBoost)."""

    def _learn(self, columns: Columns, labels: NDArray[Any]) -> None:
        kind = HistGradientBoostingClassifier if self.task == "classification" else HistGradientBoostingRegressor
        self.trees_ = kind(random_state=self.seed).fit(columns, labels)

    def _scores(self, columns: Columns) -> Array:
        trees = self.trees_
        return np.asarray(trees.predict(columns) if self.task == "regression" else trees.predict_proba(columns))


def _squared(outputs: Any, wanted: Any) -> Any:
    return 0.5 * (outputs[:, 0] - wanted).square().mean()


def splitnn_at(fitted: FedOnce) -> SplitNN:
    """SplitNN that is stopped when guests have sent and received as much as for a FedOnce model that was fitted.

    One epoch at half the width: the embedding of a row goes up, and the gradient by it comes down, so that both take as
    many numbers as the row's part of the one message, where rows are joined once.
    """
    check_fitted(fitted)
    kind = SplitNNClassifier if isinstance(fitted, FedOnceClassifier) else SplitNNRegressor
    half, bottom = max(1, int(fitted.embedding) // 2), fitted.bottom
    narrow: Any = (
        {alias: msgspec.structs.replace(each, outputs=half) for alias, each in bottom.items()}
        if isinstance(bottom, Mapping)
        else msgspec.structs.replace(bottom, outputs=half)
    )
    return kind(bottom=narrow, top=fitted.top, epochs=1, batch_size=fitted.batch_size, lr=fitted.lr, seed=fitted.seed)


def priv_baseline(learner: FedOnce, relation: Relation, epsilon: float, delta: float = 1e-5) -> FedOnce:
    """The same learner with ``epsilon`` for all tables together, given messages, divided simply: each has its part.

    FedOnce-L1 adds up Renyi divergences instead (moments division), and needs less noise for the same epsilon.
    """
    each = epsilon / max(1, len(tables_of(relation.query)))
    found: FedOnce = clone(learner).set_params(privacy=Privacy(feature_epsilon=each, delta=delta))
    return found


def linear_combine(task: str = "classification", **settings: Any) -> Centralized:
    """The FedOnce paper's Linear-Combine, to be fitted: a linear model on the pooled columns of all tables."""
    kinds: dict[str, type[SolverLearner]] = {"classification": LogisticRegression, "regression": LinearRegression}
    if task not in kinds:
        raise LearnError(f"task {task!r}: it is 'classification' or 'regression'")
    return Centralized(kinds[task](**settings))
