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
from numpy.typing import NDArray

from tablepuppet.algebra.ops import gram_noise, joined_counts, noisy_gram
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
from tablepuppet.learn.tables.linear import Linear, LinearRows
from tablepuppet.learn.tables.noisy import noisy_gradient, noisy_predictions
from tablepuppet.learn.tables.ops import on_wire
from tablepuppet.learn.tables.over_shards import NOTHING, Facts
from tablepuppet.learn.tables.parameters import (
    TableParameters,
    hold_parameters,
    noisy_parameters,
    parameters_of,
    unchanged_if_refused,
)
from tablepuppet.party.added_noise import GramNoise, PredictionNoise, SumNoise
from tablepuppet.party.arguments import List, NotNegative, Positive, SomeOrNone
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.ops import Values, op
from tablepuppet.party.release import Release
from tablepuppet.party.returns import PER_OUTPUT, ROW_OUTPUTS, SQUARE, Numbers, Products
from tablepuppet.prep.encode.encode import encoded, encoded_for_noise, sealed
from tablepuppet.prep.encode.encoded_table import SealedTable

Array = NDArray[np.float64]


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


@dataclass(frozen=True)
class Turn:
    """Ask for a new direction p: T p, the inner products of p with stored steps and parameters, and what p is worth.

    Inner products of the ``known`` oldest steps with each other are left out by a party, which has returned them
    before. Without noise, columns are ``centred``, and ``centre`` is the mean of T p that was subtracted.
    """

    l2: float
    curvature: Curvature
    known: int = 0
    centred: bool = True
    op = "ridge.direction"

    @property
    def arguments(self) -> dict[str, Any]:
        """As `direction` takes them."""
        return {"l2": self.l2, "curvature": self.curvature, "known": self.known}

    def take(self, part: TableParameters, sums: Array, total: Array) -> Facts:
        """At a table's parameters, with T^T Y and the sum of Y over all rows."""
        self.turn(part, sums, total)
        return self.facts(part, known=0)

    def turn(self, part: TableParameters, sums: Array, total: Array) -> Array:
        """The ridge solve."""
        ridge = ridge_of(part)
        return ridge.turn(part.theta, ridge.centred(sums, total) if self.centred else sums, self.l2, self.curvature)

    def facts(self, part: TableParameters, known: int) -> dict[str, Any]:
        """What is returned beside T p."""
        ridge = ridge_of(part)
        centre = ridge.centre(ridge.direction) if self.centred else np.zeros(1)
        facts = {"left": ridge.left, "magnitude": ridge.magnitude(ridge.direction), "centre": centre}
        return {"products": ridge.products(part.theta, known), **facts}

    def shown(self, part: TableParameters) -> dict[str, Any]:
        """T p."""
        ridge = ridge_of(part)
        return {"theta": ridge.direction} | ({"centre": ridge.centre(ridge.direction)} if self.centred else {})


@op(
    "ridge.direction",
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
def direction(
    table: LocalTable, view: str, encoding: str, model: str, rows: Array, l2: NotNegative, curvature: Curvature,
    noise: SumNoise | None = None, prediction_noise: PredictionNoise | None = None, exact: bool = False,
    known: SomeOrNone = 0,
) -> Values:  # fmt: skip
    """`Turn` at a table with one shard, and the bound of noisy T p.

    ``noise`` is for the gradient; T p has noise only if ``prediction_noise`` is given too. If it is ``exact``, it is
    not rounded.
    """
    if noise is None:
        part, data = parameters_of(table, model), sealed(table, view, encoding)
    else:
        part, data = noisy_parameters(table, model), encoded_for_noise(table, view, encoding)
    ridge, update = ridge_of(part), Turn(l2, curvature, known, centred=noise is None)
    _check_fit(part, rows, curvature, data)
    with unchanged_if_refused(part):
        if noise is None:
            wide = rows.astype(np.float64, copy=False)
            update.turn(part, data.open().transposed_times(wide), wide.sum(axis=0))
        else:
            update.turn(part, noisy_gradient(table, data, LinearRows(), part.theta, rows, noise), NOTHING)
        facts, bound = update.facts(part, known), 0.0
        if noise is None or prediction_noise is None:
            with table.for_reply():
                found = data.open().times(ridge.direction)
            if noise is None:
                found -= facts["centre"] if found.ndim == 2 else facts["centre"][0]
            predictions = on_wire(found, table.wire, exact=exact)
        else:
            bound = ridge.bound(ridge.direction)
            predictions = noisy_predictions(
                table, data, LinearRows(), ridge.direction, bound, prediction_noise.multiplier
            )
        return {"outputs": predictions, "bound": bound, **facts}


def _check_fit(part: TableParameters, rows: Array, curvature: Curvature, data: SealedTable) -> None:
    """PartyError unless all arguments have the same width and number of outputs."""
    outputs = part.theta.shape[1:]
    square = np.shape(curvature) in ((), (math.prod(outputs),) * 2)
    if len(part.theta) != data.width or rows.shape != (data.rows, *outputs) or not square:
        raise PartyError("rows, curvature and parameters do not fit each other")


@dataclass(frozen=True)
class Advance:
    """Take the step ``mix``, a combination of the direction and earlier steps; keep ``memory`` steps."""

    mix: Array
    memory: int
    op = "ridge.advance"

    @property
    def arguments(self) -> dict[str, Any]:
        """As `advance` takes them."""
        return {"mix": self.mix, "memory": self.memory}

    def take(self, part: TableParameters, sums: Array, total: Array) -> Facts:
        """At a table's parameters."""
        part.theta = ridge_of(part).advance(part.theta, self.mix, self.memory)
        return {}

    def shown(self, part: TableParameters) -> dict[str, Any]:
        """No predictions: the coordinator computes the scores itself."""
        return {}


@op("ridge.advance", asked="linear `lbfgs`, `admm`", releases=Release.COUNTS, returns={})
def advance(table: LocalTable, view: str, model: str, mix: List, memory: SomeOrNone) -> Values:
    """`Advance` at a table with one shard."""
    return dict(Advance(mix, memory).take(parameters_of(table, model), NOTHING, NOTHING))


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
