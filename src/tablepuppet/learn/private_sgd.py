"""Feature privacy by noisy steps (DP-SGD): for networks, and for linear models with solver="sgd".

In each round the coordinator sends every table what it wants of all its base rows. The table's party takes several
steps by itself. For each it puts every row in a sample with probability q, on its own draw, that nobody else sees:

    g = ( sum over the sample of clip(n J_r^T (Y_r + p G_r (h_r - h_r^t))) + noise ) / (q n)
    theta = theta - lr (g + l2 theta)

J_r is the derivative of a row's prediction h_r, and h_r^t is h_r when the round began. n counts the table's rows, so
that ``clip`` means what it means for one table. Y_r is already the sum over all that the row is joined with, G_r of
them; p holds predictions back from running away from Y, which belongs to h^t. Predictions of all rows go back, in the
sample or not; they have noise of their own if there is an ``image`` multiplier, and are clipped to a bound that is no
function of the rows. A table with several shards sends noisy sums, step by step, and the coordinator holds its
parameters.

Models begin where all predictions are zero, so that nothing of the rows is told before the first step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.errors import PartyError
from tablepuppet.learn.block import Block, new_block
from tablepuppet.learn.networks import Weights
from tablepuppet.learn.part import StoredPart, encoded, keep_part, part_for_predictions, part_of
from tablepuppet.learn.private_linear import check_noisy, noisy_image
from tablepuppet.learn.row_gradients import LinearRows, NetworkRows, RowModel, by_row, clipped_sums
from tablepuppet.learn.table_network import TableNetwork
from tablepuppet.party.arguments import Positive, PositiveNumber, Seed, Some
from tablepuppet.party.ops import LocalTable, Values, op
from tablepuppet.party.release import Release
from tablepuppet.prep.encoded_table import EncodedTable

Array = NDArray[np.float64]
Hidden = Sequence[Some] | None  # widths of hidden layers; None: a linear model
NoisyPart = Block | Weights


@dataclass(frozen=True)
class NoisySteps:
    """What the steps of one round have in common, at one shard."""

    table: LocalTable
    data: EncodedTable
    rows: RowModel
    wanted: Array  # n Y
    pull: Array  # n p G
    before: Array  # h^t
    table_rows: int  # n
    clip: float
    multiplier: float
    sampling: float  # q
    given: bytes  # a digest of what the round begins with

    @classmethod
    def of(
        cls, table: LocalTable, view: str, encoding: str, rows: RowModel, theta: Array, wanted: Array, pull: float,
        table_rows: int, clip: float, multiplier: float, sampling: float,
    ) -> NoisySteps:  # fmt: skip
        """At the parameters with which the round begins."""
        table.check_once(view)
        data, counts = encoded(table, view, encoding), table.view(view).counts.astype(np.float64)
        if len(wanted) != len(data.dense) or not np.isfinite(wanted).all():
            raise PartyError(f"party {table.grant.party!r}: one finite number is needed for each row and output")
        begin = (wanted.astype(np.float64) * table_rows, counts * pull * table_rows, rows.predict(theta, data))
        given = hashlib.sha256(b"".join(array.tobytes() for array in begin)).digest()
        return cls(table, data, rows, *begin, table_rows, clip, multiplier, sampling, given)

    def gradient(self, theta: Array) -> Array:
        """The noisy gradient of the mean loss, from a new sample."""
        chosen = self.table.sample(len(self.before), self.sampling, self.given + theta.tobytes())
        sums = self.clipped(theta, chosen).ravel()
        told = self.table.noisy(sums, self.clip, self.multiplier, "gradient", self.sampling)
        return np.asarray(told.reshape(theta.shape) / (self.sampling * self.table_rows))

    def clipped(self, theta: Array, chosen: NDArray[np.int64]) -> Array:
        """The sum over chosen rows before noise: none adds more than ``clip``."""
        data = self.data.rows(chosen)
        moved = self.rows.predict(theta, data) - self.before[chosen]
        wanted = self.wanted[chosen] + by_row(moved, self.pull[chosen])
        return clipped_sums(self.rows, theta, data, wanted, self.clip)


def rows_of(part: NoisyPart | StoredPart) -> RowModel:
    """The model of a part."""
    network = None if isinstance(part, Block) else part.network
    return NetworkRows(network) if network else LinearRows()


def row_model(width: int, hidden: Hidden, outputs: int) -> RowModel:
    """The model of a table with ``width`` encoded columns."""
    return LinearRows() if hidden is None else NetworkRows(TableNetwork.over(width, hidden, outputs))


def parameters_of(width: int, hidden: Hidden, outputs: int) -> int:
    """How many a table has."""
    return sum((into + 1) * out for into, out in pairwise((width, *(hidden or ()), outputs))) - outputs


def new_part(seed: int, alias: str, numbers: int, width: int, hidden: Hidden, outputs: int) -> NoisyPart:
    """The first parameters of a table: none is a function of its rows, and they predict zero."""
    if hidden is None:
        return new_block(width, outputs, noisy=True)
    network = TableNetwork.over(width, hidden, outputs)
    return Weights(network.rescaled(network.start(seed, alias, numbers), 0.0), network, noisy=True)


@op("private.begin", releases=Release.COUNTS)
def begin(table: LocalTable, view: str, encoding: str, model: str, seed: Seed, hidden: Hidden, outputs: Some) -> Values:
    """Begin a model at a table with one shard."""
    data = encoded(table, view, encoding)
    alias, numbers = table.snapshot.scan.alias, data.dense.shape[1]
    keep_part(table, model, new_part(seed, alias, numbers, data.width, hidden, outputs))
    return {}


def _descend(
    table: LocalTable, view: str, encoding: str, model: str, rates: Array, momentum: float, l2: float, **given: Any
) -> tuple[NoisyPart, Array]:
    """(the part after a step for each learning rate, predictions of all rows)."""
    part: NoisyPart = part_of(table, model)
    steps = NoisySteps.of(table, view, encoding, rows_of(part), part.theta, **given)
    for rate in rates:
        part.descend(steps.gradient(part.theta), float(rate), momentum, l2)
    return part, steps.rows.predict(part.theta, steps.data)


@op("private.descend", releases=Release.PREDICTIONS)
def descend(
    table: LocalTable, view: str, encoding: str, model: str, rows: Array, pull: float, rates: Array, momentum: float,
    l2: float, table_rows: Positive, clip: PositiveNumber, multiplier: PositiveNumber, sampling: PositiveNumber,
) -> Values:  # fmt: skip
    """Noisy steps, then predictions without noise, and |theta|^2."""
    part, image = _descend(
        table, view, encoding, model, rates, momentum, l2, wanted=rows, pull=pull, table_rows=table_rows, clip=clip,
        multiplier=multiplier, sampling=sampling,
    )  # fmt: skip
    return {"image": image.astype(table.wire), "square": float(np.vdot(part.theta, part.theta))}


@op("private.noisy_descend", releases=Release.PREDICTIONS, private=True)
def noisy_descend(
    table: LocalTable, view: str, encoding: str, model: str, rows: Array, pull: float, rates: Array, momentum: float,
    l2: float, table_rows: Positive, clip: PositiveNumber, multiplier: PositiveNumber, sampling: PositiveNumber,
    bound: PositiveNumber, image_multiplier: PositiveNumber,
) -> Values:  # fmt: skip
    """The same with noise on predictions too."""
    part, image = _descend(
        table, view, encoding, model, rates, momentum, l2, wanted=rows, pull=pull, table_rows=table_rows, clip=clip,
        multiplier=multiplier, sampling=sampling,
    )  # fmt: skip
    told = _without_nulls(image, encoded(table, view, encoding))
    square = float(np.vdot(part.theta, part.theta))
    return {"image": noisy_image(table, view, told, bound, image_multiplier), "square": square}


@op("private.sampled_gradient", releases=Release.GRADIENT_SUMS, private=True, summed=("sums",))
def sampled_gradient(
    table: LocalTable, view: str, encoding: str, model: str, theta: Array, pull: float, hidden: Hidden, outputs: Some,
    table_rows: Positive, clip: PositiveNumber, multiplier: PositiveNumber, sampling: PositiveNumber,
    rows: Array | None = None,
) -> Values:  # fmt: skip
    """A shard's part of one noisy step; ``rows`` begin a new round, at these parameters."""
    name = f"{model}/{view}/steps"
    if rows is not None:
        shape = row_model(encoded(table, view, encoding).width, hidden, outputs)
        table.state[name] = NoisySteps.of(
            table, view, encoding, shape, theta, rows, pull, table_rows, clip, multiplier, sampling
        )
    steps = table.state.get(name)
    if not isinstance(steps, NoisySteps):
        raise PartyError(f"party {table.grant.party!r} has not begun this model; fit it again")
    return {"sums": steps.gradient(theta)}


@op("private.predict_within", releases=Release.PREDICTIONS, private=True)
def predict_within(
    table: LocalTable, view: str, encoding: str, model: str, bound: PositiveNumber, image_multiplier: PositiveNumber
) -> Values:
    """Predictions with noise, for parameters that the party holds or keeps, which must have been learned with noise."""
    part: NoisyPart | StoredPart = part_for_predictions(table, model)
    check_noisy(table, part)
    data = encoded(table, view, encoding)
    image = _without_nulls(rows_of(part).predict(part.theta, data), data)
    return {"image": noisy_image(table, view, image, bound, image_multiplier)}


@op("private.image_within", releases=Release.PREDICTIONS, private=True)
def image_within(
    table: LocalTable, view: str, encoding: str, theta: Array, hidden: Hidden, outputs: Some, bound: PositiveNumber,
    image_multiplier: PositiveNumber,
) -> Values:  # fmt: skip
    """Predictions with noise, for parameters that the coordinator holds."""
    data = encoded(table, view, encoding)
    image = _without_nulls(row_model(data.width, hidden, outputs).predict(theta, data), data)
    return {"image": noisy_image(table, view, image, bound, image_multiplier)}


def _without_nulls(image: Array, data: EncodedTable) -> Array:
    """Predictions of null records are zero, so that one in place of a row changes no more than the row's."""
    return by_row(image, (data.norms() > 0).astype(np.float64))
