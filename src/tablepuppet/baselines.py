"""Baselines for experiments with data that may be pooled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from sklearn.base import clone

from tablepuppet.errors import PrivacyError
from tablepuppet.learn.estimator import Learner, Model, label_of
from tablepuppet.learn.losses import Loss, Squared
from tablepuppet.learn.placed import encoded
from tablepuppet.operators.client import Client
from tablepuppet.prep.encode import Encoding
from tablepuppet.prep.encoded_table import EncodedTable

if TYPE_CHECKING:
    from tablepuppet.relation import Relation

Array = NDArray[np.float64]


class Centralized:
    """Trains exactly the same function as a learner, on the materialised join. In-process parties only."""

    def __init__(self, learner: Learner):
        self.learner = learner

    def fit(self, relation: Relation) -> Self:
        """Materialise the encoded join and minimise the learner's objective on it."""
        label = label_of(relation)
        self.learner_ = clone(self.learner)
        self.learner_._check_settings()
        encoding = relation.fit_encoding()
        loss = self.learner_._prepare(relation.client, label)
        model, intercept = _train_linear(self.learner_, relation.client, encoding, loss)
        self.learner_.settle(relation, encoding, model, intercept)
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "learner_" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.learner_, name)


def joined_tables(client: Client, encoding: Encoding) -> dict[str, EncodedTable]:
    """The encoded rows of every table with features, one for every joined row."""
    return {
        alias: _table(client, encoding, alias).rows(client.mapping.tables[alias].index)
        for alias in client.mapping.tables
        if encoding.names(alias) and client.shards(alias)
    }


def _table(client: Client, encoding: Encoding, alias: str) -> EncodedTable:
    shards = []
    for shard in client.shards(alias):
        local = client.engine.local(shard.party)
        if local is None:
            raise PrivacyError(
                f"party {shard.party!r} runs elsewhere: its rows cannot be pooled for a centralised baseline"
            )
        shards.append(encoded(local.table(client.session, alias), client.view, encoding.id))
    codes = [np.concatenate(parts) for parts in zip(*(shard.codes for shard in shards), strict=True)]
    return EncodedTable(np.concatenate([shard.dense for shard in shards]), tuple(codes), shards[0].sizes)


class PooledLinear:
    """Parameters for the columns of the materialised join."""

    def __init__(self, encoding: Encoding, thetas: Mapping[str, Array], outputs: int):
        self.encoding, self.thetas = encoding, dict(thetas)
        self.shape = () if outputs == 1 else (outputs,)

    def scores(self, client: Client) -> Array:
        """X theta."""
        scores = np.zeros((len(client.mapping), *self.shape))
        for alias, table in joined_tables(client, self.encoding).items():
            scores += table.times(self.thetas[alias])
        return scores

    def parameters(self) -> dict[str, Array]:
        """Parameters by table."""
        return self.thetas


def _train_linear(learner: Learner, client: Client, encoding: Encoding, loss: Loss) -> tuple[Model, Array]:
    tables = joined_tables(client, encoding)
    rows = len(client.mapping)
    pooled = np.concatenate([np.zeros((rows, 0)), *(table.matrix() for table in tables.values())], axis=1)
    theta, intercept = _minimise(pooled, loss, learner.l2)
    ends = np.cumsum([table.width for table in tables.values()], dtype=int)
    parts = np.split(theta, ends)[:-1]  # what follows the last table is nothing
    return PooledLinear(encoding, dict(zip(tables, parts, strict=True)), loss.outputs), intercept


def _minimise(table: Array, loss: Loss, l2: float) -> tuple[Array, Array]:
    """theta and intercept with the least mean loss plus l2 / 2 |theta|^2."""
    if isinstance(loss, Squared):
        return _ridge(table, loss.labels, l2)
    outputs = loss.outputs
    basis = _preconditioner(table, l2, loss)
    width = basis.shape[1]

    def unpack(point: Array) -> tuple[Array, Array]:
        inner = point[: width * outputs].reshape((width,) if outputs == 1 else (width, outputs))
        return np.asarray(basis @ inner), point[width * outputs :]

    def objective(point: Array) -> tuple[float, Array]:
        theta, intercept = unpack(point)
        scores = table @ theta + intercept
        gradient = loss.gradient(scores)
        slope = basis.T @ (table.T @ gradient + l2 * theta)
        value = loss.value(scores) + 0.5 * l2 * float(np.vdot(theta, theta))
        return value, np.concatenate([slope.ravel(), np.atleast_1d(gradient.sum(axis=0))])

    begin = np.concatenate([np.zeros(width * outputs), loss.best_constant()])
    options = {"maxiter": 500, "gtol": 1e-9, "ftol": 1e-15, "maxcor": 30}
    found = minimize(objective, begin, jac=True, method="L-BFGS-B", options=options)
    return unpack(np.asarray(found.x))


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
