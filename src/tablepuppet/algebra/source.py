"""The joined matrix X of a relation, which is never built: its columns, and what all arrays that are made of it share.

Products with an elementwise function of its columns are those of another matrix, which parties compute and keep.
`products.py` computes products, `array.py` is the interface for NumPy, `placement.py` decides where tables compute.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.algebra.functions import Function
from tablepuppet.algebra.kept import Keeper
from tablepuppet.algebra.kept_ops import applied
from tablepuppet.algebra.placement import Placement
from tablepuppet.algebra.products import TableProducts
from tablepuppet.arrays import Array
from tablepuppet.errors import LearnError, PrivacyError
from tablepuppet.operators.client import Client
from tablepuppet.prep.columns.selected import is_public
from tablepuppet.prep.columns.statistics import NumberStatistics
from tablepuppet.prep.encode.encode import Encoding, NumberEncoder, apply_encoding
from tablepuppet.prep.encode.encoded_table import EncodedTable


@dataclass(frozen=True)
class DerivedTable:
    """A function of some numbers of a table, with some of its category groups, whose widths are ``sizes``."""

    function: Function
    places: tuple[int, ...]  # of the numbers
    groups: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def width(self) -> int:
        return len(self.places) + sum(self.sizes)

    def arguments(self) -> dict[str, Any]:
        """As an op takes it."""
        return {
            "numbers": np.array(self.places, np.int64), "groups": np.array(self.groups, np.int64),
            "steps": list(self.function.steps), "constants": self.function.constants,
        }  # fmt: skip

    def of(self, data: EncodedTable) -> EncodedTable:
        """The function of rows that are here."""
        found = applied(data, **self.arguments())
        if not np.isfinite(found.dense).all():
            raise LearnError("the function is not finite for some rows; columns are standardised numbers")
        return found


class Derived(TableProducts):
    """A function of columns of X: kept at parties until several others were asked for, then asked for again."""

    def __init__(self, placement: Placement, encoding: str, parts: Mapping[str, DerivedTable]):
        self._encoding, self._parts = encoding, parts
        self._made: dict[str, EncodedTable] = {}
        widths = {alias: each.width for alias, each in parts.items()}
        super().__init__(placement, {}, widths, {alias: len(each.places) for alias, each in parts.items()})

    def local(self, alias: str) -> EncodedTable | None:
        """A function of the table's rows, if these were collected."""
        data = self.placement.collected.get(alias)
        if data is not None and alias not in self._made:
            self._made[alias] = self._parts[alias].of(data.centred(-self.placement.centres[alias]))
        return None if data is None else self._made[alias]

    def ready(self) -> Mapping[str, str]:
        """The name of the function at the parties, who are asked to apply it unless they have it."""
        name, is_kept = self.placement.slot(tuple(self._parts.items()))
        if not is_kept:
            there = [alias for alias in self.tables if alias not in self.placement.collected]
            by_alias = {alias: {"into": name, **self._parts[alias].arguments()} for alias in there}
            self.placement.client.widths |= {(alias, name): self._parts[alias].width for alias in there}
            self._lou.ask("matrix.apply", by_alias, by_alias=by_alias, encoding=self._encoding)
        return dict.fromkeys(self._parts, name)


class MatrixSource:
    """X of a relation by an encoding: table after table, of each the numbers, then the categories.

    ``owner`` is what keeps the session open for as long as the matrix is used.
    """

    def __init__(self, client: Client, encoding: Encoding, wire: str, owner: object = None, plan: str = "cost"):
        apply_encoding(client, encoding)
        self.encoding, self.wire, self.owner, self.engine = encoding, wire, owner, client.engine
        self.placement = Placement(client, encoding, wire, plan)
        self.placement.centre()
        names = {alias: encoding.names(alias) for alias in encoding.numbers if alias in client.tables}
        numbers = {alias: len(encoding.numbers[alias]) for alias in names}
        wide = {alias: len(listed) for alias, listed in names.items()}
        self.products = TableProducts(self.placement, self.placement.names, wide, numbers, encoding)
        self.blocks = self.products.blocks
        self.columns = [name for listed in names.values() for name in listed]
        self.is_number = np.zeros(len(self.columns), bool)
        self.groups: list[tuple[int, int]] = []  # start and end of each category group
        for alias, block in self.blocks.items():
            start = block.start + len(encoding.numbers[alias])
            self.is_number[block.start : start] = True
            widths = [len(encoder.names) for encoder in encoding.categories[alias]]
            self.groups += list(pairwise(np.cumsum([start, *widths]).tolist()))

    @property
    def is_secure(self) -> bool:
        """Whether sums over the shards of some table are masked."""
        return any(alias in self.placement.client.secured.parties for alias in self.blocks)

    @cached_property
    def keeper(self) -> Keeper | None:
        """Who keeps vectors at parties, if they stay there."""
        return Keeper.of(self.placement, self.owner)

    def derived_tables(
        self, places: NDArray[np.intp], function: Function
    ) -> tuple[dict[str, DerivedTable], NDArray[np.intp]]:
        """(what tables must compute for a function of some columns, the position of each column in the result)."""
        parts, pick, end = {}, np.zeros(len(places), np.intp), 0
        for alias, block in self.blocks.items():
            here = (places >= block.start) & (places < block.stop)
            numbers, categories = np.flatnonzero(here & self.is_number[places]), here & ~self.is_number[places]
            pick[numbers] = end + np.arange(len(numbers))
            groups, sizes, start = [], [], end + len(numbers)
            within = [group for group in self.groups if block.start <= group[0] < block.stop]
            for number, (first, last) in enumerate(within):
                members = categories & (places >= first) & (places < last)
                if members.any():
                    pick[members] = start + places[members] - first
                    groups.append(number)
                    sizes.append(last - first)
                    start += last - first
            parts[alias] = DerivedTable(
                function.of(numbers), tuple((places[numbers] - block.start).tolist()), tuple(groups), tuple(sizes)
            )
            end += parts[alias].width
        return parts, pick

    def extremes(self, places: NDArray[np.intp]) -> tuple[Array, Array]:
        """(the least, the largest number) of some columns over the joined rows; one trip.

        Only of columns that are public, by the rules of statistics: PrivacyError else.
        """
        lows, highs = np.zeros(len(self.columns)), np.ones(len(self.columns))
        wanted, client = set(places.tolist()), self.placement.client
        encoders: dict[int, NumberEncoder] = {}
        for alias, block in self.blocks.items():
            for place, encoder in enumerate(self.encoding.numbers[alias], block.start):
                if place in wanted:
                    encoders[place] = encoder
        for encoder in encoders.values():
            if not is_public(client.plan, encoder.column):
                raise PrivacyError(
                    f"min and max: column {encoder.column.qualified!r} is not public, and extremes are single values "
                    "(policy rule level)",
                    rule="level",
                )
        asked = NumberStatistics(client, [encoder.column for encoder in encoders.values()])
        sums = self.products.ask_column_sums()
        summaries = asked.read()
        for place, encoder in encoders.items():
            found = summaries[encoder.column.name]
            if not found.count:
                raise LearnError(
                    f"min and max: column {encoder.column.qualified!r} has no value, or one in fewer rows than its "
                    "party releases (policy rule min_group)"
                )
            ends = (np.array([found.minimum, found.maximum]) - encoder.mean) / encoder.scale
            missing = [0.0] if found.missing else []  # which are the mean
            lows[place], highs[place] = min([ends[0], *missing]), max([ends[1], *missing])
        counts = sums.read()
        lows[~self.is_number] = (counts[~self.is_number] >= self.products.shape[0] - 0.5).astype(np.float64)
        highs[~self.is_number] = (counts[~self.is_number] > 0.5).astype(np.float64)
        return lows[places], highs[places]
