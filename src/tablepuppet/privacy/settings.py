"""`Privacy`: what an analyst asks parties to promise while a model is learned.

Input: a learner's settings or a job file's. Output: settings that make sense together, or a PrivacyError with
advice. Whether they fit a table is only known to its party: it checks again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from tablepuppet.errors import PrivacyError
from tablepuppet.privacy.accountant import check_delta
from tablepuppet.privacy.label import MOST_CLASSES, check_label_epsilon
from tablepuppet.spelling import class_checked, did_you_mean, hides

LabelMechanism = Literal["auto", "randomised_response", "laplace"]
USUAL = "0.1 to 10 is usual, less is more private"
LABEL_MECHANISMS = ("auto", "randomised_response", "laplace")
LEAST_DELTA, LARGEST = 1e-11, 1e100
EPSILONS, LENGTHS = (1e-6, 1e6), (1e-60, 1e60)  # that parties take


@hides("check_rows", "is_empty", "is_feature_private", "is_label_private", "of_settings")
@class_checked
@dataclass(frozen=True, kw_only=True)
class Privacy:
    """Promises, each optional; with none of them nothing is noised.

    ``label_epsilon``: labels are noised before they leave. Numbers need ``label_bounds``, classes ``label_classes``,
    here or in the policy of the label's party, never from the data. ``label_mechanism`` "auto" is randomised response
    for classes and Laplace noise for numbers. ``feature_epsilon``: what is learned from features is noised, each row's
    part clipped to ``clip_norm``. ``prediction_epsilon``: so are the predictions of every round. Both hold
    at ``delta``. ``secure_sum``: shards of one table reach the coordinator as a sum only.

    >>> Privacy(label_epsilon=2.0, label_classes=("no", "yes")).is_label_private
    True
    """

    label_epsilon: float | None = None
    label_bounds: Sequence[float] | None = None  # a list is taken as a tuple, here and below
    label_classes: Sequence[str | int | float | bool] | None = None
    label_mechanism: LabelMechanism = "auto"
    feature_epsilon: float | None = None
    prediction_epsilon: float | None = None
    delta: float = 1e-5
    clip_norm: float = 1.0
    secure_sum: bool = False

    def __post_init__(self) -> None:
        for name in ("label_bounds", "label_classes"):
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(getattr(self, name)))  # lists are meant as tuples
        for name in ("label_epsilon", "feature_epsilon", "prediction_epsilon", "delta", "clip_norm"):
            value = getattr(self, name)
            if value is not None or not name.endswith("epsilon"):
                _check_number(name, value)
        self._check_label()
        for name in ("feature_epsilon", "prediction_epsilon"):
            _check_positive(name, getattr(self, name), USUAL, EPSILONS)
        check_delta(self.delta)
        if self.is_feature_private and self.delta < LEAST_DELTA:
            raise PrivacyError(
                f"delta {self.delta:g} is too small for features: noisy lists of categories alone need 1e-12 of it "
                f"each; use {LEAST_DELTA:g} or more"
            )
        _check_positive("clip_norm", self.clip_norm, "1 is usual", LENGTHS)
        if not isinstance(self.secure_sum, bool):
            raise PrivacyError("secure_sum must be True or False")

    @classmethod
    def of_settings(cls, settings: Mapping[str, Any]) -> Privacy:
        """The promises that a file spells."""
        known = [each.name for each in fields(cls)]
        unknown = [name for name in settings if name not in known]
        if unknown:
            raise PrivacyError(f"privacy has no setting {unknown[0]!r}{did_you_mean(unknown[0], known)}")
        return cls(**settings)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is promised at all."""
        return not (self.is_label_private or self.is_feature_private or self.secure_sum)

    @property
    def is_label_private(self) -> bool:
        """Whether labels are noised."""
        return self.label_epsilon is not None

    @property
    def is_feature_private(self) -> bool:
        """Whether anything learned from features is noised."""
        return self.feature_epsilon is not None or self.prediction_epsilon is not None

    def check_rows(self, rows: int) -> None:
        """Raise PrivacyError if delta is so large that a table of this size could release a whole row."""
        if self.is_feature_private and self.delta >= 1 / max(rows, 1):
            raise PrivacyError(
                f"delta {self.delta:g} is not below one over the {rows:,} rows of a table: such a promise would allow "
                f"to publish a row; use {0.1 / max(rows, 1):.0e} or less"
            )

    def _check_label(self) -> None:
        if self.label_mechanism not in LABEL_MECHANISMS:
            raise PrivacyError(f"label_mechanism {self.label_mechanism!r} must be one of {', '.join(LABEL_MECHANISMS)}")
        if self.label_epsilon is not None:
            check_label_epsilon(self.label_epsilon)
        elif self.label_bounds is not None or self.label_classes is not None or self.label_mechanism != "auto":
            raise PrivacyError("labels would leave without noise: set label_epsilon too, 1 to 8 is usual")
        if self.label_bounds is not None and self.label_classes is not None:
            raise PrivacyError("label_bounds are for numbers and label_classes for classes: give one of them")
        if self.label_bounds is not None:
            self._check_bounds(self.label_bounds)
        if self.label_classes is not None:
            self._check_classes(self.label_classes)

    def _check_bounds(self, bounds: Sequence[float]) -> None:
        if not isinstance(bounds, tuple) or len(bounds) != 2:
            raise PrivacyError("label_bounds must be a pair such as (0.0, 5.0)")
        for bound in bounds:
            _check_number("label_bounds", bound)
        if not (-LARGEST <= bounds[0] < bounds[1] <= LARGEST):  # NaN fails too
            raise PrivacyError(f"label_bounds: finite numbers up to {LARGEST:g}, the lower one first")
        if self.label_mechanism == "randomised_response":
            raise PrivacyError("randomised response is for classes: numbers use label_mechanism 'laplace' or 'auto'")

    def _check_classes(self, classes: Sequence[str | int | float | bool]) -> None:
        if not isinstance(classes, tuple) or not 2 <= len(classes) <= MOST_CLASSES:
            raise PrivacyError("label_classes must be a list of all classes that there may be, two or more")
        if len(set(classes)) < len(classes):
            raise PrivacyError("label_classes: one of them is listed twice")


def _check_number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise PrivacyError(f"{name} must be a number, not {type(value).__name__}")


def _check_positive(name: str, value: float | None, advice: str, within: tuple[float, float]) -> None:
    if value is not None and not within[0] <= value <= within[1]:  # NaN fails too
        shown = f"{value:g}" if isinstance(value, float) else str(value)[:20]
        raise PrivacyError(f"{name} {shown}: it must be a number from {within[0]:g} to {within[1]:g}; {advice}")
