"""A plan of noisy releases: every figure is that of the accountant for its rows, and shares of a promise cost what was
promised.
"""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tablepuppet as tp
from tablepuppet.privacy.accountant import Spending, gaussian_epsilon, group_epsilon
from tablepuppet.privacy.noise import sampling_epsilon
from tablepuppet.privacy.noise_plan import (
    PREDICTIONS,
    SLACK,
    TAIL,
    TAIL_DELTA,
    NoisePlan,
    NoisyLabels,
    NoisyRelease,
    Shares,
    charges,
    tail_delta,
)  # fmt: skip

DELTA = 1e-5
CUTS = st.lists(st.floats(0.01, 1.0), min_size=1, max_size=6)
EPSILONS = st.floats(0.05, 50.0)
SUMS = (NoisyRelease("a", "gradients", 3, 5.0), NoisyRelease("b", "gradients", 1, 4.0))
STEPS = (NoisyRelease("a", "steps", 10, 2.0, 0.1), NoisyRelease("b", "steps", 10, 3.0, 1.0))
SEEN = NoisyRelease("a", PREDICTIONS, 2, 8.0)


def test_sums_add_up_exactly() -> None:
    """Of one table or several, at one delta, with slack for each table; an unused row costs nothing."""
    unused = NoisyRelease("a", "steps", 0, 1.0, 0.5)
    plan = NoisePlan(DELTA, (*SUMS, unused))
    assert plan.epsilon(["a"]) == pytest.approx(gaussian_epsilon(5.0, DELTA, 3) + SLACK, rel=1e-12)
    both = gaussian_epsilon((3 / 25 + 1 / 16) ** -0.5, DELTA)
    assert plan.epsilon(["a", "b"]) == pytest.approx(both + 2 * SLACK, rel=1e-12)
    assert NoisePlan(DELTA, (unused,)).epsilon(["a"]) == 0.0


def test_steps() -> None:
    """One table has the better of two accountants, a quick figure is not below it; several add Renyi divergences."""
    plan = NoisePlan(DELTA, (*SUMS, *STEPS), slack=0.0)
    alone = plan.epsilon(["a"])
    assert alone == gaussian_epsilon(2.0, DELTA, 10, 0.1, 3 / 25)
    assert plan.epsilon(["a"], quick=True) >= alone
    assert plan.epsilon(["b"], quick=True) == plan.epsilon(["b"]) == gaussian_epsilon(3.0, DELTA, 10, 1.0, 1 / 16)
    added = sum((each.spending for each in plan.releases), Spending())
    assert plan.epsilon(["a", "b"]) == added.epsilon(DELTA)


def test_several_rows_of_one_person() -> None:
    """k rows change a sum by k times the bound of one, and predictions by its root."""
    plan = NoisePlan(DELTA, (SUMS[0], SEEN), slack=0.0)
    whole = 9 * 3 / 25 + 3 * 2 / 64
    assert plan.epsilon(["a"], rows=3) == pytest.approx(gaussian_epsilon(whole**-0.5, DELTA), rel=1e-12)
    alone = plan.without_predictions()
    assert alone.epsilon(["a"]) < plan.epsilon(["a"])
    sampled = NoisePlan(DELTA, (STEPS[0], SEEN), slack=0.0)
    assert sampled.epsilon(["a"], rows=2) == group_epsilon(((2.0, 10, 0.1),), DELTA, 2, 2 * 2 / 64)


def test_lists_take_of_delta() -> None:
    """Whether they had noise or not; with almost no delta, or many rows, nothing is left of it."""
    listed = NoisyRelease("a", "statistics", 1, 5.0, lists=1)
    plan = NoisePlan(DELTA, (listed,), slack=0.0)
    assert plan.epsilon(["a"]) == gaussian_epsilon(5.0, DELTA - TAIL_DELTA)
    assert plan.epsilon(["a"], rows=2) == pytest.approx(gaussian_epsilon(2.5, DELTA - tail_delta(2, 5.0)), rel=1e-12)
    assert math.isinf(plan.epsilon(["a"], rows=100))


def test_charges() -> None:
    """Each party is charged for all of its releases of a table: noise, errors of samplers and lists, and labels."""
    sums = NoisyRelease("a", "gradients", 3, 5.0, numbers=100, lists=2, table="t", parties=("p", "q"))
    again = NoisyRelease("b", "gradients", 1, 5.0, numbers=10, table="t", parties=("p",))
    costs = charges([NoisyLabels("t", ("q",), "Laplace", 1.5), sums, again])
    assert set(costs) == {("p", "t"), ("q", "t")}
    assert costs["p", "t"].gaussian == pytest.approx(Spending.of_gaussian(5.0, 4).gaussian, rel=1e-12)
    assert costs["p", "t"].pure == pytest.approx(sampling_epsilon(110), rel=1e-12)
    assert costs["p", "t"].tail == costs["q", "t"].tail == 2 * TAIL_DELTA
    assert costs["q", "t"].pure == pytest.approx(1.5 + sampling_epsilon(100), rel=1e-12)


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


@pytest.mark.filterwarnings("ignore:divide by zero")  # of dp-accounting
@pytest.mark.parametrize(("epsilon", "delta", "told"), [(1e-6, 1e-15, "more noise than"), (1e15, 1e-5, "next to no")])
def test_noise_that_parties_do_not_add(epsilon: float, delta: float, told: str) -> None:
    """A promise whose noise parties would refuse is an error that speaks of epsilon, not of the noise's size."""
    with pytest.raises(tp.PrivacyError, match=rf"epsilon 1e.* {told}"):
        Shares(epsilon, delta).multiplier(0.1)
