"""The networks of a learner on the materialised join: the same first parameters, mini-batches and objective."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from scipy.optimize import minimize

from tablepuppet.arrays import Array, Floats
from tablepuppet.baselines.pooled import PooledModel, joined_tables
from tablepuppet.learn.learners.network import NetworkLearner
from tablepuppet.learn.loss.joined_loss import JoinedLoss
from tablepuppet.learn.loss.units import in_units, out_of_units
from tablepuppet.learn.rounds import Round
from tablepuppet.learn.solve.sgd import Conditioned, descend_by_batches
from tablepuppet.learn.tables.parameters import TableParameters, first_parameters
from tablepuppet.mapping.batches import Batch
from tablepuppet.mapping.joined_rows import JoinedRows
from tablepuppet.operators.client import Client
from tablepuppet.prep.encode.encode import Encoding
from tablepuppet.prep.encode.encoded_table import EncodedTable


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
