"""Baselines for experiments with data that may be pooled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from sklearn.base import clone

from tablepuppet.errors import PrivacyError
from tablepuppet.learn.descent import Round
from tablepuppet.learn.estimator import Learner, label_of
from tablepuppet.learn.losses import Loss, Squared
from tablepuppet.learn.network_models import NetworkLearner, in_units
from tablepuppet.learn.networks import Weights, given, network_of, new_weights
from tablepuppet.learn.part import encoded
from tablepuppet.learn.sgd import Batch, descend_by_batches
from tablepuppet.learn.stored import Held, Model
from tablepuppet.mapping.table_mapping import Floats, MappedTable, ShardRows, TableMapping
from tablepuppet.operators.client import Client
from tablepuppet.prep.encode import Encoding
from tablepuppet.prep.encoded_table import EncodedTable

if TYPE_CHECKING:
    from tablepuppet.relation import Relation

Array = NDArray[np.float64]


class Centralized:
    """Trains exactly the same function as a learner, on the materialised join. In-process parties only.

    A linear model is solved to the end. Networks begin at the learner's own first parameters; they take its
    mini-batches for ``solver="sgd"``, else ``rounds`` iterations of L-BFGS.
    """

    def __init__(self, learner: Learner):
        self.learner = learner

    def fit(self, relation: Relation) -> Self:
        """Materialise the encoded join and minimise the learner's objective on it."""
        label = label_of(relation)
        self.learner_ = clone(self.learner)
        self.learner_.check_settings()
        asked = self.learner_._ask_labels(relation.client, label)
        encoding = relation.fit_encoding()
        loss = self.learner_._prepare(relation.client, label, asked)
        train = _train_networks if isinstance(self.learner_, NetworkLearner) else _train_linear
        model, intercept = train(self.learner_, relation.client, encoding, loss)
        self.learner_.settle(relation, encoding, model, intercept)
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "learner_" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.learner_, name)


def joined_tables(client: Client, encoding: Encoding) -> dict[str, EncodedTable]:
    """The encoded rows of every table with features, one for every joined row."""
    client.outbox.send()  # parties encode their rows before they are looked at
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


class PooledLinear(Held):
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


class PooledNetworks(Held):
    """The networks of all tables, applied to joined rows."""

    def __init__(self, encoding: Encoding, parts: Mapping[str, Weights], outputs: int, unit: float):
        self.encoding, self.parts, self.unit = encoding, dict(parts), unit
        self.shape = () if outputs == 1 else (outputs,)

    def predict(self, tables: Mapping[str, EncodedTable], rows: int) -> Array:
        """The sum over tables."""
        scores = np.zeros((rows, *self.shape))
        for alias, part in self.parts.items():
            scores += network_of(part).predict(part.theta, tables[alias])
        return scores

    def scores(self, client: Client) -> Array:
        """The sum over tables, in the label's own units."""
        return self.unit * self.predict(joined_tables(client, self.encoding), len(client.mapping))

    def parameters(self) -> dict[str, Array]:
        """Parameters by table, in the label's own units."""
        return {alias: network_of(part).rescaled(part.theta, self.unit) for alias, part in self.parts.items()}


def _train_networks(learner: NetworkLearner, client: Client, encoding: Encoding, loss: Loss) -> tuple[Model, Array]:
    loss, unit = in_units(loss)
    tables, rows = joined_tables(client, encoding), len(client.mapping)
    parts = {
        alias: new_weights(learner.seed, alias, table.dense.shape[1], table.width, learner.hidden, loss.outputs)
        for alias, table in tables.items()
    }
    model = PooledNetworks(encoding, parts, loss.outputs, unit)
    if learner.solver == "sgd":
        steps = PooledSteps(parts, tables, rows, learner.momentum, learner.l2)
        intercept = descend_by_batches(steps, loss, learner._rates(), learner.batch_size, learner.seed, _go_on)
    else:
        intercept = _minimise_networks(model, tables, rows, loss, learner.l2, learner.rounds)
    return model, unit * intercept


def _go_on(_: Round) -> bool:
    return False


class PooledSteps:
    """Takes the steps of mini-batches on joined rows: no row stands for another."""

    def __init__(
        self, parts: Mapping[str, Weights], data: Mapping[str, EncodedTable], rows: int, momentum: float, l2: float
    ):
        self.parts, self.data, self.momentum, self.l2 = parts, data, momentum, l2
        places = np.arange(rows, dtype=np.int32)
        whole = MappedTable(places, (ShardRows("", places, 0),))
        self.mapping, self.tables = TableMapping(dict.fromkeys(parts, whole), rows), list(parts)

    def exchange(
        self, batch: Batch | None, wanted: Array | None, following: Batch | None, lr: float
    ) -> dict[str, Floats]:
        """Take the step that ``batch`` asks for; the predictions for the ``following`` batch."""
        predictions: dict[str, Floats] = {}
        for alias, part in self.parts.items():
            network, table = network_of(part), self.data[alias]
            if batch is not None and wanted is not None:
                rows = given(batch.scatter(alias, wanted))
                part.descend(
                    network.pull_back(part.theta, table.rows(batch.places[alias]), rows), lr, self.momentum, self.l2
                )
            if following is not None:
                predictions[alias] = network.predict(part.theta, table.rows(following.places[alias]))
        return predictions


def _minimise_networks(
    model: PooledNetworks, tables: Mapping[str, EncodedTable], rows: int, loss: Loss, l2: float, rounds: int
) -> Array:
    """Some iterations of L-BFGS on all parameters at once; the intercept."""
    parts = model.parts
    ends = np.cumsum([len(part.theta) for part in parts.values()], dtype=int)

    def objective(point: Array) -> tuple[float, Array]:
        *thetas, intercept = np.split(point, ends)
        for part, theta in zip(parts.values(), thetas, strict=True):
            part.theta = theta
        scores = model.predict(tables, rows) + intercept
        wanted = loss.gradient(scores)
        slopes = [
            network_of(part).pull_back(part.theta, tables[alias], given(wanted)) + l2 * part.theta
            for alias, part in parts.items()
        ]
        penalty = 0.5 * l2 * sum(float(theta @ theta) for theta in thetas)
        return loss.value(scores) + penalty, np.concatenate([*slopes, np.atleast_1d(wanted.sum(axis=0))])

    begin = np.concatenate([*(part.theta for part in parts.values()), loss.best_constant()])
    options = {"maxiter": rounds, "maxfun": 2 * rounds + 10, "gtol": 1e-10, "ftol": 1e-14}
    found = np.asarray(minimize(objective, begin, jac=True, method="L-BFGS-B", options=options).x)
    objective(found)  # leaves its parameters in the parts
    return found[-loss.outputs :]
