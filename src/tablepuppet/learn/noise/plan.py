"""The noise of a fit as numbers: how much, and how often it was drawn. Ops get it as argument, promises use it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass

from tablepuppet.party.added_noise import GramNoise, PredictionNoise, SampleNoise, SumNoise


@dataclass(frozen=True)
class NoisyReleases:
    """Releases of one kind that a table makes, all with Gaussian noise of one multiplier."""

    what: str
    count: int
    multiplier: float
    sampling: float | None = None  # None: every row is in each of them

    @property
    def precision(self) -> float:
        """The sum of 1 / multiplier^2: without sampling, costs add up as such sums (privacy/shares.py)."""
        return self.count / self.multiplier**2


@dataclass
class Noise(ABC):
    """Common to all noise of rounds: the clipping bound of one row's contribution, and counts of releases."""

    clip: float
    _: KW_ONLY
    image: float | None = None  # noise multiplier of predictions, the same for all tables; None: no noise
    steps: int = 0  # rounds, or noisy steps, so far
    images: int = 0  # noisy predictions so far; saved models store both fields under these names

    @abstractmethod
    def of_rounds(self, alias: str) -> list[NoisyReleases]:
        """The releases of a table in the rounds so far, without predictions. Only the last may use samples of rows."""

    @property
    def predictions(self) -> list[NoisyReleases]:
        """The predictions of a table so far; empty if they have no noise."""
        return [] if self.image is None else [NoisyReleases("predictions", self.images, self.image)]

    def of_predictions(self, bound: float | None) -> PredictionNoise | None:
        """The noise of predictions that are clipped to a bound."""
        return None if self.image is None else PredictionNoise(self.image, bound)


@dataclass
class FeatureNoise(Noise):
    """Noise on Gram matrices and gradients: the same multipliers for all tables."""

    gram: float
    step: float

    def of_rounds(self, alias: str) -> list[NoisyReleases]:
        """One Gram matrix, and a gradient in every round."""
        return [NoisyReleases("Gram matrix", 1, self.gram), NoisyReleases("gradients", self.steps, self.step)]

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

    def of_rounds(self, alias: str) -> list[NoisyReleases]:
        """Steps; none of a table without columns."""
        if alias not in self.multipliers:
            return []
        sampling = None if self.samplings[alias] >= 1 else self.samplings[alias]
        return [NoisyReleases("steps", self.steps, self.multipliers[alias], sampling)]

    def length(self, alias: str, numbers: int, rows: int) -> float:
        """The approximate norm of the noise in a table's gradient of so many numbers, for a table of ``rows`` rows."""
        return self.multipliers[alias] * self.clip * math.sqrt(numbers) / (self.samplings[alias] * rows)

    def of_sums(self, alias: str, rows: int) -> SampleNoise:
        """The noise for a table of ``rows`` rows."""
        return SampleNoise(rows, self.clip, self.multipliers[alias], self.samplings[alias])
