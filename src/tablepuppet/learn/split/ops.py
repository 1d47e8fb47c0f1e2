"""The party's half of split learning: a table's bottom network computes embeddings and takes steps.

If a table has one shard, its party holds the parameters and the state of their optimiser, and takes the steps of
batches (exchange.py). If it has several, the coordinator holds them: shards apply the parameters that it sends
(``split.apply``) and return their part of the gradient (``model.gradient``). Embeddings are released; the table's
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
from tablepuppet.learn.split.tabnet_table import TabNet
from tablepuppet.learn.tables.model import Bottom, Forward, Hiding, TableModel
from tablepuppet.learn.tables.narrow import Narrow, narrowed, widened
from tablepuppet.learn.tables.noisy import noisy_predictions
from tablepuppet.learn.tables.ops import sent_model, sums_of
from tablepuppet.learn.tables.parameters import Adam, TableParameters, parameters_of
from tablepuppet.party.approval import add_work
from tablepuppet.party.arguments import Multiplier, Positive, PredictionNoise
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.ops import Values, op
from tablepuppet.party.release import Release
from tablepuppet.party.returns import OUTPUTS, ROWS, ROWS_ASKED, WIDTH, Asked, Length, Numbers, OfRows, Wrong
from tablepuppet.prep.encode.encode import encoded, encoded_for_noise, sealed
from tablepuppet.prep.encode.encoded_table import SealedTable

add_work(("SplitNNRegressor", "SplitNNClassifier"), "split")

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


def in_training(part: TableParameters) -> Training:
    """The memory of a table in training, which begins with its first step; PartyError if another solver began it."""
    if part.memory is None:
        part.memory = Training(Adam.over(part.model.size))
    return part.remembered(Training)


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
    part = parameters_of(table, model, Bottom, data.width)
    if noise is not None:
        table.check_noisy()
    table.count_embeddings(view, part.model.spec.outputs)
    return {"outputs": _released(table, part.model, part.theta, data, blur, noise, wire)}


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
    network = sent_model(table, spec, data.width, theta)
    if places is not None and not (blur is None and noise is None):
        raise PartyError("embeddings with noise are those of all rows")
    known = sums_of(sums, joined, data.width)
    table.count_embeddings(view, spec.outputs, places)
    if places is None:
        return {"outputs": _released(table, network, theta, data, blur, noise, wire)}
    chosen = data.open().rows(places)
    found = network.forward(theta, network.rows(chosen, None, hiding), known).outputs
    return {"outputs": shaped(found, wire or table.wire)}


def _released(
    table: LocalTable, network: TableModel, theta: Array, data: SealedTable, blur: float | None,
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
    "split.moments",
    asked=f"{ASKED}: batch norm of tables with several shards",
    releases=Release.EMBEDDINGS | Release.STATISTICS,
    returns={"sums": OfRows(Numbers((4, WIDTH)), Release.EMBEDDINGS)},
)
def moments(
    table: LocalTable, view: str, encoding: str, spec: TabNet, places: Places, counts: Places,
    hiding: Hiding | None = None,
) -> Values:  # fmt: skip
    """Sums over the joined rows of a batch by encoded column, of values and squares: as they are shown, and whole.

    Of few rows they say as much as embeddings that are as wide as the table, and are counted as such.
    """
    data = encoded(table, view, encoding)
    network = spec.over(data.width, table.snapshot.scan.alias)
    check_counts(counts, places)
    chosen = data.rows(places)
    table.count_embeddings(view, max(spec.outputs, data.width), places)
    batch = network.rows(chosen, counts, hiding)
    whole = batch.values.numpy().astype(np.float64)
    shown = whole if batch.mask is None else whole * (1 - batch.mask.numpy())
    weights = counts.astype(np.float64)
    return {"sums": np.stack([weights @ shown, weights @ shown**2, weights @ whole, weights @ whole**2])}


def check_counts(counts: Places | None, places: Places) -> None:
    """PartyError unless there are as many counts, if any, as places of rows."""
    if counts is not None and len(counts) != len(places):
        raise PartyError("as many counts as places of rows are needed")


def shaped(embeddings: NDArray[Any], wire: str) -> NDArray[Any]:
    """Embeddings as they travel: (rows,) if they are one number wide, else (rows, outputs)."""
    return narrowed(embeddings[:, 0] if embeddings.shape[1] == 1 else embeddings, wire)


def wide(rows: NDArray[Any]) -> NDArray[Any]:
    """Arrays that have travelled, as (rows, outputs)."""
    found = widened(rows)
    return found[:, None] if found.ndim == 1 else found
