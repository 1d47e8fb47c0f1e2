"""NAT with noise (FedOnce-L1, Alg. 1 lines 11 to 13): gradients of a sample of rows are clipped, summed and noised.

Input: the encoded rows of a table, parameters, the noise. Output: noisy gradients, which cost epsilon.

The target of a row is computed from the seed and the row's id. Rows never exchange targets: with an assignment within a
batch, one row could change the targets, and so the gradients, of all others. The sum would then change by more than the
clipping bound, and the noise would be too small. With a fixed target, a row adds at most ``clip``:

    g = ( sum over the sample of clip(J_r^T Y_r) + noise ) / (q n),    Y_r = ((z_r . c_r) z_r - c_r) / |h_r|
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array
from tablepuppet.errors import PartyError
from tablepuppet.learn.private.steps import NoisyDescent, NoisySteps, check_bounded, descended
from tablepuppet.learn.split.nat import derivatives, own_seed, targets_of
from tablepuppet.learn.split.ops import EMBEDDED, shaped, wide
from tablepuppet.learn.tables.model import Bottom, RowModel
from tablepuppet.learn.tables.narrow import Narrow
from tablepuppet.learn.tables.noisy import sampled_gradient, take_noisy_steps
from tablepuppet.learn.tables.ops import sent_model
from tablepuppet.learn.tables.parameters import TableParameters, noisy_parameters, unchanged_if_refused
from tablepuppet.learn.tables.steps import step
from tablepuppet.party.arguments import NotNegative, PredictionNoise, SampleNoise, Seed
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.ops import Values, op
from tablepuppet.party.release import Release
from tablepuppet.party.returns import THETA
from tablepuppet.prep.encode.encode import encoded_for_noise, sealed
from tablepuppet.prep.encode.encoded_table import SealedTable
from tablepuppet.privacy.clip import blocks


@dataclass(frozen=True)
class NoisyNat:
    """The data of all noisy steps at one shard."""

    table: LocalTable
    data: SealedTable
    rows: RowModel
    targets: Array
    noise: SampleNoise  # of n rows, with probability q

    @classmethod
    def of(
        cls, table: LocalTable, view: str, encoding: str, rows: RowModel, outputs: int, seed: int, noise: SampleNoise
    ) -> NoisyNat:
        """The steps of a table whose targets follow from a seed."""
        data, row_ids = encoded_for_noise(table, view, encoding), table.rows_once(view).row_ids
        targets = targets_of(table.snapshot.place(row_ids), outputs, own_seed(table, seed))
        return cls(table, data, rows, targets.astype(np.float64), noise)

    def gradient(self, theta: Array) -> Array:
        """The noisy gradient of the mean loss, from a new sample."""
        if self.rows.predict(theta, self.data.empty).shape[1:] != self.targets.shape[1:]:
            raise PartyError(f"party {self.table.grant.party!r}: targets and outputs have different widths")
        given = hashlib.sha256(theta.tobytes()).digest()
        rows = self.data.rows
        return sampled_gradient(self.table, rows, theta, self.noise, given, partial(self.parts, theta))

    def parts(self, theta: Array, chosen: NDArray[np.int64]) -> Iterator[Array]:
        """The sum over chosen rows before noise, block by block: no row adds more than ``clip``."""
        encoded = self.data.open()
        for block in blocks(len(chosen), self.data.width + self.rows.width):
            data, targets = encoded.rows(chosen[block]), self.targets[chosen[block]]
            slopes = derivatives(self.rows.predict(theta, data), targets)[1]
            yield self.rows.clipped_sums(theta, data, np.asarray(slopes), self.noise.clip)


@step("nat.steps", asked="FedOnce: `feature_epsilon`", releases=Release.COUNTS, private=True, returns={})
@dataclass(frozen=True, kw_only=True)
class GuestSteps(NoisyDescent):
    """Noisy steps of NAT; nothing of them is released where one party has the table."""

    share = "nat.gradient"

    seed: Seed

    def problem(self, model: str) -> dict[str, Any]:
        """Targets follow from the seed."""
        return {"seed": self.seed}

    def run(self, table: LocalTable, view: str, encoding: str, model: str) -> Values:
        """At the party that holds the parameters."""
        part = noisy_parameters(table, model, Bottom)
        outputs = part.model.spec.outputs
        work = NoisyNat.of(table, view, encoding, part.model.by_row, outputs, self.seed, self.noise)
        with unchanged_if_refused(part):
            take_noisy_steps(part, work.gradient, self.rates, 0.0, 0.0)
        return {}


@op(
    "nat.gradient",
    asked="FedOnce: `feature_epsilon`, tables with several shards",
    releases=Release.GRADIENT_SUMS,
    private=True,
    summed=("sums",),
    returns={"sums": THETA},
)
def gradient(
    table: LocalTable, view: str, encoding: str, spec: Bottom, theta: Array, seed: Seed, noise: SampleNoise
) -> Values:
    """A shard's noisy sum for one step of NAT."""
    rows = sent_model(table, spec, sealed(table, view, encoding).width, theta).by_row
    return {"sums": NoisyNat.of(table, view, encoding, rows, spec.outputs, seed, noise).gradient(theta)}


@step(
    "split.descend",
    asked="FedOnce: `feature_epsilon`",
    releases=Release.EMBEDDINGS,
    private=("prediction_noise",),
    returns={"outputs": EMBEDDED},
)
@dataclass(frozen=True, kw_only=True)
class HostSteps(NoisyDescent):
    """Noisy steps (`NoisySteps`), then embeddings, with noise if that is given too."""

    proximal: float
    momentum: NotNegative
    prediction_noise: PredictionNoise | None = None
    wire: Narrow | None = None

    def run(self, table: LocalTable, view: str, encoding: str, model: str, rows: Array) -> Values:
        """From the gradient by embeddings, summed over joined rows."""
        part = noisy_parameters(table, model, Bottom)
        check_bounded(self.prediction_noise)
        row_model, given = part.model.by_row, wide(rows)
        steps = NoisySteps.of(table, view, encoding, row_model, part.theta, given, self.proximal, self.noise)
        table.count_embeddings(view, part.model.spec.outputs)
        with unchanged_if_refused(part):  # also where there is no memory for what travels
            found = descended(part, steps, self.rates, self.momentum, 0.0, self.prediction_noise)
            return {"outputs": shaped(found, self.wire or table.wire)}

    def problem(self, model: str) -> dict[str, Any]:
        """The proximal term; the gradient by embeddings is sent with the first step."""
        return {"model": model, "proximal": self.proximal}

    def descend(self, part: TableParameters, sums: Array, rate: float) -> None:
        """With momentum."""
        part.descend(sums, rate, self.momentum, 0.0)

    def shown(self, part: TableParameters) -> dict[str, Any]:
        """Embeddings with the new parameters."""
        return {"theta": part.theta}
