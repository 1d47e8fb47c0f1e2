"""The columns of a party's rows while fitted steps run over them (specs.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tablepuppet.errors import PartyError
from tablepuppet.mapping.digests import number_digests
from tablepuppet.party.blind import Blinded, blind
from tablepuppet.party.local_table import LocalTable
from tablepuppet.prep.columns.values import numbers

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class NumberColumn:
    """Numbers, and which rows have one."""

    values: Floats
    present: Mask


@dataclass(frozen=True)
class CodedColumn:
    """Codes, -1 where a row has none; which rows have no value at all; and the digests that the codes come from."""

    codes: NDArray[np.int32]
    missing: Mask
    blinded: Blinded | None = None


AnyColumn = NumberColumn | CodedColumn


@dataclass
class Frame:
    """Columns by name, read when a step or a caller needs them."""

    table: LocalTable
    view: str
    blinding: str
    categories: Mapping[str, tuple[str, NDArray[np.uint8]]]  # family, and the digests that have codes
    private: bool = False  # numbers are within the policy's bounds, and those that are not finite are missing
    few: set[str] = field(default_factory=set, init=False)  # columns that fewer rows than min_group had before a fill
    _changed: dict[str, AnyColumn] = field(default_factory=dict, init=False)

    def number(self, name: str) -> NumberColumn:
        """A column of numbers."""
        changed = self._changed.get(name)
        if isinstance(changed, NumberColumn):
            return changed
        values, present = numbers(self.table.column(name, self.view))
        if self.private:
            bounds = self.table.grant.outputs[name].rule.bounds
            present = present & np.isfinite(values)
            values = values if bounds is None else np.clip(values, *bounds)
        return NumberColumn(values, present)

    def coded(self, name: str) -> CodedColumn:
        """A column of codes."""
        changed = self._changed.get(name)
        if isinstance(changed, CodedColumn):
            return changed
        family, known = self.categories[name]
        blinded = blind([self.table.column(name, self.view)], [family], self.table.category_key(self.blinding, name))
        codes = np.append(codes_of(blinded.digests, known), np.int32(-1))[blinded.codes]
        return CodedColumn(codes, blinded.codes == len(blinded.digests), blinded)

    def missing(self, name: str) -> Mask:
        """Which rows have no value in a column, of numbers or of codes."""
        is_coded = isinstance(self._changed[name], CodedColumn) if name in self._changed else name in self.categories
        return self.coded(name).missing if is_coded else ~self.number(name).present

    def put(self, name: str, column: AnyColumn) -> None:
        """Change or add a column."""
        self._changed[name] = column

    def drop(self, name: str) -> None:
        """Forget what a column has become."""
        self._changed.pop(name, None)

    def has_few(self, column: NumberColumn) -> bool:
        """Whether fewer rows than ``min_group`` have a number."""
        return not self.table.grant.is_group(int(np.count_nonzero(column.present & self.table.view(self.view).firsts)))


def codes_of(digests: NDArray[np.uint8], known: NDArray[np.uint8]) -> NDArray[np.int32]:
    """The code of each digest among the known ones; -1 where it is new.

    PartyError if two known ones are equal: codes of new ones would then depend on each other.
    """
    (numbers_known, numbers_here), _ = number_digests([known, digests])
    if len(known) and numbers_known.max() + 1 < len(known):
        raise PartyError("a category is listed twice")
    return np.where(numbers_here < len(known), numbers_here, -1).astype(np.int32)
