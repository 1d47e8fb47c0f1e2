"""Learning from classes whose noise is known: unbiased losses, and predictions of noisy classes.

Comes in: how likely a noisy class is the true one (`label.keep_probability`), noisy classes or probabilities. Goes
out: what a loss needs to learn the true classes. It uses no data beyond the noisy labels, so it costs
no privacy. See Patrini et al. 2017, "Making Deep Neural Networks Robust to Label Noise": forward correction keeps a
loss well behaved; backward correction is unbiased, with more variance.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tablepuppet.errors import PrivacyError
from tablepuppet.privacy.noise import Numbers, Whole


def transition(classes: int, keep: float) -> Numbers:
    """P(noisy class | true class): rows are true classes, columns noisy ones.

    >>> transition(3, 0.8).round(3).tolist()
    [[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]]
    """
    _check(classes, keep)
    other = (1 - keep) / (classes - 1)
    return np.full((classes, classes), other) + (keep - other) * np.eye(classes)


def inverse_transition(classes: int, keep: float) -> Numbers:
    """The inverse of `transition`, in closed form: its rows sum to 1, its off-diagonal is negative."""
    _check(classes, keep)
    other = (1 - keep) / (classes - 1)
    return (np.eye(classes) - other) / (keep - other)


def forward(probabilities: Numbers, keep: float) -> Numbers:
    """Probabilities of the noisy classes from those of the true ones: compare these with the noisy labels."""
    _check(probabilities.shape[1], keep)
    other = (1 - keep) / (probabilities.shape[1] - 1)
    return np.asarray(other + (keep - other) * probabilities, np.float64)  # (rows, classes); each row sums to 1


def backward_targets(noisy: Whole, classes: int, keep: float) -> Numbers:
    """Targets in place of one-hot labels: any loss that is a sum over targets has the true loss as its mean.

    Targets of a row sum to 1; those of classes that it was not labelled with are negative.
    """
    return inverse_transition(classes, keep)[noisy]  # (rows, classes)


def backward_losses(losses: Numbers, noisy: Whole, keep: float) -> Numbers:
    """The unbiased loss of every row, from its loss under each class: (rows, classes) -> (rows,)."""
    return np.asarray((backward_targets(noisy, losses.shape[1], keep) * losses).sum(axis=1), np.float64)


def true_shares(noisy_shares: NDArray[np.float64], keep: float) -> Numbers:
    """An unbiased estimate of how often each true class occurs, from how often each noisy one does."""
    return np.asarray(noisy_shares @ inverse_transition(len(noisy_shares), keep), np.float64)


def _check(classes: int, keep: float) -> None:
    if classes < 2 or not 1 / classes < keep <= 1:
        raise PrivacyError(
            "labels cannot be corrected: the true class must be likelier than the others; use a larger label epsilon"
        )
