"""An audit of a stated epsilon: how well can two neighbouring worlds be told apart by what was seen?"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from tablepuppet.privacy.accountant import gaussian_epsilon

CONFIDENCE = 0.999


def least_epsilon(here: NDArray[Any], there: NDArray[Any], delta: float) -> float:
    """A lower bound on epsilon from what was seen in many runs in each of two worlds, (runs, numbers).

    Half of the runs choose a direction (Fisher's) and a threshold; the other half are guessed by it, and the rates of
    right and wrong guesses are bounded by Clopper and Pearson. A sound promise is below this once in 500 audits.
    """
    half = min(len(here), len(there)) // 2
    spread = np.cov(here[:half].T) + np.cov(there[:half].T)
    spread = np.atleast_2d(spread) + 1e-9 * np.trace(np.atleast_2d(spread)) * np.eye(here.shape[1]) + 1e-300
    direction = np.linalg.lstsq(spread, here[:half].mean(axis=0) - there[:half].mean(axis=0), rcond=None)[0]
    one, other = here @ direction, there @ direction
    places = np.quantile(np.concatenate([one[:half], other[:half]]), np.linspace(0.02, 0.98, 49))
    best = max(places, key=lambda place: max(_bounds(one[:half], other[:half], place, delta)))
    return max(0.0, *_bounds(one[half:], other[half:], best, delta))


def least_gaussian_epsilon(here: NDArray[Any], there: NDArray[Any], delta: float) -> float:
    """The same for releases whose noise is Gaussian: from the rates of wrong guesses follows how far the worlds' means
    are apart, in standard deviations, and from that epsilon (Nasr et al. 2023). It needs far fewer runs.
    """
    half = min(len(here), len(there)) // 2
    direction = here[:half].mean(axis=0) - there[:half].mean(axis=0)
    one, other = here @ direction, there @ direction
    place = (np.median(one[:half]) + np.median(other[:half])) / 2
    wrong = [int((one[half:] <= place).sum()), int((other[half:] > place).sum())]
    most = [stats.binomtest(each, len(here) - half).proportion_ci(CONFIDENCE).high for each in wrong]
    apart = float(-sum(stats.norm.ppf(each) for each in most))
    return gaussian_epsilon(1 / apart, delta) if apart > 0 else 0.0


def _bounds(one: NDArray[Any], other: NDArray[Any], place: float, delta: float) -> tuple[float, float]:
    """From guesses above the threshold, and from those below."""
    return _ratio(one > place, other > place, delta), _ratio(other <= place, one <= place, delta)


def _ratio(often: NDArray[np.bool_], seldom: NDArray[np.bool_], delta: float) -> float:
    low = stats.binomtest(int(often.sum()), len(often)).proportion_ci(CONFIDENCE).low
    high = stats.binomtest(int(seldom.sum()), len(seldom)).proportion_ci(CONFIDENCE).high
    return math.log((low - delta) / high) if low > delta else 0.0
