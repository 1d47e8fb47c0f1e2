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
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tablepuppet.errors import PartyError
from tablepuppet.learn.tables.model import RowModel, model_of
from tablepuppet.learn.tables.noisy import noisy_predictions, predicted
from tablepuppet.learn.tables.parameters import noisy_parameters, unchanged_if_refused
from tablepuppet.party.added_noise import PredictionNoise, SampleNoise
from tablepuppet.party.allowance import check_time
from tablepuppet.party.arguments import NotNegative, Rates
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.ops import Values, op
from tablepuppet.party.release import Release
from tablepuppet.party.returns import IMAGE, SQUARE, THETA
from tablepuppet.party.spec import Spec
from tablepuppet.prep.encoded_rows import encoded, encoded_for_noise
from tablepuppet.prep.encoded_table import EncodedTable
from tablepuppet.privacy.clip import blocks, by_row

Array = NDArray[np.float64]


@dataclass(frozen=True)
class NoisySteps:
    """What the steps of one round have in common, at one shard."""

    table: LocalTable
    data: EncodedTable
    rows: RowModel
    begin: Array  # theta when the round begins
    row_gradients: Array  # n Y
    pull: Array  # n p G
    noise: SampleNoise  # of n rows, with probability q
    given: bytes  # a digest of what the round begins with

    @classmethod
    def of(
        cls, table: LocalTable, view: str, encoding: str, rows: RowModel, theta: Array, row_gradients: Array,
        pull: float, noise: SampleNoise,
    ) -> NoisySteps:  # fmt: skip
        """At the parameters with which the round begins."""
        data, counts = encoded_for_noise(table, view, encoding), table.rows_once(view).counts.astype(np.float64)
        outputs = rows.predict(theta, data.rows(slice(0))).shape[1:]  # by shapes alone: nothing is computed yet
        if row_gradients.shape != (len(data.dense), *outputs) or not np.isfinite(row_gradients).all():
            raise PartyError(f"party {table.grant.party!r}: one finite number is needed for each row and output")
        n = noise.table_rows
        begin = (theta, row_gradients.astype(np.float64) * n, counts * pull * n)
        given = hashlib.sha256(b"".join(array.tobytes() for array in begin)).digest()
        return cls(table, data, rows, *begin, noise, given)

    @cached_property
    def before(self) -> Array:
        """h^t."""
        return predicted(self.rows, self.begin, self.data)

    def gradient(self, theta: Array) -> Array:
        """The noisy gradient of the mean loss, from a new sample."""
        noise = self.noise
        if theta.shape != self.begin.shape:  # else predictions of rows could be spread over others
            raise PartyError(
                f"party {self.table.grant.party!r}: parameters of another shape than those that the round began with"
            )
        chosen = self.table.sample(len(self.data.dense), noise.sampling, self.given + theta.tobytes())
        told = self.table.noisy(
            lambda: self.parts(theta, chosen), theta.shape, noise.clip, noise.multiplier, "gradient", noise.sampling
        )
        return np.asarray(told / (noise.sampling * noise.table_rows))

    def parts(self, theta: Array, chosen: NDArray[np.int64]) -> Iterator[Array]:
        """The sum over chosen rows before noise, block by block: no row adds more than ``clip``."""
        for block in blocks(len(chosen), self.data.width + self.rows.width):
            here = chosen[block]
            data = self.data.rows(here)
            moved = self.rows.predict(theta, data) - self.before[here]
            row_gradients = self.row_gradients[here] + by_row(moved, self.pull[here])
            assert moved.shape == row_gradients.shape, "as at the beginning of the round"
            yield self.rows.clipped_sums(theta, data, row_gradients, self.noise.clip).reshape(theta.shape)


@op(
    "steps.descend",
    asked="noisy steps: `feature_epsilon` of networks and `sgd`",
    releases=Release.PREDICTIONS,
    private=("prediction_noise",),
    returns={"image": IMAGE, "square": SQUARE},
)
def descend(
    table: LocalTable, view: str, encoding: str, model: str, rows: Array, pull: float, rates: Rates,
    momentum: NotNegative, l2: NotNegative, noise: SampleNoise, prediction_noise: PredictionNoise | None = None,
) -> Values:  # fmt: skip
    """Noisy steps, one for each learning rate, then predictions, which have noise only if that is asked for."""
    part = noisy_parameters(table, model)
    if prediction_noise is not None and prediction_noise.bound is None:
        raise PartyError("predictions with noise need a bound")
    steps = NoisySteps.of(table, view, encoding, part.model.by_row, part.theta, rows, pull, noise)
    with unchanged_if_refused(part):
        for rate in rates:
            check_time()
            part.descend(steps.gradient(part.theta), float(rate), momentum, l2)
        if prediction_noise is None or prediction_noise.bound is None:
            image = predicted(steps.rows, part.theta, steps.data).astype(table.wire)
        else:
            image = noisy_predictions(
                table, steps.data, steps.rows, part.theta, prediction_noise.bound, prediction_noise.multiplier
            )
        return {"image": image, "square": part.square}


@op(
    "steps.gradient",
    asked="noisy steps: `feature_epsilon` of networks and `sgd`",
    releases=Release.GRADIENT_SUMS,
    private=True,
    summed=("sums",),
    returns={"sums": THETA},
)
def gradient(
    table: LocalTable, view: str, encoding: str, model: str, spec: Spec, theta: Array, pull: float, noise: SampleNoise,
    rows: Array | None = None,
) -> Values:  # fmt: skip
    """A shard's part of one noisy step; ``rows`` begin a new round, at these parameters."""
    name = f"{model}/{view}/steps"
    steps = table.state.get(name)
    if rows is not None:
        row_model = model_of(spec, encoded(table, view, encoding).width).by_row
        steps = NoisySteps.of(table, view, encoding, row_model, theta, rows, pull, noise)
    if not isinstance(steps, NoisySteps):
        raise PartyError(f"party {table.grant.party!r} has not started this model; fit it again")
    sums = steps.gradient(theta)
    table.state[name] = steps  # only now: what is refused begins no round
    return {"sums": sums}
