"""Products with an elementwise function of columns of X, which parties compute and keep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tablepuppet.algebra.functions import Function
from tablepuppet.algebra.kept_ops import applied
from tablepuppet.algebra.placement import Placement
from tablepuppet.algebra.products import TableProducts
from tablepuppet.errors import LearnError
from tablepuppet.prep.encode.encoded_table import EncodedTable


class Derived(TableProducts):
    """A function of columns of X: kept at parties until several others were asked for, then asked for again."""

    def __init__(self, placement: Placement, encoding: str, parts: Mapping[str, DerivedTable]):
        self._encoding, self._parts = encoding, parts
        self._key = tuple((alias, each.key) for alias, each in parts.items())
        self._made: dict[str, EncodedTable] = {}
        widths = {alias: each.width for alias, each in parts.items()}
        super().__init__(placement, {}, widths, {alias: each.numbers for alias, each in parts.items()})

    def local(self, alias: str) -> EncodedTable | None:
        """A function of the table's rows, if these were collected."""
        data = self.placement.collected.get(alias)
        if data is not None and alias not in self._made:
            self._made[alias] = self._parts[alias].of(data.centred(-self.placement.centres[alias]))
        return None if data is None else self._made[alias]

    def ready(self) -> Mapping[str, str]:
        """The name of the function at the parties, who are asked to apply it unless they have it."""
        name, is_kept = self.placement.slot(self._key)
        if not is_kept:
            there = [alias for alias in self.tables if alias not in self.placement.collected]
            by_alias = {alias: {"into": name, **self._parts[alias].arguments()} for alias in there}
            self.placement.client.widths |= {(alias, name): self._parts[alias].width for alias in there}
            self._lou.ask("matrix.apply", by_alias, by_alias=by_alias, encoding=self._encoding)
        return dict.fromkeys(self._parts, name)


class DerivedTable:
    """A function of some numbers of a table, with some of its category groups, whose widths are ``sizes``."""

    def __init__(self, function: Function, numbers: list[int], groups: list[int], sizes: list[int]):
        self._function, self.width = function, len(numbers) + sum(sizes)
        self._numbers, self._groups, self.numbers = (
            np.array(numbers, np.int64),
            np.array(groups, np.int64),
            len(numbers),
        )
        self.key = (function.key, tuple(numbers), tuple(groups))

    def arguments(self) -> dict[str, Any]:
        """As an op takes it."""
        return {
            "numbers": self._numbers, "groups": self._groups, "steps": list(self._function.steps),
            "constants": self._function.constants,
        }  # fmt: skip

    def of(self, data: EncodedTable) -> EncodedTable:
        """The function of rows that are here."""
        found = applied(data, self._numbers, self._groups, self._function.steps, self._function.constants)
        if not np.isfinite(found.dense).all():
            raise LearnError("the function is not finite for some rows; columns are standardised numbers")
        return found
