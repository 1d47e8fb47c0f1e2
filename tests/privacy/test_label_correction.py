"""Correcting for known noise: the corrected loss has the true loss as its mean."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

import tablepuppet as tp
from tablepuppet.privacy import label as correction
from tablepuppet.privacy.label import keep_probability, randomised_response
from tests.privacy.fixed_stream import fixed_stream


def transition(classes: int, keep: float) -> NDArray[np.float64]:
    """P(noisy class | true class): rows are true classes, columns noisy ones."""
    other = (1 - keep) / (classes - 1)
    return np.full((classes, classes), other) + (keep - other) * np.eye(classes)


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("keep", [0.55, 0.9, 1.0])
def test_the_inverse_is_the_inverse(classes: int, keep: float) -> None:
    """The closed form inverts the transition matrix, whose rows sum to 1."""
    matrix = transition(classes, keep)
    assert np.allclose(matrix.sum(axis=1), 1)
    assert np.allclose(matrix @ correction.inverse_transition(classes, keep), np.eye(classes))


def test_backward_correction_is_unbiased() -> None:
    """Averaged over the noise, exactly, the corrected loss of every true class is its loss."""
    losses = np.random.default_rng(0).random((5, 3))
    targets = correction.backward_targets(np.arange(3), 3, 0.7)  # (noisy classes, classes)
    assert np.allclose(losses @ targets.T @ transition(3, 0.7).T, losses)
    assert np.allclose(correction.backward_targets(np.array([0, 2]), 3, 0.7).sum(axis=1), 1)


def test_shares_of_true_classes() -> None:
    """From noisy labels alone, how often each class truly occurs is found again."""
    true = np.repeat([0, 1, 2], [60_000, 30_000, 10_000])
    noisy = randomised_response(true, 3, 1.0, fixed_stream())
    found = correction.true_shares(np.bincount(noisy) / len(noisy), keep_probability(3, 1.0))
    assert np.allclose(found, [0.6, 0.3, 0.1], atol=0.01)


@pytest.mark.parametrize("keep", [0.5, 0.2, 1.5])
def test_noise_that_hides_all_cannot_be_corrected(keep: float) -> None:
    """Where the true class is no likelier than another, there is nothing to learn from."""
    with pytest.raises(tp.PrivacyError, match="larger label epsilon"):
        correction.inverse_transition(2, keep)
