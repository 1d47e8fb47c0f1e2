"""What noise costs: epsilon and delta of many releases, and the noise for a target.

Input: noise multipliers, how often noise was added, sampling probabilities. Output: epsilons, multipliers, and
`Spending`, a cost that can be added over releases and runs. It uses no data. The formulas are those of `dp-accounting`.

Neighbours are those of feature privacy: one row's features are replaced by a null record, which adds nothing to a sum.
So a row whose part of a sum has norm C or less changes the sum by at most C. A multiplier is the standard deviation of
the noise divided by C. ``sampling`` is the probability with which a party includes each row in a step, independently
and unknown to others (Poisson sampling). It is None for batches of a fixed size, and for batches that others know.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from tablepuppet.errors import PrivacyError

ORDERS: tuple[float, ...] = (
    *(1 + tenth / 10 for tenth in range(1, 100)), *range(11, 64), 128, 256, 512, 1024,
)  # fmt: skip
"""The Renyi orders that costs are kept at; ledgers on disk hold them, so a change must convert these."""

_NOTHING = (0.0,) * len(ORDERS)
MOST_IN_SAMPLE = 64  # rows of one person up to which a sample is taken to have some of them, else all
LEAST_MULTIPLIER, MOST_MULTIPLIER = 1e-6, 1e6  # of noise that parties add
_SEARCH = 1e-9  # relative: covers the tolerances of the searches in dp-accounting


@dataclass(frozen=True)
class Spending:
    """What releases cost a row, in a form that adds up: ``a + b`` is the cost of both, however one led to the other.

    ``gaussian`` are the Renyi divergences at `ORDERS` of releases with Gaussian noise. Releases with a pure epsilon
    (delta 0) are kept twice, as the sum of their epsilons and as Renyi divergences: the better one counts. ``tail`` is
    the probability that a release which depends on noise not exceeding some bound is wrong: it is taken off delta.
    No cost that is not a finite number can be made: adding one up would make everything after it free.
    """

    gaussian: tuple[float, ...] = _NOTHING
    pure: float = 0.0
    pure_curve: tuple[float, ...] = _NOTHING
    tail: float = 0.0

    def __post_init__(self) -> None:
        costs = (*self.gaussian, self.pure, *self.pure_curve, self.tail)
        if len(self.gaussian) != len(ORDERS) or len(self.pure_curve) != len(ORDERS):
            raise PrivacyError("a cost has another number of Renyi orders than this version keeps")
        if not all(0 <= cost < math.inf for cost in costs):  # NaN fails too
            raise PrivacyError("a cost is not a finite number, so that nothing can be charged: use more noise")

    @classmethod
    def of_gaussian(cls, multiplier: float, steps: int = 1, sampling: float | None = None) -> Spending:
        """The cost of adding Gaussian noise in this number of steps.

        >>> round(Spending.of_gaussian(4.0, 10_000, sampling=0.01).epsilon(1e-5), 2)
        1.04
        """
        _check_steps(multiplier, steps, sampling)
        return cls(gaussian=_curve(multiplier, steps, sampling or 1.0))

    @classmethod
    def of_pure(cls, epsilon: float) -> Spending:
        """The cost of a release with a pure epsilon; its divergence is at most min(e, order e² / 2)."""
        if not (math.isfinite(epsilon) and epsilon > 0):
            raise PrivacyError(f"epsilon {epsilon:g}: it must be a positive number")
        return cls(pure=epsilon, pure_curve=tuple(min(epsilon, order / 2 * epsilon * epsilon) for order in ORDERS))

    def __add__(self, other: Spending) -> Spending:
        return Spending(
            _sum(self.gaussian, other.gaussian),
            self.pure + other.pure,
            _sum(self.pure_curve, other.pure_curve),
            self.tail + other.tail,
        )

    def times(self, count: int) -> Spending:
        """The cost of this number of releases like this one."""
        curves = (tuple(count * cost for cost in curve) for curve in (self.gaussian, self.pure_curve))
        gaussian, pure_curve = curves
        return Spending(gaussian, count * self.pure, pure_curve, count * self.tail)

    def epsilon(self, delta: float) -> float:
        """The epsilon of everything at ``delta``: infinite at delta 0 if there was Gaussian noise."""
        left = delta - self.tail
        if left < 0:
            return math.inf
        apart = self.pure + _converted(self.gaussian, left)
        return min(apart, _converted(_sum(self.gaussian, self.pure_curve), left))


@lru_cache(maxsize=256)
def gaussian_epsilon(
    multiplier: float, delta: float, steps: int = 1, sampling: float | None = None, beside: float = 0.0
) -> float:
    """The epsilon of Gaussian noise in this number of steps: the smallest of all valid bounds.

    Without sampling that is the exact figure (Balle and Wang 2018); with sampling the lower of Renyi divergences and
    the privacy loss distribution. ``beside`` is the sum of 1 / multiplier^2 of other releases with Gaussian noise and
    without sampling, which are counted too.

    >>> round(gaussian_epsilon(4.0, 1e-5, 10_000, sampling=0.01), 2)
    0.95
    """
    import dp_accounting as dp

    _check_steps(multiplier, steps, sampling)
    check_delta(delta)
    if sampling is None or sampling == 1:
        whole = (steps / multiplier**2 + beside) ** -0.5
        return float(dp.get_epsilon_gaussian(whole, delta)) * (1 + _SEARCH) + _SEARCH
    renyi = _by_renyi(multiplier, steps, sampling, delta, beside)
    return min(renyi, _by_losses(multiplier, steps, sampling, delta, beside, renyi))


@lru_cache(maxsize=256)
def noise_multiplier(
    epsilon: float, delta: float, steps: int = 1, sampling: float | None = None, beside: float = 0.0
) -> float:
    """The least multiplier for ``epsilon`` at ``delta`` over this number of steps, to one part in 500, never below it.

    ``beside`` is that of `gaussian_epsilon`; PrivacyError if it alone costs as much. With sampling this takes seconds.

    >>> round(noise_multiplier(1.0, 1e-5), 2)
    3.73
    """
    import dp_accounting as dp

    _check_target(epsilon, delta)
    _check_steps(1.0, steps, sampling)
    if sampling is None or sampling == 1:
        left = (float(dp.get_sigma_gaussian(epsilon, delta)) * (1 + _SEARCH)) ** -2 - beside
        if left <= 0:
            raise PrivacyError(
                f"epsilon {epsilon:g} is used up by the other releases, before the steps: use a larger one"
            )
        return math.sqrt(steps / left) * (1 + _SEARCH)
    unsampled = noise_multiplier(epsilon, delta, steps, None, beside)  # always enough: sampling needs less
    renyi = _least(lambda tried: _by_renyi(tried, steps, sampling, delta, beside) <= epsilon, unsampled, 0.01)
    start = min(renyi, unsampled)
    losses = _least(lambda tried: _by_losses(tried, steps, sampling, delta, beside, epsilon) <= epsilon, start, 0.002)
    return min(start, losses)


def addable(multiplier: float, epsilon: float, delta: float) -> float:
    """A multiplier that parties can add noise by; PrivacyError, in terms of the promise, for any other."""
    if multiplier > MOST_MULTIPLIER:
        raise PrivacyError(
            f"epsilon {epsilon:g} at delta {delta:g} would take more noise than parties add: use a larger epsilon or "
            "delta, or fewer rounds"
        )
    if multiplier < LEAST_MULTIPLIER:
        raise PrivacyError(f"epsilon {epsilon:g} would leave next to no noise: use a smaller one; 0.1 to 10 is usual")
    return multiplier


@lru_cache(maxsize=256)
def group_epsilon(
    steps: tuple[tuple[float, int, float | None], ...], delta: float, rows: int, beside: float = 0.0
) -> float:
    """The epsilon of somebody with ``rows`` rows in each of some tables; ``steps`` are (multiplier, count, sampling).

    So many rows change a sum by up to ``rows`` times the norm of one. With sampling, how many of them are in a step has
    a binomial distribution, which makes the noisy sum a mixture of Gaussians; shorter sums or other directions reveal
    less (Ganesh 2024, arXiv 2310.15526). ``beside`` is that of `gaussian_epsilon`, for all these rows together.

    >>> round(group_epsilon(((4.0, 10, None),), 1e-5, 2) / gaussian_epsilon(2.0, 1e-5, 10), 6)
    1.0
    """
    for multiplier, count, sampling in steps:
        _check_steps(multiplier, count, sampling)
    check_delta(delta)
    whole, sampled = beside, []
    for multiplier, count, sampling in steps:
        if sampling is None or sampling == 1 or rows > MOST_IN_SAMPLE:
            whole += count * (rows / multiplier) ** 2
        else:
            sampled.append((_binomial(multiplier, rows, sampling), count))
    if not sampled:
        return gaussian_epsilon(whole**-0.5, delta) if whole else 0.0
    coarse = _on_grid(sampled, delta, whole, 5e-3)
    finer = math.sqrt(1e-3 * coarse / sum(count for _, count in sampled))
    return min(coarse, _on_grid(sampled, delta, whole, finer)) if finer < 5e-3 else coarse


def check_delta(delta: float) -> None:
    """Raise PrivacyError unless delta is between 0 and 1."""
    if not 0 < delta < 1:
        raise PrivacyError(f"delta {delta:g}: it must be between 0 and 1, and well below one over the number of rows")


def _check_target(epsilon: float, delta: float) -> None:
    check_delta(delta)
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise PrivacyError(f"epsilon {epsilon:g}: it must be a positive number; 0.1 to 10 is usual")


def _check_steps(multiplier: float, steps: int, sampling: float | None) -> None:
    if not (math.isfinite(multiplier) and multiplier > 0):
        raise PrivacyError(f"noise multiplier {multiplier:g}: it must be a positive number")
    if steps < 1:
        raise PrivacyError(f"{steps} steps: noise is added at least once")
    if sampling is not None and not 0 < sampling <= 1:
        raise PrivacyError(f"sampling probability {sampling:g}: it must be above 0 and at most 1")


def _sum(left: tuple[float, ...], right: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(a + b for a, b in zip(left, right, strict=True))


def _converted(curve: tuple[float, ...], delta: float) -> float:
    if not any(curve):
        return 0.0
    from dp_accounting import rdp

    if delta == 0:
        return math.inf
    found = float(rdp.compute_epsilon(ORDERS, curve, delta)[0])
    return found if found >= 0 else math.inf  # NaN is no promise


@lru_cache(maxsize=256)
def _curve(multiplier: float, steps: int, sampling: float) -> tuple[float, ...]:
    whole = np.array([steps * order / 2 for order in ORDERS])
    with np.errstate(over="ignore"):
        whole = whole / multiplier / multiplier
    if sampling == 1:
        return tuple(whole.tolist())
    from dp_accounting import NeighboringRelation, rdp

    accountant = rdp.RdpAccountant(ORDERS, NeighboringRelation.REPLACE_SPECIAL)
    with np.errstate(all="ignore"):
        curve = np.asarray(accountant.compose(_sampled(multiplier, sampling), steps)._rdp, np.float64)
    # A sample never costs more than all rows: where its formula is no number, as with next to no noise, that counts.
    return tuple(np.where(curve >= 0, np.minimum(curve, whole), whole).tolist())


def _sampled(multiplier: float, sampling: float) -> Any:
    import dp_accounting as dp

    return dp.PoissonSampledDpEvent(sampling, dp.GaussianDpEvent(multiplier))


def _by_renyi(multiplier: float, steps: int, sampling: float, delta: float, beside: float) -> float:
    others = Spending.of_gaussian(beside**-0.5) if beside else Spending()
    return (Spending.of_gaussian(multiplier, steps, sampling) + others).epsilon(delta)


def _by_losses(multiplier: float, steps: int, sampling: float, delta: float, beside: float, size: float) -> float:
    """By the privacy loss distribution, on a grid that is fine enough for an epsilon of ``size``."""
    interval = min(5e-3, math.sqrt(1e-4 * size / steps))
    return _on_grid([(_sampled(multiplier, sampling), steps)], delta, beside, interval)


def _binomial(multiplier: float, rows: int, sampling: float) -> Any:
    """A noisy sum over a sample in which a person has a binomial number of rows."""
    from dp_accounting import dp_event
    from scipy.stats import binom

    chances = binom.pmf(range(rows + 1), rows, sampling)
    return dp_event.MixtureOfGaussiansDpEvent(multiplier, list(range(rows + 1)), list(chances / chances.sum()))


def _on_grid(events: Sequence[tuple[Any, int]], delta: float, beside: float, interval: float) -> float:
    """By the privacy loss distribution of (event, count) pairs, on a grid that errs on the safe side."""
    from dp_accounting import GaussianDpEvent, NeighboringRelation, pld

    whole = pld.PLDAccountant(NeighboringRelation.REPLACE_SPECIAL, value_discretization_interval=interval)
    for event, count in events:
        whole = whole.compose(event, count)
    if beside:
        whole = whole.compose(GaussianDpEvent(beside**-0.5))
    return float(whole.get_epsilon(delta))


def _least(enough: Callable[[float], bool], most: float, tolerance: float) -> float:
    """The least multiplier that is enough, to a factor of 1 + ``tolerance``; infinite if ``most`` is not."""
    if not enough(most):
        return math.inf
    low, high = most * 0.8, most
    while enough(low):
        low, high = low / 2, low
    while high / low > 1 + tolerance:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
