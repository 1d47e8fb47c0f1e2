"""Consensus among the shards of a table whose parties do not release Gram matrices (Eq. 20-22, with Q_i for M).

A table with several shards must return the ridge solve for Y, as in ops.py, but no shard releases a sum over its rows.
Each shard q keeps the eigenvectors of its own Gram matrix K_q and solves its own problem, with a proximal term that
keeps it near the agreed parameters w; the coordinator sees only parameters, and averages them. x_q are a shard's
parameters, y_q its dual variable, theta^t the current parameters, C the curvature of the loss and R = inner_rho the
weight of the proximal term (``proximal`` in the code), both (outputs, outputs):

    l_q(x) = <T_q^T Y_q, x - theta^t> + <x - theta^t, K_q (x - theta^t) C> / 2
    x_q    = argmin of  l_q(x) + <y_q, x - w> + <x - w, (x - w) R> / 2                                   (Eq. 22)
    w      = sum_q(x_q R + y_q) (l2 + Q R)^-1                                                           (Eq. 20)
    y_q    = y_q + (x_q - w) R                                                                          (Eq. 21)

The direction of the table is w - theta^t. Agreed parameters and dual variables are kept between rounds: they converge
to the exact ridge solve while theta does not change. So few inner rounds are enough, and the plane search (descent.py)
makes sure that each step lowers the objective.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tablepuppet.arrays import Array, Floats
from tablepuppet.errors import PartyError
from tablepuppet.learn.linear.ops import Turn
from tablepuppet.learn.linear.ridge import (
    Curvature,
    diagonal_ridge_parameters,
    ridge_of,
    square_curvature,
    without_mean,
)
from tablepuppet.learn.tables.linear import Linear
from tablepuppet.learn.tables.parameters import shard_memory
from tablepuppet.learn.tables.steps import Facts, RowGradients, ShardSums, Updates
from tablepuppet.mapping.table_mapping import ShardRows
from tablepuppet.operators.lou import LearningOverUnion
from tablepuppet.party.allowance import check_memory
from tablepuppet.party.arguments import Positive
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.ops import Values, op
from tablepuppet.party.release import Release
from tablepuppet.party.returns import Numbers, Plain
from tablepuppet.prep.encode.encode import Encoding, encoded

AUTO_PULL = 0.3  # share of the curvature that each shard would have in a standardised column if all were equal
CONSENSUS_TOL = 1e-12  # relative: a smaller disagreement cannot be distinguished from rounding
OVER = 1.6  # over-relaxation factor (Boyd et al., section 3.4.3)


@dataclass
class ShardSolver:
    """The state of a shard: eigenvectors of its Gram matrix, its problem, its parameters and their dual variable."""

    means: Array
    values: Array
    vectors: Array
    own: Array  # x_q, (width, outputs)
    dual: Array  # y_q
    slope: Array = field(init=False)  # of l_q at 0
    curvature: Array = field(init=False)
    proximal: Array | None = None

    def ask(self, sums: Array, theta: Array, curvature: Array) -> None:
        """Begin a new problem: T_q^T Y_q, the current parameters theta^t, and C."""
        self.curvature = curvature
        self.slope = sums - self.hessian(theta)

    def hessian(self, x: Array) -> Array:
        """K_q x C."""
        return np.asarray(self.vectors @ (self.values[:, None] * (self.vectors.T @ x)) @ self.curvature)

    def agree(self, agreed: Array) -> None:
        """Update the dual variable with the agreed parameters (Eq. 21)."""
        if self.proximal is not None:
            self.dual = self.dual + (self.own - agreed) @ self.proximal

    def solve(self, agreed: Array, proximal: Array) -> float:
        """Update the shard's parameters (Eq. 22); return the decrease of its objective."""
        curvatures, classes = np.linalg.eigh(self.curvature)
        weights = np.diag(classes.T @ proximal @ classes)  # C and R have the same eigenvectors
        force = self.slope + self.hessian(agreed) + self.dual
        turned = (self.vectors.T @ force @ classes) / (np.outer(self.values, curvatures) + weights)
        moved = -self.vectors @ turned @ classes.T
        self.own, self.proximal = agreed + OVER * moved, proximal
        return -0.5 * float(np.vdot(force, moved))


@op("ridge.shard", asked="linear `lbfgs`, `admm` with `inner_rounds`", releases=Release.COUNTS, returns={})
def shard(
    table: LocalTable, view: str, encoding: str, model: str, spec: Linear, joined_rows: Positive, means: Array
) -> Values:
    """Begin a model at a shard; its Gram matrix, centred by the ``means`` over all joined rows, stays at the party."""
    data, counts = encoded(table, view, encoding), table.view(view).counts.astype(np.float64)
    _check_shapes(table, (data.width,), means)
    check_memory(2 * 8 * data.width * spec.outputs)
    values, vectors = np.linalg.eigh(data.gram(counts, means) / joined_rows)
    start = np.zeros((data.width, spec.outputs))
    table.state[f"{model}/{view}/shard"] = ShardSolver(means, np.maximum(values, 0.0), vectors, start, start)
    return {}


def _check_shapes(table: LocalTable, shape: tuple[int, ...], *arrays: Array) -> None:
    """Refuse arrays of other shapes, which NumPy would broadcast to larger arrays."""
    if any(array.shape != shape for array in arrays):
        raise PartyError(f"party {table.grant.party!r}: an array of {shape} is needed, of another shape came")


@op(
    "ridge.consensus",
    asked="linear `lbfgs`, `admm` with `inner_rounds`",
    releases=Release.PARAMETERS,
    summed=("sum", "gain"),
    returns={"sum": Numbers(("agreed",)), "gain": Plain(float)},
)
def consensus(
    table: LocalTable, view: str, encoding: str, model: str, agreed: Array, theta: Array,
    curvature: Array, proximal: Array, rows: Array | None = None,
) -> Values:  # fmt: skip
    """One inner round at a shard; ``rows`` begin a new problem at theta."""
    kept = shard_memory(table, f"{model}/{view}/shard", ShardSolver)
    _check_shapes(table, kept.own.shape, agreed, theta)
    _check_shapes(table, (kept.own.shape[1],) * 2, curvature, proximal)
    kept.agree(agreed)
    if rows is not None:
        wide = rows.astype(np.float64).reshape(len(rows), -1)
        sums = encoded(table, view, encoding).transposed_times(wide) - np.outer(kept.means, wide.sum(axis=0))
        kept.ask(sums, theta, curvature)
    gain = kept.solve(agreed, proximal)
    return {"sum": kept.own @ proximal + kept.dual, "gain": gain}


@dataclass(frozen=True)
class Inner:
    """Settings of the inner rounds: how shards agree."""

    rounds: int
    rho: float | str

    def proximal(self, curvature: Array, shards: int) -> Array:
        """R: the given inner_rho, or a share of the curvature of one shard."""
        if isinstance(self.rho, str):
            return AUTO_PULL / shards * curvature
        return self.rho * np.eye(len(curvature))


class Consensus(ShardSums):
    """The coordinator's side: what the shards of each table agree on; gradients of batches add up as always."""

    def __init__(
        self, lou: LearningOverUnion, encoding: Encoding, aliases: list[str], spec: Linear, l2: float,
        model: str, inner: Inner,
    ):  # fmt: skip
        super().__init__(
            lou, aliases, lambda _: {"encoding": encoding.id, "spec": spec},
            lambda alias: spec.theta_shape(len(encoding.names(alias))),
            lambda alias, rows: lou.bound(rows) * encoding.largest(alias),
        )  # fmt: skip
        self.inner, self.l2 = inner, l2
        self.disagreement = 0.0  # how much the shards could still gain
        self.common: dict[str, Any] = {"encoding": encoding.id, "model": model}
        widths = {alias: len(encoding.names(alias)) for alias in aliases}
        self.parts = {
            alias: diagonal_ridge_parameters(
                encoding.means(alias), encoding.columns(alias) * encoding.squares(alias), spec.outputs
            )
            for alias in aliases
        }  # as quadratic form, a Gram matrix is at most its diagonal times the number of encoded columns
        self.agreed: dict[str, Array] = {alias: np.zeros((width, spec.outputs)) for alias, width in widths.items()}
        self._last_sums: dict[tuple[str, str], Array] = {}  # by alias and party: the last sum
        self._force: dict[str, float] = {}  # by alias: the largest so far, about
        means = {alias: {"means": encoding.means(alias)} for alias in aliases}
        rows = len(lou.client.rows)
        lou.ask("ridge.shard", aliases, by_alias=means, joined_rows=rows, spec=spec, **self.common)

    def start(self) -> None:
        """Nothing to wait for: the first preconditioner follows from the encoding."""

    def step(self, updates: Updates, rows: RowGradients | None) -> dict[str, Facts]:
        """Take updates; those that ask for a direction are what shards agree on in some inner rounds."""
        turns = {alias: each for alias, each in updates.items() if isinstance(each, Turn) and alias in self.parts}
        if rows is None or not turns:
            return super().step(updates, rows)
        self.disagreement = 0.0
        for number in range(self.inner.rounds):
            self.disagreement = self._round(None if number else rows.values, turns)
        for alias in turns:
            part = self.parts[alias]
            ridge_of(part).direction = without_mean(self.agreed[alias].reshape(part.theta.shape) - part.theta)
        return {alias: turn.facts(self.parts[alias]) for alias, turn in turns.items()}

    def _round(self, rows: Mapping[str, Floats] | None, turns: Mapping[str, Turn]) -> float:
        """One inner round of every table; if ``rows`` are given, they begin a new problem."""
        problems = {alias: self._problem(alias, turn.curvature) for alias, turn in turns.items()}
        replies = self.lou.ask(
            "ridge.consensus", problems, rows, problems, self._as_before,
            lambda alias: self._bounds(alias, problems[alias], None if rows is None else rows[alias]), **self.common,
        ).read()  # fmt: skip
        for alias, each in problems.items():
            shards = zip(self.lou.client.shards(alias), replies[alias], strict=True)
            self._last_sums |= {(alias, shard.party): reply["sum"] for shard, reply in shards}
            whole = self.l2 * np.eye(len(each["proximal"])) + self.lou.shards(alias) * each["proximal"]
            self.agreed[alias] = self.lou.add(replies[alias], "sum") @ np.linalg.inv(whole)
        return float(sum(self.lou.add(replies[alias], "gain") for alias in problems))

    def _bounds(self, alias: str, problem: Mapping[str, Array], rows: Floats | None) -> dict[str, float]:
        """Rough bounds of sum and gain, from Y and from the distance between theta and the agreed parameters.

        Dual variables depend on earlier rounds, so the largest bound so far counts.
        """
        agreed, theta, curvature, proximal = (problem[name] for name in ("agreed", "theta", "curvature", "proximal"))
        hessian = np.linalg.norm(agreed - theta) * np.linalg.norm(curvature) * max(len(theta), 1)
        force = float(hessian + (0.0 if rows is None else self.lou.bound(rows)))
        self._force[alias] = force = max(force, self._force.get(alias, 0.0))
        held = float(np.linalg.norm(agreed) * np.linalg.norm(proximal))
        return {"sum": held + force, "gain": force**2 * len(proximal) / float(np.trace(proximal))}

    def _as_before(self, alias: str, shard: ShardRows) -> dict[str, Any]:
        """The reply used for a lost shard: its last parameters."""
        return {"sum": self._last_sums.get((alias, shard.party), np.zeros_like(self.agreed[alias])), "gain": 0.0}

    def _problem(self, alias: str, curvature: Curvature) -> dict[str, Array]:
        agreed = self.agreed[alias]
        square = square_curvature(curvature, agreed.shape[1])
        return {
            "agreed": agreed,
            "theta": self.parts[alias].theta.reshape(agreed.shape),
            "curvature": square,
            "proximal": self.inner.proximal(square, self.lou.shards(alias)),
        }
