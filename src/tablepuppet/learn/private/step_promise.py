"""The promise of a fit by noisy steps (steps.py).

Steps use what encoder statistics leave of a table's promise; one accountant counts both (Gaussian noise with and
without sampling). The noise follows from the catalog alone, so a whole fit can be compared with a budget before its
first release. The number of steps is fixed before the first. Steps that are not taken cost nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tablepuppet.errors import PrivacyError
from tablepuppet.learn.noise.plan import StepNoise
from tablepuppet.learn.private.feature_promise import FeaturePromise, PlannedNoise
from tablepuppet.privacy.accountant import Spending, addable, gaussian_epsilon, group_epsilon, noise_multiplier
from tablepuppet.privacy.noise import sampling_epsilon
from tablepuppet.privacy.shares import SLACK, epsilon_of

FEW_ROUNDS, MANY_ROUNDS = 5, 40
GRAIN = 1e-4  # of epsilon: sampler errors are rounded up to it, so noise does not depend on the exact size
USUAL_BATCH = 10_000  # rows of a table in the sample of a step


def sampling_of(batch_size: int | str, rows: Mapping[str, int]) -> dict[str, float]:
    """The sampling probability of a row, by table, such that a sample has ``batch_size`` rows on average.

    With the default size, smaller tables use all rows. PrivacyError if a size was set that is larger than a table.

    >>> sampling_of(100, {"a": 1000})
    {'a': 0.1}
    """
    batch_size = USUAL_BATCH if isinstance(batch_size, str) else batch_size
    for alias, count in rows.items():
        if batch_size > count and batch_size != USUAL_BATCH:
            raise PrivacyError(
                f"batch_size {batch_size:,} is larger than the {count:,} rows of table {alias!r}: with feature_epsilon "
                "it counts the rows that a table samples for a step; use less, or leave it at its default"
            )
    return {alias: min(1.0, batch_size / max(count, 1)) for alias, count in rows.items()}


@dataclass
class StepPromise(FeaturePromise):
    """Gaussian noise on the steps that a table takes by itself, each on a sample of its rows."""

    local_steps: int
    samplings: Mapping[str, float]
    steps: StepNoise = field(init=False)
    _slack: float = field(default=SLACK, init=False)

    def __post_init__(self) -> None:
        self.steps = StepNoise(
            self.privacy.clip_norm, {}, self.samplings, image=self.prediction_multiplier
        )  # none taken yet

    @property
    def rounds(self) -> int:
        """The number of rounds that the budget is divided over: one if predictions have noise in every round."""
        return self.asked_rounds or (self._usual_rounds if self.privacy.prediction_epsilon is None else 1)

    @property
    def steps_of_round(self) -> int:
        """If there is only one round, it has the steps of all rounds."""
        whole = self.asked_rounds is None and self.privacy.prediction_epsilon is not None
        return self.local_steps * (self._usual_rounds if whole else 1)

    @property
    def is_sampled(self) -> bool:
        """Whether sampling of rows lowers epsilon."""
        return any(sampling < 1 for sampling in self.samplings.values())

    @property
    def _usual_rounds(self) -> int:
        """More rounds for less noise: 5 for an epsilon of 1 or less, 20 for 10. Measured on MovieLens."""
        return min(MANY_ROUNDS, round(FEW_ROUNDS * math.pow(max(1.0, self.statistics.epsilon), 0.6)))

    def choose(self, sizes: Mapping[str, int]) -> StepNoise:
        """Compute the noise of steps, for ``sizes`` parameters by table. It may take seconds."""
        planned, grain = self.rounds * self.steps_of_round, GRAIN * self.statistics.epsilon
        errors = SLACK + planned * sampling_epsilon(max(sizes.values(), default=1))
        self._slack = grain * math.ceil(errors / grain)
        multipliers = {alias: self._multiplier(alias, planned) for alias in sizes}
        self.steps = StepNoise(self.privacy.clip_norm, multipliers, self.samplings, image=self.prediction_multiplier)
        return self.steps

    @property
    def spent(self) -> StepNoise:
        """The noise of steps, with counts of the steps taken so far."""
        return self.steps

    def planned_noise(self, alias: str) -> Iterator[PlannedNoise]:
        """Steps."""
        yield PlannedNoise("steps", self.steps.steps, self.steps.multipliers[alias], self._sampling(alias))

    def spend_all(self, parameters: Mapping[str, int], predictions: int) -> None:
        """Count all planned releases as made, and ``predictions`` more after the fit."""
        self.statistics.spend_all()
        noise = self.choose(parameters)
        noise.steps, noise.images = self.rounds * self.steps_of_round, self.rounds + predictions

    def row_noise(self, alias: str) -> float:
        """The noise of the mean of all steps."""
        steps = self.rounds * self.steps_of_round
        return self.steps.multipliers.get(alias, 0.0) / (self.samplings[alias] * math.sqrt(steps))

    def to_keep(self) -> dict[str, Any]:
        """What a saved model stores of it: settings, noise, and how much was used."""
        steps = {"local_steps": self.local_steps, "samplings": self.samplings, "slack": self._slack}
        return super().to_keep() | {"steps": steps}

    def _multiplier(self, alias: str, planned: int) -> float:
        whole, statistics = self.statistics.epsilon, self.statistics
        epsilon, delta = whole - self._slack, statistics.delta_left([alias])
        if epsilon <= 0:
            raise PrivacyError(f"feature_epsilon {whole:g} is too small for {planned:,} steps: use more")
        beside = statistics.precision(alias, statistics.tables[alias].expected)
        return addable(noise_multiplier(epsilon, delta, planned, self._sampling(alias), beside), whole, delta)

    def _sampling(self, alias: str) -> float | None:
        return None if self.samplings[alias] >= 1 else self.samplings[alias]

    def _has_steps(self, alias: str) -> bool:
        return bool(self.steps.steps) and alias in self.steps.multipliers

    def _epsilon(self, alias: str, predictions: float) -> float:
        beside, delta = self.statistics.precision(alias) + predictions, self.statistics.delta_left([alias])
        if not self._has_steps(alias):
            return epsilon_of(beside, delta)
        multiplier, taken = self.steps.multipliers[alias], self.steps.steps
        return gaussian_epsilon(multiplier, delta, taken, self._sampling(alias), beside) + self._slack

    def so_far(self, alias: str) -> float:
        """The epsilon so far: a slightly larger bound that is fast to compute."""
        if not self._has_steps(alias) or self._sampling(alias) is None:
            return self.given_messages(alias)
        cost = self._spending(alias, self.statistics.precision(alias))
        return min(cost.epsilon(self.statistics.delta_left([alias])) + self._slack, self.statistics.epsilon)

    def _total(self, aliases: Sequence[str], predictions: float) -> float:
        costs = (self._spending(alias, self.statistics.precision(alias) + predictions) for alias in aliases)
        return sum(costs, Spending()).epsilon(self.statistics.delta_left(aliases)) + len(aliases) * self._slack

    def _spending(self, alias: str, beside: float) -> Spending:
        """The cost of the steps taken, and of other releases whose 1 / multiplier^2 add up to ``beside``."""
        cost = Spending.of_gaussian(beside**-0.5) if beside else Spending()
        if not self._has_steps(alias):
            return cost
        return cost + Spending.of_gaussian(self.steps.multipliers[alias], self.steps.steps, self._sampling(alias))

    def _group_epsilon(self, aliases: Sequence[str], rows: int, predictions: float, delta: float) -> float:
        beside = rows**2 * sum(map(self.statistics.precision, aliases)) + predictions
        taken = [alias for alias in aliases if self._has_steps(alias)]
        if not taken:
            return epsilon_of(beside, delta)
        noise = self.steps
        steps = tuple((noise.multipliers[alias], noise.steps, self._sampling(alias)) for alias in taken)
        return group_epsilon(steps, delta, rows, beside) + len(aliases) * rows * self._slack
