"""The noise of a fit as numbers: how much, and how often it was drawn. Ops get it as argument, promises use it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass

from tablepuppet.party.added_noise import GramNoise, PredictionNoise, SampleNoise, SumNoise


@dataclass
class Noise:
    """Common to all noise of rounds: the clipping bound of one row's contribution, and counts of releases."""

    clip: float
    _: KW_ONLY
    image: float | None = None  # noise multiplier of predictions, the same for all tables; None: no noise
    steps: int = 0  # rounds, or noisy steps, so far
    images: int = 0  # noisy predictions so far; saved models store both fields under these names

    @property
    def prediction_precision(self) -> float:
        """The sum of 1 / multiplier^2 over noisy predictions so far."""
        return 0.0 if self.image is None else self.images / self.image**2

    def of_predictions(self, bound: float | None) -> PredictionNoise | None:
        """The noise of predictions that are clipped to a bound."""
        return None if self.image is None else PredictionNoise(self.image, bound)


@dataclass
class FeatureNoise(Noise):
    """Noise on Gram matrices and gradients: the same multipliers for all tables."""

    gram: float
    step: float

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

    def of_sums(self, alias: str, rows: int) -> SampleNoise:
        """The noise for a table of ``rows`` rows."""
        return SampleNoise(rows, self.clip, self.multipliers[alias], self.samplings[alias])
