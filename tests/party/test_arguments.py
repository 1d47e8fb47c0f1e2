"""Arguments of ops: what fits the declared type is taken, all else is refused before the op runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

import tablepuppet as tp
import tablepuppet.learn.party_ops
from tablepuppet.learn.tables.dense import Network
from tablepuppet.learn.tables.linear import Linear
from tablepuppet.learn.tables.model import Spec
from tablepuppet.party.arguments import (
    Bound,
    Layers,
    Multiplier,
    Parameters,
    Positive,
    Scales,
    Seed,
    Some,
    SomeOrNone,
    fits,
)
from tablepuppet.party.ops import REGISTRY


@pytest.mark.parametrize(
    ("value", "hint", "taken"),
    [
        ("a", str, True),
        (1, str, False),
        (1, float, True),
        (np.float64(1.5), float, True),
        (float("nan"), float, False),
        (True, int, False),
        (1.0, int, False),
        (np.int64(3), int, True),
        (0, Positive, False),
        (0, SomeOrNone, True),
        (10**9, Some, False),
        (-1, Seed, False),
        (None, int | None, True),
        ([1, 2], Sequence[Some], True),
        ("ab", Sequence[str], False),
        ([["a", "b"]], Sequence[tuple[str, str]], True),
        ([["a"]], Sequence[tuple[str, str]], False),
        (np.ones(2, np.float32), NDArray[np.float64], True),
        (np.ones(2, np.int32), NDArray[np.float64], False),
        (np.ones(2, np.uint8), NDArray[np.int32], True),
        (np.ones(2), NDArray[np.integer[Any]], False),
        (np.ones(2, np.int8), NDArray[np.uint8], False),
        ([1.0], NDArray[np.float64], False),
        (1e300, float, False),
        (-1e99, float, True),
        (2**64, int, False),
        ("a" * 10**6, str, False),
        ([1] * 10**5, Sequence[Some], False),
        ([1] * 17, Layers, False),
        (1e-160, Multiplier, False),
        (float("inf"), Bound, False),
        (np.array([0.0, np.nan]), NDArray[np.float64], False),
        (np.array([0.0, np.inf]), NDArray[np.float64], False),
        (np.array([1e300]), NDArray[np.float64], False),
        (np.zeros(0), NDArray[np.float64], True),
        (np.zeros((1, 1, 1)), NDArray[np.float64], False),
        (np.zeros((0, 10**9)), NDArray[np.float64], False),
        (np.array([1e170]), Scales, False),
        (np.array([0.0]), Scales, False),
        (np.ones((1, 1)), Scales, False),
        ("b", Literal["a", "b"], True),
        (["b"], Literal["a", "b"], False),
    ],
)
def test_values_and_types(value: Any, hint: Any, taken: bool) -> None:
    """A value fits its type or does not; arrays fit by the kind of their numbers."""
    assert fits(value, hint) is taken


def test_a_refusal_says_what_would_be_taken() -> None:
    """The error gives the limits that the argument's type declares."""

    def scale(table: Any, factor: Multiplier) -> None: ...

    with pytest.raises(tp.PartyError, match=r"'factor' .* it takes a number from 1e-06 to 1e\+06"):
        Parameters("scale", scale).read({"factor": 1e-154})


def test_parameters_are_checked() -> None:
    """An argument too many, too few or of a wrong kind is an error that names it and not its value."""

    def scale(table: Any, view: str, factor: float, **digests: NDArray[np.uint8]) -> None: ...

    parameters = Parameters("scale", scale)
    parameters.read({"view": "v", "factor": 2, "digests0": np.zeros(1, np.uint8)})
    with pytest.raises(tp.PartyError, match="missing a required argument"):
        parameters.read({"view": "v"})
    with pytest.raises(tp.PartyError, match="'factor' is not of the kind") as raised:
        parameters.read({"view": "v", "factor": "CANARY"})
    assert "CANARY" not in str(raised.value)
    with pytest.raises(tp.PartyError, match="'digests0' is not of the kind"):
        parameters.read({"view": "v", "factor": 2, "digests0": np.zeros(1)})
    with pytest.raises(tp.PartyError, match="multiple values for argument 'table'"):
        parameters.read({"view": "v", "factor": 2, "table": np.zeros(1, np.uint8)})


def test_names_that_an_op_does_not_have_are_refused() -> None:
    """Where a function takes named arguments only, one that may be left out may, and any other name is an error."""

    def shift(table: Any, by: int, twice: bool = False) -> None: ...

    parameters = Parameters("shift", shift)
    parameters.read({"by": 1})
    parameters.read({"by": 1, "twice": True})
    for strange in ({"by": 1, "far": 2}, {"by": 1, "table": 2}, {"twice": True}):
        with pytest.raises(tp.PartyError, match=r"op 'shift': (got an unexpected|multiple values|missing a required)"):
            parameters.read(strange)


@pytest.mark.parametrize("op", sorted(REGISTRY))
def test_every_op_declares_types_that_can_be_checked(op: str) -> None:
    """No parameter of any op is left open, so that nothing reaches an op unchecked."""
    for hint in REGISTRY[op].parameters.hints.values():
        assert hint is not Any
        fits(None, hint)


@pytest.mark.parametrize(
    "strange",
    [
        {"kind": "linear", "outputs": 0},
        {"kind": "linear", "outputs": True},
        {"kind": "linear"},
        {"kind": "linear", "outputs": 1, "more": 1},
        {"kind": "forest", "outputs": 1},
        {"kind": ["linear"], "outputs": 1},
        {"outputs": 1},
        {"kind": "network", "hidden": [3, 10**6], "outputs": 1},
        {"kind": "network", "hidden": [3] * 17, "outputs": 1},
        Linear(0),
        "linear",
        None,
    ],
)
def test_values_that_belong_together(strange: Any) -> None:
    """A Struct comes as a mapping, or as itself where nothing travels; its fields keep the limits of their types."""

    def start(table: Any, spec: Spec) -> None: ...

    parameters = Parameters("start", start)
    for spec in (Linear(2), Network([3, 4], 1)):
        assert parameters.read({"spec": msgspec.to_builtins(spec)}) == parameters.read({"spec": spec}) == {"spec": spec}
    with pytest.raises(tp.PartyError, match="'spec' is not of the kind or size"):
        parameters.read({"spec": strange})
