"""The columns of a party's rows while the steps of a pipeline run over them (specs.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce, singledispatch

import numpy as np
from numpy.typing import NDArray

from tablepuppet.errors import LearnError, PartyError
from tablepuppet.mapping.digests import number_digests
from tablepuppet.party.allowance import check_memory, check_time
from tablepuppet.party.blind import Blinded, blind
from tablepuppet.party.local_table import LocalTable
from tablepuppet.prep.specs import (
    Clipped,
    Cut,
    DatePart,
    Drop,
    Exponent,
    Fill,
    FillCode,
    FittedStep,
    FoldLookup,
    Hashed,
    Logarithm,
    Lookup,
    Missing,
    Other,
    Outside,
    Part,
    Product,
    Scale,
    StepSpec,
    Without,
    fold_numbers,
)
from tablepuppet.prep.values import numbers

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
_DAY = 86_400_000_000  # microseconds
_EARLIEST, _LATEST = -719_528.0, 2_932_896.0  # days of the years 0 and 9999: dates beyond have no parts


@dataclass(frozen=True)
class NumberColumn:
    """Numbers, and which rows have one."""

    values: Floats
    present: Mask


def has_few(table: LocalTable, view: str, column: NumberColumn) -> bool:
    """Whether fewer rows than ``min_group`` have a number."""
    return not table.grant.is_group(int(np.count_nonzero(column.present & table.view(view).firsts)))


@dataclass(frozen=True)
class CodedColumn:
    """Codes, -1 where a row has none; which rows have no value at all; and the digests that the codes come from."""

    codes: NDArray[np.int32]
    missing: Mask
    blinded: Blinded | None = None


@dataclass
class Frame:
    """Columns by name, read when a step or a caller needs them."""

    table: LocalTable
    view: str
    blinding: str
    categories: Mapping[str, tuple[str, NDArray[np.uint8]]]  # family, and the digests that have codes
    private: bool = False  # numbers are within the policy's bounds, and those that are not finite are missing
    few: set[str] = field(default_factory=set, init=False)  # columns that fewer rows than min_group had before a fill
    _numbers: dict[str, NumberColumn] = field(default_factory=dict, init=False)
    _coded: dict[str, CodedColumn] = field(default_factory=dict, init=False)

    def run(self, steps: Sequence[StepSpec]) -> None:
        """Run steps that fit."""
        self._check_folds(steps)
        rows = len(self.table.view(self.view).row_ids)
        touched = {step.writes for step in steps} | {name for step in steps for name in step.reads}
        check_memory(9 * rows * len(touched))
        for step in steps:
            check_time()
            _run(step, self)

    def _check_folds(self, steps: Sequence[StepSpec]) -> None:
        """PartyError for folds that single out a few rows: numbers by fold are of the caller's choice.

        Two ways to deal the rows would cut each other's folds.
        """
        where, dealt = f"party {self.table.grant.party!r}", set()
        for step in steps:
            if isinstance(step, FoldLookup):
                dealt.add((step.folds, step.seed, step.shuffle))
        if len(dealt) > 1:
            raise PartyError(f"{where}: steps with folds must deal rows alike, by the same folds, seed and shuffle")
        for folds, _, _ in dealt:
            least = folds * self.table.grant.rules.min_group
            if int(self.table.view(self.view).firsts.sum()) < least:
                raise PartyError(
                    f"{where}, table {self.table.grant.table!r}: {folds} folds need {least:,} rows that take part, the "
                    "`min_group` of its policy in each, and there are fewer; take fewer folds, or folds=1"
                )

    def number(self, name: str) -> NumberColumn:
        """A column of numbers."""
        if name in self._numbers:
            return self._numbers[name]
        values, present = numbers(self.table.column(name, self.view))
        if self.private:
            bounds = self.table.grant.outputs[name].rule.bounds
            present = present & np.isfinite(values)
            values = values if bounds is None else np.clip(values, *bounds)
        return NumberColumn(values, present)

    def coded(self, name: str) -> CodedColumn:
        """A column of codes."""
        if name not in self._coded:
            family, known = self.categories[name]
            key = self.table.category_key(self.blinding, name)
            blinded = blind([self.table.column(name, self.view)], [family], key)
            codes = np.append(codes_of(blinded.digests, known), np.int32(-1))[blinded.codes]
            return CodedColumn(codes, blinded.codes == len(blinded.digests), blinded)
        return self._coded[name]

    def size(self, name: str) -> int:
        """How many categories of a column are listed."""
        return len(self.categories[name][1])

    def put(self, name: str, column: NumberColumn | CodedColumn) -> None:
        """Change or add a column."""
        self.drop(name)
        if isinstance(column, NumberColumn):
            self._numbers[name] = column
        else:
            self._coded[name] = column

    def drop(self, name: str) -> None:
        """Forget what a column has become."""
        self._numbers.pop(name, None)
        self._coded.pop(name, None)

    def change(self, name: str, function: Callable[[Floats], Floats]) -> None:
        """Apply a function to the values of a column; results that are not numbers are missing."""
        column = self.number(name)
        with np.errstate(all="ignore"):
            values = function(column.values)
        self.put(name, NumberColumn(values, column.present & ~(np.isnan(values) & ~np.isnan(column.values))))


@singledispatch
def _run(step: FittedStep, frame: Frame) -> None:
    """Run one step."""
    raise AssertionError(f"no step {type(step).__name__}")


def codes_of(digests: NDArray[np.uint8], known: NDArray[np.uint8]) -> NDArray[np.int32]:
    """The code of each digest among the known ones; -1 where it is new.

    PartyError if two known ones are equal: codes of new ones would then depend on each other.
    """
    (numbers_known, numbers_here), _ = number_digests([known, digests])
    if len(known) and numbers_known.max() + 1 < len(known):
        raise PartyError("a category is listed twice")
    return np.where(numbers_here < len(known), numbers_here, -1).astype(np.int32)


@_run.register
def _fill(step: Fill, frame: Frame) -> None:
    column = frame.number(step.column)
    if not column.present.all():
        if has_few(frame.table, frame.view, column):
            frame.few.add(step.column)
        values = np.where(column.present, column.values, step.value)
        frame.put(step.column, NumberColumn(values, np.ones_like(column.present)))


@_run.register
def _fill_code(step: FillCode, frame: Frame) -> None:
    column = frame.coded(step.column)
    codes = np.where(column.missing, np.int32(step.code), column.codes)
    frame.put(step.column, CodedColumn(codes, np.zeros_like(column.missing)))


@_run.register
def _missing(step: Missing, frame: Frame) -> None:
    is_coded = step.column in frame._coded or (step.column in frame.categories and step.column not in frame._numbers)
    missing = frame.coded(step.column).missing if is_coded else ~frame.number(step.column).present
    frame.put(step.output, NumberColumn(missing.astype(np.float64), np.ones_like(missing)))


@_run.register
def _outside(step: Outside, frame: Frame) -> None:
    column = frame.number(step.column)
    odd = column.present & ((column.values < step.low) | (column.values > step.high))
    frame.put(step.output, NumberColumn(odd.astype(np.float64), np.ones_like(odd)))


@_run.register
def _without(step: Without, frame: Frame) -> None:
    column = frame.number(step.column)
    inside = (column.values >= step.low) & (column.values <= step.high)
    frame.put(step.column, NumberColumn(column.values, column.present & inside))


def scaled(values: Floats, centre: float, scale: float) -> Floats:
    """(values - centre) / scale."""
    return np.asarray((values - centre) / scale)


def logarithm(values: Floats, offset: float) -> Floats:
    """log(values + offset); NaN where that has none."""
    moved = values + offset
    return np.log(np.where(moved > 0, moved, np.nan))


def power(values: Floats, exponent: float) -> Floats:
    """The power of the values' sizes, with their signs."""
    return np.asarray(np.sign(values) * np.abs(values) ** exponent)


@_run.register
def _cut(step: Cut, frame: Frame) -> None:
    column = frame.number(step.column)
    inner = np.array(step.edges[1:-1], np.float64)
    codes = np.searchsorted(inner, column.values, side="right").astype(np.int32)
    codes[~column.present] = -1
    frame.put(step.column, CodedColumn(codes, ~column.present))


@_run.register
def _other(step: Other, frame: Frame) -> None:
    column = frame.coded(step.column)
    more = np.int32(frame.size(step.column))
    codes = np.where((column.codes < 0) & ~column.missing, more, column.codes)
    frame.put(step.column, CodedColumn(codes, column.missing))


@_run.register
def _lookup(step: Lookup, frame: Frame) -> None:
    column = frame.coded(step.column)
    table = np.array([*step.values, 0.0 if step.other is None else step.other])
    values = table[column.codes]  # the code -1 finds the last
    present = np.ones(len(values), bool) if step.other is not None else column.codes >= 0
    present = np.where(column.missing, step.missing is not None, present)
    if step.missing is not None:
        values = np.where(column.missing, step.missing, values)
    frame.put(step.column, NumberColumn(values, present))


@_run.register
def _fold_lookup(step: FoldLookup, frame: Frame) -> None:
    column = frame.coded(step.column)
    folds = fold_numbers(frame.table.view(frame.view).row_ids, step.folds, step.seed, step.shuffle)
    other, missing = np.array(step.other), np.array(step.missing)
    table = np.column_stack([np.reshape(step.values, (step.folds, -1)), other])  # the code -1 finds the last
    values = np.where(column.missing, missing[folds], table[folds, column.codes])
    frame.put(step.column, NumberColumn(values, np.ones(len(values), bool)))


@_run.register
def _hashed(step: Hashed, frame: Frame) -> None:
    column = frame.coded(step.column)
    assert column.blinded is not None, "it was checked"
    words = np.ascontiguousarray(column.blinded.digests[:, :8]).view("<u8").ravel()
    codes = np.append((words % np.uint64(step.size)).astype(np.int32), np.int32(-1))[column.blinded.codes]
    frame.put(step.column, CodedColumn(codes, column.missing))


@_run.register
def _product(step: Product, frame: Frame) -> None:
    factors = [frame.number(name) for name in step.factors]
    with np.errstate(all="ignore"):
        values = reduce(np.multiply, [each.values for each in factors])
    frame.put(step.output, NumberColumn(values, np.logical_and.reduce([each.present for each in factors])))


def date_part(days: Floats, part: DatePart) -> Floats:
    """A part of dates, which are days since 1970-01-01; NaN for what no calendar has.

    >>> date_part(np.array([0.75]), "hour").tolist(), date_part(np.array([59.0]), "month").tolist()
    ([18.0], [3.0])
    """
    known = np.isfinite(days) & (days >= _EARLIEST) & (days <= _LATEST)
    ticks = np.rint(np.where(known, days, 0.0) * _DAY).astype(np.int64)
    whole = ticks // _DAY
    dates = whole.astype("datetime64[D]")
    years, months = dates.astype("datetime64[Y]"), dates.astype("datetime64[M]")
    seconds = (ticks - whole * _DAY) // 1_000_000
    thursdays = dates + (3 - (whole + 3) % 7)  # an ISO week is that of its Thursday
    found: dict[DatePart, Callable[[], NDArray[np.int64]]] = {
        "year": lambda: years.astype(np.int64) + 1970,
        "quarter": lambda: months.astype(np.int64) % 12 // 3 + 1,
        "month": lambda: months.astype(np.int64) % 12 + 1,
        "week": lambda: (thursdays - thursdays.astype("datetime64[Y]")).astype(np.int64) // 7 + 1,
        "day": lambda: (dates - months).astype(np.int64) + 1,
        "weekday": lambda: (whole + 3) % 7,
        "yearday": lambda: (dates - years).astype(np.int64) + 1,
        "hour": lambda: seconds // 3600,
        "minute": lambda: seconds // 60 % 60,
        "second": lambda: seconds % 60,
    }
    return np.where(known, found[part]().astype(np.float64), np.nan)


@_run.register
def _part(step: Part, frame: Frame) -> None:
    column = frame.number(step.column)
    values = date_part(column.values, step.part)
    frame.put(step.output, NumberColumn(values, column.present & ~np.isnan(values)))


@_run.register
def _scale(step: Scale, frame: Frame) -> None:
    frame.change(step.column, lambda values: scaled(values, step.centre, step.scale))


@_run.register
def _clip(step: Clipped, frame: Frame) -> None:
    frame.change(step.column, lambda values: np.clip(values, step.low, step.high))


@_run.register
def _logarithm(step: Logarithm, frame: Frame) -> None:
    frame.change(step.column, lambda values: logarithm(values, step.offset))


@_run.register
def _exponent(step: Exponent, frame: Frame) -> None:
    frame.change(step.column, lambda values: power(values, step.exponent))


@_run.register
def _drop(step: Drop, frame: Frame) -> None:
    frame.drop(step.column)


def inverse(steps: Sequence[StepSpec], name: str, values: Floats) -> Floats:
    """What a column was before steps, from what it is after them; LearnError where steps cannot be undone."""
    found = values
    for step in reversed([step for step in steps if step.writes == name]):
        match step:
            case Scale(centre=centre, scale=scale):
                found = found * scale + centre
            case Logarithm(offset=offset):
                found = np.exp(found) - offset
            case Exponent(exponent=exponent):
                found = power(found, 1 / exponent)
            case Fill() | Clipped() | Without():
                continue
            case _:
                raise LearnError(f"column {name!r} is made by steps that cannot be undone")
    return found
