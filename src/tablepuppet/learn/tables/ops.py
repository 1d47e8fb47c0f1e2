"""The ops of any table's model, with or without noise; ops that only one solver needs are in that solver's file.

``model.predict`` uses parameters that the party holds. ``model.apply`` and ``model.gradient`` use parameters that the
coordinator sends, since it holds those of a table with several shards.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.errors import PartyError
from tablepuppet.learn.specs import Spec
from tablepuppet.learn.tables.noisy import noisy_gradient, noisy_predictions
from tablepuppet.learn.tables.parameters import (
    TableParameters,
    first_parameters,
    held_parameters,
    hold_parameters,
    parameters_for_predictions,
)
from tablepuppet.party.added_noise import PredictionNoise, SumNoise
from tablepuppet.party.arguments import Seed
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.ops import Values, op
from tablepuppet.party.release import Release
from tablepuppet.party.returns import ASKED_OUTPUTS, ROW_OUTPUTS, THETA
from tablepuppet.prep.encode.encode import encoded, encoded_for_noise, sealed

Array = NDArray[np.float64]
Floats = NDArray[np.floating[Any]]
ROUNDING = 1e-13  # share of the variance of predictions that rounding errors may be
Places = NDArray[np.int32]


@op("model.start", asked="networks, noisy steps", releases=Release.COUNTS, returns={})
def start(
    table: LocalTable, view: str, encoding: str, model: str, spec: Spec, seed: Seed, zero: bool = False
) -> Values:
    """Begin a model at a table with one shard; with ``zero``, all predictions are zero."""
    data = sealed(table, view, encoding)
    alias, numbers = table.snapshot.scan.alias, data.empty.dense.shape[1]
    hold_parameters(table, model, first_parameters(spec, seed, alias, numbers, data.width, zero=zero))
    return {}


@op(
    "model.predict",
    asked="`predict`, `evaluate`, validation",
    releases=Release.PREDICTIONS,
    private=("noise",),
    returns={"outputs": ROW_OUTPUTS},
)
def predict(
    table: LocalTable, view: str, encoding: str, model: str, noise: PredictionNoise | None = None, exact: bool = False
) -> Values:
    """Predictions with parameters that the party holds or has stored; with noise, these must be noisy too.

    If ``exact``, they are not rounded to the precision of the wire.
    """
    part = parameters_for_predictions(table, model, sealed(table, view, encoding).width)
    if noise is None:
        with table.for_reply():
            predictions = part.model.predict(part.theta, encoded(table, view, encoding))
        return {"outputs": on_wire(predictions, table.wire, exact=exact)}
    table.check_noisy()
    hidden = encoded_for_noise(table, view, encoding)
    bound = noise.bound if noise.bound is not None else part.bound
    return {"outputs": noisy_predictions(table, hidden, part.model.by_row, part.theta, bound, noise.multiplier)}


@op(
    "model.apply",
    asked="tables with several shards",
    releases=Release.PREDICTIONS,
    private=("noise",),
    returns={"outputs": ASKED_OUTPUTS},
)
def apply(
    table: LocalTable, view: str, encoding: str, spec: Spec, theta: Array, places: Places | None = None,
    noise: PredictionNoise | None = None, centre: Array | None = None, exact: bool = False,
) -> Values:  # fmt: skip
    """Predictions with parameters that the coordinator sends; if ``places`` are given, only of these rows.

    ``centre``, (outputs,), is subtracted before they are rounded to the precision of the wire, unless they are
    ``exact``.
    """
    width = sealed(table, view, encoding).width
    model = spec.over(width)
    _check_shape(theta, spec.theta_shape(width))
    if noise is None:
        data = encoded(table, view, encoding)
        data = data if places is None else data.rows(places)
        predictions = model.predict(theta, data)
        if centre is not None:
            _check_shape(centre, (spec.outputs,))
            predictions -= centre if predictions.ndim == 2 else centre[0]
        return {"outputs": on_wire(predictions, table.wire, exact=exact)}
    if places is not None or noise.bound is None:
        raise PartyError("predictions with noise are those of all rows, and have a bound")
    hidden = encoded_for_noise(table, view, encoding)
    return {"outputs": noisy_predictions(table, hidden, model.by_row, theta, noise.bound, noise.multiplier)}


@op(
    "model.gradient",
    asked="tables with several shards",
    releases=Release.GRADIENT_SUMS,
    private=("noise",),
    summed=("sums",),
    returns={"sums": THETA},
)
def gradient(
    table: LocalTable, view: str, encoding: str, spec: Spec, rows: Array, theta: Array | None = None,
    places: Places | None = None, noise: SumNoise | None = None,
) -> Values:  # fmt: skip
    """A shard's summand of its table's gradient (Eq. 18); a linear model needs no parameters for it."""
    width = sealed(table, view, encoding).width
    model, shape = spec.over(width), spec.theta_shape(width)
    theta = np.zeros(shape) if theta is None else theta
    _check_shape(theta, shape)
    if noise is None:
        data = encoded(table, view, encoding)
        data = data if places is None else data.rows(places)
        return {"sums": model.gradient(theta, data, rows.astype(np.float64))}
    if places is not None:
        raise PartyError("a gradient with noise is that of all rows")
    return {"sums": noisy_gradient(table, encoded_for_noise(table, view, encoding), model.by_row, theta, rows, noise)}


def on_wire(predictions: Floats, wire: str, *, exact: bool) -> Floats:
    """Predictions in the precision of the wire.

    They stay in double precision if they are ``exact``, or if rounding would show in how much they differ: if their
    mean is large.
    """
    if exact or wire == "float64":
        return predictions
    rounded = predictions.astype(wire)
    spread = float(np.square(predictions - predictions.mean(axis=0)).sum()) if len(predictions) else 0.0
    return rounded if float(np.square(rounded - predictions).sum()) <= ROUNDING * spread else predictions


def _check_shape(theta: Array, shape: tuple[int, ...]) -> None:
    if theta.shape != shape:
        raise PartyError(f"parameters of shape {theta.shape} do not fit: {shape} is needed")


@op(
    "model.parameters",
    asked="`coef_`, shards that did not train",
    releases=Release.PARAMETERS,
    private=("noisy",),
    returns={"theta": THETA},
)
def parameters(table: LocalTable, view: str, model: str, noisy: bool = False) -> Values:
    """The parameters of a table; with ``noisy``, they must come from noisy sums only and cost no more epsilon."""
    part = held_parameters(table, model)
    if noisy:
        table.check_noisy()
    return {"theta": part.theta}


@op("model.keep", asked="validation, linear `sgd`, `save`, `tp.load`, `tp.forget`", releases=Release.COUNTS, returns={})
def keep(table: LocalTable, view: str, model: str) -> Values:
    """Store a copy of the current parameters."""
    part = held_parameters(table, model)
    part.kept = part.theta
    return {}


@op(
    "model.restore",
    asked="validation, linear `sgd`, `save`, `tp.load`, `tp.forget`",
    releases=Release.COUNTS,
    returns={},
)
def restore(table: LocalTable, view: str, model: str) -> Values:
    """Return to the stored copy of the parameters."""
    part = held_parameters(table, model)
    restore_parameters(table.grant.party, part)
    return {}


def restore_parameters(party: str, part: TableParameters) -> None:
    """Return to the stored copy of the parameters; PartyError if there is none."""
    if part.kept is None:
        raise PartyError(f"party {party!r} remembers no parameters of this model; fit it again")
    part.theta, part.kept = part.kept, None
