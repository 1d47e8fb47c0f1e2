"""What noise costs: epsilon and delta of many releases, and the noise for a target.

Comes in: noise multipliers, how often noise was added, sampling probabilities. Goes out: epsilons, multipliers, and
`Spending`, a cost that adds up over releases and runs. No data is here. The formulas are those of `dp-accounting`.

Neighbours are those of feature privacy: one row's features replaced by a null record, which adds nothing to a sum, so
a row whose part of a sum has norm C or less changes it by C. A multiplier is the noise's standard deviation divided by
that C. ``sampling`` is the probability with which a party puts each of its rows in a step, each on its own and
unseen by others (Poisson sampling); batches of a fixed size, or batches that others know, are none: leave it None.
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
_SEARCH = 1e-9  # relative: covers the tolerances of the searches in dp-accounting


@dataclass(frozen=True)
class Spending:
    """What releases cost a row, in a form that adds up: ``a + b`` is the cost of both, however one led to the other.

    ``gaussian`` are the Renyi divergences at `ORDERS` of releases with Gaussian noise. Releases with a pure epsilon
    (delta 0) are kept twice, as the sum of their epsilons and as Renyi divergences: the better one counts.
    """

    gaussian: tuple[float, ...] = _NOTHING
    pure: float = 0.0
    pure_curve: tuple[float, ...] = _NOTHING

    @classmethod
    def of_gaussian(cls, multiplier: float, steps: int = 1, sampling: float | None = None) -> Spending:
        """The cost of adding Gaussian noise in so many steps.

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
        return cls(pure=epsilon, pure_curve=tuple(min(epsilon, order * epsilon**2 / 2) for order in ORDERS))

    def __add__(self, other: Spending) -> Spending:
        return Spending(
            _sum(self.gaussian, other.gaussian), self.pure + other.pure, _sum(self.pure_curve, other.pure_curve)
        )

    def epsilon(self, delta: float) -> float:
        """The epsilon of everything at ``delta``: infinite at delta 0 if there was Gaussian noise."""
        apart = self.pure + _converted(self.gaussian, delta)
        return min(apart, _converted(_sum(self.gaussian, self.pure_curve), delta))


@lru_cache(maxsize=256)
def gaussian_epsilon(
    multiplier: float, delta: float, steps: int = 1, sampling: float | None = None, beside: float = 0.0
) -> float:
    """The epsilon of Gaussian noise in so many steps: the least of all sound ways to count.

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
    """The least multiplier for ``epsilon`` at ``delta`` over so many steps, to one part in 500, never below it.

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
            raise PrivacyError(f"epsilon {epsilon:g} is spent by what is told beside the steps: use a larger one")
        return math.sqrt(steps / left) * (1 + _SEARCH)
    unsampled = noise_multiplier(epsilon, delta, steps, None, beside)  # always enough: sampling needs less
    renyi = _least(lambda tried: _by_renyi(tried, steps, sampling, delta, beside) <= epsilon, unsampled, 0.01)
    start = min(renyi, unsampled)
    losses = _least(lambda tried: _by_losses(tried, steps, sampling, delta, beside, epsilon) <= epsilon, start, 0.002)
    return min(start, losses)


def simple_division(parties: Sequence[Spending], delta: float) -> float:
    """The epsilon at ``delta`` of tables about the same people, each converted by itself and then added up."""
    return sum(party.epsilon(delta / len(parties)) for party in parties)


def moments_division(parties: Sequence[Spending], delta: float) -> float:
    """The same, with divergences added up first and converted once (FedOnce, Theorem 4): much less for many tables."""
    return sum(parties, Spending()).epsilon(delta)


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

    return float(rdp.compute_epsilon(ORDERS, curve, delta)[0])


@lru_cache(maxsize=256)
def _curve(multiplier: float, steps: int, sampling: float) -> tuple[float, ...]:
    if sampling == 1:
        return tuple(steps * order / (2 * multiplier**2) for order in ORDERS)
    from dp_accounting import NeighboringRelation, rdp

    accountant = rdp.RdpAccountant(ORDERS, NeighboringRelation.REPLACE_SPECIAL)
    curve = np.asarray(_sampled(multiplier, steps, sampling, accountant)._rdp, np.float64)
    return tuple(np.maximum(curve, 0.0).tolist())


def _sampled(multiplier: float, steps: int, sampling: float, accountant: Any) -> Any:
    import dp_accounting as dp

    return accountant.compose(dp.PoissonSampledDpEvent(sampling, dp.GaussianDpEvent(multiplier)), steps)


def _by_renyi(multiplier: float, steps: int, sampling: float, delta: float, beside: float) -> float:
    others = Spending.of_gaussian(beside**-0.5) if beside else Spending()
    return (Spending.of_gaussian(multiplier, steps, sampling) + others).epsilon(delta)


def _by_losses(multiplier: float, steps: int, sampling: float, delta: float, beside: float, size: float) -> float:
    """By the privacy loss distribution, on a grid that errs on the safe side, by little for an epsilon of ``size``."""
    from dp_accounting import GaussianDpEvent, NeighboringRelation, pld

    interval = min(5e-3, math.sqrt(1e-4 * size / steps))
    accountant = pld.PLDAccountant(NeighboringRelation.REPLACE_SPECIAL, value_discretization_interval=interval)
    whole = _sampled(multiplier, steps, sampling, accountant)
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
