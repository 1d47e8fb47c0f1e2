"""The error of a learner that is used before it is fitted."""

from __future__ import annotations

from sklearn.exceptions import NotFittedError as SklearnNotFittedError

from tablepuppet.errors import LearnError


class NotFittedError(LearnError, SklearnNotFittedError):  # type: ignore[misc]
    """A learner was used before it was fitted; it is a subclass of scikit-learn's error of the same name."""


def check_fitted(learner: object) -> None:
    """Raise NotFittedError unless a learner was fitted or loaded."""
    if not hasattr(learner, "_model"):
        raise NotFittedError(f"this {type(learner).__name__} is not fitted yet: call fit with a relation first")
