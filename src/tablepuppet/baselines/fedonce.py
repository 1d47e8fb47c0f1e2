"""The baselines of the FedOnce paper (section 5.1), trained on pooled rows: Solo, Combine, trees.

Its Linear-Combine is `baselines.linear_combine`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from tablepuppet.arrays import Array
from tablepuppet.baselines.estimator import Columns, PooledEstimator
from tablepuppet.learn.learners.fedonce import FedOnce, FedOnceClassifier
from tablepuppet.learn.learners.not_fitted import check_fitted
from tablepuppet.learn.learners.planner import tables_of
from tablepuppet.learn.learners.split import SplitNN, SplitNNClassifier, SplitNNRegressor
from tablepuppet.learn.threads import need_torch, one_thread
from tablepuppet.privacy.settings import Privacy
from tablepuppet.relation import Relation

if TYPE_CHECKING:
    from torch.nn import Module


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
