"""Private noise: bits that cannot be foreseen, samplers whose distributions are the stated ones."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import tablepuppet as tp
from tablepuppet.arrays import Words
from tablepuppet.privacy import noise
from tablepuppet.privacy.noise import KeyedWords, SecureStream, Whole
from tests.privacy.fixed_stream import fixed_stream

ALPHA = 1e-4  # streams are fixed, so a test that passes once passes always


class Told:
    """A source that gives words it was told, draw by draw."""

    def __init__(self, *draws: list[int]):
        self.draws = draws

    def words(self, rows: Whole, draw: int, width: int) -> Words:
        given = self.draws[min(draw, len(self.draws) - 1)]
        return np.tile(np.array(given[:width], np.uint64), (len(rows), 1))

    def lane(self, number: int) -> Told:
        return self


def whole_number_test(sample: Whole, weights: Any, reach: int) -> float:
    """The p-value of a chi-square test of whole numbers against weights at -reach ... reach; tails are pooled."""
    expected = weights / weights.sum() * len(sample)
    seen = np.bincount(np.clip(sample, -reach, reach) + reach, minlength=2 * reach + 1)
    return float(stats.chisquare(seen, expected).pvalue)


def test_the_stream_is_aes_in_counter_mode() -> None:
    """Words are the cipher's stream, one after the other, never twice."""
    stream = fixed_stream(7)
    found = np.concatenate([stream.words(np.arange(3), 0, 2).ravel(), stream.words(np.arange(5), 0, 1).ravel()])
    cipher = Cipher(algorithms.AES((7).to_bytes(32, "little")), modes.CTR(bytes(16))).encryptor()
    assert found.tobytes() == cipher.update(bytes(11 * 8))


def test_two_streams_differ() -> None:
    """Each stream has a key of its own from the operating system."""
    first, second = (SecureStream().words(np.arange(4), 0, 4) for _ in range(2))
    assert not np.intersect1d(first, second).size


def test_keyed_words_belong_to_their_row() -> None:
    """A row's words depend on key, message, lane and draw, and not on the rows asked for along with it."""
    messages = pa.array([f"row {i}" for i in range(100)])
    source = KeyedWords(b"k" * 32, messages)
    whole = source.words(np.arange(100), 3, 5)
    assert np.array_equal(source.words(np.array([42, 7]), 3, 5), whole[[42, 7]])
    assert np.array_equal(KeyedWords(b"k" * 32, messages[40:]).words(np.array([2]), 3, 5), whole[[42]])
    others = [
        source.words(np.arange(100), 4, 5),
        source.lane(1).words(np.arange(100), 3, 5),
        KeyedWords(b"l" * 32, messages).words(np.arange(100), 3, 5),
        whole,
    ]
    assert len(np.unique(np.stack(others))) == 4 * 500


@pytest.mark.parametrize("keyed", [False, True])
def test_words_are_uniform(keyed: bool) -> None:
    """Every byte of every word takes all its values alike."""
    messages = pa.array([str(i) for i in range(40_000)])
    source: noise.RandomSource = KeyedWords(b"k" * 32, messages) if keyed else fixed_stream()
    words = source.words(np.arange(40_000), 0, 3)
    places = words.view(np.uint8).reshape(-1, 24)
    assert min(stats.chisquare(np.bincount(column, minlength=256)).pvalue for column in places.T) > ALPHA


@pytest.mark.parametrize("scale", [1, 3, 20])
def test_discrete_laplace(scale: int) -> None:
    """Whole numbers k come with probability proportional to exp(-|k| / scale), in the tails too."""
    reach = 6 * scale
    places = np.arange(-reach, reach + 1)
    weights = np.exp(-np.abs(places) / scale)
    weights[[0, -1]] /= 1 - math.exp(-1 / scale)  # and all beyond
    sample = noise.discrete_laplace(fixed_stream(scale), 100_000, scale)
    assert whole_number_test(sample, weights, reach) > ALPHA


@pytest.mark.parametrize("sigma", [1.0, 2.7, 9.5])
def test_discrete_gaussian(sigma: float) -> None:
    """Whole numbers k come with probability proportional to exp(-k² / 2 sigma²)."""
    reach = int(3.5 * sigma) + 1
    far = np.arange(-40 * reach, 40 * reach + 1)
    mass = np.exp(-((far / sigma) ** 2) / 2)
    weights = np.bincount(np.clip(far, -reach, reach) + reach, weights=mass)
    sample = noise.discrete_gaussian(fixed_stream(int(sigma * 10)), 100_000, sigma)
    assert whole_number_test(sample, weights, reach) > ALPHA


def test_fine_noise_is_the_continuous_one() -> None:
    """On the grids used for values, the distributions agree with the continuous ones (Kolmogorov-Smirnov)."""
    step = noise.grid(3.0)
    gaussian = noise.discrete_gaussian(fixed_stream(1), 40_000, 3.0 / step) * step
    laplace = noise.discrete_laplace(fixed_stream(2), 40_000, math.ceil(3.0 / step)) * step
    assert stats.kstest(gaussian, stats.norm(scale=3).cdf).pvalue > ALPHA
    assert stats.kstest(laplace, stats.laplace(scale=3).cdf).pvalue > ALPHA
    assert laplace.std() == pytest.approx(3 * math.sqrt(2), rel=0.02)


def test_keyed_noise_is_the_same_noise() -> None:
    """A keyed source gives the distribution, the same noise each time, and for a row whatever rows are with it."""
    messages = pa.array([str(i) for i in range(70_000)])  # more than one chunk
    source = KeyedWords(b"k" * 32, messages)
    sample = noise.discrete_laplace(source, 70_000, 1 << 30)
    assert stats.kstest(sample / 2**30, stats.laplace.cdf).pvalue > ALPHA
    assert np.array_equal(sample, noise.discrete_laplace(KeyedWords(b"k" * 32, messages), 70_000, 1 << 30))
    alone = noise.discrete_laplace(KeyedWords(b"k" * 32, messages[-3:]), 3, 1 << 30)
    assert np.array_equal(alone, sample[-3:])


def test_values_are_rounded_down_to_the_grid() -> None:
    """Steps are whole numbers, and never above the value: no bit below the grid is left for the attack on noise."""
    values = np.array([0.1, 1 / 3, math.pi, -1e-9, 12345.678])
    step = noise.grid(0.7)
    rounded = noise.steps_of(values, step) * step
    assert ((rounded <= values) & (values - rounded < step)).all()


@given(st.floats(2.0**-60, 1.0))
def test_bernoulli_is_exact(probability: float) -> None:
    """The set of words that accept has exactly the size of the float, found by trying the words at its edge."""
    fraction, exponent = math.frexp(probability)
    if probability == 1:
        return
    edge = int(fraction * 2**53)
    limit = 2 ** (64 + exponent)
    words = [[limit - 1, (edge << 11) - 1], [limit - 1, edge << 11]] + ([[limit, 0]] if exponent < 0 else [])
    found = noise.bernoulli(np.full(len(words), probability), np.array(words, np.uint64))
    assert found.tolist() == [True, False, False][: len(words)]


def test_bernoulli_at_the_ends() -> None:
    """Probability 1 is always, 0 and anything below 2^-65 never; 2^-65 needs a word of zeros."""
    probabilities = np.array([1.0, 0.0, 2.0**-70, 2.0**-65, 2.0**-65])
    words = np.array([[2**64 - 1] * 2, [0, 0], [0, 0], [0, 0], [1, 0]], np.uint64)
    assert noise.bernoulli(probabilities, words).tolist() == [True, False, False, True, False]


def test_whole_numbers_without_bias() -> None:
    """Words beyond the largest multiple of the bound are drawn again."""
    assert noise.below(Told([2**64 - 1], [11]), 2, 10).tolist() == [1, 1]
    assert noise.below(Told([2**64 - 7]), 1, 10).tolist() == [9]
    sample = noise.below(fixed_stream(), 30_000, 3)
    assert stats.chisquare(np.bincount(sample, minlength=3)).pvalue > ALPHA


def test_tails_have_no_end() -> None:
    """A full digit adds a further one: P(whole >= 8 + v) = P(whole >= 8) P(whole >= v)."""
    words = np.array([0], np.uint64)
    rows = np.arange(1)
    told = Told([0], [0], [2**64 - 1])
    assert noise._geometric(told, rows, 0, words).tolist() == [16]
    assert noise._geometric(Told([0], [int(2**64 * math.exp(-2))]), rows, 0, words).tolist() == [10 - 1]
    assert noise._geometric(Told([0], [int(2**64 * math.exp(-2)) - 2**12]), rows, 0, words).tolist() == [10]


def test_a_sample_takes_each_row_on_its_own() -> None:
    """The size of a Poisson sample is binomial, not fixed."""
    sizes = np.array([len(noise.poisson_sample(400, 0.1, stream)) for stream in map(fixed_stream, range(300))])
    assert stats.binomtest(int(sizes.sum()), 400 * 300, 0.1).pvalue > ALPHA
    assert sizes.std() == pytest.approx(6, rel=0.15)
    assert noise.poisson_sample(5, 1.0).tolist() == [0, 1, 2, 3, 4]


@given(st.floats(0.1, 100), st.floats(1e-3, 1e3), st.integers(1, 10**6))
def test_scales_count_the_grid(level: float, sensitivity: float, dimension: int) -> None:
    """Noise from `gaussian_sigma` suffices for the distance of the *rounded* vectors."""
    sigma = noise.gaussian_sigma(level, sensitivity, dimension)
    assert sigma / (sensitivity + math.sqrt(dimension) * noise.grid(sigma)) >= level


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e300])
def test_what_cannot_be_rounded_is_not_released(value: float) -> None:
    """A value without a place on the grid is refused, and not quoted."""
    with pytest.raises(tp.PrivacyError, match="clip values first"):
        noise.steps_of(np.array([0.0, value]), noise.grid(1.0))


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf, 1e-300])
def test_a_scale_that_is_none(scale: float) -> None:
    """Noise without a positive scale is refused."""
    with pytest.raises(tp.PrivacyError, match="scale of noise"):
        noise.grid(scale)


def test_too_many_numbers_for_so_little_epsilon() -> None:
    """Where rounding would eat the guarantee, it is refused."""
    with pytest.raises(tp.PrivacyError, match="larger epsilon"):
        noise.gaussian_sigma(1e7, 1.0, 10**6)
