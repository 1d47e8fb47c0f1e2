"""Elementwise functions of a column, as data: a short list of steps, each one function of a closed list.

A function is sent to parties as steps and constants; nothing that is sent can be executed. A step is (name, left,
right). ``left`` and ``right`` are numbers of values:

    0           the column
    1, 2, ...   the result of the first step, the second, ...
    -1, -2, ... the first row of ``constants``, (constants, columns), the second, ...

A step uses earlier values only; a function of one value uses ``left``. The last step is the result. Comparisons give 0
and 1; where(left, right) is the right value if the left one is not 0, else 0. Results that are not finite, such as the
logarithm of a negative number, are detected when the function is computed on rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from tablepuppet.arrays import Array, are_within
from tablepuppet.errors import LearnError, PartyError
from tablepuppet.party.arguments import LARGEST

MOST_STEPS = 64  # and one more, which subtracts the mean
OneName = Literal[
    "negative", "absolute", "sign", "square", "sqrt", "cbrt", "reciprocal", "exp", "expm1", "log", "log1p", "log2",
    "log10", "sin", "cos", "tanh", "arctan", "floor", "ceil", "rint",
]  # fmt: skip
ConditionName = Literal["greater", "greater_equal", "less", "less_equal", "equal", "not_equal"]
TwoName = Literal["add", "subtract", "multiply", "divide", "power", "minimum", "maximum", ConditionName]
FunctionName = Literal[OneName, TwoName, "where"]
Operand = Annotated[int, Meta(ge=-MOST_STEPS - 1, le=MOST_STEPS + 1)]
FunctionStep = tuple[FunctionName, Operand, Operand]
FunctionSteps = Annotated[Sequence[FunctionStep], Meta(min_length=1, max_length=MOST_STEPS + 1)]


def where(condition: Any, values: Any) -> Any:
    """Values where the condition is not 0, else 0, whatever the value there is, also NaN."""
    return np.where(condition, values, 0.0)


OF_ONE: Mapping[str, Any] = {name: getattr(np, name) for name in get_args(OneName)}
OF_TWO: Mapping[str, Any] = {name: getattr(np, name) for name in get_args(TwoName)} | {"where": where}
CONDITIONS = frozenset(get_args(ConditionName))
RISING = frozenset(
    {"sqrt", "cbrt", "exp", "expm1", "log", "log1p", "log2", "log10", "tanh", "arctan", "sign", "floor", "ceil", "rint"}
)
"""Functions of one value that never fall where they are defined."""


@dataclass(frozen=True, eq=False)
class Function:
    """An elementwise function of columns; ``constants`` has a number per column in each row."""

    steps: tuple[FunctionStep, ...]
    constants: Array  # (constants, columns)

    def of(self, columns: NDArray[np.integer]) -> Function:
        """The function of some of the columns."""
        return Function(self.steps, self.constants[:, columns])

    def less(self, constants: Array) -> Function:
        """The function less a constant for each column."""
        step: FunctionStep = ("subtract", len(self.steps), -1 - len(self.constants))
        return Function((*self.steps, step), np.concatenate([self.constants, constants[None]]))

    def __call__(self, values: Array) -> Array:
        """The function of an array whose last axis is columns."""
        return evaluate(self.steps, self.constants, values)

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for equal functions."""
        return self.steps, self.constants.shape, self.constants.tobytes()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Function) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def slopes(self) -> Array | None:
        """1 for each column where the function never falls, -1 where it never rises; None if that is not known."""
        known: list[Array | None] = [np.ones(self.constants.shape[1])]

        def slope(place: int) -> Array | None:
            return known[place] if place >= 0 else np.zeros(self.constants.shape[1])

        for name, left, right in self.steps:
            known.append(_slope(name, slope(left), slope(right), self._constant(left), self._constant(right)))
        return known[-1]

    def _constant(self, place: int) -> Array | None:
        return self.constants[-1 - place] if place < 0 else None


def _slope(
    name: str, left: Array | None, right: Array | None, factor: Array | None, other: Array | None
) -> Array | None:
    """The direction of a step, from the directions of its values; ``factor`` and ``other`` are constants if given."""
    if left is None or right is None:
        return None
    if name in RISING:
        return left
    if name == "negative":
        return -left
    if name in ("add", "minimum", "maximum"):
        return left + right if factor is not None or other is not None else None
    if name in ("subtract", "greater", "greater_equal", "less", "less_equal"):
        risen = left - right if factor is not None or other is not None else None
        return risen if risen is None or name in ("subtract", "greater", "greater_equal") else -risen
    if name == "multiply" and other is not None:
        return np.asarray(left * np.sign(other))
    if name == "multiply" and factor is not None:
        return np.asarray(right * np.sign(factor))
    if name == "divide" and other is not None:
        return np.asarray(left * np.sign(other))
    return None


def evaluate(steps: Sequence[FunctionStep], constants: Array, values: Array) -> Array:
    """The last step's result for ``values``, whose last axis is columns. See `check_steps`."""
    *_, last = evaluated(steps, constants, values)
    return last


def evaluated(steps: Sequence[FunctionStep], constants: Array, values: Array) -> Iterator[Array]:
    """Each step's result for ``values``, one after the other."""
    known = [values]

    def value(place: int) -> Array:
        return known[place] if place >= 0 else constants[-1 - place]

    for name, left, right in steps:
        with np.errstate(all="ignore"):
            found = OF_ONE[name](value(left)) if name in OF_ONE else OF_TWO[name](value(left), value(right))
        known.append(np.asarray(found, np.float64))
        yield np.broadcast_to(known[-1], values.shape)


def check_steps(steps: Sequence[FunctionStep], constants: Array, columns: int) -> None:
    """PartyError unless steps use earlier values only, and there is a constant for each column."""
    if constants.ndim != 2 or constants.shape[1] != columns or len(constants) > MOST_STEPS + 1:
        raise PartyError(f"a function of {columns:,} columns needs as many numbers in each row of constants")
    for number, (_, *used) in enumerate(steps):
        if any(place > number or place < -len(constants) for place in used):
            raise PartyError("a step of a function uses a value that is not there yet")


def real_numbers(what: str, given: Any) -> Array:
    """What a function is given beside an array; LearnError unless these are numbers that parties take."""
    values = np.asarray(given)
    if values.dtype.kind not in "biuf":
        raise LearnError(f"{what} takes real numbers")
    if not are_within(values, LARGEST):
        raise LearnError(f"{what} takes finite numbers up to {LARGEST:g}")
    return values.astype(np.float64)


def choose(condition: Any, one: Any, two: Any) -> Any:
    """np.where of arrays whose numbers are at parties, which have a method ``elementwise``, and of others."""
    return _chosen(np.not_equal(condition, 0), one) + _chosen(np.equal(condition, 0), two)


def _chosen(condition: Any, values: Any) -> Any:
    """Values where a condition holds, else 0: what is not chosen does not matter, also if it is NaN."""
    like = next((each for each in (condition, values) if hasattr(each, "elementwise")), None)
    return where(condition, values) if like is None else like.elementwise("where", condition, values)


def clip(values: Any, least: Any = None, most: Any = None) -> Any:
    """Numbers below ``least`` become that, those above ``most`` that."""
    found = values if least is None else np.maximum(values, least)
    return found if most is None else np.minimum(found, most)
