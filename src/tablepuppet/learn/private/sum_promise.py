"""The promise of a fit by noisy sums: the share `GRAM` for the Gram matrix, the rest for gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tablepuppet.learn.linear.ridge import LARGE
from tablepuppet.learn.noise.plan import FeatureNoise
from tablepuppet.learn.private.encoder_promise import ENCODERS
from tablepuppet.learn.private.feature_promise import FeaturePromise, PlannedNoise
from tablepuppet.privacy.shares import SLACK, epsilon_of

GRAM = 0.2
ROUNDS = 3  # more rounds would need more noise in each
NOISY_ROUNDS = 1  # if predictions have noise: a second round would fit that noise


@dataclass
class SumPromise(FeaturePromise):
    """Noise on Gram matrices and gradients. All of it is Gaussian, so costs add up as sums of 1 / multiplier^2."""

    prediction_size = LARGE

    @property
    def rounds(self) -> int:
        """The number of rounds that the budget is divided over."""
        return self.asked_rounds or (ROUNDS if self.privacy.prediction_epsilon is None else NOISY_ROUNDS)

    @cached_property
    def noise(self) -> FeatureNoise:
        """The noise of all tables: as the table with most lists of categories needs it."""
        shares = self.statistics.shares()
        step = shares.multiplier((1 - ENCODERS - GRAM) / self.rounds)
        return FeatureNoise(self.privacy.clip_norm, shares.multiplier(GRAM), step, image=self.prediction_multiplier)

    @property
    def spent(self) -> FeatureNoise:
        """The same noise, with counts of the releases made so far."""
        return self.noise

    def planned_noise(self, alias: str) -> Iterator[PlannedNoise]:
        """One Gram matrix, and a gradient in every round."""
        yield PlannedNoise("Gram matrix", 1, self.noise.gram)
        yield PlannedNoise("gradients", self.noise.steps, self.noise.step)

    def spend_all(self, parameters: Mapping[str, int], predictions: int) -> None:
        """Count all planned releases as made, and ``predictions`` more after the fit."""
        self.statistics.spend_all()
        self.noise.steps, self.noise.images = self.rounds, self.rounds + predictions

    def row_noise(self, alias: str) -> float:
        """The noise of the mean of all gradients."""
        return self.noise.step / math.sqrt(self.rounds)

    def _precision(self, alias: str) -> float:
        """The sum of 1 / multiplier^2 of a table's releases, without predictions."""
        noise = self.noise
        return self.statistics.precision(alias) + 1 / noise.gram**2 + noise.steps / noise.step**2

    def _epsilon(self, alias: str, predictions: float) -> float:
        return epsilon_of(self._precision(alias) + predictions, self.statistics.delta_left([alias]))

    def _total(self, aliases: Sequence[str], predictions: float) -> float:
        precision = sum(map(self._precision, aliases)) + len(aliases) * predictions
        return epsilon_of(precision, self.statistics.delta_left(aliases)) + (len(aliases) - 1) * SLACK

    def _group_epsilon(self, aliases: Sequence[str], rows: int, predictions: float, delta: float) -> float:
        precision = rows**2 * sum(map(self._precision, aliases)) + predictions
        return epsilon_of(precision, delta) + (len(aliases) * rows - 1) * SLACK
