"""The party's half of DP-SGD, feature privacy by noisy steps: for networks, and for linear models with "sgd".

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

import numpy as np
from numpy.typing import NDArray

from tablepuppet.errors import PartyError
from tablepuppet.learn.specs import Spec
from tablepuppet.learn.tables.model import RowModel
from tablepuppet.learn.tables.noisy import predicted, released_predictions, sampled_gradient, take_noisy_steps
from tablepuppet.learn.tables.parameters import noisy_parameters, unchanged_if_refused
from tablepuppet.party.added_noise import PredictionNoise, SampleNoise
from tablepuppet.party.arguments import NotNegative, Rates
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.ops import Values, op
from tablepuppet.party.release import Release
from tablepuppet.party.returns import ROW_OUTPUTS, SQUARE, THETA
from tablepuppet.prep.encode.encode import encoded_for_noise, sealed
from tablepuppet.prep.encode.encoded_table import SealedTable
from tablepuppet.privacy.clip import blocks, by_row

Array = NDArray[np.float64]


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


@op(
    "steps.descend",
    asked="noisy steps: `feature_epsilon` of networks and `sgd`",
    releases=Release.PREDICTIONS,
    private=("prediction_noise",),
    returns={"outputs": ROW_OUTPUTS, "square": SQUARE},
)
def descend(
    table: LocalTable, view: str, encoding: str, model: str, rows: Array, proximal: float, rates: Rates,
    momentum: NotNegative, l2: NotNegative, noise: SampleNoise, prediction_noise: PredictionNoise | None = None,
) -> Values:  # fmt: skip
    """Take a noisy step for each learning rate, then return predictions; these have noise only if it is asked for."""
    part = noisy_parameters(table, model)
    if prediction_noise is not None and prediction_noise.bound is None:
        raise PartyError("predictions with noise need a bound")
    steps = NoisySteps.of(table, view, encoding, part.model.by_row, part.theta, rows, proximal, noise)
    with unchanged_if_refused(part):
        take_noisy_steps(part, steps.gradient, rates, momentum, l2)
        predictions = released_predictions(table, steps.data, steps.rows, part.theta, prediction_noise)
        return {"outputs": predictions, "square": part.square}


@op(
    "steps.gradient",
    asked="noisy steps: `feature_epsilon` of networks and `sgd`",
    releases=Release.GRADIENT_SUMS,
    private=True,
    summed=("sums",),
    returns={"sums": THETA},
)
def gradient(
    table: LocalTable, view: str, encoding: str, model: str, spec: Spec, theta: Array, proximal: float,
    noise: SampleNoise, rows: Array | None = None,
) -> Values:  # fmt: skip
    """A shard's noisy sum for one step; if ``rows`` are given, a new round begins at these parameters."""
    name = f"{model}/{view}/steps"
    steps = table.state.get(name)
    if rows is not None:
        row_model = spec.over(sealed(table, view, encoding).width).by_row
        steps = NoisySteps.of(table, view, encoding, row_model, theta, rows, proximal, noise)
    if not isinstance(steps, NoisySteps):
        raise PartyError(f"party {table.grant.party!r} has not started this model; fit it again")
    sums = steps.gradient(theta)
    table.state[name] = steps  # only now: a refused request must not begin a round
    return {"sums": sums}
