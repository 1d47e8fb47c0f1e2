"""How the columns of a matrix were prepared, kept with a model so that it can be used over another relation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from tablepuppet.algebra.recipes import Recipe
from tablepuppet.errors import LearnError
from tablepuppet.operators.client import Client
from tablepuppet.prep.encode.encode import Encoding
from tablepuppet.sql.query import OutputColumn
from tablepuppet.wire.engine import Engine


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
