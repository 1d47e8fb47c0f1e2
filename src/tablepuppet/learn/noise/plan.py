"""The noise of a fit as numbers: how much, and how often it was drawn. Ops get it as argument, promises use it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass

from tablepuppet.party.arguments import GramNoise, PredictionNoise, SampleNoise, SumNoise
from tablepuppet.privacy.noise_plan import PREDICTIONS, NoisyRelease

GRAM = "Gram matrix"


@dataclass
class Noise(ABC):
    """Common to all noise of rounds: the clipping bound of one row's contribution, and counts of releases."""

    clip: float
    _: KW_ONLY
    image: float | None = None  # noise multiplier of predictions, the same for all tables; None: no noise
    steps: int = 0  # rounds, or noisy steps, so far
    images: int = 0  # noisy predictions so far; saved models store both fields under these names

    @abstractmethod
    def of_rounds(self, alias: str) -> list[NoisyRelease]:
        """The releases of a table in the rounds so far, without predictions. Only the last may use samples of rows."""

    def predictions(self, alias: str) -> list[NoisyRelease]:
        """The predictions of a table so far; empty if they have no noise."""
        return [] if self.image is None else [NoisyRelease(alias, PREDICTIONS, self.images, self.image)]

    def of_predictions(self, bound: float | None) -> PredictionNoise | None:
        """The noise of predictions that are clipped to a bound."""
        return None if self.image is None else PredictionNoise(self.image, bound)


@dataclass
class FeatureNoise(Noise):
    """Noise on Gram matrices and gradients: the same multipliers for all tables."""

    gram: float
    step: float

    def of_rounds(self, alias: str) -> list[NoisyRelease]:
        """One Gram matrix, and a gradient in every round."""
        return [NoisyRelease(alias, GRAM, 1, self.gram), NoisyRelease(alias, "gradients", self.steps, self.step)]

    def of_gram(self, rows: int) -> GramNoise:
        """The noise for a table of ``rows`` rows."""
        return GramNoise(rows, self.gram)

    def of_sums(self, rows: int) -> SumNoise:
        """The noise for a table of ``rows`` rows."""
        return SumNoise(rows, self.clip, self.step)


@dataclass
class StepNoise(Noise):
    """Noise on gradients of samples: multipliers by table."""

    multipliers: Mapping[str, float]
    samplings: Mapping[str, float]

    def of_rounds(self, alias: str) -> list[NoisyRelease]:
        """Steps; none of a table without columns."""
        if alias not in self.multipliers:
            return []
        return [NoisyRelease(alias, "steps", self.steps, self.multipliers[alias], self.samplings[alias])]

    def length(self, alias: str, numbers: int, rows: int) -> float:
        """The approximate norm of the noise in a table's gradient of so many numbers, for a table of ``rows`` rows."""
        return self.multipliers[alias] * self.clip * math.sqrt(numbers) / (self.samplings[alias] * rows)

    def of_sums(self, alias: str, rows: int) -> SampleNoise:
        """The noise for a table of ``rows`` rows."""
        return SampleNoise(rows, self.clip, self.multipliers[alias], self.samplings[alias])
