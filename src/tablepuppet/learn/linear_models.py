"""The linear learners: regression, and classification of two or more classes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Literal

import numpy as np
from sklearn.utils.validation import check_is_fitted

from tablepuppet.errors import PrivacyError
from tablepuppet.learn.admm import SharingRule
from tablepuppet.learn.consensus import CONSENSUS_TOL, Inner
from tablepuppet.learn.descent import Rule, descend
from tablepuppet.learn.estimator import BATCH_SIZE, SINGLE_PRECISION_TOL, Array, Learner
from tablepuppet.learn.feature_promise import FeaturePromise
from tablepuppet.learn.lbfgs import GradientRule
from tablepuppet.learn.linear import LinearModel, by_column
from tablepuppet.learn.losses import Loss
from tablepuppet.learn.noisy_descent import solve_by_steps
from tablepuppet.learn.private_linear import PrivateLinearModel
from tablepuppet.learn.saved_model import SavedModel
from tablepuppet.learn.settings import Solver
from tablepuppet.learn.sgd import Stochastic, descend_by_batches
from tablepuppet.learn.step_promise import StepPromise, sampling_of
from tablepuppet.learn.stored import Stored
from tablepuppet.learn.tasks import Classifier, Regressor
from tablepuppet.learn.threads import one_thread
from tablepuppet.learn.validation import Watched
from tablepuppet.learn.watch import Watch
from tablepuppet.privacy.settings import Privacy
from tablepuppet.runs.events import Event
from tablepuppet.sql.query import OutputColumn
from tablepuppet.wire.engine import Engine

if TYPE_CHECKING:
    from tablepuppet.relation import Relation


class LinearLearner(Learner):
    """A linear model over a relation."""

    def __init__(
        self,
        *,
        solver: Solver = "auto",
        rounds: int | Literal["auto"] = "auto",
        batch_size: int = BATCH_SIZE,
        lr: float | Literal["auto"] = "auto",
        momentum: float = 0.0,
        l2: float = 1e-6,
        rho: float | Literal["auto"] = "auto",
        inner_rounds: int | Literal["auto"] = "auto",
        inner_rho: float | Literal["auto"] = "auto",
        local_steps: int = 20,
        tol: float = 1e-15,
        patience: int = 5,
        reduce: bool = True,
        seed: int = 0,
        privacy: Privacy | None = None,
        label_correction: bool = False,
        callbacks: Iterable[Callable[[Event], None]] = (),
    ):
        self.solver = solver
        self.rounds = rounds
        self.batch_size = batch_size
        self.lr = lr
        self.momentum = momentum
        self.l2 = l2
        self.rho = rho
        self.inner_rounds = inner_rounds
        self.inner_rho = inner_rho
        self.local_steps = local_steps
        self.tol = tol
        self.patience = patience
        self.reduce = reduce
        self.seed = seed
        self.privacy = privacy
        self.label_correction = label_correction
        self.callbacks = callbacks

    @property
    def coef_(self) -> dict[str, Array]:
        """Parameters by encoded column: ``alias.column``, or ``alias.column=code`` for a category."""
        check_is_fitted(self, "model_")
        return by_column(self.encoding_, self.model_.parameters())

    def saved(self, stored: Stored, engine: Engine, wire: str, outputs: int) -> SavedModel:
        """A model with these parameters, for predictions only."""
        return SavedModel("linear", self.encoding_, stored, engine, wire, outputs)

    def _train(self, relation: Relation, loss: Loss, watch: Watch) -> tuple[Watched, Array]:
        with one_thread():  # parties, and pieces of the joined rows, are worked on at the same time
            return self._solve(relation, loss, watch)

    def _solve(self, relation: Relation, loss: Loss, watch: Watch) -> tuple[Watched, Array]:
        client, wire = relation.client, relation.wire
        inner = None if isinstance(self.inner_rounds, str) else Inner(self.inner_rounds, self.inner_rho)
        if self.promise_ is not None:
            return self._solve_privately(relation, loss, watch, self.promise_)
        model = LinearModel(client, self.encoding_, wire, loss.outputs, self.l2, client.new_name(), inner)
        report = watch.of(model)
        if self.solver_ == "sgd":
            lr = 1 / (loss.most_curvature * model.largest) if isinstance(self.lr, str) else self.lr
            rates = [lr / (1 + epoch / 2) for epoch in range(self.most_rounds)]
            steps = Stochastic(model, self.momentum)
            return model, descend_by_batches(steps, loss, rates, self.batch_size, self.seed, report)
        gradient = GradientRule(loss)
        rule = gradient if self.solver_ == "lbfgs" else self._sharing(model, loss, len(relation))
        tol = max(self.tol, SINGLE_PRECISION_TOL if wire == "float32" else 0.0, CONSENSUS_TOL if inner else 0.0)
        intercept, self.converged_ = descend(model, loss, rule, gradient, self.most_rounds, tol, report)
        return model, intercept

    def _solve_privately(
        self, relation: Relation, loss: Loss, watch: Watch, promise: FeaturePromise
    ) -> tuple[Watched, Array]:
        if isinstance(promise, StepPromise):
            return solve_by_steps(self, relation, loss, watch, promise, None)
        client = relation.client
        model = PrivateLinearModel(
            client, self.encoding_, relation.wire, loss.outputs, self.l2, client.new_name(), promise.noise
        )
        gradient = GradientRule(loss)
        rule = gradient if self.solver_ == "lbfgs" else self._sharing(model, loss, len(relation))
        intercept, self.converged_ = descend(model, loss, rule, gradient, promise.rounds, self.tol, watch.of(model))
        return model, intercept

    def _check_private(self) -> None:
        if not isinstance(self.inner_rounds, str):
            raise PrivacyError("inner_rounds: consensus tells parameters without noise; leave it at 'auto'")
        if not self.reduce:
            raise PrivacyError("reduce=False tells a row as often as it is joined, without noise; leave it at True")

    def _new_promise(
        self, privacy: Privacy, columns: tuple[OutputColumn, ...], categorical: frozenset[str], rounds: int | None,
        rows: Mapping[str, int],
    ) -> FeaturePromise:  # fmt: skip
        if self.solver != "sgd":
            return super()._new_promise(privacy, columns, categorical, rounds, rows)
        samplings = sampling_of(self.batch_size, BATCH_SIZE, rows)
        return StepPromise(privacy, columns, categorical, rounds, self.local_steps, samplings)

    def _sharing(self, model: LinearModel, loss: Loss, joined_rows: int) -> Rule:
        shape = (joined_rows,) if loss.outputs == 1 else (joined_rows, loss.outputs)
        return SharingRule(loss, len(model.tables), self.rho, np.zeros(shape, order="F") + loss.best_constant())


class LinearRegression(Regressor, LinearLearner):
    """Least squares with an L2 penalty: scikit-learn's Ridge with alpha = l2 * joined rows, over a relation."""


class LogisticRegression(Classifier, LinearLearner):
    """Logistic regression of two classes, softmax regression of more, over a relation.

    scikit-learn's LogisticRegression with C = 1 / (l2 * joined rows).
    """
