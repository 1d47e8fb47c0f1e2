"""The columns of a party's rows while fitted steps run over them (specs.py)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array, Mask
from tablepuppet.party.blind import Blinded, blind
from tablepuppet.party.groups import rows_by, rows_of
from tablepuppet.party.local_table import LocalTable
from tablepuppet.prep.columns.statistics import codes_of, shown
from tablepuppet.prep.columns.values import numbers

MOST_FACTORS = 5  # of a product that is compared with those of fewer


@dataclass(frozen=True)
class NumberColumn:
    """Numbers, and which rows have one."""

    values: Array
    present: Mask
    factors: tuple[NumberColumn, ...] = ()  # of a product, in the order they were multiplied

    def usual(self, firsts: Mask) -> float:
        """The median over different rows; NaN if there is none."""
        values = self.values[self.present & firsts]
        return float(np.partition(values, len(values) // 2)[len(values) // 2]) if len(values) else math.nan

    def is_unusual(self, firsts: Mask) -> Mask:
        """Which rows have another number than the usual one: where most have the same, the few that differ."""
        return np.asarray(self.present & (self.values != self.usual(firsts)))


@dataclass(frozen=True)
class CodedColumn:
    """Codes, -1 where a row has none; which rows have no value at all; and the digests that the codes come from."""

    codes: NDArray[np.int32]
    missing: Mask
    blinded: Blinded | None = None


AnyColumn = NumberColumn | CodedColumn


@dataclass
class Frame:
    """Columns by name, read when a step or a caller needs them.

    ``learned``: statistics are taken of these rows, or a model learns from them. Both see the same columns, in which
    there is nothing that the policy's ``min_group`` hides from statistics: numbers that fewer rows have are missing, a
    code that fewer rows have is none, and a flag, product or lookup by which fewer rows differ from all others is the
    same everywhere. Rows to predict are as they are, each by itself.
    """

    table: LocalTable
    view: str
    blinding: str
    categories: Mapping[str, tuple[str, NDArray[np.uint8]]]  # family, and the digests that have codes
    private: bool = False  # numbers are within the policy's bounds, and those that are not finite are missing
    learned: bool = False
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
        present = shown(self.table, self.view, present) if self.learned else present
        return NumberColumn(values, present)

    def coded(self, name: str) -> CodedColumn:
        """A column of codes."""
        changed = self._changed.get(name)
        if isinstance(changed, CodedColumn):
            return changed
        family, known = self.categories[name]
        blinded = blind([self.table.column(name, self.view)], [family], self.table.category_key(self.blinding, name))
        codes = np.append(codes_of(blinded.digests, known), np.int32(-1))[blinded.codes]
        return self._of_groups(CodedColumn(codes, blinded.codes == len(blinded.digests), blinded))

    def missing(self, name: str) -> Mask:
        """Which rows have no value in a column, of numbers or of codes."""
        return self.coded(name).missing if self.is_coded(name) else ~self.number(name).present

    def is_coded(self, name: str) -> bool:
        """Whether a column has codes now, else numbers."""
        return isinstance(self._changed[name], CodedColumn) if name in self._changed else name in self.categories

    def _of_groups(self, column: CodedColumn) -> CodedColumn:
        """The column; where statistics are taken, a code that few rows have is none, whoever listed it."""
        if not self.learned or not len(column.codes):
            return column
        kept = self.table.grant.is_group(rows_by(self.table.view(self.view), column.codes, column.codes.max() + 1))
        if kept.all():
            return column
        found = np.append(np.where(kept, np.arange(len(kept)), -1), -1).astype(np.int32)  # the code -1 finds the last
        return replace(column, codes=found[column.codes])

    def _varied(self, column: NumberColumn) -> NumberColumn:
        """The column; if few rows differ from the others, the number of these everywhere: 0, of products of flags."""
        rows = self.table.view(self.view)
        if not self.learned or self.table.grant.is_group(rows_of(rows, column.is_unusual(rows.firsts))):
            return column
        return NumberColumn(np.full_like(column.values, column.usual(rows.firsts)), column.present)

    def product(self, factors: Sequence[NumberColumn]) -> NumberColumn:
        """The product of columns. Where statistics are taken, it is that of fewer of them if few rows differ from it:
        the difference of the two sums would be of these rows, as of ``f * x`` and ``f * g * x`` for flags f and g.
        """
        with np.errstate(all="ignore"):
            values = reduce(np.multiply, [each.values for each in factors])
        found = NumberColumn(values, np.logical_and.reduce([each.present for each in factors]), tuple(factors))
        if self.learned and 1 < len(factors) <= MOST_FACTORS:
            rows = self.table.view(self.view)
            for place in range(len(factors)):
                fewer = self.product([*factors[:place], *factors[place + 1 :]])
                apart = (fewer.present != found.present) | (found.present & (fewer.values != found.values))
                if not self.table.grant.is_group(rows_of(rows, apart)):
                    return fewer
        return found

    def put(self, name: str, column: AnyColumn, is_linear: bool = False) -> None:
        """Change or add a column; ``is_linear``: sums of it follow from those of the column before."""
        if isinstance(column, CodedColumn):
            column = self._of_groups(column)
        elif not is_linear:
            column = self._varied(column)
        if self.learned and isinstance(column, NumberColumn):
            is_filled = column.present.all() and not self.is_coded(name)  # then no row differs by having a number
            column = column if is_filled else replace(column, present=shown(self.table, self.view, column.present))
        self._changed[name] = column

    def drop(self, name: str) -> None:
        """Forget what a column has become."""
        self._changed.pop(name, None)

    def flag(self, is_set: Mask) -> NumberColumn:
        """A column of 0 and 1."""
        if self.learned:
            rows, grant = self.table.view(self.view), self.table.grant
            ones, others = rows_of(rows, is_set), rows_of(rows, ~is_set)
            if not (grant.is_group(ones) and grant.is_group(others)):
                is_set = np.full_like(is_set, ones > others)
        return NumberColumn(is_set.astype(np.float64), np.ones_like(is_set))
