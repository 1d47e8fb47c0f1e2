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
from tablepuppet.learn.linear.wide_gram import WIDE, WideGram
from tablepuppet.learn.tables.linear import LinearRows
from tablepuppet.learn.tables.noisy import noisy_gradient, noisy_predictions
from tablepuppet.learn.tables.ops import on_wire
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
from tablepuppet.party.returns import IMAGE, PER_OUTPUT, SQUARE, Numbers, Products
from tablepuppet.party.spec import Linear
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
        numbers = data.dense.shape[1]
        centres = np.append(means[:numbers], np.zeros(data.width - numbers))
        if data.width < WIDE:
            gram = data.gram(counts, centres) / joined_rows
            part = ridge_parameters(gram, means - centres, means, spec.outputs, l2)
        else:
            wide = WideGram.of(data.centred(means[:numbers]), counts, joined_rows, means - centres)
            part = wide_ridge_parameters(wide, means, spec.outputs)
    else:
        hidden = encoded_for_noise(table, view, encoding)
        gram = noisy_gram(table, hidden, noise)
        part = noisy_ridge_parameters(gram, gram_noise(hidden.empty.columns, noise), spec.outputs)
    hold_parameters(table, model, part)
    return {}


@op(
    "ridge.direction",
    asked="linear `lbfgs`, `admm`",
    releases=Release.PREDICTIONS,
    private=("noise", "prediction_noise"),
    returns={
        "image": IMAGE,
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
    """T p for a new direction p, its inner products with stored steps and parameters, and the bound of noisy T p.

    Inner products of the ``known`` oldest steps with each other are left out.

    ``noise`` is for the gradient; T p has noise only if ``prediction_noise`` is given too. Without noise, T p is that
    of centred columns, ``centre`` is the mean that was subtracted, and if it is ``exact``, it is not rounded.
    """
    if noise is None:
        part, data = parameters_of(table, model), sealed(table, view, encoding)
    else:
        part, data = noisy_parameters(table, model), encoded_for_noise(table, view, encoding)
    ridge = ridge_of(part)
    _check_fit(part, rows, curvature, data)
    with unchanged_if_refused(part):
        if noise is None:
            wide = rows.astype(np.float64, copy=False)
            sums = ridge.centred(data.open().transposed_times(wide), wide.sum(axis=0))
        else:
            sums = noisy_gradient(table, data, LinearRows(), part.theta, rows, noise)
        ridge.turn(part.theta, sums, l2, curvature)
        bound, centre = 0.0, np.zeros(1)
        if noise is None or prediction_noise is None:
            with table.for_reply():
                found = data.open().times(ridge.direction)
            if noise is None:
                centre = ridge.centre(ridge.direction)
                found -= centre if found.ndim == 2 else centre[0]
            image = on_wire(found, table.wire, exact=exact)
        else:
            bound = ridge.bound(ridge.direction)
            image = noisy_predictions(table, data, LinearRows(), ridge.direction, bound, prediction_noise.multiplier)
        products = ridge.products(part.theta, known)
        facts = {"left": ridge.left, "magnitude": ridge.magnitude(ridge.direction), "centre": centre}
        return {"image": image, "products": products, "bound": bound, **facts}


def _check_fit(part: TableParameters, rows: Array, curvature: Curvature, data: SealedTable) -> None:
    """PartyError unless all arguments have the same width and number of outputs."""
    outputs = part.theta.shape[1:]
    square = np.shape(curvature) in ((), (math.prod(outputs),) * 2)
    if len(part.theta) != data.width or rows.shape != (data.rows, *outputs) or not square:
        raise PartyError("rows, curvature and parameters do not fit each other")


@op("ridge.advance", asked="linear `lbfgs`, `admm`", releases=Release.COUNTS, returns={})
def advance(table: LocalTable, view: str, model: str, mix: List, memory: SomeOrNone) -> Values:
    """Take the step that the coordinator chose."""
    advance_parameters(parameters_of(table, model), mix, memory)
    return {}


def advance_parameters(part: TableParameters, mix: Array, memory: int) -> None:
    """Take the step ``mix``, a combination of the direction and earlier steps."""
    part.theta = ridge_of(part).advance(part.theta, mix, memory)


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
