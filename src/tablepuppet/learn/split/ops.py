"""The party's half of split learning: a table's bottom network computes embeddings and takes steps.

If a table has one shard, its party holds the parameters and the state of their optimiser, and takes the steps of
batches (exchange.py). If it has several, the coordinator holds them: shards apply the parameters that it sends
(``split.apply``) and return their part of the gradient (``split.gradient``). Embeddings are released; the table's
policy limits how wide they are and how often each row's embedding is sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from tablepuppet.arrays import Array, Places
from tablepuppet.errors import PartyError
from tablepuppet.learn.specs import Bottom, Hiding, Mlp
from tablepuppet.learn.split.flat import Adam
from tablepuppet.learn.split.narrow import Bits, Narrow, narrowed, widened
from tablepuppet.learn.split.table import BatchSums, Forward, TorchTable
from tablepuppet.learn.tables.noisy import noisy_predictions
from tablepuppet.learn.tables.parameters import TableParameters, held_parameters, hold_parameters
from tablepuppet.party.arguments import Bound, Multiplier, Positive, PredictionNoise, Seed
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.ops import Values, op
from tablepuppet.party.release import Release
from tablepuppet.party.returns import OUTPUTS, ROWS, ROWS_ASKED, THETA, WIDTH, Asked, Length, Numbers, OfRows, Wrong
from tablepuppet.prep.encode.encode import encoded, encoded_for_noise, sealed
from tablepuppet.prep.encode.encoded_table import SealedTable

BatchNumber = Annotated[int, Meta(ge=-1, le=2**53)]
"""Of a batch in the run, from 0; -1: none."""
ASKED = "networks across parties"


@dataclass(frozen=True)
class Embedded:
    """An array of embeddings, in the precision that was asked for (narrow.py)."""

    lengths: tuple[Length, ...]

    def check(self, value: Any, asked: Asked, reply: Mapping[str, Any]) -> None:
        """Raise `Wrong` or `NotFinite` unless it is such an array."""
        if asked.arguments.get("wire") == "bfloat16":
            if not isinstance(value, np.ndarray) or value.dtype != np.uint16:
                raise Wrong("is no array of bfloat16")
            value = widened(value)
        Numbers(self.lengths).check(value, asked, reply)


EMBEDDED, ASKED_EMBEDDED = Embedded((ROWS, OUTPUTS)), Embedded((ROWS_ASKED, OUTPUTS))


@dataclass
class Training:
    """The memory of a table in training: its optimiser, and the batch that is under way."""

    adam: Adam
    batch: int = -1
    forward: Forward | None = None
    nat: Any = None  # the training of a guest by itself (once.py)
    rebuilt: Array | None = None  # the gradient of its reconstruction error
    view: str = ""
    places: Places | None = None  # of its rows in the view


def bottom_parameters(table: LocalTable, model: str, width: int) -> tuple[TorchTable, TableParameters]:
    """The bottom network that the party holds, or has stored if the model was loaded."""
    alias = table.snapshot.scan.alias
    if f"{model}/{alias}" not in table.models and (kept := table.shelf.get(model, alias)):
        spec = kept.spec_of(Bottom)
        if spec is None:
            raise PartyError(f"party {table.grant.party!r}: this model has scores, not embeddings")
        network = TorchTable(spec, width, alias)
        return network, TableParameters(network, kept.theta)
    part = held_parameters(table, model)
    if not isinstance(part.model, TorchTable):
        raise PartyError(f"party {table.grant.party!r}: this model has scores, not embeddings")
    return part.model, part


@op("split.start", asked=ASKED, releases=Release.COUNTS, returns={})
def start(
    table: LocalTable, view: str, encoding: str, model: str, spec: Bottom, seed: Seed, zero: bool = False
) -> Values:
    """Begin the bottom network of a table with one shard. Its parameters depend on no row.

    With ``zero``, all embeddings are zero at first.
    """
    data = sealed(table, view, encoding)
    alias = table.snapshot.scan.alias
    network = TorchTable(spec, data.width, alias)
    theta = network.start(seed, alias, data.empty.dense.shape[1])
    if zero and isinstance(spec, Mlp):
        last = ((data.width, *spec.hidden)[-1] + 1) * spec.outputs
        theta[len(theta) - last :] = 0.0
    hold_parameters(table, model, TableParameters(network, theta, Training(Adam.over(len(theta)))))
    return {}


@op(
    "split.embed",
    asked=f"{ASKED}: `predict`, validation",
    releases=Release.EMBEDDINGS,
    private=("noise",),
    returns={"outputs": EMBEDDED},
)
def embed(
    table: LocalTable, view: str, encoding: str, model: str, blur: Multiplier | None = None,
    noise: PredictionNoise | None = None, wire: Narrow | None = None,
) -> Values:  # fmt: skip
    """The embeddings of all rows, with parameters that the party holds or has stored; with noise, these have some too.

    ``blur`` is the scale of Gaussian noise on directions of embeddings, which promises nothing by itself.
    """
    data = sealed(table, view, encoding) if noise is None else encoded_for_noise(table, view, encoding)
    network, part = bottom_parameters(table, model, data.width)
    if noise is not None:
        table.check_noisy()
    table.count_embeddings(view, network.spec.outputs)
    return {"outputs": _released(table, network, part.theta, data, blur, noise, wire)}


@op(
    "split.apply",
    asked=f"{ASKED}: tables with several shards",
    releases=Release.EMBEDDINGS,
    private=("noise",),
    returns={"outputs": ASKED_EMBEDDED},
)
def apply(
    table: LocalTable, view: str, encoding: str, spec: Bottom, theta: Array, places: Places | None = None,
    blur: Multiplier | None = None, noise: PredictionNoise | None = None, hiding: Hiding | None = None,
    sums: Array | None = None, joined: Positive = 1, wire: Narrow | None = None,
) -> Values:  # fmt: skip
    """Embeddings with parameters that the coordinator sends; with ``places``, only of these rows, in training.

    Batch norm then needs ``sums`` over the ``joined`` rows of the batch (`moments`).
    """
    data = sealed(table, view, encoding) if noise is None else encoded_for_noise(table, view, encoding)
    network = network_for(table, data.width, spec, theta)
    if places is not None and not (blur is None and noise is None):
        raise PartyError("embeddings with noise are those of all rows")
    known = sums_of(network, sums, joined)
    table.count_embeddings(view, spec.outputs, places)
    if places is None:
        return {"outputs": _released(table, network, theta, data, blur, noise, wire)}
    chosen = data.open().rows(places)
    found = network.forward(theta, network.batched(chosen, None, hiding), known).embeddings
    return {"outputs": shaped(found, wire or table.wire)}


def _released(
    table: LocalTable, network: TorchTable, theta: Array, data: SealedTable, blur: float | None,
    noise: PredictionNoise | None, wire: Narrow | None,
) -> NDArray[Any]:  # fmt: skip
    """The embeddings of all rows as they leave, with noise if there is any."""
    if noise is not None:
        if noise.bound is None:
            raise PartyError("embeddings with noise need a bound")
        noisy = noisy_predictions(table, data, network.by_row, theta, noise.bound, noise.multiplier)
        return shaped(noisy, wire or table.wire)
    with table.for_reply():
        found = network.predict(theta, data.open())
    if blur is not None:
        lengths = np.linalg.norm(found, axis=1, keepdims=True)
        unit = (found / np.where(lengths > 0, lengths, 1)).astype(np.float64)
        found = table.noisy(lambda: [unit], unit.shape, 1.0, blur, "embeddings")
    return shaped(found, wire or table.wire)


@op(
    "split.gradient",
    asked=f"{ASKED}: tables with several shards",
    releases=Release.GRADIENT_SUMS,
    returns={"sums": THETA},
)
def gradient(
    table: LocalTable, view: str, encoding: str, spec: Bottom, theta: Array, places: Places, rows: Array | Bits,
    hiding: Hiding | None = None, sums: Array | None = None, joined: Positive = 1, unit: Bound = 1.0,
) -> Values:  # fmt: skip
    """A shard's summand of its table's gradient, for a batch."""
    data = encoded(table, view, encoding)
    network = network_for(table, data.width, spec, theta)
    known = sums_of(network, sums, joined)
    if not len(places):
        return {"sums": np.zeros(network.flat.size)}
    batch = network.batched(data.rows(places), None, hiding)
    return {"sums": network.forward(theta, batch, known).backward(wide(rows) * unit)}


@op(
    "split.moments",
    asked=f"{ASKED}: batch norm of tables with several shards",
    releases=Release.EMBEDDINGS | Release.STATISTICS,
    returns={"sums": OfRows(Numbers((4, WIDTH)), Release.EMBEDDINGS)},
)
def moments(
    table: LocalTable, view: str, encoding: str, spec: Bottom, places: Places, counts: Places,
    hiding: Hiding | None = None,
) -> Values:  # fmt: skip
    """Sums over the joined rows of a batch by encoded column, of values and squares: as they are shown, and whole.

    Of few rows they say as much as embeddings that are as wide as the table, and are counted as such.
    """
    data = encoded(table, view, encoding)
    network = TorchTable(spec, data.width, table.snapshot.scan.alias)
    check_counts(counts, places)
    chosen = data.rows(places)
    table.count_embeddings(view, max(spec.outputs, data.width), places)
    batch = network.batched(chosen, counts, hiding)
    whole = batch.rows.numpy().astype(np.float64)
    shown = whole if batch.mask is None else whole * (1 - batch.mask.numpy())
    weights = counts.astype(np.float64)
    return {"sums": np.stack([weights @ shown, weights @ shown**2, weights @ whole, weights @ whole**2])}


def sums_of(network: TorchTable, sums: Array | None, joined: int) -> BatchSums | None:
    """Sums that a caller has sent; PartyError if they do not fit the table."""
    if sums is None:
        return None
    if sums.shape != (2, network.width):
        raise PartyError(f"sums of shape {sums.shape} do not fit {(2, network.width)}")
    return BatchSums(joined, sums)


def network_for(table: LocalTable, width: int, spec: Bottom, theta: Array) -> TorchTable:
    """The network of parameters that the coordinator sends; PartyError if they do not fit."""
    network = TorchTable(spec, width, table.snapshot.scan.alias)
    check_shape(theta, network)
    return network


def check_counts(counts: Places | None, places: Places) -> None:
    """PartyError unless there are as many counts, if any, as places of rows."""
    if counts is not None and len(counts) != len(places):
        raise PartyError("as many counts as places of rows are needed")


def check_shape(theta: Array, network: TorchTable) -> None:
    """PartyError unless parameters are as many as a network has."""
    if theta.shape != (network.flat.size,):
        raise PartyError(f"parameters of shape {theta.shape} do not fit: {network.flat.size:,} are needed")


def shaped(embeddings: NDArray[Any], wire: str) -> NDArray[Any]:
    """Embeddings as they travel: (rows,) if they are one number wide, else (rows, outputs)."""
    return narrowed(embeddings[:, 0] if embeddings.shape[1] == 1 else embeddings, wire)


def wide(rows: NDArray[Any]) -> NDArray[Any]:
    """Arrays that have travelled, as (rows, outputs)."""
    found = widened(rows)
    return found[:, None] if found.ndim == 1 else found
