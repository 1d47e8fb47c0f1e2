"""Learning from classes whose noise is known: targets that make a loss unbiased, and frequencies of true classes.

Input: the probability that a noisy class is the true one (`label.keep_probability`), and noisy classes. Output: what a
loss needs to learn the true classes. It uses noisy labels only, so it costs no privacy. This is the backward correction
of Patrini et al. 2017, "Making Deep Neural Networks Robust to Label Noise".
"""

from __future__ import annotations

import numpy as np

from tablepuppet.arrays import Array
from tablepuppet.errors import PrivacyError
from tablepuppet.privacy.noise import Numbers, Whole


def inverse_transition(classes: int, keep: float) -> Numbers:
    """The inverse of P(noisy class | true class), in closed form: rows sum to 1, off-diagonal entries are negative.

    >>> inverse_transition(3, 0.8).round(3).tolist()
    [[1.286, -0.143, -0.143], [-0.143, 1.286, -0.143], [-0.143, -0.143, 1.286]]
    """
    _check(classes, keep)
    other = (1 - keep) / (classes - 1)
    return (np.eye(classes) - other) / (keep - other)


def backward_targets(noisy: Whole, classes: int, keep: float) -> Numbers:
    """Targets in place of one-hot labels: any loss that is a sum over targets has the true loss as its mean.

    Targets of a row sum to 1; those of classes that it was not labelled with are negative.
    """
    return inverse_transition(classes, keep)[noisy]  # (rows, classes)


def true_shares(noisy_shares: Array, keep: float) -> Numbers:
    """An unbiased estimate of how often each true class occurs, from how often each noisy one does."""
    return np.asarray(noisy_shares @ inverse_transition(len(noisy_shares), keep), np.float64)


def _check(classes: int, keep: float) -> None:
    if classes < 2 or not 1 / classes < keep <= 1:
        raise PrivacyError(
            "labels cannot be corrected: the true class must be likelier than the others; use a larger label epsilon"
        )
