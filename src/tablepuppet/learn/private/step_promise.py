"""What a fit by noisy steps (steps.py) may tell of each table, and what it came to.

The noise of steps fills what encoders will leave of a table's promise, by one count of both (Gaussian noise with and
without sampling, in one accountant). It follows from what the catalog says, so that a whole fit can be held against
a budget before its first release. The number of steps is fixed before the first. Steps that were not taken are not
spent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tablepuppet.errors import PrivacyError
from tablepuppet.learn.noise.plan import StepNoise
from tablepuppet.learn.private.feature_promise import FeaturePromise
from tablepuppet.prep.private_encode import EncoderNoise
from tablepuppet.privacy.accountant import Spending, addable, gaussian_epsilon, group_epsilon, noise_multiplier
from tablepuppet.privacy.noise import sampling_epsilon
from tablepuppet.privacy.shares import SLACK, Shares, epsilon_of

FEW_ROUNDS, MANY_ROUNDS = 5, 40
GRAIN = 1e-4  # of epsilon, to which errors of samplers are rounded up: noise does not depend on the last parameter


def sampling_of(batch_size: int | str, usual: int, rows: Mapping[str, int]) -> dict[str, float]:
    """The probability by table with which a row is in a sample, so that it has ``batch_size`` rows on average.

    The ``usual`` size, that nobody asked for, means all rows of smaller tables. PrivacyError for another one that is
    larger than a table.

    >>> sampling_of(100, 10_000, {"a": 1000})
    {'a': 0.1}
    """
    batch_size = usual if isinstance(batch_size, str) else batch_size
    for alias, count in rows.items():
        if batch_size > count and batch_size != usual:
            raise PrivacyError(
                f"batch_size {batch_size:,} is larger than the {count:,} rows of table {alias!r}: with feature_epsilon "
                "it counts the rows that a table samples for a step; use less, or leave it at its default"
            )
    return {alias: min(1.0, batch_size / max(count, 1)) for alias, count in rows.items()}


@dataclass
class StepPromise(FeaturePromise):
    """The noise of a fit by steps, by table, and how much of it was used."""

    local_steps: int
    samplings: Mapping[str, float]
    steps: StepNoise | None = field(default=None, init=False)
    _slack: float = field(default=SLACK, init=False)

    @property
    def rounds(self) -> int:
        """That noise is planned for: one if predictions have noise too, as each round needs its own."""
        return self.asked_rounds or (self._usual_rounds if self.privacy.prediction_epsilon is None else 1)

    @property
    def steps_of_round(self) -> int:
        """Where one round has to do, it has the steps of all."""
        whole = self.asked_rounds is None and self.privacy.prediction_epsilon is not None
        return self.local_steps * (self._usual_rounds if whole else 1)

    @property
    def is_sampled(self) -> bool:
        """Whether epsilon is lower since parties used samples of their rows."""
        return any(sampling < 1 for sampling in self.samplings.values())

    @property
    def _usual_rounds(self) -> int:
        """More where there is less noise: 5 for an epsilon of 1 or less, 20 for 10. Measured on MovieLens."""
        return min(MANY_ROUNDS, round(FEW_ROUNDS * math.pow(max(1.0, self._feature_epsilon), 0.6)))

    def choose(self, sizes: Mapping[str, int]) -> StepNoise:
        """The noise of steps, for so many parameters by table. It may take seconds."""
        planned, image = self.rounds * self.steps_of_round, None
        grain = GRAIN * self._feature_epsilon
        errors = SLACK + planned * sampling_epsilon(max(sizes.values(), default=1))
        self._slack = grain * math.ceil(errors / grain)
        if self.privacy.prediction_epsilon is not None:
            image = Shares(self.privacy.prediction_epsilon, self.privacy.delta).multiplier(1 / self.rounds)
        multipliers = {alias: self._multiplier(alias, planned) for alias in sizes}
        self.steps = StepNoise(self.privacy.clip_norm, multipliers, self.samplings, image)
        return self.steps

    @property
    def spent(self) -> StepNoise:
        """Where predictions are counted."""
        assert self.steps is not None, "chosen before the first"
        return self.steps

    def to_keep(self) -> dict[str, Any]:
        """The noise of a saved model, and how much of it was used."""
        return {"encoders": asdict(self.encoders), "noise": asdict(self.spent), "slack": self._slack}

    def go_on(self, kept: Mapping[str, Any]) -> None:
        """Count on from what a saved model has."""
        self.encoders = EncoderNoise(**kept["encoders"])
        self.steps, self._slack = StepNoise(**kept["noise"]), kept["slack"]

    def _multiplier(self, alias: str, planned: int) -> float:
        epsilon = self._feature_epsilon - self._slack
        if epsilon <= 0:
            raise PrivacyError(
                f"feature_epsilon {self._feature_epsilon:g} is too small for {planned:,} steps: use more"
            )
        beside = self.expected[alias] / self.encoders.multipliers[alias] ** 2
        found = noise_multiplier(epsilon, self._delta(alias), planned, self._sampling(alias), beside)
        return addable(found, self._feature_epsilon, self._delta(alias))

    def _sampling(self, alias: str) -> float | None:
        return None if self.samplings[alias] >= 1 else self.samplings[alias]

    def _told(self, alias: str) -> float:
        """The sum of 1 / multiplier^2 of the statistics for encoders."""
        return self.encoders.used.get(alias, 0) / self.encoders.multipliers[alias] ** 2

    def _epsilon(self, alias: str, beside: float) -> float:
        """Of the steps that were taken, and of others."""
        noise = self.steps
        if noise is None or not noise.steps or alias not in noise.multipliers:
            return epsilon_of(beside, self._delta(alias))
        multiplier, sampling = noise.multipliers[alias], self._sampling(alias)
        return gaussian_epsilon(multiplier, self._delta(alias), noise.steps, sampling, beside) + self._slack

    def given_messages(self, alias: str) -> float:
        """The epsilon of a table's rows if predictions are taken as known (the paper's accounting)."""
        return min(self._epsilon(alias, self._told(alias)), self._feature_epsilon)

    def so_far(self, alias: str) -> float:
        """The same while it is learned: a little more, but soon known."""
        noise = self.steps
        if noise is None or not noise.steps or alias not in noise.multipliers or self._sampling(alias) is None:
            return self.given_messages(alias)
        cost = self._spending(alias, self._told(alias))
        return min(cost.epsilon(self._delta(alias)) + self._slack, self._feature_epsilon)

    def epsilon(self, alias: str) -> float:
        """The epsilon of a table's rows for all that was told: infinite if predictions had no noise."""
        if self.steps is None or self.steps.image is None:
            return math.inf
        return self._epsilon(alias, self._told(alias) + self._of_images)

    @property
    def _of_images(self) -> float:
        """The sum of 1 / multiplier^2 of predictions with noise."""
        return 0.0 if self.steps is None or self.steps.image is None else self.steps.images / self.steps.image**2

    def together(self, aliases: Sequence[str], *, given_messages: bool = False, rows: int = 1) -> float:
        """The epsilon at one delta of somebody with a row, or several, in each of these tables.

        Divergences of all orders are added up (FedOnce, Theorem 4), those of steps on samples too.
        """
        if rows > 1:
            return self._of_group(aliases, rows, given_messages)
        alone = self.given_messages if given_messages else self.epsilon
        if len(aliases) < 2 or math.isinf(alone(aliases[0])):
            return sum(map(alone, aliases))
        images = 0.0 if given_messages else self._of_images
        total = sum((self._spending(alias, self._told(alias) + images) for alias in aliases), Spending())
        return total.epsilon(self._delta_of(aliases)) + len(aliases) * self._slack

    def _spending(self, alias: str, beside: float) -> Spending:
        """Of the steps that were taken, and of others, of which 1 / multiplier^2 adds up to ``beside``."""
        noise, cost = self.steps, Spending.of_gaussian(beside**-0.5) if beside else Spending()
        if noise is None or not noise.steps or alias not in noise.multipliers:
            return cost
        return cost + Spending.of_gaussian(noise.multipliers[alias], noise.steps, self._sampling(alias))

    @property
    def _image(self) -> float | None:
        return None if self.steps is None else self.steps.image

    def _group_epsilon(self, aliases: Sequence[str], rows: int, images: float, delta: float) -> float:
        noise, beside = self.steps, rows**2 * sum(map(self._told, aliases)) + images
        taken = [alias for alias in aliases if noise is not None and noise.steps and alias in noise.multipliers]
        if noise is None or not taken:
            return epsilon_of(beside, delta)
        steps = tuple((noise.multipliers[alias], noise.steps, self._sampling(alias)) for alias in taken)
        return group_epsilon(steps, delta, rows, beside) + len(aliases) * rows * self._slack
