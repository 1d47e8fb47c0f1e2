"""Random forests over a relation: trees grown side by side, each from rows drawn with replacement, and averaged.

They are trees of squared errors of the label, or of the share of each class. Scores of classifiers are shares.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array
from tablepuppet.errors import LearnError
from tablepuppet.learn.learners.tasks import Regressor
from tablepuppet.learn.learners.trees import (
    FEATURES,
    LEAVES,
    OPTIONAL,
    PARTS,
    Counts,
    GradientBoosting,
    WeightedClasses,
)
from tablepuppet.learn.loss.growing import ClassWeighted, Shares
from tablepuppet.learn.loss.joined_loss import JoinedLoss
from tablepuppet.learn.loss.losses import Loss
from tablepuppet.learn.loss.measures import Metrics, class_measures
from tablepuppet.learn.registry import learner
from tablepuppet.learn.settings import COUNT, SWITCH, setting
from tablepuppet.learn.trees.boost import Sample
from tablepuppet.mapping.joined_rows import SCORES, Block, JoinedRows
from tablepuppet.operators.client import Client
from tablepuppet.relation import Relation


class Forest(GradientBoosting):
    """Averaged trees."""

    is_mean: ClassVar[bool] = True
    rounds_setting: ClassVar[str] = "n_estimators"
    max_iter: int = 0  # these seven are of boosting
    learning_rate: float = 1.0
    l2_regularization: float = 0.0
    early_stopping: bool = False
    validation_fraction: float = 0.1
    n_iter_no_change: int = 0
    subsample: float = 1.0

    n_estimators: int = setting(
        default=100, kind=COUNT, help="rounds: in each a tree, or one for each of several classes"
    )
    max_depth: int | None = setting(
        default=10, kind=OPTIONAL, help="splits from the root to a leaf: each level is a trip"
    )
    max_leaf_nodes: int | None = setting(default=None, kind=LEAVES, help="leaves of a tree; None: no limit")
    min_samples_leaf: int = setting(
        default=1, kind=COUNT, help="joined rows of a leaf, at least, as often as they are drawn"
    )
    bootstrap: bool = setting(
        default=True,
        kind=SWITCH,
        help="each tree learns from rows of the label's table drawn with replacement, in 64 parts",
    )

    def _sample(self, relation: Relation) -> Sample | None:
        label = relation.query.label
        return self._drawn_rows(relation, label.alias, _with_replacement) if self.bootstrap and label else None


def _with_replacement(rng: np.random.Generator) -> Counts:
    return np.bincount(rng.integers(0, PARTS, PARTS), minlength=PARTS)


@learner
class RandomForestRegressor(Regressor, Forest):
    """Regression by averaged trees."""

    def _objective(self) -> str:
        return "reg:squarederror"


@learner
class RandomForestClassifier(WeightedClasses, Forest):
    """Classification of two or more classes by averaged trees, one for each of several classes."""

    max_features: float | str = setting(
        default="sqrt",
        kind=FEATURES,
        help="of classifiers; share of all columns that each node may be split by, drawn anew for each node",
    )

    def _loss(self, client: Client, labels: NDArray[Any]) -> JoinedLoss:
        shares, by_class = Shares(len(self.classes_)), getattr(self, "_by_class", None)
        pointwise: Loss = shares if by_class is None else ClassWeighted(shares, by_class)
        return JoinedLoss(pointwise, client.rows.of_scores(shares.outputs, labels))

    def metric(self, loss: JoinedLoss, value: float) -> float:
        """The share of joined rows whose class has the largest score."""
        return float(loss.rows.total(_right) / loss.rows.joined)

    def _predicted(self, scores: Array) -> Array:
        return _shares(scores)

    def _measures(self, rows: JoinedRows) -> Metrics:
        return rows.at_once(_measures)

    def _objective(self) -> str:
        if len(self.classes_) > 2:
            raise LearnError("export: XGBoost has no forest of shares of several classes; export one of two classes")
        return "reg:squarederror"


def _shares(scores: Array) -> Array:
    """(rows, classes) that add up to 1."""
    if scores.ndim == 1:
        second = np.clip(scores, 0.0, 1.0)
        return np.stack([1 - second, second], axis=1)
    positive = np.maximum(scores, 0.0)
    return np.asarray(positive / np.maximum(positive.sum(axis=1, keepdims=True), np.finfo(float).tiny))


def _right(block: Block) -> float:
    right = _shares(block[SCORES]).argmax(axis=1) == block.labels
    return float(np.count_nonzero(right) if block.weights is None else block.weights @ right)


def _measures(block: Block) -> Metrics:
    return class_measures(block.labels, _shares(block[SCORES]), block.weights)
