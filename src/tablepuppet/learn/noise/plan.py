"""The noise of a fit as numbers: how much, and how often it was drawn. Ops get it as argument, promises use it.

The coordinator knows the deviation of the noise in tables' predictions, so what it tells of a step, an intercept or a
score (`DirectionNoise`, values shrunk by their share of noise) costs no privacy. A base row's noise goes to all its
joined rows: it does not average out if few rows are joined often.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass

import numpy as np

from tablepuppet.arrays import Array
from tablepuppet.mapping.joined_rows import JoinedRows
from tablepuppet.operators.loj import LearningOverJoin
from tablepuppet.party.arguments import GramNoise, PredictionNoise, SampleNoise, SumNoise
from tablepuppet.privacy.noise_plan import PREDICTIONS, NoisyRelease

GRAM = "Gram matrix"


@dataclass
class Noise(ABC):
    """Common to all noise of rounds: the clipping bound of one row's contribution, and counts of releases."""

    clip: float
    _: KW_ONLY
    prediction: float | None = None  # noise multiplier of predictions, the same for all tables; None: no noise
    steps: int = 0  # rounds, or noisy steps, so far
    predicted: int = 0  # noisy predictions so far

    @abstractmethod
    def of_rounds(self, alias: str) -> list[NoisyRelease]:
        """The releases of a table in the rounds so far, without predictions. Only the last may use samples of rows."""

    def predictions(self, alias: str) -> list[NoisyRelease]:
        """The predictions of a table so far; empty if they have no noise."""
        return [] if self.prediction is None else [NoisyRelease(alias, PREDICTIONS, self.predicted, self.prediction)]

    def of_predictions(self, bound: float | None) -> PredictionNoise | None:
        """The noise of predictions that are clipped to a bound."""
        return None if self.prediction is None else PredictionNoise(self.prediction, bound)


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


@dataclass(frozen=True)
class DirectionNoise:
    """Noise in X d of a direction; without noise, X d has an expected mean square of ``size``."""

    square: float  # the mean square of the noise
    size: float
    of_slope: float  # the variance that noise gives the slope along the direction
    of_mean: float  # and the mean of X d

    @classmethod
    def of(cls, loj: LearningOverJoin, deviations: Mapping[str, float], size: float, gradient: str) -> DirectionNoise:
        """``deviations``: standard deviations of the noise by table; ``gradient``: the column of the gradient."""
        sums = loj.scatter(gradient, deviations)
        of_slope = sum(
            deviation**2 * float(np.vdot(sums[alias], sums[alias])) for alias, deviation in deviations.items()
        )
        square = float(sum(deviation**2 for deviation in deviations.values()))
        return cls(square, size, of_slope, mean_noise(loj, deviations))

    def curvature(self, seen: float, weight: float) -> float:
        """The curvature along X d corrected for noise; ``seen`` is the noisy one, ``weight`` the loss's curvature.

        The part that comes from noise is subtracted. The rest is uncertain, so it is at least the curvature of an X d
        of the expected size. The last term shrinks the step, with a prior that the best step is about 1: the noisier
        the slope, the shorter the step.
        """
        likely = max(seen - self.square * weight, self.size * weight, 1e-300)
        return likely + self.of_slope / likely

    @property
    def kept_mean(self) -> float:
        """The share of the mean of X d that is signal."""
        return believed(self.size, self.of_mean)


def mean_noise(loj: LearningOverJoin, deviations: Mapping[str, float]) -> float:
    """The variance of the mean over joined rows of noise that tables added to base rows."""
    return sum(deviation**2 * left_in_mean(loj.rows, alias) for alias, deviation in deviations.items())


def left_in_mean(rows: JoinedRows, alias: str) -> float:
    """The variance of the mean over joined rows of noise of variance 1 at the base rows of one table."""
    shares = rows.tables[alias].counts / max(len(rows), 1)
    return float(shares @ shares)


def believed(likely: float, noise: float) -> float:
    """The share of a noisy number that is signal; ``likely`` and ``noise`` are mean squares of signal and noise.

    >>> believed(1.0, 3.0)
    0.25
    """
    return likely / (likely + noise) if noise else 1.0


def calmed(scores: Array, mean: Array, noise: float) -> Array:
    """Scores of noisy predictions, shrunk towards ``mean`` (absorbed by the intercept) by their share of noise.

    ``noise`` is its mean square relative to that of predictions. Without shrinking, predictions under a small epsilon
    would be much worse than a constant.
    """
    towards = mean[0] if scores.ndim == 1 else mean
    return np.asarray(towards + believed(1.0, noise) * (scores - towards))
