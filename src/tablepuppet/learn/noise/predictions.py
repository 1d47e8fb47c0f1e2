"""Noise in tables' predictions: how much of a step, an intercept or a score is signal, and how to correct for it.

Input: the standard deviation of the noise that each table added, and the joined rows. Output: variances of the noise
over the joined rows, and values shrunk by their share of noise. The coordinator knows all of this anyway, so it costs
no privacy. A base row's noise goes to all its joined rows: it does not average out if few rows are joined often.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tablepuppet.arrays import Array
from tablepuppet.mapping.joined_rows import JoinedRows
from tablepuppet.operators.loj import LearningOverJoin


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
    """The same for one table, with noise of variance 1 at its base rows."""
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
