"""The error of a learner that is asked for what only a fitted one knows."""

from __future__ import annotations

from sklearn.exceptions import NotFittedError as SklearnNotFittedError

from tablepuppet.errors import LearnError


class NotFittedError(LearnError, SklearnNotFittedError):  # type: ignore[misc]
    """A learner was asked for what only a fitted one knows; for scikit-learn it is its own error of that name."""


def check_fitted(learner: object) -> None:
    """Raise NotFittedError unless a learner was fitted or loaded."""
    if not hasattr(learner, "model_"):
        raise NotFittedError(f"this {type(learner).__name__} is not fitted yet: call fit with a relation first")
