"""DP-SGD, feature privacy by noisy steps, both halves: for networks, and for linear models with "sgd".

In each round the coordinator sends Y_r, the gradient by the prediction of each base row r. The table's party then takes
several steps. For each step it draws a sample that nobody else sees: every row is in it with probability q.

    g = ( sum over the sample of clip(n J_r^T (Y_r + p G_r (h_r - h_r^t))) + noise ) / (q n)
    theta = theta - lr (g + l2 theta)

J_r is the derivative of a row's prediction h_r by the parameters, and h_r^t is h_r at the start of the round. n is the
number of the table's rows, so that ``clip`` means the same as for a single table. Y_r is the sum over the G_r joined
rows of r. p (``proximal``) is the weight of the proximal term: it keeps predictions near h^t, for which Y was computed.
The predictions of all rows are returned, whether they were sampled or not; they have separate noise if there is a
multiplier for them, and are clipped to a bound that does not depend on the rows. A table with several shards returns
a noisy sum for each step, and the coordinator holds its parameters.

At the start all predictions are zero, so that nothing about the rows is released before the first step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array
from tablepuppet.errors import PartyError
from tablepuppet.learn.tables.holders import Holders
from tablepuppet.learn.tables.model import RowModel, TableSpec
from tablepuppet.learn.tables.noisy import predicted, released_predictions, sampled_gradient, take_noisy_steps
from tablepuppet.learn.tables.ops import sent_model
from tablepuppet.learn.tables.parameters import TableParameters, noisy_parameters, shard_memory, unchanged_if_refused
from tablepuppet.learn.tables.steps import NOTHING, Facts, RowGradients, Update, Updates, step, taken
from tablepuppet.party.arguments import NotNegative, PredictionNoise, Rates, SampleNoise
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.ops import Values, op
from tablepuppet.party.release import Release
from tablepuppet.party.returns import ROW_OUTPUTS, SQUARE, THETA
from tablepuppet.prep.encode.encode import encoded_for_noise, sealed
from tablepuppet.prep.encode.encoded_table import SealedTable
from tablepuppet.privacy.clip import blocks, by_row


@dataclass(frozen=True)
class NoisySteps:
    """The data that all steps of one round share, at one shard."""

    table: LocalTable
    data: SealedTable
    rows: RowModel
    begin: Array  # theta when the round begins
    row_gradients: Array  # n Y
    proximal: Array  # n p G
    noise: SampleNoise  # of n rows, with probability q
    given: bytes  # a digest of what the round begins with

    @classmethod
    def of(
        cls, table: LocalTable, view: str, encoding: str, rows: RowModel, theta: Array, row_gradients: Array,
        proximal: float, noise: SampleNoise,
    ) -> NoisySteps:  # fmt: skip
        """The steps of a round that begins at ``theta``."""
        data, counts = encoded_for_noise(table, view, encoding), table.rows_once(view).counts.astype(np.float64)
        outputs = rows.predict(theta, data.empty).shape[1:]  # by shapes alone: nothing is computed yet
        if row_gradients.shape != (data.rows, *outputs) or not np.isfinite(row_gradients).all():
            raise PartyError(f"party {table.grant.party!r}: one finite number is needed for each row and output")
        n = noise.table_rows
        begin = (theta, row_gradients.astype(np.float64) * n, counts * proximal * n)
        given = hashlib.sha256(b"".join(array.tobytes() for array in begin)).digest()
        return cls(table, data, rows, *begin, noise, given)

    @cached_property
    def before(self) -> Array:
        """h^t."""
        return predicted(self.rows, self.begin, self.data.open())

    def gradient(self, theta: Array) -> Array:
        """The noisy gradient of the mean loss, from a new sample."""
        if theta.shape != self.begin.shape:  # or NumPy could broadcast predictions of one row to others
            raise PartyError(
                f"party {self.table.grant.party!r}: parameters of another shape than those that the round began with"
            )
        rows, given = self.data.rows, self.given + theta.tobytes()
        return sampled_gradient(self.table, rows, theta, self.noise, given, partial(self.parts, theta))

    def parts(self, theta: Array, chosen: NDArray[np.int64]) -> Iterator[Array]:
        """The sum over chosen rows before noise, block by block: no row adds more than ``clip``."""
        encoded = self.data.open()
        for block in blocks(len(chosen), self.data.width + self.rows.width):
            here = chosen[block]
            data = encoded.rows(here)
            moved = self.rows.predict(theta, data) - self.before[here]
            row_gradients = self.row_gradients[here] + by_row(moved, self.proximal[here])
            assert moved.shape == row_gradients.shape, "as at the beginning of the round"
            yield self.rows.clipped_sums(theta, data, row_gradients, self.noise.clip).reshape(theta.shape)


@dataclass(frozen=True, kw_only=True)
class NoisyDescent(Update):
    """A noisy step for each learning rate: the party that holds the parameters takes them all, shards add up each."""

    share: ClassVar[str] = "steps.gradient"  # the op with which a shard returns its noisy sum for a step

    rates: Rates
    noise: SampleNoise

    def problem(self, model: str) -> dict[str, Any]:
        """The arguments of ``share`` beside parameters and noise."""
        raise NotImplementedError

    def descend(self, part: TableParameters, sums: Array, rate: float) -> None:
        """Take one step."""
        part.descend(sums, rate, 0.0, 0.0)

    def take(self, part: TableParameters, sums: Array, total: Array) -> Facts:
        """What is returned of a table whose steps are taken."""
        return {}


@step(
    "steps.descend",
    asked="noisy steps: `feature_epsilon` of networks and `sgd`",
    releases=Release.PREDICTIONS,
    private=("prediction_noise",),
    returns={"outputs": ROW_OUTPUTS, "square": SQUARE},
)
@dataclass(frozen=True, kw_only=True)
class NoisyRound(NoisyDescent):
    """Noisy steps, then predictions, which have noise only if that is given too."""

    proximal: float  # weight of the proximal term
    momentum: NotNegative
    l2: NotNegative
    prediction_noise: PredictionNoise | None = None

    def run(self, table: LocalTable, view: str, encoding: str, model: str, rows: Array) -> Values:
        """From the gradient by predictions of all rows."""
        part = noisy_parameters(table, model)
        check_bounded(self.prediction_noise)
        steps = NoisySteps.of(table, view, encoding, part.model.by_row, part.theta, rows, self.proximal, self.noise)
        found = descended(part, steps, self.rates, self.momentum, self.l2, self.prediction_noise)
        return {"outputs": found, **self.take(part, NOTHING, NOTHING)}

    def take(self, part: TableParameters, sums: Array, total: Array) -> Facts:
        """What is returned of a table whose steps are taken."""
        return {"square": part.square}

    def problem(self, model: str) -> dict[str, Any]:
        """The proximal term; the gradient by predictions is sent with the first step."""
        return {"model": model, "proximal": self.proximal}

    def descend(self, part: TableParameters, sums: Array, rate: float) -> None:
        """With momentum, and the penalty."""
        part.descend(sums, rate, self.momentum, self.l2)

    def shown(self, part: TableParameters) -> dict[str, Any]:
        """Predictions with the new parameters."""
        return {"theta": part.theta}


def check_bounded(noise: PredictionNoise | None) -> None:
    """PartyError if predictions have noise and no bound: later, nothing may be refused that noise was charged for."""
    if noise is not None and noise.bound is None:
        raise PartyError("predictions with noise need a bound")


def descended(
    part: TableParameters, steps: NoisySteps, rates: Array, momentum: float, l2: float, noise: PredictionNoise | None
) -> Array:
    """Take all steps of a round at the party that holds the parameters; the predictions of all rows as they leave."""
    with unchanged_if_refused(part):
        take_noisy_steps(part, steps.gradient, rates, momentum, l2)
        return released_predictions(steps.table, steps.data, steps.rows, part.theta, noise)


@op(
    "steps.gradient",
    asked="noisy steps: `feature_epsilon` of networks and `sgd`",
    releases=Release.GRADIENT_SUMS,
    private=True,
    summed=("sums",),
    returns={"sums": THETA},
)
def gradient(
    table: LocalTable, view: str, encoding: str, model: str, spec: TableSpec, theta: Array, proximal: float,
    noise: SampleNoise, rows: Array | None = None,
) -> Values:  # fmt: skip
    """A shard's noisy sum for one step; if ``rows`` are given, a new round begins at these parameters."""
    name = f"{model}/{view}/steps"
    if rows is None:
        steps = shard_memory(table, name, NoisySteps)
    else:
        row_model = sent_model(table, spec, sealed(table, view, encoding).width, theta).by_row
        steps = NoisySteps.of(table, view, encoding, row_model, theta, rows, proximal, noise)
    sums = steps.gradient(theta)
    table.state[name] = steps  # only now: a refused request must not begin a round
    return {"sums": sums}


@dataclass
class NoisySums:
    """The coordinator's way to take noisy steps over shards: a noisy sum of each for every step."""

    model: Holders
    parts: dict[str, TableParameters]

    def step(self, updates: Updates, rows: RowGradients | None) -> dict[str, Facts]:
        """The steps of some tables, a trip each; gradients by outputs are sent with the first."""
        rounds = {alias: each for alias in self.parts if isinstance(each := updates.get(alias), NoisyDescent)}
        lou, share = self.model.lou, next((each.share for each in rounds.values()), "")
        for number in range(max((len(each.rates) for each in rounds.values()), default=0)):
            asked = self.model.sent({alias: self.parts[alias].theta for alias in rounds})
            for alias, each in rounds.items():
                asked[alias] |= {"noise": each.noise, **each.problem(self.model.name)}
            sums = lou.ask(
                share, rounds, None if number or rows is None else rows.values, asked,
                bounds=lambda alias: {"sums": self._largest(alias, rounds[alias].noise)},
            ).read()  # fmt: skip
            for alias, each in rounds.items():
                each.descend(self.parts[alias], lou.add(sums[alias], "sums"), float(each.rates[number]))
        return taken(updates, self.parts)

    def _largest(self, alias: str, noise: SampleNoise) -> float:
        """Bound of a noisy sum over a table's rows, almost surely."""
        drawn = 10 * noise.multiplier * self.model.lou.shards(alias) / noise.table_rows
        return noise.clip * (1.0 + drawn) / noise.sampling
