"""Settings of learners, and what each may be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, Literal, get_args

import numpy as np
from sklearn.exceptions import NotFittedError as SklearnNotFittedError

from tablepuppet.errors import LearnError
from tablepuppet.spelling import setting_meant

Solver = Literal["auto", "admm", "sgd", "lbfgs"]


class SettingError(LearnError, TypeError):
    """A learner was made with an argument that it does not have."""


class NotFittedError(LearnError, SklearnNotFittedError):  # type: ignore[misc]
    """A learner was asked for what only a fitted one knows; for scikit-learn it is its own error of that name."""


def check_names(learner: str, values: Sequence[Any], names: Iterable[str], known: Sequence[str]) -> None:
    """SettingError if a learner is made with values that have no name, or a name that it does not know."""
    if values:
        raise SettingError(f"{learner} takes settings by name, such as {learner}({known[0]}=...), not {values[0]!r}")
    for name in names:
        if name not in known:
            raise SettingError(f"{learner} has no setting {name!r}{setting_meant(name, known)}")


def check_fitted(learner: object) -> None:
    """NotFittedError unless a learner was fitted or loaded."""
    if not hasattr(learner, "model_"):
        raise NotFittedError(f"this {type(learner).__name__} is not fitted yet: call fit with a relation first")


def check_ranges(settings: Mapping[str, Any]) -> None:
    """LearnError if a setting is none that can be."""
    if settings["solver"] not in get_args(Solver):
        known = ", ".join(get_args(Solver))
        raise LearnError(f"solver={settings['solver']!r} is not known; use one of {known}")
    for name, value in settings.items():
        allowed, fits = RANGES.get(name, ("anything", lambda _: True))
        if not fits(value):
            raise LearnError(f"{name} must be {allowed}, not {value!r}")


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def _is_callables(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, Iterator) and all(callable(each) for each in value)


def _is_number(value: Any, below: float = np.inf) -> bool:
    return isinstance(value, Real) and 0 <= float(value) < below


def _is_rate(value: Any) -> bool:
    return value == "auto" if isinstance(value, str) else _is_number(value) and value > 0


RANGES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(
        ("local_steps", "patience"),
        ("a whole number, at least 1", lambda v: _is_whole(v, 1)),
    ),
    **dict.fromkeys(
        ("rounds", "inner_rounds", "batch_size"),
        ("'auto' or a whole number, at least 1", lambda v: v == "auto" or _is_whole(v, 1)),
    ),
    **dict.fromkeys(("reduce", "label_correction"), ("True or False", lambda v: isinstance(v, bool))),
    "callbacks": ("a list of functions that take an event", _is_callables),
    **dict.fromkeys(("lr", "rho", "inner_rho"), ("'auto' or a number above 0", _is_rate)),
    **dict.fromkeys(("l2", "tol"), ("a number, 0 or more", _is_number)),
    "momentum": (
        "'auto' or a number from 0 to below 1",
        lambda v: v == "auto" if isinstance(v, str) else _is_number(v, 1.0),
    ),
    "seed": ("a whole number, 0 or more", lambda v: _is_whole(v, 0)),
}
