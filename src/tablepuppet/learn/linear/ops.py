"""The ops that descent asks of a linear table: ridge solves with its own Gram matrix, with or without noise.

    g_i = T_i^T Y_i + l2 theta_i              the gradient, Y_i = S_i^T (dloss / dz)                    (Eq. 12)
    p_i = (C x K_i + l2)^-1 g_i               the direction: a ridge solve of the table alone           (Eq. 16)
    K_i = (T_i - m_i)^T diag(G_i) (T_i - m_i) / N    with m_i = T_i^T G_i / N, the means over joined rows

T_i are the encoded rows of table i, theta_i its parameters, S_i selects a base row for each of the N joined rows, G_i
counts how often each row is joined, z are the scores. C is the curvature of the loss, (outputs, outputs). Columns are
centred in the Gram matrix K_i, in the gradient and in T_i p_i, since the intercept, which the coordinator moves with
every step, absorbs the means. So 0/1 columns that add up to one do no harm, and a column whose mean is large keeps its
digits in a sum, and on a wire of single precision.

With noise, the Gram matrix (`algebra/ops.py`) costs epsilon once and the gradient in every round; directions and
parameters are computed from them and cost nothing more. A row's contribution to a sum is clipped after all its joined
rows are added up, so a row counts once however often it is joined. The noisy Gram matrix is not weighted by counts: it
is only a preconditioner, since the coordinator minimises the loss along the directions. Predictions T p depend on the
rows themselves: they get separate noise, or none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from tablepuppet.algebra.ops import gram_noise, joined_counts, noisy_gram
from tablepuppet.arrays import Array
from tablepuppet.errors import PartyError
from tablepuppet.learn.linear.ridge import (
    Curvature,
    Ridge,
    noisy_ridge_parameters,
    ridge_of,
    ridge_parameters,
    wide_ridge_parameters,
)
from tablepuppet.learn.linear.wide_gram import WIDE, wide_gram
from tablepuppet.learn.tables.linear import Linear
from tablepuppet.learn.tables.parameters import (
    TableParameters,
    hold_parameters,
    noisy_parameters,
)
from tablepuppet.learn.tables.steps import Facts, HeldRows, NoisyUpdate, Update, by_itself, by_rows_with_noise, step
from tablepuppet.party.approval import add_work
from tablepuppet.party.arguments import GramNoise, List, NotNegative, Positive, SomeOrNone
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.ops import Values, op
from tablepuppet.party.release import Release
from tablepuppet.party.returns import PER_OUTPUT, ROW_OUTPUTS, SQUARE, Numbers, Products
from tablepuppet.prep.encode.encode import encoded, encoded_for_noise

add_work(("LinearRegression", "LogisticRegression"), "ridge", "sgd", "steps", "matrix.gram")


# Nothing is returned, but STATISTICS is declared: a table that demands noise then refuses to start without it.
@op("ridge.start", asked="linear models", releases=Release.STATISTICS, private=("noise",), returns={})
def start(
    table: LocalTable, view: str, encoding: str, model: str, spec: Linear, joined_rows: Positive,
    noise: GramNoise | None = None, l2: NotNegative = 0.0,
) -> Values:  # fmt: skip
    """Begin a model at a table with one shard: it keeps its Gram matrix, and returns nothing.

    ``l2`` is the penalty by which columns of different scale are made alike; later ones may differ.
    """
    if noise is None:
        data, counts = encoded(table, view, encoding), joined_counts(table, view)
        means = data.transposed_times(counts) / joined_rows
        if data.width < WIDE:
            numbers = data.dense.shape[1]
            centres = np.append(means[:numbers], np.zeros(data.width - numbers))
            gram = data.gram(counts, centres) / joined_rows
            part = ridge_parameters(gram, means - centres, means, spec.outputs, l2)
        else:
            part = wide_ridge_parameters(wide_gram(data, counts, joined_rows, means), means, spec.outputs)
    else:
        hidden = encoded_for_noise(table, view, encoding)
        gram = noisy_gram(table, hidden, noise)
        part = noisy_ridge_parameters(gram, gram_noise(hidden.empty.columns, noise), spec.outputs)
    hold_parameters(table, model, part)
    return {}


@step(
    "ridge.direction",
    by_rows_with_noise,
    asked="linear `lbfgs`, `admm`",
    releases=Release.PREDICTIONS,
    private=("noise", "prediction_noise"),
    returns={
        "outputs": ROW_OUTPUTS,
        "products": Products(known="known"),
        "bound": SQUARE,
        "left": SQUARE,
        "magnitude": SQUARE,
        "centre": Numbers((PER_OUTPUT,)),
    },
)
@dataclass(frozen=True)
class Turn(NoisyUpdate):
    """Ask for a new direction p: T p, the inner products of p with stored steps and parameters, and what p is worth.

    A party leaves out inner products of the ``known`` oldest steps with each other, which it has returned before.
    Columns are centred unless there is noise, and ``centre`` is the mean of T p that was subtracted; with noise,
    ``bound`` is what T p is cut to.
    """

    l2: NotNegative
    curvature: Curvature
    known: SomeOrNone = 0

    def take(self, part: TableParameters, sums: Array, total: Array) -> Facts:
        """The ridge solve, with T^T Y and the sum of Y over all rows."""
        self._solve(part, sums, total)
        return self.facts(part)

    def at_party(self, part: TableParameters, rows: HeldRows) -> Facts:
        """`take`, once what was sent is checked: noise is charged when the gradient is computed."""
        ridge_of(part)
        _check_fit(part, rows, self.curvature)
        self._solve(part, *rows.gradient(part))
        return self.facts(part, self.known)

    def _solve(self, part: TableParameters, sums: Array, total: Array) -> None:
        ridge = ridge_of(part)
        ridge.turn(part.theta, ridge.centred(sums, total) if ridge.is_centred else sums, self.l2, self.curvature)

    def facts(self, part: TableParameters, known: int = 0) -> Facts:
        """What is returned beside T p."""
        ridge = ridge_of(part)
        p = ridge.direction
        return {
            "products": ridge.products(part.theta, known),
            "left": ridge.left,
            "magnitude": ridge.magnitude(p),
            "centre": ridge.centre(p) if ridge.is_centred else np.zeros(1),
            "bound": 0.0 if ridge.is_centred else ridge.bound(p),
        }

    def shown(self, part: TableParameters) -> dict[str, Any]:
        """T p."""
        ridge = ridge_of(part)
        return {"theta": ridge.direction} | ({"centre": ridge.centre(ridge.direction)} if ridge.is_centred else {})


def _check_fit(part: TableParameters, rows: HeldRows, curvature: Curvature) -> None:
    """PartyError unless all that was sent has the same width and number of outputs."""
    outputs, data, values = part.theta.shape[1:], rows.data, rows.values
    square = np.shape(curvature) in ((), (math.prod(outputs),) * 2)
    if len(part.theta) != data.width or values is None or values.shape != (data.rows, *outputs) or not square:
        raise PartyError("rows, curvature and parameters do not fit each other")


@step("ridge.advance", by_itself, asked="linear `lbfgs`, `admm`", releases=Release.COUNTS, returns={})
@dataclass(frozen=True)
class Advance(Update):
    """Take the step ``mix``, a combination of the direction and earlier steps; keep ``memory`` steps.

    The coordinator computes the scores itself.
    """

    mix: List
    memory: SomeOrNone

    def take(self, part: TableParameters, sums: Array, total: Array) -> Facts:
        """At a table's parameters."""
        part.theta = ridge_of(part).advance(part.theta, self.mix, self.memory)
        return {}


@op(
    "ridge.size",
    asked="`save` with `prediction_epsilon`",
    releases=Release.STATISTICS,
    private=True,
    returns={"size": SQUARE},
)
def size(table: LocalTable, view: str, model: str) -> Values:
    """The usual size of predictions, from noisy sums only: this costs no more epsilon."""
    part = noisy_parameters(table, model)
    return {"size": part.remembered(Ridge).size(part.theta)}
