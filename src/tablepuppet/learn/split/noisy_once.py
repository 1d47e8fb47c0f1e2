"""FedOnce with noise (FedOnce-L1): the coordinator's half of noisy_nat.py.

Guests take all their noisy steps alone and then send one message. After that, in every round, the top network learns
from the stored embeddings, and the host takes noisy steps with the gradient by its own embeddings. What the top network
learns is computed from messages only. So given the messages, epsilon is that of a table's noisy steps; if messages have
noise too, the sum of both is counted. Every table takes the number of steps that the promise contains, each table with
its own noise multiplier.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tablepuppet.arrays import Floats
from tablepuppet.learn.loss.joined_loss import JoinedLoss
from tablepuppet.learn.noise.plan import StepNoise
from tablepuppet.learn.private.steps import NoisySums
from tablepuppet.learn.rounds import Round
from tablepuppet.learn.split.exchange import Exchange
from tablepuppet.learn.split.model import Embeddings
from tablepuppet.learn.split.noisy_nat import GuestSteps, HostSteps
from tablepuppet.learn.split.once import OnceModel
from tablepuppet.learn.split.train import learn_by_batches
from tablepuppet.learn.tables.steps import RowGradients, Stepped, Updates
from tablepuppet.learn.threads import need_torch, one_thread

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
