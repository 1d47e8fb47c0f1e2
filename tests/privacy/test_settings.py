"""`Privacy`: settings that promise nothing, or contradict each other, are refused with advice."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

import tablepuppet as tp
from tablepuppet.privacy.settings import Privacy


def test_nothing_is_asked_by_default() -> None:
    """Every setting is optional and by keyword; a value cannot be changed."""
    asked = Privacy()
    assert not asked.is_label_private
    assert not asked.is_feature_private
    asked.check_rows(10**9)
    with pytest.raises(dataclasses.FrozenInstanceError):
        asked.delta = 0.5  # type: ignore[misc]
    with pytest.raises(TypeError):
        Privacy(1.0)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "settings",
    [
        {"label_epsilon": 1},
        {"label_epsilon": 2.0, "label_bounds": (-1, 5.5)},
        {"label_epsilon": 2.0, "label_classes": (0, 1, 2), "label_mechanism": "laplace"},
        {"feature_epsilon": 1.0, "prediction_epsilon": 4.0, "delta": 1e-7, "clip_norm": 0.5, "secure_sum": True},
    ],
)
def test_good_settings(settings: dict[str, Any]) -> None:
    """What makes sense is kept as it is given."""
    assert dataclasses.asdict(Privacy(**settings)).items() >= settings.items()


@pytest.mark.parametrize(
    ("name", "value"), [("label_bounds", [0.0, 5.0]), ("label_classes", ["no", "yes"]), ("label_classes", [0, 1, 2])]
)
def test_lists_are_taken_as_tuples(name: str, value: list[Any]) -> None:
    """A list of bounds or classes is the same promise as a tuple, in Python and from a file, and can be hashed."""
    from_list: dict[str, Any] = {"label_epsilon": 2.0, name: value}
    from_tuple: dict[str, Any] = {"label_epsilon": 2.0, name: tuple(value)}
    asked: Any = Privacy(**from_list)
    assert asked == Privacy(**from_tuple) == Privacy.of_settings(from_list)
    assert hash(asked) == hash(Privacy(**from_tuple))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"label_epsilon": 0}, "label epsilon 0: .* 1 to 8 is usual"),
        ({"label_epsilon": -2.0}, "label epsilon -2"),
        ({"label_epsilon": math.inf}, "label epsilon inf"),
        ({"label_epsilon": "1"}, "label_epsilon must be a number, not str"),
        ({"label_epsilon": True}, "label_epsilon must be a number, not bool"),
        ({"label_bounds": (0.0, 1.0)}, "set label_epsilon too"),
        ({"label_classes": (0, 1)}, "set label_epsilon too"),
        ({"label_mechanism": "laplace"}, "set label_epsilon too"),
        ({"label_epsilon": 1.0, "label_mechanism": "gauss"}, "must be one of auto, randomised_response, laplace"),
        ({"label_epsilon": 1.0, "label_bounds": (1.0, 0.0)}, "the lower one first"),
        ({"label_epsilon": 1.0, "label_bounds": (1.0, 1.0)}, "the lower one first"),
        ({"label_epsilon": 1.0, "label_bounds": (0.0, math.nan)}, "finite numbers"),
        ({"label_epsilon": 1.0, "label_bounds": (0.0,)}, "must be a pair"),
        ({"label_epsilon": 1.0, "label_bounds": ("a", "b")}, "label_bounds must be a number"),
        ({"label_epsilon": 1.0, "label_bounds": (0, 1), "label_mechanism": "randomised_response"}, "is for classes"),
        ({"label_epsilon": 1.0, "label_classes": ("a",)}, "two or more"),
        ({"label_epsilon": 1.0, "label_classes": "ab"}, "must be a list"),
        ({"label_epsilon": 1.0, "label_classes": ("a", "b", "a")}, "listed twice"),
        ({"label_epsilon": 1.0, "label_classes": (0, 1), "label_bounds": (0, 1)}, "give one of them"),
        ({"feature_epsilon": 0.0}, "feature_epsilon 0: it must be a number from 1e-06 to 1e[+]06; 0.1 to 10"),
        ({"prediction_epsilon": -1}, "prediction_epsilon -1"),
        ({"feature_epsilon": 1e9}, "feature_epsilon 1e[+]09: it must be a number from 1e-06 to 1e[+]06; 0.1 to 10"),
        ({"feature_epsilon": math.nan}, "feature_epsilon nan"),
        ({"delta": 0.0}, "delta 0: it must be between 0 and 1"),
        ({"delta": 1.0}, "delta 1"),
        ({"delta": None}, "delta must be a number, not NoneType"),
        ({"clip_norm": 0.0}, "clip_norm 0: it must be a number from 1e-60 to 1e[+]60; 1 is usual"),
        ({"feature_epsilon": 1e300}, "feature_epsilon 1e[+]300: it must be a number from 1e-06"),
        ({"feature_epsilon": 10**400}, "feature_epsilon 1000"),
        ({"label_epsilon": 1e300}, "label epsilon 1e[+]300: it must be a number of at least 1e-06 and at most 1e[+]06"),
        ({"label_epsilon": 1.0, "label_bounds": (-1e308, 1e308)}, "finite numbers"),
        ({"feature_epsilon": 1.0, "delta": 1e-320}, "delta .* is too small for features"),
        ({"clip_norm": math.inf}, "clip_norm inf"),
        ({"secure_sum": 1}, "secure_sum must be True or False"),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    """Each mistake is a PrivacyError that says what would be allowed."""
    with pytest.raises(tp.PrivacyError, match=message):
        Privacy(**settings)


def test_delta_is_held_against_the_rows() -> None:
    """A delta of one over the rows would allow to publish a row; labels alone use no delta."""
    with pytest.raises(tp.PrivacyError, match=r"100,000 rows .* use 1e-06 or less"):
        Privacy(feature_epsilon=1.0).check_rows(100_000)
    Privacy(feature_epsilon=1.0).check_rows(99_999)
    Privacy(label_epsilon=1.0).check_rows(10**9)
