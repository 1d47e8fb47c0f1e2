"""Baselines for experiments with data that may be pooled."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from scipy.optimize import minimize
from sklearn.base import BaseEstimator, clone

from tablepuppet.arrays import Array
from tablepuppet.baselines.fedonce import Boosted as Boosted
from tablepuppet.baselines.fedonce import Combine as Combine
from tablepuppet.baselines.fedonce import Solo as Solo
from tablepuppet.baselines.fedonce import priv_baseline as priv_baseline
from tablepuppet.baselines.fedonce import splitnn_at as splitnn_at
from tablepuppet.baselines.networks import train_networks
from tablepuppet.baselines.pooled import PooledModel, joined_tables
from tablepuppet.errors import LearnError
from tablepuppet.learn.learners.estimator import need_relation
from tablepuppet.learn.learners.learner import label_of
from tablepuppet.learn.learners.linear import LinearRegression, LogisticRegression
from tablepuppet.learn.learners.network import NetworkLearner
from tablepuppet.learn.learners.not_fitted import NotFittedError
from tablepuppet.learn.learners.solver_learner import SolverLearner
from tablepuppet.learn.learners.watch import CONVERGED, USED_UP
from tablepuppet.learn.loss.joined_loss import JoinedLoss
from tablepuppet.learn.loss.losses import Loss, Squared
from tablepuppet.learn.rounds import Round
from tablepuppet.learn.solve.allowance import RoundAllowance
from tablepuppet.learn.tables.parameters import TableParameters
from tablepuppet.operators.client import Client
from tablepuppet.prep.encode.encode import Encoding
from tablepuppet.runs.events import RoundRecord
from tablepuppet.runs.table_view import Records
from tablepuppet.store.parts import Model

if TYPE_CHECKING:
    from tablepuppet.relation import Relation


class Centralized(BaseEstimator):  # type: ignore[misc]
    """Trains exactly the same function as a learner, on the materialised join. In-process parties only.

    A linear model is solved to the end. Networks begin at the learner's own first parameters; they take its
    mini-batches for ``solver="sgd"``, else ``rounds`` iterations of L-BFGS. ``learner_`` is the fitted
    learner; what it has, as ``predict``, ``evaluate``, ``coef_``, ``history_`` and ``save``, this has too.
    """

    def __init__(self, learner: SolverLearner):
        self.learner = learner

    def fit(self, relation: Relation) -> Self:
        """Materialise the encoded join and minimise the learner's objective on it."""
        if not isinstance(self.learner, SolverLearner):
            raise LearnError(f"Centralized trains linear models and tp.MLP*, not {type(self.learner).__name__}")
        learner = clone(self.learner)
        learner.check_settings()
        need_relation(relation, "fit")
        learner.check_promise(relation)
        label, relation = label_of(relation), relation.to_learn()
        asked = learner._ask_labels(relation.client, label)
        encoding = relation.fit_encoding()
        loss = learner._prepare(relation.client, label, asked)
        diary = Diary(learner, loss)
        learner.plan_rounds(len(relation), lambda _: RoundAllowance(()))
        train = train_networks if isinstance(learner, NetworkLearner) else _train_linear
        model, intercept = train(learner, relation.client, encoding, loss, diary.write)
        diary.close()
        learner.intercept_ = intercept
        learner.store_fit(relation, encoding, model)
        self.learner_ = learner
        return self

    def __getattr__(self, name: str) -> Any:
        if "learner_" in self.__dict__ and not name.startswith("_"):
            return getattr(self.learner_, name)
        if not name.startswith("_") and hasattr(type(self.__dict__.get("learner")), name):
            raise NotFittedError(f"this Centralized is not fitted yet: call fit before {name}")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


def linear_combine(task: str = "classification", **settings: Any) -> Centralized:
    """The FedOnce paper's Linear-Combine, to be fitted: a linear model on the pooled columns of all tables."""
    kinds: dict[str, type[SolverLearner]] = {"classification": LogisticRegression, "regression": LinearRegression}
    if task not in kinds:
        raise LearnError(f"task {task!r}: it is 'classification' or 'regression'")
    return Centralized(kinds[task](**settings))


class Diary:
    """Keeps the history of a learner that is trained on pooled rows: nothing travels."""

    def __init__(self, learner: SolverLearner, loss: JoinedLoss):
        self.learner, self.loss, self.since = learner, loss, time.perf_counter()
        by_batches = learner.asked_solver == "sgd" and isinstance(learner, NetworkLearner)
        learner.solver_ = "sgd" if by_batches else "lbfgs"
        learner.converged_, learner.history_ = False, Records()

    def write(self, done: Round) -> bool:
        """Another round; nothing asks to stop."""
        now = time.perf_counter()
        self.learner.converged_ = done.converged
        record = RoundRecord(
            round=done.number,
            seconds=now - self.since,
            loss=done.loss,
            objective=done.objective,
            metric=self.learner.metric(self.loss, done.loss),
            solver=self.learner.solver_,
            converged=done.converged,
        )
        self.learner.history_.append(record.to_dict())
        self.since = now
        return False

    def close(self) -> None:
        """Say how it ended."""
        self.learner.stopped_ = CONVERGED if self.learner.converged_ else USED_UP
        self.learner.best_round_ = len(self.learner.history_)


def _train_linear(
    learner: SolverLearner, client: Client, encoding: Encoding, loss: JoinedLoss, report: Callable[[Round], bool]
) -> tuple[Model, Array]:
    tables = joined_tables(client, encoding)
    rows = len(client.rows)
    pooled = np.concatenate([np.zeros((rows, 0)), *(table.matrix() for table in tables.values())], axis=1)
    theta, intercept, converged = _minimise(pooled, loss, learner.l2)
    loss.rows.set_scores(pooled @ theta + intercept)
    value = loss.evaluate()
    objective = value + 0.5 * learner.l2 * float(np.vdot(theta, theta))
    report(Round(1, objective, value, intercept, converged))
    ends = np.cumsum([table.width for table in tables.values()], dtype=int)
    thetas = np.split(theta, ends)[:-1]  # what follows the last table is nothing
    spec = learner.spec(loss.outputs)
    parts = {
        alias: TableParameters(spec.over(tables[alias].width, alias), part)
        for alias, part in zip(tables, thetas, strict=True)
    }
    return PooledModel(encoding, parts, loss.outputs), intercept


def _minimise(table: Array, joined: JoinedLoss, l2: float) -> tuple[Array, Array, bool]:
    """theta and intercept with the least mean loss plus l2 / 2 |theta|^2; whether they were found."""
    loss, outputs = joined.pointwise, joined.outputs
    labels = joined.rows.labels()
    if isinstance(loss, Squared):
        return *_ridge(table, labels, l2), True
    basis = _preconditioner(table, l2, loss)
    width = basis.shape[1]

    def unpack(point: Array) -> tuple[Array, Array]:
        inner = point[: width * outputs].reshape((width,) if outputs == 1 else (width, outputs))
        return np.asarray(basis @ inner), point[width * outputs :]

    def objective(point: Array) -> tuple[float, Array]:
        theta, intercept = unpack(point)
        scores = table @ theta + intercept
        gradient = loss.gradient(scores, labels)
        slope = basis.T @ (table.T @ gradient + l2 * theta)
        value = loss.value(scores, labels) + 0.5 * l2 * float(np.vdot(theta, theta))
        return value, np.concatenate([slope.ravel(), np.atleast_1d(gradient.sum(axis=0))])

    begin = np.concatenate([np.zeros(width * outputs), joined.best_constant()])
    options = {"maxiter": 500, "gtol": 1e-9, "ftol": 1e-15, "maxcor": 30}
    found = minimize(objective, begin, jac=True, method="L-BFGS-B", options=options)
    return *unpack(np.asarray(found.x)), bool(found.success)


def _preconditioner(table: Array, l2: float, loss: Loss) -> Array:
    """A basis in which the objective is about equally curved in all directions; none for what no row has."""
    values, vectors = np.linalg.eigh(table.T @ table / len(table))
    kept = values > 1e-10 * values.max(initial=0.0)
    return np.asarray(vectors[:, kept] / np.sqrt(loss.most_curvature * values[kept] + l2))


def _ridge(table: Array, labels: Array, l2: float) -> tuple[Array, Array]:
    rows, width = table.shape
    centre, mean = table.mean(axis=0), labels.mean()
    gram = table.T @ table / rows - np.outer(centre, centre)
    right = table.T @ labels / rows - centre * mean
    values, vectors = np.linalg.eigh(gram + l2 * np.eye(width))
    kept = values > 1e-12 * values.max(initial=0.0)
    theta = vectors[:, kept] @ ((vectors[:, kept].T @ right) / values[kept])
    return theta, np.array([mean - centre @ theta])
