"""Label privacy: the epsilon that is stated follows from the noise, and asking again tells nothing new."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

import tablepuppet as tp
from tablepuppet.privacy import label
from tablepuppet.privacy.label import keep_probability, noisy_classes, noisy_numbers
from tablepuppet.privacy.noise import grid, steps_of
from tests.privacy.fixed_stream import fixed_stream

ROWS = 20_000
ALPHA = 1e-4
SECRET = bytes(range(32))
NAMES = pa.array([f"card {i}" for i in range(ROWS)])
CODES = np.arange(ROWS) % 3
EPSILONS = [0.1, 0.5, 1.0, 2.0, 5.66, 10.0]


def classes(codes: Any = CODES, rows: pa.Array = NAMES, **changes: Any) -> Any:
    """Noisy classes of three, with settings changed."""
    settings: dict[str, Any] = {
        "classes": ("a", "b", "c"),
        "epsilon": 1.0,
        "secret": SECRET,
        "expression": "fraud",
    } | changes
    return noisy_classes(codes, rows, **settings)


def numbers(values: Any, rows: pa.Array = NAMES, **changes: Any) -> Any:
    """Noisy numbers between 0 and 10, with settings changed."""
    settings: dict[str, Any] = {
        "bounds": (0.0, 10.0),
        "epsilon": 1.0,
        "secret": SECRET,
        "expression": "stars",
    } | changes
    return noisy_numbers(values, rows, **settings)


@given(st.integers(2, 1000), st.floats(1e-6, 60))
def test_randomised_response_keeps_its_epsilon(count: int, epsilon: float) -> None:
    """The exact odds of the sampler, as whole numbers of words, never exceed e^epsilon, and are hardly below."""
    keep = label._keep_words(count, epsilon)
    odds = Fraction(keep * (count - 1), 2**64 - keep)
    assert math.log(odds) <= epsilon * (1 + 1e-12) + 1e-15
    if epsilon < 30:
        assert math.log(odds) == pytest.approx(epsilon, rel=1e-3)


@pytest.mark.parametrize("mechanism", ["randomised_response", "laplace"])
@pytest.mark.parametrize("count", [2, 3, 7])
def test_noisy_classes_have_the_stated_distribution(mechanism: Any, count: int) -> None:
    """The true class comes with the stated probability, all others alike (chi-square)."""
    sample = label.randomised_response if mechanism == "randomised_response" else label.laplace_argmax
    found = sample(np.full(ROWS, 1), count, 1.3, fixed_stream(count))
    keep = keep_probability(count, 1.3, mechanism)
    expected = np.full(count, (1 - keep) / (count - 1))
    expected[1] = keep
    assert stats.chisquare(np.bincount(found, minlength=count), ROWS * expected).pvalue > ALPHA


@pytest.mark.parametrize("count", [2, 3, 10, 100])
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_randomised_response_keeps_more_labels(count: int, epsilon: float) -> None:
    """At equal epsilon randomised response tells the true class more often than the noisy one-hot vector."""
    laplace, response = keep_probability(count, epsilon, "laplace"), keep_probability(count, epsilon)
    assert 1 / count < laplace < response
    # The noisy one-hot vector is a randomised response, of an epsilon below the one it is charged.
    assert math.log(laplace * (count - 1) / (1 - laplace)) < epsilon


@pytest.mark.parametrize("count", [2, 5])
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_how_often_the_largest_is_the_true_one(count: int, epsilon: float) -> None:
    """The probability that is told for the noisy one-hot vector is the integral that it stands for."""
    noise = stats.laplace(scale=2 / epsilon)
    points = [(-80 / epsilon, 0.0), (0.0, 1.0), (1.0, 1 + 80 / epsilon)]
    whole = sum(integrate.quad(lambda x: noise.pdf(x - 1) * noise.cdf(x) ** (count - 1), *p)[0] for p in points)
    assert keep_probability(count, epsilon, "laplace") == pytest.approx(whole, abs=1e-9)


def test_the_paper_means_a_standard_deviation() -> None:
    """lambda is a standard deviation in the paper: noise of epsilon sqrt(2) (hi - lo) / lambda has that deviation."""
    values = np.full(ROWS, 4.0)
    deviation = 2.5
    epsilon = math.sqrt(2) * 10.0 / deviation
    assert (numbers(values, epsilon=epsilon) - values).std() == pytest.approx(deviation, rel=0.03)
    assert label.number_variance(epsilon, (0.0, 10.0)) == pytest.approx(deviation**2)


def test_noisy_numbers_have_the_stated_distribution() -> None:
    """Numbers are clipped to the bounds, then get Laplace noise of scale (hi - lo) / epsilon (Kolmogorov-Smirnov)."""
    values = np.linspace(-5, 15, ROWS)
    noise = numbers(values, epsilon=2.0) - np.clip(values, 0, 10)
    assert stats.kstest(noise, stats.laplace(scale=5).cdf).pvalue > ALPHA


@given(st.floats(-1e4, 1e4), st.floats(1e-2, 1e6), st.floats(1e-6, 50))
def test_noise_of_numbers_covers_their_bounds(lo: float, width: float, epsilon: float) -> None:
    """On the grid, the distance of the bounds divided by the scale is at most epsilon, sampling error included."""
    step = grid((lo + width - lo) / epsilon)
    low, high = steps_of(np.array([lo, lo + width]), step).tolist()
    scale = label._scale(high - low, epsilon)
    assert Fraction(high - low, scale) + Fraction(label._SAMPLING) <= Fraction(epsilon)
    assert high - low == 0 or scale < 2**40


def test_asking_again_gives_the_same() -> None:
    """The same question has the same answer, row by row, in whatever order and company rows are asked for."""
    for mechanism in ("randomised_response", "laplace"):
        first = classes(mechanism=mechanism)
        assert np.array_equal(first, classes(mechanism=mechanism))
        some = np.array([500, 3, 77])
        assert np.array_equal(classes(CODES[some], NAMES.take(some), mechanism=mechanism), first[some])
    values = np.linspace(0, 10, ROWS)
    assert np.array_equal(numbers(values)[::-1], numbers(values[::-1], NAMES[::-1]))


@pytest.mark.parametrize(
    "change",
    [
        {"secret": b"another secret of the party"}, {"expression": "fraud + 0"}, {"epsilon": 1.0000001},
        {"classes": ("a", "b", "d")}, {"mechanism": "laplace"}, {"rows": pa.array([f"Card {i}" for i in range(ROWS)])},
    ],
)  # fmt: skip
def test_another_question_has_other_noise(change: dict[str, Any]) -> None:
    """Secret, expression, epsilon, classes, mechanism and rows' names each give noise of its own."""
    kept, kept_too = classes() == CODES, classes(**change) == CODES
    table = [[np.sum(kept & kept_too), np.sum(kept & ~kept_too)], [np.sum(~kept & kept_too), np.sum(~kept & ~kept_too)]]
    assert stats.chi2_contingency(table).pvalue > ALPHA  # independent


def test_a_changed_label_has_other_noise() -> None:
    """Otherwise the difference of two noisy numbers would be the difference of the true ones."""
    change = numbers(np.full(ROWS, 3.0)) - numbers(np.full(ROWS, 4.0))
    assert len(np.unique(change)) > ROWS * 0.99


def test_rows_must_have_names_of_their_own() -> None:
    """Two rows of one name would have equal noise for equal labels, which tells that labels are equal."""
    with pytest.raises(tp.PrivacyError, match="distinct name for every row"):
        classes(CODES[:2], pa.array(["x", "x"]))
    with pytest.raises(tp.PrivacyError, match="distinct name"):
        classes(CODES[:2], pa.array(["x", None]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epsilon": 0.0}, "label epsilon 0:"),
        ({"epsilon": -1.0}, "label epsilon -1:"),
        ({"epsilon": math.nan}, "label epsilon nan"),
        ({"epsilon": math.inf}, "label epsilon inf"),
        ({"classes": ("a",)}, "1 are listed"),
        ({"codes": np.full(ROWS, 3)}, "not among the label classes"),
        ({"codes": np.full(ROWS, -1)}, "not among the label classes"),
        ({"secret": b"short"}, "16 bytes or more"),
    ],
)
def test_bad_classes(change: dict[str, Any], message: str) -> None:
    """What gives no guarantee is refused before anything is noised."""
    with pytest.raises(tp.PrivacyError, match=message):
        classes(**change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bounds": (1.0, 1.0)}, "lower one first"),
        ({"bounds": (2.0, 1.0)}, "lower one first"),
        ({"bounds": (0.0, math.inf)}, "two finite numbers"),
        ({"values": np.array([math.nan])}, "a label is missing"),
        ({"bounds": (1e18, 1e18 + 1000)}, "too close together"),
    ],
)
def test_bad_numbers(change: dict[str, Any], message: str) -> None:
    """Bounds that bound nothing, and labels that are no numbers, are refused."""
    with pytest.raises(tp.PrivacyError, match=message):
        numbers(**({"values": np.array([1.0]), "rows": NAMES[:1]} | change))


def test_infinite_labels_are_clipped() -> None:
    """A bound is a bound for any number."""
    assert np.isfinite(numbers(np.array([math.inf, -math.inf]), NAMES[:2])).all()
