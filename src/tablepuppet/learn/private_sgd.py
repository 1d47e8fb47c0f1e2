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

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.errors import PartyError
from tablepuppet.learn.block import Block, new_block
from tablepuppet.learn.image_noise import believed, calmed, left_in_mean
from tablepuppet.learn.networks import Weights
from tablepuppet.learn.part import encoded, keep_part, part_of
from tablepuppet.learn.placed import PlacedModel
from tablepuppet.learn.private_linear import noisy_image
from tablepuppet.learn.row_gradients import LinearRows, NetworkRows, RowModel, by_row, clipped_sums
from tablepuppet.learn.table_network import TableNetwork
from tablepuppet.mapping.table_mapping import Floats
from tablepuppet.operators.client import Client, Replies
from tablepuppet.operators.lou import Instead, LearningOverUnion
from tablepuppet.party.arguments import Positive, PositiveNumber, Seed, Some
from tablepuppet.party.ops import LocalTable, Values, op
from tablepuppet.party.release import Release
from tablepuppet.prep.encode import Encoding
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
        return cls(
            table, data, rows, wanted.astype(np.float64) * table_rows, counts * pull * table_rows,
            rows.predict(theta, data), table_rows, clip, multiplier, sampling,
        )  # fmt: skip

    def gradient(self, theta: Array) -> Array:
        """The noisy gradient of the mean loss, from a new sample."""
        chosen = self.table.sample(len(self.before), self.sampling)
        sums = self.clipped(theta, chosen).ravel()
        told = self.table.noisy(sums, self.clip, self.multiplier, "gradient", self.sampling)
        return np.asarray(told.reshape(theta.shape) / (self.sampling * self.table_rows))

    def clipped(self, theta: Array, chosen: NDArray[np.int64]) -> Array:
        """The sum over chosen rows before noise: none adds more than ``clip``."""
        data = self.data.rows(chosen)
        moved = self.rows.predict(theta, data) - self.before[chosen]
        wanted = self.wanted[chosen] + by_row(moved, self.pull[chosen])
        return clipped_sums(self.rows, theta, data, wanted, self.clip)


def rows_of(part: NoisyPart) -> RowModel:
    """The model of a part."""
    return NetworkRows(part.network) if isinstance(part, Weights) and part.network else LinearRows()


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
    """Predictions with noise, for parameters that the party holds."""
    part: NoisyPart = part_of(table, model)
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


@dataclass
class StepNoise:
    """The noise of a fit, and how often it was drawn."""

    clip: float
    multipliers: Mapping[str, float]  # by table, of steps
    samplings: Mapping[str, float]  # by table
    image: float | None = None  # of predictions: all tables alike
    steps: int = field(default=0, init=False)
    images: int = field(default=0, init=False)


@dataclass(frozen=True)
class Pace:
    """How fast the tables go in one round."""

    rates: Mapping[str, Array]  # by table, the learning rate of each step
    momentum: float

    @property
    def steps(self) -> int:
        """Of the round."""
        return len(next(iter(self.rates.values()), ()))


class SampledModel(PlacedModel[NoisyPart]):
    """The coordinator's side of a model whose parties take noisy steps."""

    hidden: list[int] | None = None

    def __init__(
        self, client: Client, encoding: Encoding, wire: str, outputs: int, hidden: Sequence[int] | None, l2: float,
        seed: int, unit: float, model: str, noise: StepNoise,
    ):  # fmt: skip
        super().__init__(client, encoding, wire, outputs, l2, model)
        self.hidden = None if hidden is None else [int(size) for size in hidden]
        self._unit, self.noise = unit, noise
        self._squares: dict[str, float] = {}
        self.lou.ask("private.begin", self.alone, encoding=encoding.id, model=model, seed=seed, **self.whole_shape)
        self._shared = {
            alias: new_part(seed, alias, len(encoding.numbers[alias]), len(encoding.names(alias)), self.hidden, outputs)
            for alias in self.together
        }

    @property
    def shared(self) -> dict[str, NoisyPart]:
        """Parts of the tables in `together`."""
        return self._shared

    @property
    def unit(self) -> float:
        """The label's unit: scores are learned in it."""
        return self._unit

    @property
    def whole_shape(self) -> dict[str, Any]:
        """Hidden layers, if it is a network, and outputs."""
        return {"hidden": self.hidden, "outputs": self.outputs}

    @property
    def sizes(self) -> dict[str, int]:
        """Parameters by table."""
        return {
            alias: parameters_of(len(self.encoding.names(alias)), self.hidden, self.outputs) for alias in self.tables
        }

    @property
    def square(self) -> float:
        """|theta|^2."""
        shared = sum(float(np.vdot(part.theta, part.theta)) for part in self._shared.values())
        return shared + sum(self._squares.values())

    @property
    def believed_mean(self) -> float:
        """The share of the mean prediction that the intercept shall answer: less, the more of it is noise."""
        left = max((left_in_mean(self.loj.mapping, alias) for alias in self.tables), default=0.0)
        return believed(1.0, self._image_ratio * left)

    @property
    def _image_ratio(self) -> float:
        """The mean square of noise in units of that of predictions, which are likely to be about as large as parameters
        and no larger than their bound.
        """
        if self.noise.image is None:
            return 0.0
        most = len(self.tables) * self.noise.clip**2
        return most * self.noise.image**2 / max(min(self.square, most), 1e-300)

    def step(self, wanted: Array, pull: float, pace: Pace) -> Array:
        """The sum over tables of their predictions, after steps that answer ``wanted``."""
        rows = self.loj.scatter(wanted, self.tables)
        replies = self._ask_steps(rows, pull, pace)
        for number in range(pace.steps):
            self._step_shared(None if number else rows, pull, pace, number)
        self.noise.steps += pace.steps
        self.noise.images += 1
        predictions = self.gathered(replies)
        self._squares = {alias: replies[alias][0]["square"] for alias in self.alone}
        return predictions

    def _ask_steps(self, rows: Mapping[str, Floats], pull: float, pace: Pace) -> Replies:
        told = self._by_alias(self.alone)
        for alias in self.alone:
            told[alias]["rates"] = pace.rates[alias]
        return self.lou.ask(
            "private.descend" if self.noise.image is None else "private.noisy_descend", self.alone, rows,
            by_alias=told, encoding=self.encoding.id, model=self.model, pull=pull, momentum=pace.momentum, l2=self.l2,
            **self._image_noise,
        )  # fmt: skip

    def _step_shared(self, rows: Mapping[str, Floats] | None, pull: float, pace: Pace, number: int) -> None:
        if not self.together:
            return
        told = self._by_alias(self.together)
        for alias, part in self._shared.items():
            told[alias]["theta"] = part.theta
        sums = self.lou.ask(
            "private.sampled_gradient", self.together, rows, told, encoding=self.encoding.id, model=self.model,
            pull=pull, bounds=self._largest, **self.whole_shape,
        )  # fmt: skip
        for alias, part in self._shared.items():
            rate = float(pace.rates[alias][number])
            part.descend(self.lou.add(sums[alias], "sums"), rate, pace.momentum, self.l2)

    def _largest(self, alias: str) -> dict[str, float]:
        """No noisy sum over a table's rows is larger, almost surely."""
        noise, rows = self.noise, self.lou.client.mapping.tables[alias].rows
        drawn = 10 * noise.multipliers[alias] * self.lou.shards(alias) / rows
        return {"sums": noise.clip * (1.0 + drawn) / noise.samplings[alias]}

    def noise_length(self, alias: str) -> float:
        """About the length of the noise in a table's gradient."""
        noise, rows = self.noise, self.lou.client.mapping.tables[alias].rows
        numbers = self.sizes[alias] * self.lou.shards(alias)
        return noise.multipliers[alias] * noise.clip * math.sqrt(numbers) / (noise.samplings[alias] * rows)

    def _by_alias(self, aliases: Iterable[str]) -> dict[str, dict[str, Any]]:
        noise, tables = self.noise, self.lou.client.mapping.tables
        return {
            alias: {
                "table_rows": tables[alias].rows, "clip": noise.clip, "multiplier": noise.multipliers[alias],
                "sampling": noise.samplings[alias],
            }
            for alias in aliases
        }  # fmt: skip

    @property
    def _image_noise(self) -> dict[str, Any]:
        return {} if self.noise.image is None else {"bound": self.noise.clip, "image_multiplier": self.noise.image}

    def _ask_told(self, lou: LearningOverUnion, thetas: Mapping[str, Array], instead: Instead | None) -> Replies:
        if self.noise.image is None:
            return super()._ask_told(lou, thetas, instead)
        told = {alias: {"theta": theta} for alias, theta in thetas.items()}
        return lou.ask(
            "private.image_within", told, by_alias=told, encoding=self.encoding.id, **self.whole_shape,
            **self._image_noise,
        )  # fmt: skip

    def _ask_held(self, lou: LearningOverUnion, aliases: list[str], instead: Instead | None) -> Replies:
        if self.noise.image is None:
            return super()._ask_held(lou, aliases, instead)
        return lou.ask(
            "private.predict_within", aliases, encoding=self.encoding.id, model=self.model, **self._image_noise
        )

    def _ask_parameters(self, aliases: list[str]) -> Replies:
        return self.lou.ask("private.parameters", aliases, model=self.model)

    def scores(self, client: Client, *, learning: bool = False) -> Array:
        """The sum over tables for the rows of a relation, in the label's own units."""
        self.noise.images += 1
        found = super().scores(client, learning=learning)
        return self.unit * (found if self.noise.image is None else calmed(found, self.mean, self._image_ratio))

    def parameters(self, aliases: Iterable[str] | None = None) -> dict[str, Array]:
        """Parameters by table, in the label's own units."""
        found = super().parameters(aliases)
        return {alias: self._rescaled(alias, theta) for alias, theta in found.items()}

    def _rescaled(self, alias: str, theta: Array) -> Array:
        if self.hidden is None:
            return theta * self.unit
        network = TableNetwork.over(len(self.encoding.names(alias)), self.hidden, self.outputs)
        return network.rescaled(theta, self.unit)


class SampledLinear(SampledModel):
    """A linear model by noisy steps."""

    family = "linear"


class SampledNetwork(SampledModel):
    """Networks by noisy steps."""

    family = "network"

    @property
    def shape(self) -> dict[str, Any]:
        """Hidden layers and outputs."""
        return self.whole_shape
