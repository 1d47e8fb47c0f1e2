"""How columns are computed from those of X, and how a function of arrays becomes the recipe of a new one: no trip.

Sums, differences and products with numbers change scale and shift. Any other function becomes steps (`functions.py`)
for columns of numbers, and a line through f(0) and f(1) for columns of categories. With the encoders of X a recipe is a
`Preparation`, which a model keeps to be used over another relation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tablepuppet.algebra.functions import MOST_STEPS, OF_ONE, OF_TWO, Function
from tablepuppet.arrays import Array
from tablepuppet.errors import LearnError
from tablepuppet.operators.client import Client
from tablepuppet.prep.encode.encode import Encoding
from tablepuppet.sql.query import OutputColumn
from tablepuppet.wire.engine import Engine


@dataclass(frozen=True, eq=False)
class Recipe:
    """How the columns of an array are computed from X: scale * function(X[:, places]) + shift.

    A function is one of numbers; of categories, which are 0 or 1, it is a part of scale and shift.
    """

    places: NDArray[np.intp]  # (k,)
    function: Function | None
    scale: Array  # (k,)
    shift: Array

    @classmethod
    def plain(cls, columns: int) -> Recipe:
        """All columns as they are."""
        return cls(np.arange(columns), None, np.ones(columns), np.zeros(columns))

    def only(self, places: NDArray[np.intp]) -> Recipe:
        """Some of the columns."""
        function = None if self.function is None else self.function.of(places)
        return Recipe(self.places[places], function, self.scale[places], self.shift[places])

    def with_line(self, scale: Array, shift: Array) -> Recipe:
        """Another scale and shift."""
        return Recipe(self.places, self.function, scale, shift)

    def less(self, constants: Array) -> Recipe:
        """These columns, made of the function less a constant for each, which is added here."""
        assert self.function is not None, "columns without a function are centred by their encoders"
        return Recipe(self.places, self.function.less(constants), self.scale, self.shift + self.scale * constants)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Recipe)
            and self.function == other.function
            and all(np.array_equal(getattr(self, name), getattr(other, name)) for name in ("places", "scale", "shift"))
        )

    def __hash__(self) -> int:
        return hash((self.places.tobytes(), self.function, self.scale.tobytes(), self.shift.tobytes()))


@dataclass(frozen=True)
class Preparation:
    """Encoders, the engine that reaches the parties which know their categories, and the recipe of the columns."""

    encoding: Encoding
    engine: Engine = field(repr=False, compare=False)
    recipe: Recipe

    def check(self, client: Client, features: Iterable[OutputColumn]) -> None:
        """Raise LearnError unless a relation has the encoded columns, in the same federation."""
        if client.engine is not self.engine:
            raise LearnError("this relation is of another federation than the matrix that it should be like")
        known = {(column.alias, column.name) for column in features}
        missing = [each.qualified for each in self.encoding.encoded if (each.alias, each.name) not in known]
        if missing:
            raise LearnError(
                f"the relation lacks columns of the matrix that it should be like: {', '.join(missing)}. Select them "
                "by the same names, from tables with the same aliases"
            )


class Prepared(Protocol):
    """A matrix, or a model that was fitted on one."""

    @property
    def preparation(self) -> Preparation:
        """How its columns were prepared."""


Term = Recipe | Array  # columns of X, or a number for each


def affine(name: str, one: Term, two: Term) -> Recipe | None:
    """The recipe of a sum, a difference, a product with numbers; None if the function is another."""
    if isinstance(one, Recipe) and isinstance(two, Recipe):
        left, right = one, two
        same = left.function is right.function or left.function == right.function
        if name not in ("add", "subtract") or not same:
            return None
        sign = 1.0 if name == "add" else -1.0
        return left.with_line(left.scale + sign * right.scale, left.shift + sign * right.shift)
    recipe, numbers = (one, two) if isinstance(one, Recipe) else (two, one)
    assert isinstance(recipe, Recipe)
    assert isinstance(numbers, np.ndarray)
    if name == "negative":
        return recipe.with_line(-recipe.scale, -recipe.shift)
    if name == "add":
        return recipe.with_line(recipe.scale, recipe.shift + numbers)
    if name == "subtract":
        sign = 1.0 if recipe is one else -1.0
        return recipe.with_line(sign * recipe.scale, sign * (recipe.shift - numbers))
    if name == "multiply":
        return recipe.with_line(recipe.scale * numbers, recipe.shift * numbers)
    if name == "divide" and recipe is one:
        with np.errstate(divide="ignore", invalid="ignore"):
            return recipe.with_line(recipe.scale / numbers, recipe.shift / numbers)
    return None


def composed(name: str, terms: Sequence[Term], places: NDArray[np.intp], numbers: NDArray[np.bool_]) -> Recipe:
    """The recipe of another function of columns: steps for numbers, a line through f(0) and f(1) for categories.

    ``places`` are those of its columns in X, ``numbers`` says which of them are numbers.
    """
    steps: list[Any] = []
    constants: list[Array] = []
    used = []
    for term in terms:
        if isinstance(term, Recipe):
            used.append(_steps_of(term, numbers, steps, constants))
        else:
            constants.append(term)
            used.append(-len(constants))
    steps.append((name, used[0], used[-1]))
    if len(steps) > MOST_STEPS or len(constants) > MOST_STEPS:
        raise LearnError(
            f"a function of X has at most {MOST_STEPS} steps and as many constants; put some of it in SELECT"
        )
    width = len(places)
    function = Function(tuple(steps), np.array(constants).reshape(len(constants), width))
    # A category column is shift where it is 0, and shift + scale where it is 1, (2, k).
    ends = [np.stack([each.shift, each.shift + each.scale]) if isinstance(each, Recipe) else each for each in terms]
    with np.errstate(all="ignore"):
        found = OF_ONE[name](*ends) if name in OF_ONE else OF_TWO[name](*ends)
        found = np.broadcast_to(np.asarray(found, np.float64), (2, width))
        scale = np.where(numbers, 1.0, found[1] - found[0])
    shift = np.where(numbers, 0.0, found[0])
    return Recipe(places, function, scale, shift)


def _steps_of(recipe: Recipe, numbers: NDArray[np.bool_], steps: list[Any], constants: list[Array]) -> int:
    """Append what computes a recipe from the column, if that is a number; the place of its value."""
    place = 0
    if recipe.function is not None:
        first, known = len(steps), len(constants)
        constants.extend(recipe.function.constants)
        for name, *used in recipe.function.steps:
            moved = [each + first if each > 0 else each - known if each < 0 else 0 for each in used]
            steps.append((name, *moved))
        place = len(steps)
    for name, line, neutral in (("multiply", recipe.scale, 1.0), ("add", recipe.shift, 0.0)):
        if (line != neutral)[numbers].any():
            constants.append(line)
            steps.append((name, place, -len(constants)))
            place = len(steps)
    return place
