"""FedOnce with noise (FedOnce-L1), both halves: gradients of a sample of rows are clipped, summed and noised.

The target of a row is computed from the seed and the row's id. Rows never exchange targets: with an assignment within a
batch, one row could change the targets, and so the gradients, of all others. The sum would then change by more than the
clipping bound, and the noise would be too small. With a fixed target, a row adds at most ``clip`` (Alg. 1, lines 11 to
13):

    g = ( sum over the sample of clip(J_r^T Y_r) + noise ) / (q n),    Y_r = ((z_r . c_r) z_r - c_r) / |h_r|

Guests take all their noisy steps alone and then send one message. After that, in every round, the top network learns
from the stored embeddings, and the host takes noisy steps with the gradient by its own embeddings. What the top network
learns is computed from messages only. So given the messages, epsilon is that of a table's noisy steps; if messages have
noise too, the sum of both is counted. Every table takes the number of steps that the promise contains, each table with
its own noise multiplier.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array, Floats
from tablepuppet.errors import PartyError
from tablepuppet.learn.loss.joined_loss import JoinedLoss
from tablepuppet.learn.noise.plan import StepNoise
from tablepuppet.learn.private.steps import NoisyDescent, NoisySteps, NoisySums, check_bounded, descended
from tablepuppet.learn.rounds import Round
from tablepuppet.learn.split.exchange import Exchange
from tablepuppet.learn.split.model import Embeddings
from tablepuppet.learn.split.nat import derivatives, own_seed, targets_of
from tablepuppet.learn.split.once import OnceModel
from tablepuppet.learn.split.ops import EMBEDDED, shaped, wide
from tablepuppet.learn.split.train import learn_by_batches
from tablepuppet.learn.tables.model import Bottom, RowModel
from tablepuppet.learn.tables.narrow import Narrow
from tablepuppet.learn.tables.noisy import sampled_gradient, take_noisy_steps
from tablepuppet.learn.tables.ops import sent_model
from tablepuppet.learn.tables.parameters import TableParameters, noisy_parameters, unchanged_if_refused
from tablepuppet.learn.tables.steps import RowGradients, Stepped, Updates, step
from tablepuppet.learn.threads import need_torch, one_thread
from tablepuppet.party.arguments import NotNegative, PredictionNoise, SampleNoise, Seed
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.ops import Values, op
from tablepuppet.party.release import Release
from tablepuppet.party.returns import THETA
from tablepuppet.prep.encode.encode import encoded_for_noise, sealed
from tablepuppet.prep.encode.encoded_table import SealedTable
from tablepuppet.privacy.clip import blocks

# At the party


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


# At the coordinator

AT_ONCE = 50  # noisy steps of a request
GUEST_RATE, HOST_RATE = 0.5, 0.5  # learning rates, where noise allows them
WALK = 4.0  # how far noise alone may move parameters
MOMENTUM = 0.9
TOP_STEPS = 100  # of the top network, at least, before and after the host's steps of a round


@dataclass
class NoisyOnce:
    """The steps of guests and host. ``steps`` are those of a table in all ``rounds``."""

    model: OnceModel
    noise: StepNoise
    rounds: int
    steps: int

    def teach(self, seed: int, report: Callable[[int], None]) -> None:
        """Let guests take all their steps, some in each request."""
        falling = 1 - np.arange(self.steps) / self.steps
        rates = {alias: self._rate(alias, GUEST_RATE, 1.0) * falling for alias in self.model.guests}
        for start in range(0, self.steps, AT_ONCE):
            some = slice(start, start + AT_ONCE)
            self._step(
                {a: GuestSteps(seed=seed, rates=rate[some], noise=self._of(a)) for a, rate in rates.items()}, None
            )
            report(min(start + AT_ONCE, self.steps))

    def learn(
        self, host: str, messages: Embeddings, loss: JoinedLoss, lr: float, size: int, seed: int,
        report: Callable[[Round], bool],
    ) -> None:  # fmt: skip
        """Rounds of the top network and the host's noisy steps; ``report`` may ask to stop."""
        model, spec = self.model, self.model.spec_of(host)
        known = {**messages, host: np.zeros((model.rows(host), spec.outputs), np.float32)}
        falling = (1 - np.arange(self.steps) / self.steps).reshape(self.rounds, -1)
        rate = self._rate(host, HOST_RATE, 1 - MOMENTUM)
        for number, shares in enumerate(falling, start=1):
            self._learn_top(known, loss, lr, size, seed + 2 * number)
            proximal, hidden = loss.most_curvature / len(loss.rows), self.noise.of_predictions(self.noise.clip)
            steps = HostSteps(
                rates=rate * shares, noise=self._of(host), proximal=proximal, momentum=MOMENTUM,
                prediction_noise=hidden, wire=model.narrow,
            )  # fmt: skip
            known |= self._step({host: steps}, RowGradients({host: self._gradient(host, known, loss)})).predictions
            self.noise.steps += len(shares)
            self.noise.predicted += 1
            done = self._learn_top(known, loss, lr, size, seed + 2 * number + 1)
            if report(replace(done, number=number)):
                break

    def _step(self, updates: Updates, rows: RowGradients | None) -> Stepped:
        """Noisy steps of some tables, whoever holds their parameters."""
        self.model.over = NoisySums(self.model, dict(self.model.shared))
        return self.model.step(updates, rows)

    def _learn_top(self, known: Embeddings, loss: JoinedLoss, lr: float, size: int, seed: int) -> Round:
        """Some epochs of the top network alone; the last of them."""
        rates = [lr] * math.ceil(TOP_STEPS * size / len(loss.rows))
        return learn_by_batches(Exchange(self.model, []), loss, rates, size, seed, lambda _: False, fixed=known)

    def _gradient(self, host: str, known: Embeddings, loss: JoinedLoss) -> Floats:
        """The gradient of the mean loss by the host's embeddings, summed at base rows."""
        top, rows = self.model.top, loss.rows
        with one_thread(need_torch()):
            scores = top.forward({alias: rows.taken(alias, each) for alias, each in known.items()}).astype(np.float64)
            plain = scores[:, 0] if scores.shape[1] == 1 else scores
            gradient = loss.pointwise.evaluate(plain, rows.labels()).gradient / len(rows)
            joined = top.backward(gradient.reshape(scores.shape), [host])[host].astype(np.float64)
        return rows.sums(host, joined)

    def _of(self, alias: str) -> Any:
        return self.noise.of_sums(alias, self.model.rows(alias))

    def _rate(self, alias: str, usual: float, rest: float) -> float:
        """A learning rate, lower where noise would move parameters by more than `WALK` over all steps."""
        length = self.noise.length(
            alias, self.model.table_model(alias).size * self.model.lou.shards(alias), self.model.rows(alias)
        )
        return min(usual * rest, rest * WALK / (length * math.sqrt(self.steps)))
