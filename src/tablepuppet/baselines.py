"""What learners are compared with: the same function trained on the joined rows, which parties in this process pool.

No learner ever sees these rows. Networks begin at the learner's first parameters, and take its mini-batches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from scipy.optimize import minimize
from sklearn.base import BaseEstimator, clone

from tablepuppet.arrays import Array, Floats
from tablepuppet.errors import LearnError, PrivacyError
from tablepuppet.learn.learners.estimator import need_relation
from tablepuppet.learn.learners.learner import label_of
from tablepuppet.learn.learners.network import NetworkLearner
from tablepuppet.learn.learners.not_fitted import NotFittedError
from tablepuppet.learn.learners.solver_learner import SolverLearner
from tablepuppet.learn.learners.watch import CONVERGED, USED_UP
from tablepuppet.learn.loss.joined_loss import JoinedLoss, in_units, out_of_units
from tablepuppet.learn.loss.losses import Loss, Squared
from tablepuppet.learn.rounds import Round
from tablepuppet.learn.solve.schedule import RoundAllowance
from tablepuppet.learn.solve.sgd import Conditioned, descend_by_batches
from tablepuppet.learn.tables.parameters import TableParameters, first_parameters
from tablepuppet.mapping.batches import Batch
from tablepuppet.mapping.joined_rows import JoinedRows
from tablepuppet.operators.client import Client
from tablepuppet.prep.encode.encode import Encoding, encoded
from tablepuppet.prep.encode.encoded_table import EncodedTable
from tablepuppet.runs.events import RoundRecord
from tablepuppet.runs.table_view import Records
from tablepuppet.store.parts import Held, Model

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


def train_networks(
    learner: NetworkLearner, client: Client, encoding: Encoding, loss: JoinedLoss, report: Callable[[Round], bool]
) -> tuple[PooledModel, Array]:
    """(the networks, their intercept)."""
    loss, unit = in_units(loss)

    def write(done: Round) -> bool:
        return report(out_of_units(done, unit))

    tables, rows, spec = joined_tables(client, encoding), len(client.rows), learner.spec(loss.outputs)
    parts = {
        alias: first_parameters(spec.over(table.width, alias), learner.seed, alias, table.dense.shape[1])
        for alias, table in tables.items()
    }
    model = PooledModel(encoding, parts, loss.outputs, unit)
    if learner.solver_ == "sgd":
        steps = PooledSteps(parts, tables, rows, learner.plain_momentum, learner.l2)
        intercept = descend_by_batches(steps, loss, learner._rates(), learner._schedule.batch_size, learner.seed, write)
    else:
        intercept = _minimise_networks(model, tables, rows, loss, learner.l2, learner.most_rounds, write)
    return model, unit * intercept


class PooledSteps:
    """Takes the steps of mini-batches on joined rows: no row stands for another."""

    def __init__(
        self,
        parts: Mapping[str, TableParameters],
        data: Mapping[str, EncodedTable],
        rows: int,
        momentum: float,
        l2: float,
    ):
        self.parts, self.data, self.momentum, self.l2 = parts, data, momentum, l2
        self.rows, self.tables = JoinedRows.each_once(parts, rows), list(parts)
        self.secured: list[str] = []  # nothing is sent
        self.conditioned: Conditioned | None = None
        self.penalty, self.centre = 0.0, np.zeros(1)

    def __call__(
        self, done: Batch | None, gradients: Mapping[str, Floats], following: Batch | None, lr: float
    ) -> dict[str, Floats]:
        """Take the steps of the batch that is ``done``; the predictions for the ``following`` one."""
        predictions: dict[str, Floats] = {}
        for alias, part in self.parts.items():
            table = self.data[alias]
            if done is not None:
                rows = table.rows(done.places[alias])
                gradient = part.model.gradient(part.theta, rows, np.asarray(gradients[alias], np.float64))
                part.descend(gradient, lr, self.momentum, self.l2)
            if following is not None:
                predictions[alias] = part.model.predict(part.theta, table.rows(following.places[alias]))
        self.penalty = 0.5 * self.l2 * sum(part.square for part in self.parts.values())
        return predictions


def _minimise_networks(
    model: PooledModel, tables: Mapping[str, EncodedTable], rows: int, loss: JoinedLoss, l2: float, rounds: int,
    report: Callable[[Round], bool],
) -> Array:  # fmt: skip
    """Some iterations of L-BFGS on all parameters at once; the intercept."""
    parts, labels = model.parts, loss.rows.labels()
    ends = np.cumsum([len(part.theta) for part in parts.values()], dtype=int)

    def objective(point: Array) -> tuple[float, Array]:
        *thetas, intercept = np.split(point, ends)
        for part, theta in zip(parts.values(), thetas, strict=True):
            part.theta = theta
        scores = model.predict(tables, rows) + intercept
        wanted = loss.pointwise.gradient(scores, labels)
        slopes = [
            part.model.gradient(part.theta, tables[alias], wanted) + l2 * part.theta for alias, part in parts.items()
        ]
        penalty = 0.5 * l2 * sum(float(theta @ theta) for theta in thetas)
        return loss.pointwise.value(scores, labels) + penalty, np.concatenate(
            [*slopes, np.atleast_1d(wanted.sum(axis=0))]
        )

    begin = np.concatenate([*(part.theta for part in parts.values()), loss.best_constant()])
    options = {"maxiter": rounds, "maxfun": 2 * rounds + 10, "gtol": 1e-10, "ftol": 1e-14}
    found = minimize(objective, begin, jac=True, method="L-BFGS-B", options=options)
    reached, _ = objective(np.asarray(found.x))  # leaves its parameters in the parts
    intercept = np.asarray(found.x)[-loss.outputs :]
    loss.rows.set_scores(model.predict(tables, rows) + intercept)
    report(Round(1, reached, loss.evaluate(), intercept, bool(found.success)))
    return intercept


def joined_tables(client: Client, encoding: Encoding) -> dict[str, EncodedTable]:
    """The encoded rows of every table with features, one for every joined row."""
    client.outbox.send()  # parties encode their rows before they are looked at
    return {
        alias: _table(client, encoding, alias).repeated(client.rows.taken(alias, np.arange(client.tables[alias].rows)))
        for alias in client.tables
        if encoding.names(alias) and client.shards(alias)
    }


def _table(client: Client, encoding: Encoding, alias: str) -> EncodedTable:
    shards = []
    for shard in client.shards(alias):
        table = client.engine.capabilities(shard.party).table
        if table is None:
            raise PrivacyError(
                f"party {shard.party!r} runs elsewhere: its rows cannot be pooled for a centralised baseline"
            )
        shards.append(encoded(table(client.session, alias), client.view, encoding.id))
    codes = [np.concatenate(parts) for parts in zip(*(shard.codes for shard in shards), strict=True)]
    return EncodedTable(np.concatenate([shard.dense for shard in shards]), tuple(codes), shards[0].sizes)


class PooledModel(Held):
    """The models of all tables, linear or networks, applied to joined rows."""

    def __init__(self, encoding: Encoding, parts: Mapping[str, TableParameters], outputs: int, unit: float = 1.0):
        super().__init__({})
        self.encoding, self.parts, self.unit = encoding, dict(parts), unit
        self.shape = () if outputs == 1 else (outputs,)

    def predict(self, tables: Mapping[str, EncodedTable], rows: int) -> Array:
        """The sum over tables."""
        scores = np.zeros((rows, *self.shape))
        for alias, part in self.parts.items():
            scores += part.model.predict(part.theta, tables[alias])
        return scores

    def scores(self, client: Client) -> Array:
        """The sum over tables, in the label's own units."""
        return self.unit * self.predict(joined_tables(client, self.encoding), len(client.rows))

    def parameters(self) -> dict[str, Array]:
        """Parameters by table, in the label's own units."""
        return {alias: part.model.rescaled(part.theta, self.unit) for alias, part in self.parts.items()}
