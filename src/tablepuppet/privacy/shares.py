"""How the privacy promise for a table's features is divided among its releases.

Input: a target epsilon and delta. Output: a noise multiplier for each release, and the epsilon of what was used.
All noise is Gaussian, and without sampling: releases of multipliers s_1, s_2, ... are together exactly as private as
one of (1 / s_1^2 + 1 / s_2^2 + ...)^(-1/2) (Dong, Roth, Su 2022), so that shares of 1 / s^2 add up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tablepuppet.privacy.accountant import addable, gaussian_epsilon, noise_multiplier

SLACK = 1e-6  # of epsilon, for what `sampling_epsilon` adds: enough for 8 million noisy numbers
TAIL = 7.04  # standard deviations that Gaussian noise exceeds with probability 1e-12
TAIL_DELTA = 1e-12


@dataclass(frozen=True)
class Shares:
    """A promise of ``epsilon`` at ``delta`` for every row of a table. ``tails`` are releases that depend on noise not
    exceeding `TAIL`, such as lists of the categories that are frequent enough; each takes `TAIL_DELTA` of delta.
    """

    epsilon: float
    delta: float
    tails: int = 0

    @property
    def _whole(self) -> float:
        """The multiplier of a single release that uses all of it."""
        return noise_multiplier(self.epsilon - min(SLACK, self.epsilon / 2), self.delta - self.tails * TAIL_DELTA)

    def multiplier(self, share: float) -> float:
        """The noise of a release that uses a share of it.

        >>> round(Shares(1.0, 1e-5).multiplier(0.25) / Shares(1.0, 1e-5).multiplier(1.0), 6)
        2.0
        """
        return addable(self._whole / math.sqrt(share), self.epsilon, self.delta)


def tail_delta(rows: int, multiplier: float) -> float:
    """The delta of one noisy list of categories for somebody with this number of rows in a table.

    A category is listed whose noisy count is above 1 + TAIL noises; at worst all rows have one that nobody else has, or
    each has its own.

    >>> tail_delta(1, 10.0) < TAIL_DELTA < tail_delta(2, 10.0)
    True
    """
    return rows * math.erfc((TAIL - (rows - 1) / multiplier) / math.sqrt(2)) / 2


def epsilon_of(precision: float, delta: float) -> float:
    """The epsilon of releases whose 1 / multiplier^2 add up to ``precision``."""
    return gaussian_epsilon(precision**-0.5, delta) + SLACK if precision > 0 else 0.0
