"""Noise in tables' predictions: how much of what it reaches, a step, an intercept, a score, is to be believed.

Comes in: the standard deviation of the noise that each table added, and the mapping. Goes out: variances that noise
alone has over the joined rows, and what is left of a number once it is weighed by how certain it is. All of it is known
to the coordinator anyway, so that this costs no privacy. A base row's noise is gathered to all its joined rows: few
rows that are joined often do not average it away.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tablepuppet.mapping.table_mapping import TableMapping
from tablepuppet.operators.loj import LearningOverJoin

Array = NDArray[np.float64]


@dataclass(frozen=True)
class DirectionNoise:
    """Noise in X d of a direction, which is likely to have a mean square of ``size`` without it."""

    square: float  # the mean square of the noise
    size: float
    of_slope: float  # the variance that noise gives the slope along the direction
    of_mean: float  # and the mean of X d

    @classmethod
    def of(cls, loj: LearningOverJoin, deviations: Mapping[str, float], size: float, gradient: str) -> DirectionNoise:
        """``deviations`` of the noise of one number, by table; ``gradient`` names the column of the mean loss's."""
        sums = loj.scatter(gradient, deviations)
        of_slope = sum(
            deviation**2 * float(np.vdot(sums[alias], sums[alias])) for alias, deviation in deviations.items()
        )
        square = float(sum(deviation**2 for deviation in deviations.values()))
        return cls(square, size, of_slope, mean_noise(loj, deviations))

    def curvature(self, seen: float, weight: float) -> float:
        """The second derivative along X d corrected for noise: ``seen`` has it, of a loss that curves by ``weight``.

        Noise does not count, so it is taken off. What is left is uncertain: it counts as no less than that of X d of
        the likely size. The last term makes the step the best guess of one that is about 1 before anything was seen:
        the less the slope tells, the shorter.
        """
        likely = max(seen - self.square * weight, self.size * weight, 1e-300)
        return likely + self.of_slope / likely

    @property
    def kept_mean(self) -> float:
        """The share of the mean of X d that is believed."""
        return believed(self.size, self.of_mean)


def mean_noise(loj: LearningOverJoin, deviations: Mapping[str, float]) -> float:
    """The variance of the mean over joined rows of noise that was added to base rows."""
    return sum(deviation**2 * left_in_mean(loj.mapping, alias) for alias, deviation in deviations.items())


def left_in_mean(mapping: TableMapping, alias: str) -> float:
    """The variance of the mean over joined rows of noise of variance 1 at a table's base rows."""
    shares = mapping.counts(alias) / max(len(mapping), 1)
    return float(shares @ shares)


def believed(likely: float, noise: float) -> float:
    """The share of a number that is signal, if that has a mean square of ``likely`` and its noise one of ``noise``.

    >>> believed(1.0, 3.0)
    0.25
    """
    return likely / (likely + noise) if noise else 1.0


def calmed(scores: Array, mean: Array, noise: float) -> Array:
    """Scores of noisy predictions, drawn towards the ``mean`` that the intercept answers, as far as they are noise.

    ``noise`` is its mean square, in units of that of predictions. Without this, predictions under a small epsilon would
    be much worse than none.
    """
    towards = mean[0] if scores.ndim == 1 else mean
    return np.asarray(towards + believed(1.0, noise) * (scores - towards))
