"""The ops of any table's model, with or without noise; ops that only one solver needs are in that solver's file.

``model.predict`` uses parameters that the party holds. ``model.apply`` and ``model.gradient`` use parameters that the
coordinator sends, since it holds those of a table with several shards. Outputs that are embeddings have ops of their
own (learn/split/ops.py), as they are another release; all else is the same for them.
"""

from __future__ import annotations

import numpy as np

from tablepuppet.arrays import Array, Places
from tablepuppet.errors import PartyError
from tablepuppet.learn.tables.model import BatchSums, Bottom, Hiding, Spec, TableModel, TableSpec, model_of
from tablepuppet.learn.tables.narrow import Bits, widened
from tablepuppet.learn.tables.noisy import noisy_gradient
from tablepuppet.learn.tables.parameters import (
    TableParameters,
    first_parameters,
    held_parameters,
    hold_parameters,
    parameters_of,
)
from tablepuppet.learn.tables.steps import released
from tablepuppet.party.arguments import Bound, Positive, PredictionNoise, Seed, SumNoise
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.ops import Values, op
from tablepuppet.party.release import Release
from tablepuppet.party.returns import ASKED_OUTPUTS, ROW_OUTPUTS, THETA
from tablepuppet.prep.encode.encode import encoded, encoded_for_noise, sealed


@op("model.start", asked="networks, noisy steps", releases=Release.COUNTS, returns={})
def start(
    table: LocalTable, view: str, encoding: str, model: str, spec: TableSpec, seed: Seed, zero: bool = False
) -> Values:
    """Begin a model at a table with one shard; with ``zero``, all outputs are zero."""
    data = sealed(table, view, encoding)
    alias, numbers = table.snapshot.scan.alias, data.empty.dense.shape[1]
    network = model_of(spec, data.width, alias)
    hold_parameters(table, model, first_parameters(network, seed, alias, numbers, zero=zero))
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
    data = sealed(table, view, encoding)
    part, bound = parameters_of(table, model, width=data.width), None
    if noise is not None:
        table.check_noisy()
        data = encoded_for_noise(table, view, encoding)
        bound = noise.bound if noise.bound is not None else part.bound_of(part.theta)
    return {"outputs": released(table, data, part.model, part.theta, noise, bound, exact=exact)}


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
    data = sealed(table, view, encoding)
    model, bound = sent_model(table, spec, data.width, theta), None
    if centre is not None and centre.shape != (spec.outputs,):
        raise PartyError(f"a centre of shape {centre.shape} does not fit: {(spec.outputs,)} is needed")
    if noise is not None:
        if places is not None or centre is not None or noise.bound is None:
            raise PartyError("predictions with noise are those of all rows, have a bound, and are not centred")
        data, bound = encoded_for_noise(table, view, encoding), noise.bound
    outputs = released(table, data, model, theta, noise, bound, places=places, centre=centre, exact=exact)
    return {"outputs": outputs}


@op(
    "model.gradient",
    asked="tables with several shards",
    releases=Release.GRADIENT_SUMS,
    private=("noise",),
    summed=("sums",),
    returns={"sums": THETA},
)
def gradient(
    table: LocalTable, view: str, encoding: str, spec: TableSpec, rows: Array | Bits, theta: Array | None = None,
    places: Places | None = None, noise: SumNoise | None = None, unit: Bound = 1.0, hiding: Hiding | None = None,
    sums: Array | None = None, joined: Positive = 1,
) -> Values:  # fmt: skip
    """A shard's summand of its table's gradient (Eq. 18); a linear model needs no parameters for it.

    ``rows``, the gradient by outputs, are in units of ``unit``. Of models that see a batch as a whole, ``hiding`` says
    which cells are hidden, and ``sums`` are those of its columns over the ``joined`` rows of all shards.
    """
    width = sealed(table, view, encoding).width
    model = sent_model(table, spec, width, theta)
    theta = np.zeros(model.shape) if theta is None else theta
    given = widened(rows)
    given = given[:, None] if isinstance(spec, Bottom) and given.ndim == 1 else given
    if noise is not None:
        if places is not None:
            raise PartyError("a gradient with noise is that of all rows")
        hidden = encoded_for_noise(table, view, encoding)
        return {"sums": noisy_gradient(table, hidden, model.by_row, theta, given, noise)}
    known = sums_of(sums, joined, width)
    data, given = encoded(table, view, encoding), given * unit
    if places is None:
        return {"sums": model.gradient(theta, data, given)}
    batch = data.rows(places)
    if not len(places):
        return {"sums": np.zeros(model.shape)}
    return {"sums": model.forward(theta, model.rows(batch, None, hiding), known).backward(given)}


def sent_model(table: LocalTable, spec: TableSpec, width: int, theta: Array | None) -> TableModel:
    """The model of parameters that the coordinator sends; PartyError if they do not fit."""
    model = model_of(spec, width, table.snapshot.scan.alias)
    if theta is not None and theta.shape != model.shape:
        raise PartyError(f"parameters of shape {theta.shape} do not fit: {model.shape} is needed")
    return model


def sums_of(sums: Array | None, joined: int, width: int) -> BatchSums | None:
    """Sums that a caller has sent; PartyError if they do not fit a table with so many encoded columns."""
    if sums is None:
        return None
    if sums.shape != (2, width):
        raise PartyError(f"sums of shape {sums.shape} do not fit {(2, width)}")
    return BatchSums(joined, sums)


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
