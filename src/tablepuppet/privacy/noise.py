"""All private noise: where its random bits come from, and the samplers that turn them into numbers.

Input: values that are about to leave a party, and how much noise a promise needs. Output: noisy values on a
grid. Only the party runs this; its random bits never leave.

Bits come from AES-256 in counter mode under a fresh key of the operating system (`SecureStream`), or, where the same
question must get the same answer, from AES-256 keyed by a secret and a message per row (`KeyedWords`).

Floating-point noise leaks through its lowest bits (Mironov 2012), so values are rounded down to a grid of a power of
two, 2^30 steps or more for the noise's scale, and get a whole number of steps from the discrete Laplace or Gaussian
distribution (Canonne, Kamath, Steinke 2020), sampled by rejection. What is sampled is within a factor of
1 ± `SAMPLING_ERROR` of that distribution at every point, tails included; `sampling_epsilon` prices it. The discrete
Gaussian has the Renyi divergences of the continuous one or less, and is so fine here that its privacy profile agrees
with the continuous one's to about 2^-60.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from fractions import Fraction
from itertools import count as numbers_from
from typing import Protocol

import numpy as np
import pyarrow as pa
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from tablepuppet.arrays import Words
from tablepuppet.errors import PrivacyError
from tablepuppet.privacy.cmac import BLOCK, cmac

GRID_BITS = 30  # a noise's scale is at least 2^30 steps of its grid
SAMPLING_ERROR = 2.0**-44
SLACK = 2.0**-20  # of a sensitivity, for the rounding errors of sums (`clip.py`) and of what is computed here
MOST_STEPS = 2.0**61  # of a value: sums of two, and sums with noise, stay within 64 bits
CHUNK = 1 << 15  # rows at a time: the work stays in the cache
_MOST = int(MOST_STEPS)
_DIGIT = 8  # whole numbers are drawn in digits of this base; a digit needs one word
_DRAWS = 256  # of words that one attempt of a sampler may use

Whole = NDArray[np.int64]
Numbers = NDArray[np.float64]


class RandomSource(Protocol):
    """Uniform 64-bit words. A keyed source gives the same words for the same row, lane and draw, in any batch."""

    def words(self, rows: Whole, draw: int, width: int) -> Words:
        """Words for some rows: (rows, width)."""

    def lane(self, number: int) -> RandomSource:
        """A source of words that are independent of those of other lanes."""


class SecureStream:
    """Words that nobody can predict or repeat. Created for each use, so threads and forks do not share one."""

    def __init__(self) -> None:
        self._start(os.urandom(32))

    @classmethod
    def keyed(cls, key: bytes) -> SecureStream:
        """The words of a secret key of 32 bytes that is used for one release only: they can be drawn again for it."""
        stream = object.__new__(cls)
        stream._start(key)
        return stream

    def _start(self, key: bytes) -> None:
        self._cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(BLOCK))).encryptor()

    def words(self, rows: Whole, draw: int, width: int) -> Words:
        """The next words of the stream."""
        zeros = bytes(8 * width * len(rows))
        return np.frombuffer(self._cipher.update(zeros), np.uint64).reshape(len(rows), width)

    def lane(self, number: int) -> SecureStream:
        """The stream itself: it gives no word twice."""
        return self


class KeyedWords:
    """A pseudo-random function of a key and one message per row: AES-CMAC, then AES over its tag and a counter.

    Rows of equal messages get equal words: messages must differ where noise must.
    """

    def __init__(self, key: bytes, messages: pa.Array):
        keys = HKDF(hashes.SHA256(), 64, salt=None, info=b"tablepuppet keyed words").derive(key)
        self._tags = cmac(keys[:32], messages)
        self._cipher = Cipher(algorithms.AES(keys[32:]), modes.ECB()).encryptor()
        self._lane = 0

    def words(self, rows: Whole, draw: int, width: int) -> Words:
        """The words of a draw, two from each block of the cipher."""
        blocks = -(-width // 2)
        counters = np.array([[self._lane << 32 | draw, block] for block in range(blocks)], np.uint64)
        places = self._tags.view(np.uint64)[rows][:, None, :] ^ counters  # (rows, blocks, 2)
        found = np.frombuffer(self._cipher.update(places.tobytes()), np.uint64)
        return found.reshape(len(rows), 2 * blocks)[:, :width]

    def lane(self, number: int) -> KeyedWords:
        """A source for the same rows, with words independent of those of other lanes."""
        other = object.__new__(KeyedWords)
        other._tags, other._cipher, other._lane = self._tags, self._cipher, number
        return other


def gaussian_sigma(multiplier: float, sensitivity: float, dimension: int) -> float:
    """The noise that is ``multiplier`` times the L2 sensitivity, counting what rounding adds to it.

    Two vectors whose distance is at most D are at most D + sqrt(dimension) steps apart once both are rounded to
    `gaussian_grid`, which has 2^30 steps or more for the sensitivity or the noise, whichever is larger.
    """
    share = max(multiplier, 1.0) * math.sqrt(dimension) * 2.0**-GRID_BITS
    return multiplier * sensitivity / _rest(share)


def gaussian_grid(sigma: float, sensitivity: float) -> float:
    """The step for sums of rows that add a length of ``sensitivity`` each: of 2^31 rows it still fits 64 bits."""
    return grid(max(sigma, sensitivity))


def _rest(share: float) -> float:
    if not 0 <= share <= 0.5:
        raise PrivacyError("so many numbers with so much noise cannot be rounded safely: use a larger epsilon")
    return (1 - share) * (1 - SLACK)


def sampling_epsilon(numbers: int) -> float:
    """What the samplers' error adds to the epsilon of a release of this number of noisy numbers."""
    return 2 * numbers * SAMPLING_ERROR


def grid(scale: float) -> float:
    """The step for noise of a scale: a power of two, of which the scale is 2^30 to 2^31.

    >>> grid(1.0) == grid(1.9) == 2.0**-30
    True
    """
    if not (math.isfinite(scale) and 2.0**-900 < scale < 2.0**900):
        raise PrivacyError("the scale of noise must be a positive number of ordinary size: check epsilon and bounds")
    return 2.0 ** (math.frexp(scale)[1] - 1 - GRID_BITS)


def steps_of(values: Numbers, step: float) -> Whole:
    """Values rounded down to whole steps, which is exact as a step is a power of two."""
    with np.errstate(over="ignore"):
        steps = np.floor(np.asarray(values, np.float64) / step)
    if not (np.abs(steps) < MOST_STEPS).all():  # NaN fails too
        raise PrivacyError("a value is too large for its noise, or not finite: nothing is released; clip values first")
    return steps.astype(np.int64)


def summed_steps(parts: Iterable[Numbers], shape: tuple[int, ...] | None, step: float) -> Whole:
    """The sum of parts of one ``shape`` (None: that of the first), each rounded down to whole steps: of any numbers.

    Steps are added exactly, and stop at `MOST_STEPS`: that brings no two sums further apart, so that a bound of the
    distance holds for the result as it holds for the parts. NaN counts as 0.
    """
    total = np.zeros(shape or (), np.int64)
    for part in parts:
        with np.errstate(over="ignore", invalid="ignore"):
            steps = np.nan_to_num(np.floor(part / step), nan=0.0)
        total = np.clip(total + np.clip(steps, -MOST_STEPS, MOST_STEPS).astype(np.int64), -_MOST, _MOST)
    return total


def bernoulli(probabilities: Numbers, words: Words) -> NDArray[np.bool_]:
    """True with exactly these probabilities, whatever float64 they are; below 2^-65 they count as 0.

    ``words``: (rows, 2). A float is m 2^(e - 53): the first word decides 2^e, the second m 2^-53.
    """
    fraction, exponent = np.frexp(probabilities)
    zeros = np.clip(-exponent, 0, 64)  # leading bits of the first word that must be 0
    first = (zeros == 0) | (words[:, 0] < np.uint64(1) << (64 - np.maximum(zeros, 1)).astype(np.uint64))
    second = words[:, 1] >> np.uint64(11) < np.ldexp(fraction, 53).astype(np.uint64)
    return np.asarray((probabilities >= 1) | (first & second & (exponent >= -64)), np.bool_)


def poisson_sample(count: int, probability: float, source: RandomSource | None = None) -> Whole:
    """Which of ``count`` rows are in a sample that takes each on its own with this probability; ascending."""
    words = (source or SecureStream()).words(np.arange(count), 0, 2)
    return np.flatnonzero(bernoulli(np.full(count, probability), words))


def below(source: RandomSource, count: int, bound: int) -> Whole:
    """Whole numbers from 0 to ``bound`` - 1, all exactly as likely."""

    def attempt(rows: Whole, draw: int) -> tuple[Whole, NDArray[np.bool_]]:
        return _below(source.words(rows, draw, 1)[:, 0], bound)

    return _accepted(count, attempt)


def _below(words: Words, bound: int) -> tuple[Whole, NDArray[np.bool_]]:
    """The words modulo ``bound``, and whether they are below its largest multiple: others would be a bias."""
    last = (1 << 64) // bound * bound - 1
    return (words % np.uint64(bound)).astype(np.int64), words <= np.uint64(last)


def discrete_laplace(source: RandomSource, count: int, scale: int) -> Whole:
    """Whole numbers k with probability proportional to exp(-|k| / ``scale``)."""
    return _two_sided(source, count, scale, lambda rest, whole: rest / scale)


def discrete_gaussian(source: RandomSource, count: int, sigma: float) -> Whole:
    """Whole numbers k with probability proportional to exp(-k² / 2 ``sigma``²); ``sigma`` is 1 or more."""
    scale = int(sigma) + 1
    best = sigma * sigma / scale  # where Laplace noise is least likely compared with Gaussian noise

    def exponent(rest: Numbers, whole: Numbers) -> Numbers:
        return rest / scale + ((rest + scale * whole - best) / sigma) ** 2 / 2

    return _two_sided(source, count, scale, exponent)


def _two_sided(source: RandomSource, count: int, scale: int, exponent: Callable[[Numbers, Numbers], Numbers]) -> Whole:
    """k = ±(rest + scale whole), P(whole = v) ~ exp(-v), rest < scale uniform; kept with exp(-exponent)."""

    def attempt(rows: Whole, draw: int) -> tuple[Whole, NDArray[np.bool_]]:
        words = source.words(rows, draw * _DRAWS, 4)
        rest, fair = _below(words[:, 0], scale)
        whole = _geometric(source, rows, draw * _DRAWS, words[:, 3])
        kept = bernoulli(np.exp(-exponent(rest.astype(np.float64), whole.astype(np.float64))), words[:, 1:3])
        size, negative = rest + scale * whole, (words[:, 2] & np.uint64(1)).astype(np.bool_)  # a bit not yet used
        return np.where(negative, -size, size), fair & kept & ~(negative & (size == 0))

    return _accepted(count, attempt)


_AT_LEAST = np.array(
    [int(Fraction(math.exp(-digit)) * 2**64) for digit in range(_DIGIT, 0, -1)], np.uint64
)  # P(whole >= 8), ..., P(whole >= 1)


def _geometric(source: RandomSource, rows: Whole, draw: int, words: Words) -> Whole:
    """Whole numbers v with probability (1 - 1/e) exp(-v); it has no memory, so an 8 is 8 and a further digit."""
    digits = (_DIGIT - np.searchsorted(_AT_LEAST, words, side="right")).astype(np.int64)
    full = np.flatnonzero(digits == _DIGIT)
    if len(full):
        more = source.words(rows[full], draw + 1, 1)[:, 0]
        digits[full] += _geometric(source, rows[full], draw + 1, more)
    return digits


def _accepted(count: int, attempt: Callable[[Whole, int], tuple[Whole, NDArray[np.bool_]]]) -> Whole:
    """One accepted value per row; a row's attempts do not depend on those of other rows."""
    found = np.empty(count, np.int64)
    for start in range(0, count, CHUNK):
        pending = np.arange(start, min(start + CHUNK, count))
        for draw in numbers_from():
            if not len(pending):
                break
            values, good = attempt(pending, draw)
            found[pending[good]] = values[good]
            pending = pending[~good]
    return found
