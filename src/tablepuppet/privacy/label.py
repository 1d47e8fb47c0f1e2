"""Label privacy: noise that a label's owner adds before any label leaves.

Input: labels of rows, a name for each row, and an epsilon. Output: noisy labels, which the coordinator may see.
Neighbours are two tables that differ in one row's label. The guarantee is pure: delta is 0.

The noise of a label is a pseudo-random function of the party's secret, the label's expression, mechanism, epsilon,
bounds or classes, the row's name and the label itself. Asking again gives the same noisy label, so nobody averages
it away; a label that changes gets fresh noise. Bounds and classes come from a policy or a job, never from the data.

The paper's lambda (Eq. 25, Theorem 1) is a *standard deviation*. Laplace noise of scale b has standard deviation
sqrt(2) b and gives epsilon = (L1 sensitivity) / b. A one-hot vector changes in two places by 1, so b = 2 / epsilon and
lambda = 2 sqrt(2) / epsilon, as Theorem 1 says; 0.5 is epsilon 5.66. As a scale it would be 2 / lambda.
A number changes by at most hi - lo, so epsilon = sqrt(2) (hi - lo) / lambda.

The largest of a noisy one-hot vector is the true class with some probability p and each other class with
(1 - p) / (classes - 1), so it *is* randomised response, of a smaller epsilon than was paid for. Randomised response
proper spends all of it, keeps more labels at equal epsilon, and is the default.

Who learns from noisy classes may correct for it, at no cost: targets that make a loss unbiased, and frequencies of true
classes (the backward correction of Patrini et al. 2017, "Making Deep Neural Networks Robust to Label Noise").
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from tablepuppet.errors import PrivacyError
from tablepuppet.privacy.noise import (
    MOST_STEPS,
    KeyedWords,
    Numbers,
    RandomSource,
    Whole,
    below,
    discrete_laplace,
    grid,
    steps_of,
)

ClassMechanism = Literal["randomised_response", "laplace"]
LEAST_EPSILON = 1e-6  # below it labels are noise, and the arithmetic here would need more bits
MOST_EPSILON = 1e6
MOST_CLASSES = 1 << 20
_SAMPLING = Fraction(1, 1 << 41)  # more than the sampler's error in the two coordinates that change


def noisy_classes(
    codes: NDArray[np.integer[Any]],
    rows: pa.Array,
    *,
    classes: Sequence[str | int | float | bool],
    epsilon: float,
    secret: bytes,
    expression: str,
    mechanism: ClassMechanism = "randomised_response",
) -> Whole:
    """The noisy class of every row, as a place in ``classes``.

    ``codes`` are the true places, ``rows`` the distinct names of the rows (binary or text, such as their primary
    key). Raises PrivacyError if a code is no class, two rows share a name, or epsilon is out of range.
    """
    check_label_epsilon(epsilon)
    check_classes(len(classes))
    true = np.asarray(codes, np.int64)
    if ((true < 0) | (true >= len(classes))).any():
        raise PrivacyError("a label is missing or not among the label classes")
    key = _key(secret, expression, mechanism, epsilon, [[type(name).__name__, name] for name in classes])
    source = KeyedWords(key, _messages(rows, true))
    sample = randomised_response if mechanism == "randomised_response" else laplace_argmax
    return sample(true, len(classes), epsilon, source)


def noisy_numbers(
    values: Numbers, rows: pa.Array, *, bounds: tuple[float, float], epsilon: float, secret: bytes, expression: str
) -> Numbers:
    """Every number clipped to ``bounds``, with Laplace noise of scale (hi - lo) / epsilon; ``rows`` as for classes."""
    check_bounds(bounds, epsilon)
    lo, hi = bounds
    if np.isnan(values).any():
        raise PrivacyError("a label is missing")
    true = np.clip(np.asarray(values, np.float64), lo, hi) + 0.0  # -0.0 is 0.0
    key = _key(secret, expression, "laplace", epsilon, [lo.hex(), hi.hex()])
    return laplace_numbers(true, (lo, hi), epsilon, KeyedWords(key, _messages(rows, true)))


def randomised_response(codes: Whole, classes: int, epsilon: float, source: RandomSource) -> Whole:
    """The true class with probability e^epsilon / (e^epsilon + classes - 1), else one of the others, all as likely."""
    words = source.words(np.arange(len(codes)), 0, 1)[:, 0]
    other = below(source.lane(1), len(codes), classes - 1)
    other += other >= codes
    return np.where(words < np.uint64(_keep_words(classes, epsilon)), codes, other)


def laplace_argmax(codes: Whole, classes: int, epsilon: float, source: RandomSource) -> Whole:
    """Eq. 25: the largest of the one-hot vector with Laplace noise of scale 2 / epsilon in every place."""
    one = round(1 / grid(2 / epsilon))  # a power of two, so the one-hot vector is exact
    scale = _scale(2 * one, epsilon)
    best = np.full(len(codes), np.iinfo(np.int64).min)
    found = np.zeros(len(codes), np.int64)
    for place in range(classes):
        noisy = discrete_laplace(source.lane(place), len(codes), scale) + np.where(codes == place, one, 0)
        found[noisy > best] = place
        best = np.maximum(best, noisy)
    return found


def laplace_numbers(values: Numbers, bounds: tuple[float, float], epsilon: float, source: RandomSource) -> Numbers:
    """Numbers within ``bounds``, rounded to a grid, with Laplace noise for the bounds' distance on that grid."""
    step, scale = check_bounds(bounds, epsilon)
    noise = discrete_laplace(source, len(values), scale)
    return np.asarray((steps_of(values, step) + noise) * step, np.float64)


def keep_probability(classes: int, epsilon: float, mechanism: ClassMechanism = "randomised_response") -> float:
    """How likely a noisy class is the true one.

    >>> round(keep_probability(2, 5.66), 3), round(keep_probability(2, 5.66, "laplace"), 3)
    (0.997, 0.929)
    """
    if mechanism == "randomised_response":
        return _keep_words(classes, epsilon) / 2**64
    rate = epsilon / 2  # one over the scale
    # P(true wins) = integral of its density times the others' distribution function to the power classes - 1,
    # by Gauss-Legendre on the three pieces between the kinks at 0 and 1.
    nodes, weights = np.polynomial.legendre.leggauss(200)
    total = 0.0
    for start, end in ((-40 / rate, 0.0), (0.0, 1.0), (1.0, 1 + 40 / rate)):
        x = start + (end - start) * (nodes + 1) / 2
        tail = np.exp(-rate * np.abs(x)) / 2
        below_x = np.where(x < 0, tail, 1 - tail) ** (classes - 1)
        total += float((end - start) / 2 * (weights * below_x * rate / 2 * np.exp(-rate * np.abs(x - 1))).sum())
    return total


def number_variance(epsilon: float, bounds: tuple[float, float]) -> float:
    """The variance of a noisy number: what it adds to a squared error."""
    return 2 * ((bounds[1] - bounds[0]) / epsilon) ** 2


def check_classes(number: int) -> None:
    """Raise PrivacyError unless noise is possible for this number of classes."""
    if not 2 <= number <= MOST_CLASSES:
        raise PrivacyError(f"label classes: {number} are listed; noise needs 2 to {MOST_CLASSES:,}")


def check_bounds(bounds: tuple[float, float], epsilon: float) -> tuple[float, int]:
    """(the step of the grid, the noise's scale in steps) for numbers within bounds; PrivacyError if there is none."""
    check_label_epsilon(epsilon)
    lo, hi = bounds
    if not (math.isfinite(lo) and math.isfinite(hi) and lo < hi):
        raise PrivacyError("label bounds must be two finite numbers, the lower one first")
    step = grid((hi - lo) / epsilon)
    if not max(abs(lo), abs(hi)) < MOST_STEPS * step:
        raise PrivacyError("label bounds are too close together for numbers of their size: give wider ones")
    low, high = steps_of(np.array([lo, hi]), step).tolist()
    return step, _scale(high - low, epsilon)


def check_label_epsilon(epsilon: float) -> None:
    """Raise PrivacyError unless labels can be released at this epsilon."""
    if not LEAST_EPSILON <= epsilon <= MOST_EPSILON:  # NaN fails too
        shown = f"{epsilon:g}" if isinstance(epsilon, float) else str(epsilon)[:20]
        raise PrivacyError(
            f"label epsilon {shown}: it must be a number of at least {LEAST_EPSILON:g} and at most {MOST_EPSILON:g}; "
            "1 to 8 is usual"
        )


def _keep_words(classes: int, epsilon: float) -> int:
    """Of 2^64 words, how many keep the true class: rounded down, so that epsilon is never exceeded."""
    with localcontext() as context:
        context.prec = 60
        odds = Decimal(epsilon).exp()
        return min(2**64 - 1, int(2**64 * (odds / (odds + classes - 1))))


def _scale(steps: int, epsilon: float) -> int:
    """The scale in steps whose epsilon over a distance of ``steps`` is at most ``epsilon``, sampling error included."""
    return math.ceil(steps / (Fraction(epsilon) - _SAMPLING))


def _key(secret: bytes, expression: str, mechanism: str, epsilon: float, domain: object) -> bytes:
    """A key for this release: any other expression, mechanism, epsilon, class list or bounds has other noise."""
    if len(secret) < 16:
        raise PrivacyError("a party's secret for label noise must have 16 bytes or more")
    info = msgspec.msgpack.encode(["label noise", expression, mechanism, float(epsilon).hex(), domain])
    return HKDF(hashes.SHA256(), 32, salt=None, info=info).derive(secret)


def _messages(rows: pa.Array, labels: NDArray[Any]) -> pa.Array:
    """The name of each row, then eight bytes of its label."""
    if pc.count_distinct(rows, mode="all").as_py() != len(rows) or rows.null_count or len(rows) != len(labels):
        raise PrivacyError(
            "label noise needs a distinct name for every row, or equal labels would get equal noise: "
            "use the primary key, or all columns and an ordinal"
        )
    eight = pa.Array.from_buffers(pa.binary(8), len(labels), [None, pa.py_buffer(labels.tobytes())])
    parts = (part.cast(pa.large_binary()) for part in (rows, eight))
    return pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.large_binary()))


def inverse_transition(classes: int, keep: float) -> Numbers:
    """The inverse of P(noisy class | true class), in closed form: rows sum to 1, off-diagonal entries are negative.

    >>> inverse_transition(3, 0.8).round(3).tolist()
    [[1.286, -0.143, -0.143], [-0.143, 1.286, -0.143], [-0.143, -0.143, 1.286]]
    """
    _check_correctable(classes, keep)
    other = (1 - keep) / (classes - 1)
    return (np.eye(classes) - other) / (keep - other)


def backward_targets(noisy: Whole, classes: int, keep: float) -> Numbers:
    """Targets in place of one-hot labels: any loss that is a sum over targets has the true loss as its mean.

    Targets of a row sum to 1; those of classes that it was not labelled with are negative.
    """
    return inverse_transition(classes, keep)[noisy]  # (rows, classes)


def true_shares(noisy_shares: Numbers, keep: float) -> Numbers:
    """An unbiased estimate of how often each true class occurs, from how often each noisy one does."""
    return np.asarray(noisy_shares @ inverse_transition(len(noisy_shares), keep), np.float64)


def _check_correctable(classes: int, keep: float) -> None:
    if classes < 2 or not 1 / classes < keep <= 1:
        raise PrivacyError(
            "labels cannot be corrected: the true class must be likelier than the others; use a larger label epsilon"
        )
