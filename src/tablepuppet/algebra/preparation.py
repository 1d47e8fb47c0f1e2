"""How the columns of a matrix were prepared, kept with a model so that it can be used over another relation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tablepuppet.algebra.functions import Function
from tablepuppet.errors import LearnError
from tablepuppet.operators.client import Client
from tablepuppet.prep.encode import Encoding
from tablepuppet.sql.query import OutputColumn
from tablepuppet.wire.engine import Engine

Array = NDArray[np.float64]


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

    def line_ends(self) -> Array:
        """What a category column has where it is 0, and where it is 1, (2, k)."""
        return np.stack([self.shift, self.shift + self.scale])

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
    recipe: Recipe | None = None

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
