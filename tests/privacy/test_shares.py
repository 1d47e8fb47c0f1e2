"""Shares of a promise: what releases cost together is what was promised, by the accountant and by the ledger."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tablepuppet as tp
from tablepuppet.privacy.accountant import Spending, gaussian_epsilon
from tablepuppet.privacy.shares import SLACK, TAIL, TAIL_DELTA, Shares, epsilon_of

CUTS = st.lists(st.floats(0.01, 1.0), min_size=1, max_size=6)
EPSILONS = st.floats(0.05, 50.0)


@settings(max_examples=40, deadline=None)
@given(EPSILONS, CUTS, st.integers(0, 5))
def test_shares_add_up_to_the_promise(epsilon: float, cuts: list[float], tails: int) -> None:
    """Releases whose shares make a whole cost together no more than the promise, and hardly less."""
    shares = Shares(epsilon, 1e-5, tails)
    multipliers = [shares.multiplier(cut / sum(cuts)) for cut in cuts]
    together = sum(multiplier**-2 for multiplier in multipliers) ** -0.5
    spent = gaussian_epsilon(together, 1e-5 - tails * TAIL_DELTA)
    assert spent <= epsilon
    assert spent >= 0.99 * (epsilon - SLACK)


def test_a_ledger_is_charged_a_little_more() -> None:
    """Renyi curves of the same releases, as ledgers keep them, never say less than the exact figure."""
    for epsilon in (0.1, 1.0, 8.0):
        shares = Shares(epsilon, 1e-5)
        curve = sum((Spending.of_gaussian(shares.multiplier(0.25)) for _ in range(4)), Spending())
        assert epsilon - SLACK <= curve.epsilon(1e-5) + 1e-9
        assert curve.epsilon(1e-5) < 1.35 * epsilon


def test_the_tail_is_as_thin_as_stated() -> None:
    """Gaussian noise exceeds `TAIL` standard deviations with a probability below `TAIL_DELTA`."""
    assert 0.5 * math.erfc(TAIL / math.sqrt(2)) < TAIL_DELTA


def test_nothing_told_costs_nothing() -> None:
    """No release has an epsilon of 0; one of a multiplier costs what the accountant says."""
    assert epsilon_of(0.0, 1e-5) == 0.0
    assert epsilon_of(1 / 3.0**2, 1e-5) == pytest.approx(gaussian_epsilon(3.0, 1e-5) + SLACK)


@pytest.mark.filterwarnings("ignore:divide by zero")  # of dp-accounting
@pytest.mark.parametrize(("epsilon", "delta", "told"), [(1e-6, 1e-15, "more noise than"), (1e15, 1e-5, "next to no")])
def test_noise_that_parties_do_not_add(epsilon: float, delta: float, told: str) -> None:
    """A promise whose noise parties would refuse is an error that speaks of epsilon, not of the noise's size."""
    with pytest.raises(tp.PrivacyError, match=rf"epsilon 1e.* {told}"):
        Shares(epsilon, delta).multiplier(0.1)
