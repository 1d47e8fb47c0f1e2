"""RFL-ADMM for networks, in the sharing form of admm.py; the theta-update is left to a local optimiser.

    theta_i: argmin of  rho / (2N) sum_j G_j |f(theta; x_j) - f(theta^t; x_j)|^2 + sum_j Y_j f(theta; x_j)
                        + l2 / 2 |theta|^2                                                             (Eq. 16)

over base rows j. f are the network's predictions, theta^t the parameters before the round, G_j counts how often row j
is joined, N the joined rows, and Y_j is rho / N times the mean residual summed at row j (Eq. 14). This is
rho / (2N) |S_i (h_i - h_i^t) + r|^2 of the sharing problem without its constant. A table with several shards solves it
by consensus (Eq. 20-22, with Q_i, its number of shards, for M): theta^q are a shard's parameters, u^q its scaled dual
variable, w the agreed parameters.

    theta^q: argmin of  l_q(theta) + inner_rho / 2 |theta - w + u^q|^2
    w      = inner_rho Q_i mean(theta^q + u^q) / (l2 + inner_rho Q_i)
    u^q    = u^q + theta^q - w

A network's predictions are not linear in its parameters, so there is no plane search as for linear models: the tables'
steps are taken as they are, and rho damps them. In the code, ``proximal`` is rho / N, the weight of the proximal term.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tablepuppet.arrays import Array, Floats
from tablepuppet.learn.loss.joined_loss import JoinedLoss
from tablepuppet.learn.rounds import Round
from tablepuppet.learn.solve.admm import RESIDUAL, SharingResidual, auto_rho
from tablepuppet.learn.solve.plateau import Plateau
from tablepuppet.learn.tables.federated import FederatedModel
from tablepuppet.learn.tables.model import Spec, TableModel
from tablepuppet.learn.tables.ops import sent_model
from tablepuppet.learn.tables.parameters import TableParameters, shard_memory
from tablepuppet.learn.tables.steps import NOTHING, Facts, HeldRows, RowGradients, Update, Updates, by_rows, step
from tablepuppet.learn.threads import one_thread
from tablepuppet.mapping.joined_rows import Block
from tablepuppet.mapping.table_mapping import ShardRows
from tablepuppet.party.arguments import Some
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.ops import Values, op
from tablepuppet.party.release import Release
from tablepuppet.party.returns import ROW_OUTPUTS, SQUARE, THETA
from tablepuppet.prep.encode.encode import sealed
from tablepuppet.prep.encode.encoded_table import EncodedTable

AUTO_RHO = 1.5  # times the mean curvature of the loss at the start
AUTO_INNER_RHO, L2_SHARE = 0.05, 3.0  # times rho, times l2: with a smaller inner_rho shards drift apart
USUAL = 16.0  # times the largest parameter so far: a bound of the shards' parameters before they agree
FLAT_ROUNDS = 3  # consecutive rounds that hardly change the objective


@dataclass(frozen=True)
class Share:
    """The function that one table minimises in the sharing problem."""

    network: TableModel
    data: EncodedTable
    weights: Array  # rho G_j / N, (rows, 1) for several outputs
    rows: Array  # Y
    before: Floats  # f(theta^t)

    @classmethod
    def of(cls, held: HeldRows, network: TableModel, theta: Array, proximal: float) -> Share:
        """The function at theta^t; ``proximal`` is rho / N."""
        assert held.values is not None, "Y is an argument of both ops"
        data, wide = held.data.open(), held.values.astype(np.float64)
        weights = held.table.view(held.view).counts.astype(np.float64) * proximal
        return cls(network, data, weights if wide.ndim == 1 else weights[:, None], wide, network.predict(theta, data))

    def minimise(self, begin: Array, centre: Array | float, weight: float, steps: int) -> Array:
        """Minimise it plus weight / 2 |theta - centre|^2, by ``steps`` steps from ``begin``."""

        def objective(flat: Array) -> tuple[float, Array]:
            theta, total = flat.reshape(begin.shape), [0.0]

            def row_gradients(part: slice, scores: Floats) -> Array:
                moved = scores - self.before[part]
                force = self.weights[part] * moved
                total.append(0.5 * float(np.vdot(force, moved)) + float(np.vdot(self.rows[part], scores)))
                return force + self.rows[part]

            gradient = self.network.gradient_of(theta, self.data, row_gradients)
            away = theta - centre
            return sum(total) + 0.5 * weight * float(np.vdot(away, away)), (gradient + weight * away).ravel()

        from scipy.optimize import minimize  # slow to import: a party loads it on first use

        options = {"maxiter": steps, "maxfun": 2 * steps + 10, "gtol": 1e-12, "ftol": 1e-14}
        with one_thread():
            found = minimize(objective, begin.ravel(), jac=True, method="L-BFGS-B", options=options)
        return np.asarray(found.x, np.float64).reshape(begin.shape)


@step(
    "proximal.solve",
    by_rows,
    asked="networks by `admm`",
    releases=Release.PREDICTIONS,
    returns={"outputs": ROW_OUTPUTS, "square": SQUARE},
)
@dataclass(frozen=True)
class ThetaUpdate(Update):
    """The theta-update of a table (Eq. 16); its party minimises by descent, shards by consensus (`Agreement`)."""

    proximal: float  # rho / N
    l2: float
    steps: Some  # of the local optimiser

    def at_party(self, part: TableParameters, rows: HeldRows) -> Facts:
        """Minimise over the rows of the table."""
        share = Share.of(rows, part.model, part.theta, self.proximal)
        return self.take(part, share.minimise(part.theta, 0.0, self.l2, self.steps), NOTHING)

    def take(self, part: TableParameters, sums: Array, total: Array) -> Facts:
        """The new parameters are those found at the party, or what shards agree on."""
        part.theta = sums
        return {"square": part.square}

    def shown(self, part: TableParameters) -> dict[str, Any]:
        """Predictions with the new parameters."""
        return {"theta": part.theta}


@dataclass
class ConsensusState:
    """What a shard stores between the rounds of consensus."""

    share: Share
    theta: Array
    dual: Array  # u


@op(
    "proximal.consensus",
    asked="networks by `admm`",
    releases=Release.PARAMETERS,
    summed=("sum",),
    returns={"sum": THETA},
)
def consensus(
    table: LocalTable, view: str, encoding: str, model: str, spec: Spec, theta: Array, proximal: float,
    inner_rho: float, steps: Some, rows: Array | None = None,
) -> Values:  # fmt: skip
    """A shard's theta-update near the agreed parameters (Eq. 21, 22); if ``rows`` are given, a new problem begins."""
    name = f"{model}/{view}/consensus"
    if rows is not None:
        kept: Any = table.state.get(name)
        data = sealed(table, view, encoding)
        network = sent_model(table, spec, data.width, theta)
        share = Share.of(HeldRows(table, view, data, rows), network, theta, proximal)
        own, dual = (theta, np.zeros_like(theta)) if kept is None else (kept.theta, kept.dual)
        table.state[name] = ConsensusState(share, own, dual)
    kept = shard_memory(table, name, ConsensusState)
    kept.dual = kept.dual + kept.theta - theta
    kept.theta = kept.share.minimise(kept.theta, theta - kept.dual, inner_rho, steps)
    return {"sum": kept.theta + kept.dual}


@dataclass(frozen=True)
class InnerSettings:
    """How a theta-update is solved."""

    steps: int  # of the local optimiser
    rounds: int  # of consensus
    rho: float | str  # of consensus


class Agreement:
    """Consensus among the shards of each table (Eq. 20): how the coordinator takes a `ThetaUpdate`."""

    def __init__(self, model: FederatedModel, inner: InnerSettings, rho: float):
        self.model, self.inner, self.lou, self.parts = model, inner, model.lou, dict(model.shared)
        self.proximal, auto = rho / len(model.loj.rows), AUTO_INNER_RHO * rho + L2_SHARE * model.l2
        self.weight = auto if isinstance(inner.rho, str) else inner.rho
        self._sums: dict[tuple[str, str], Array] = {}  # by alias and party: what shards answered last

    def step(self, updates: Updates, rows: RowGradients | None) -> dict[str, Facts]:
        """Inner rounds in which shards agree; the first begins a new problem."""
        assert rows is not None, "a problem begins with the residual"
        facts: dict[str, Facts] = {}
        for number in range(self.inner.rounds if self.parts else 0):
            replies = self.lou.ask(
                "proximal.consensus", self.parts, None if number else rows.values, self.model.sent_shared(),
                self._own_before, self._bounds, inner_rho=self.weight, proximal=self.proximal, steps=self.inner.steps,
                **self.model.at_party,
            ).read()  # fmt: skip
            for alias, part in self.parts.items():
                shards = zip(self.lou.client.shards(alias), replies[alias], strict=True)
                self._sums |= {(alias, shard.party): reply["sum"] for shard, reply in shards}
                whole = self.model.l2 + self.weight * self.lou.shards(alias)
                agreed = self.weight * self.lou.add(replies[alias], "sum") / whole
                facts[alias] = updates[alias].take(part, agreed, NOTHING)
        return facts

    def _bounds(self, alias: str) -> dict[str, float]:
        """A rough bound of a shard's parameters and dual variable."""
        return {"sum": USUAL * max(1.0, float(np.abs(self.parts[alias].theta).max()))}

    def _own_before(self, alias: str, shard: ShardRows) -> dict[str, Array]:
        """The reply used for a lost shard: its last parameters."""
        return {"sum": self._sums.get((alias, shard.party), self.parts[alias].theta)}


def descend_by_sharing(
    model: FederatedModel, loss: JoinedLoss, rho: float | str, inner: InnerSettings, rounds: int, tol: float,
    report: Callable[[Round], bool],
) -> tuple[Array, bool]:  # fmt: skip
    """Run to tolerance: (intercept, whether it converged). ``report`` may ask to stop.

    Stops when the objective is flat (plateau.py), or hardly changed for `FLAT_ROUNDS` consecutive rounds.
    """
    intercept = loss.best_constant()
    model.predict(intercept)
    loss.evaluate()
    rule = SharingResidual(loss, len(model.tables), auto_rho(loss, rho, AUTO_RHO))
    rule.begin()
    model.over = Agreement(model, inner, rule.rho)
    squares: dict[str, float] = {}  # |theta|^2 by table, also of those that are lost
    last, flat_rounds, converged, plateau = np.inf, 0, False, Plateau(tol, loss.constant_value() / loss.rows.joined)
    for number in range(1, rounds + 1):
        total = loss.rows.total(_residual_sum)
        intercept = intercept - total / rule.rho
        update = ThetaUpdate(rule.rho / len(loss.rows), model.l2, inner.steps)
        rows = RowGradients(model.loj.scatter(RESIDUAL, model.tables))
        found = model.step(dict.fromkeys(model.tables, update), rows, model.instead(model.lou.client))
        model.set_scores(found.predictions, intercept)
        squares |= {alias: float(facts["square"]) for alias, facts in found.facts.items()}
        rule.update()
        value = loss.evaluate()
        objective = value + 0.5 * model.l2 * sum(squares.values())
        steady, flat = model.was_steady(), plateau.is_flat(objective)
        flat_rounds = flat_rounds + 1 if steady and abs(objective - last) <= plateau.strict * objective else 0
        flat_rounds = max(flat_rounds, FLAT_ROUNDS) if steady and flat else flat_rounds
        last, converged = objective, flat_rounds >= FLAT_ROUNDS and model.is_whole
        if report(Round(number, objective, value, intercept, converged)) or converged:
            break
        if flat_rounds >= FLAT_ROUNDS:
            if not model.all_return():
                break
            flat_rounds = 0
    return intercept, converged


def _residual_sum(block: Block) -> Array:
    return np.atleast_1d(block[RESIDUAL].sum(axis=0))
