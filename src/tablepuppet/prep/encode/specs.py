"""Fitted steps of a pipeline, in the form in which they are sent to a party and saved with a model.

Each is a small Struct that says how one column is changed, and has all that is known about such a step: what it makes
of a party's rows (frame.py), of the shape of a column, and of bounds, which replace statistics where there is noise.
program.py applies lists of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import pairwise
from typing import Annotated, ClassVar, Literal

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from tablepuppet.arrays import Array
from tablepuppet.errors import LearnError, PartyError
from tablepuppet.prep.columns.given_bounds import Bounds
from tablepuppet.prep.columns.values import PART_BOUNDS, DatePart, date_part
from tablepuppet.prep.encode.frame import AnyColumn, CodedColumn, Frame, NumberColumn

FARTHEST = 1e155  # of a number in a step: its square is an ordinary number
FARTHEST_BOUND = 1e140  # sums of squares of it are ordinary numbers
NUMBERS = -1  # the size of a column that holds numbers
MOST_CODES = 1 << 16
FLAG = (0.0, 1.0)
LOG_SPAN = 6 * math.log(10)  # below the highest logarithm, where the lowest number has none

Value = Annotated[float, Meta(ge=-FARTHEST, le=FARTHEST)]
Width = Annotated[float, Meta(ge=1 / FARTHEST, le=FARTHEST)]
Code = Annotated[int, Meta(ge=0, le=MOST_CODES)]
Size = Annotated[int, Meta(ge=1, le=MOST_CODES)]
Values = Annotated[Sequence[Value], Meta(max_length=MOST_CODES)]
Folds = Annotated[int, Meta(ge=2, le=100)]
Seed = Annotated[int, Meta(ge=0, le=(1 << 32) - 1)]
Factors = Annotated[Sequence[str], Meta(min_length=1, max_length=16)]


class FittedStep(msgspec.Struct, frozen=True, tag_field="kind"):
    """A fitted step: it changes a column, or makes one, called ``output``.

    An op that takes fitted steps takes every class below with a tag of its own.
    """

    linear: ClassVar[bool] = False  # sums after it follow from sums before it, whatever its numbers are
    wants: ClassVar[Literal["numbers", "codes", "either"]] = "numbers"  # in the columns that it reads

    @property
    def reads(self) -> Sequence[str]:
        """The columns that it reads."""
        raise NotImplementedError

    @property
    def writes(self) -> str:
        """The column that it changes or makes."""
        return str(getattr(self, "output", self.reads[0]))

    def size_after(self, size: int, has_digests: bool) -> int:
        """The size of the column that it changes: `NUMBERS`, or how many codes there are.

        PartyError if it does not fit. ``has_digests``: the column holds categories that no step has changed.
        """
        return size

    def run(self, frame: Frame) -> AnyColumn:
        """What it makes of a party's rows: the column that it writes."""
        raise NotImplementedError

    def bounds(self, known: Mapping[str, Bounds]) -> Bounds | None:
        """Bounds of the column that it writes, from those of columns of numbers; None where it holds codes then."""
        return None

    def undo(self, values: Array) -> Array:
        """Values before the step, from those after it; LearnError where it cannot be undone."""
        raise LearnError(f"column {self.writes!r} is made by steps that cannot be undone")


class ColumnStep(FittedStep, frozen=True):
    """A step that reads one column."""

    column: str

    @property
    def reads(self) -> Sequence[str]:
        """The columns that it reads."""
        return [self.column]

    def refusal(self, reason: str) -> PartyError:
        """The error that the step does not fit its column."""
        return PartyError(f"column {self.column[:100]!r} {reason}")


class NumberFunction(ColumnStep, frozen=True):
    """A rising function of each number."""

    def values(self, values: Array) -> Array:
        raise NotImplementedError

    def value(self, value: float) -> float:
        return float(self.values(np.array([value]))[0])

    def run(self, frame: Frame) -> AnyColumn:
        """The function's values; those that are not numbers are missing."""
        before = frame.number(self.column)
        with np.errstate(all="ignore"):
            values = self.values(before.values)
        return NumberColumn(values, before.present & ~(np.isnan(values) & ~np.isnan(before.values)))

    def bounds(self, known: Mapping[str, Bounds]) -> Bounds | None:
        """The function's values for the bounds before."""
        with np.errstate(over="ignore"):
            low, high = self.values(np.array(known[self.column])).tolist()
        return low, high


class Scale(NumberFunction, frozen=True, tag="scale"):
    """(value - centre) / scale."""

    linear = True
    centre: Value
    scale: Width

    def values(self, values: Array) -> Array:
        return np.asarray((values - self.centre) / self.scale)

    def undo(self, values: Array) -> Array:
        return values * self.scale + self.centre


class Clipped(NumberFunction, frozen=True, tag="clip"):
    """Values below ``low`` are ``low``, those above ``high`` are ``high``."""

    low: Value
    high: Value

    def size_after(self, size: int, has_digests: bool) -> int:
        return _rising(self, size)

    def values(self, values: Array) -> Array:
        return np.clip(values, self.low, self.high)

    def undo(self, values: Array) -> Array:
        return values


class Logarithm(NumberFunction, frozen=True, tag="log"):
    """log(value + offset); missing where that has none."""

    offset: Value

    def values(self, values: Array) -> Array:
        moved = values + self.offset
        return np.log(np.where(moved > 0, moved, np.nan))

    def bounds(self, known: Mapping[str, Bounds]) -> Bounds | None:
        low, high = (each + self.offset for each in known[self.column])
        if high <= 0:  # no number has one
            return FLAG
        return math.log(low) if low > 0 else math.log(high) - LOG_SPAN, math.log(high)

    def undo(self, values: Array) -> Array:
        return np.exp(values) - self.offset


class Exponent(NumberFunction, frozen=True, tag="power"):
    """The power of the value's size, with its sign."""

    exponent: Annotated[float, Meta(ge=1e-3, le=1e3)]

    def values(self, values: Array) -> Array:
        return _power(values, self.exponent)

    def undo(self, values: Array) -> Array:
        return _power(values, 1 / self.exponent)


def _power(values: Array, exponent: float) -> Array:
    return np.asarray(np.sign(values) * np.abs(values) ** exponent)


class Fill(ColumnStep, frozen=True, tag="fill"):
    """A missing number is ``value``."""

    linear = True
    value: Value

    def run(self, frame: Frame) -> AnyColumn:
        column = frame.number(self.column)
        if column.present.all():
            return column
        values = np.where(column.present, column.values, self.value)
        return NumberColumn(values, np.ones_like(column.present))

    def bounds(self, known: Mapping[str, Bounds]) -> Bounds | None:
        low, high = known[self.column]
        return min(low, self.value), max(high, self.value)

    def undo(self, values: Array) -> Array:
        return values


class Without(ColumnStep, frozen=True, tag="without"):
    """Values below ``low`` or above ``high`` are missing."""

    low: Value
    high: Value

    def size_after(self, size: int, has_digests: bool) -> int:
        return _rising(self, size)

    def run(self, frame: Frame) -> AnyColumn:
        column = frame.number(self.column)
        inside = (column.values >= self.low) & (column.values <= self.high)
        return NumberColumn(column.values, column.present & inside)

    def bounds(self, known: Mapping[str, Bounds]) -> Bounds | None:
        return Clipped(self.column, self.low, self.high).bounds(known)

    def undo(self, values: Array) -> Array:
        return values


def _rising(step: Clipped | Without, size: int) -> int:
    if step.low > step.high:
        raise PartyError(f"column {step.column[:100]!r}: the low bound is above the high one")
    return size


class Missing(ColumnStep, frozen=True, tag="missing"):
    """Make a column: 1 where there is no value, else 0."""

    linear = True
    wants = "either"
    output: str

    def run(self, frame: Frame) -> AnyColumn:
        missing = frame.missing(self.column)
        if frame.is_coded(self.column):
            return frame.flag(missing)
        return NumberColumn(missing.astype(np.float64), np.ones_like(missing))  # how many have a number is no secret

    def bounds(self, known: Mapping[str, Bounds]) -> Bounds | None:
        return FLAG


class Outside(ColumnStep, frozen=True, tag="outside"):
    """Make a column: 1 where the value is below ``low`` or above ``high``, else 0."""

    low: Value
    high: Value
    output: str

    def run(self, frame: Frame) -> AnyColumn:
        column = frame.number(self.column)
        return frame.flag(column.present & ((column.values < self.low) | (column.values > self.high)))

    def bounds(self, known: Mapping[str, Bounds]) -> Bounds | None:
        return FLAG


class Part(ColumnStep, frozen=True, tag="date_part"):
    """Make a column: a part of a date, which is in days since 1970-01-01. Monday is the weekday 0."""

    part: DatePart
    output: str

    def run(self, frame: Frame) -> AnyColumn:
        column = frame.number(self.column)
        values = date_part(column.values, self.part)
        return NumberColumn(values, column.present & ~np.isnan(values))

    def bounds(self, known: Mapping[str, Bounds]) -> Bounds | None:
        if self.part in PART_BOUNDS:
            return PART_BOUNDS[self.part]
        low, high = date_part(np.array(known[self.column]), self.part).tolist()
        return (low, high) if not math.isnan(low + high) else (1900.0, 2100.0)


class Product(FittedStep, frozen=True, tag="product"):
    """Make a column: the product of columns, of which one may be listed twice."""

    factors: Factors
    output: str

    @property
    def reads(self) -> Sequence[str]:
        return self.factors

    def run(self, frame: Frame) -> AnyColumn:
        columns = [frame.number(name) for name in self.factors]
        return frame.product([factor for column in columns for factor in column.factors or [column]])

    def bounds(self, known: Mapping[str, Bounds]) -> Bounds | None:
        def times(one: Bounds, other: Bounds) -> Bounds:
            ends = [a * b for a in one for b in other]
            return within(min(ends)), within(max(ends))

        return reduce(times, [known[name] for name in self.factors])


def within(bound: float) -> float:
    """A bound that can be squared and summed."""
    return min(max(bound, -FARTHEST_BOUND), FARTHEST_BOUND)


class Cut(ColumnStep, frozen=True, tag="cut"):
    """The number of the bin: edges rise; a value beyond them is in the first or last bin."""

    edges: Values

    def size_after(self, size: int, has_digests: bool) -> int:
        if len(self.edges) < 2 or any(after <= before for before, after in pairwise(self.edges)):
            raise PartyError(f"bins of column {self.column[:100]!r} need edges that rise")
        return len(self.edges) - 1

    def run(self, frame: Frame) -> AnyColumn:
        column = frame.number(self.column)
        inner = np.array(self.edges[1:-1], np.float64)
        codes = np.searchsorted(inner, column.values, side="right").astype(np.int32)
        codes[~column.present] = -1
        return CodedColumn(codes, ~column.present)


class FillCode(ColumnStep, frozen=True, tag="fill_code"):
    """A missing category has this code: that of another one, or one more."""

    wants = "codes"
    code: Code

    def size_after(self, size: int, has_digests: bool) -> int:
        if self.code > size:
            raise self.refusal(f"has no code {self.code}")
        return max(size, self.code + 1)

    def run(self, frame: Frame) -> AnyColumn:
        column = frame.coded(self.column)
        codes = np.where(column.missing, np.int32(self.code), column.codes)
        return CodedColumn(codes, np.zeros_like(column.missing))


class Other(ColumnStep, frozen=True, tag="other"):
    """Categories that are not listed have one more code."""

    wants = "codes"

    def size_after(self, size: int, has_digests: bool) -> int:
        if not has_digests:
            raise self.refusal("has no categories that are not listed")
        return size + 1

    def run(self, frame: Frame) -> AnyColumn:
        column, (_, listed) = frame.coded(self.column), frame.categories[self.column]
        codes = np.where((column.codes < 0) & ~column.missing, np.int32(len(listed)), column.codes)
        return CodedColumn(codes, column.missing)


class Hashed(ColumnStep, frozen=True, tag="hashed"):
    """Categories as one of ``size`` codes, by their digests."""

    wants = "codes"
    size: Size

    def size_after(self, size: int, has_digests: bool) -> int:
        if not has_digests:
            raise self.refusal("has no categories to hash")
        return self.size

    def run(self, frame: Frame) -> AnyColumn:
        column = frame.coded(self.column)
        assert column.blinded is not None, "it was checked"
        words = np.ascontiguousarray(column.blinded.digests[:, :8]).view("<u8").ravel()
        codes = np.append((words % np.uint64(self.size)).astype(np.int32), np.int32(-1))[column.blinded.codes]
        return CodedColumn(codes, column.missing)


class Lookup(ColumnStep, frozen=True, tag="lookup"):
    """A number for each code; for what is not listed, and for what is missing (None: a missing number)."""

    wants = "codes"
    values: Values
    other: Value | None
    missing: Value | None

    def size_after(self, size: int, has_digests: bool) -> int:
        if len(self.values) != size:
            raise self.refusal("needs a number for each of its codes")
        return NUMBERS

    def run(self, frame: Frame) -> AnyColumn:
        column = frame.coded(self.column)
        table = np.array([*self.values, 0.0 if self.other is None else self.other])
        values = table[column.codes]  # the code -1 finds the last
        present = np.ones(len(values), bool) if self.other is not None else column.codes >= 0
        present = np.where(column.missing, self.missing is not None, present)
        if self.missing is not None:
            values = np.where(column.missing, self.missing, values)
        return NumberColumn(values, present)

    def bounds(self, known: Mapping[str, Bounds]) -> Bounds | None:
        values = [*self.values, *(each for each in (self.other, self.missing) if each is not None)]
        return min(values, default=0.0), max(values, default=1.0)


class FoldLookup(ColumnStep, frozen=True, tag="fold_lookup"):
    """A lookup with different numbers for the rows of each fold, learned without these rows.

    Folds are parts of the base rows of a shard that take part, by their places in the source (`fold_numbers`).
    ``values`` has the numbers of one fold after those of another, ``other`` and ``missing`` one number for each fold.
    ``full`` is for rows to predict.
    """

    wants = "codes"
    folds: Folds
    seed: Seed
    shuffle: bool
    values: Values
    other: Values
    missing: Values
    full: Lookup

    def size_after(self, size: int, has_digests: bool) -> int:
        if {len(self.other), len(self.missing)} != {self.folds} or len(self.values) != self.folds * size:
            raise self.refusal("needs numbers for each of its folds")
        return self.full.size_after(size, has_digests)

    def run(self, frame: Frame) -> AnyColumn:
        column = frame.coded(self.column)
        folds = self._dealt(frame)
        other, missing = np.array(self.other), np.array(self.missing)
        table = np.column_stack([np.reshape(self.values, (self.folds, -1)), other])  # the code -1 finds the last
        values = np.where(column.missing, missing[folds], table[folds, column.codes])
        return NumberColumn(values, np.ones(len(values), bool))

    def _dealt(self, frame: Frame) -> NDArray[np.intp]:
        """The fold of each row, counted as ``rows.sample`` counts it: the caller may find the folds in the numbers."""
        rows = frame.table.view(frame.view)
        folds = fold_numbers(frame.table.snapshot.place(rows.row_ids), self.folds, self.seed, self.shuffle)
        again = None if rows.is_each_once else (~rows.firsts).astype(np.int64)
        for bit in range((self.folds - 1).bit_length()):
            frame.table.count_split(frame.view, rows.firsts & (folds >> bit & 1 > 0), again)
        return folds


class Drop(ColumnStep, frozen=True, tag="drop"):
    """The column is left out."""

    linear = True
    wants = "either"


def fold_numbers(places: NDArray[np.integer], folds: int, seed: int, shuffle: bool) -> NDArray[np.intp]:
    """The fold of each row, as scikit-learn's `KFold` deals rows in the order of places; equal places are one row.

    >>> fold_numbers(np.array([7, 3, 9, 3, 5]), 2, 0, shuffle=False).tolist()
    [1, 0, 1, 0, 0]
    """
    known, ranks = np.unique(places, return_inverse=True)
    order = np.arange(len(known))
    if shuffle:
        np.random.RandomState(seed).shuffle(order)
    found = np.empty(len(known), np.intp)
    for number, part in enumerate(np.array_split(order, folds)):
        found[part] = number
    return found[ranks]
