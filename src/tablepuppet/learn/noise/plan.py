"""The noise of a fit as numbers: how much, and how often it was drawn. Ops are told of it, promises follow from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tablepuppet.party.added_noise import GramNoise, PredictionNoise, SampleNoise, SumNoise


@dataclass
class FeatureNoise:
    """Noise on Gram matrices and gradients: all tables alike."""

    clip: float
    gram: float
    step: float
    image: float | None = None  # of predictions
    steps: int = 0
    images: int = 0

    def of_gram(self, rows: int) -> GramNoise:
        """For a table of so many rows."""
        return GramNoise(rows, self.gram)

    def of_sums(self, rows: int) -> SumNoise:
        """For a table of so many rows."""
        return SumNoise(rows, self.clip, self.step)

    def of_predictions(self, bound: float | None) -> PredictionNoise | None:
        """For predictions within a bound."""
        return None if self.image is None else PredictionNoise(self.image, bound)


@dataclass
class StepNoise:
    """Noise on the gradients of samples: by table."""

    clip: float
    multipliers: Mapping[str, float]
    samplings: Mapping[str, float]
    image: float | None = None  # of predictions: all tables alike
    steps: int = 0
    images: int = 0

    def of_sums(self, alias: str, rows: int) -> SampleNoise:
        """For a table of so many rows."""
        return SampleNoise(rows, self.clip, self.multipliers[alias], self.samplings[alias])

    def of_predictions(self, bound: float | None) -> PredictionNoise | None:
        """For predictions within a bound."""
        return None if self.image is None else PredictionNoise(self.image, bound)


Noise = FeatureNoise | StepNoise
