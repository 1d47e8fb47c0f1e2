"""Fitted steps of a pipeline, in the form in which they are sent to a party and saved with a model.

Each is a small Struct that says how one column is changed. `Shapes` applies them to names alone: which columns exist,
and whether they contain numbers or codes. So a step that does not fit is refused before a row is read. The coordinator
does the same, and knows which columns a party will create. frame.py computes with rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Literal

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from tablepuppet.errors import PartyError

FARTHEST = 1e155  # of a number in a step: its square is an ordinary number
NUMBERS = -1  # the size of a column that holds numbers
MOST_CODES = 1 << 16

Value = Annotated[float, Meta(ge=-FARTHEST, le=FARTHEST)]
Width = Annotated[float, Meta(ge=1 / FARTHEST, le=FARTHEST)]
Code = Annotated[int, Meta(ge=0, le=MOST_CODES)]
Size = Annotated[int, Meta(ge=1, le=MOST_CODES)]
Values = Annotated[Sequence[Value], Meta(max_length=MOST_CODES)]
Folds = Annotated[int, Meta(ge=2, le=100)]
Seed = Annotated[int, Meta(ge=0, le=(1 << 32) - 1)]
Factors = Annotated[Sequence[str], Meta(min_length=1, max_length=16)]
DatePart = Literal["year", "quarter", "month", "week", "day", "weekday", "yearday", "hour", "minute", "second"]


class FittedStep(msgspec.Struct, frozen=True, tag_field="kind"):
    """A fitted step. Unless ``linear``, it changes the distribution of values by numbers that the caller chose."""

    @property
    def reads(self) -> Sequence[str]:
        """The columns that it reads."""
        return [getattr(self, "column")]  # noqa: B009 - all but products have one

    @property
    def writes(self) -> str:
        """The column that it changes or makes."""
        return str(getattr(self, "output", "") or getattr(self, "column"))  # noqa: B009

    @property
    def linear(self) -> bool:
        """Whether sums after it follow from sums before it."""
        return False


class Fill(FittedStep, frozen=True, tag="fill"):
    """A missing number is ``value``."""

    column: str
    value: Value

    @property
    def linear(self) -> bool:
        """Whether sums after it follow from sums before it."""
        return True


class FillCode(FittedStep, frozen=True, tag="fill_code"):
    """A missing category has this code: that of another one, or one more."""

    column: str
    code: Code


class Missing(FittedStep, frozen=True, tag="missing"):
    """Make a column: 1 where there is no value, else 0."""

    column: str
    output: str

    @property
    def linear(self) -> bool:
        """Whether sums after it follow from sums before it."""
        return True


class Scale(FittedStep, frozen=True, tag="scale"):
    """(value - centre) / scale."""

    column: str
    centre: Value
    scale: Width

    @property
    def linear(self) -> bool:
        """Whether sums after it follow from sums before it."""
        return True


class Clipped(FittedStep, frozen=True, tag="clip"):
    """Values below ``low`` are ``low``, those above ``high`` are ``high``."""

    column: str
    low: Value
    high: Value


class Outside(FittedStep, frozen=True, tag="outside"):
    """Make a column: 1 where the value is below ``low`` or above ``high``, else 0."""

    column: str
    low: Value
    high: Value
    output: str


class Without(FittedStep, frozen=True, tag="without"):
    """Values below ``low`` or above ``high`` are missing."""

    column: str
    low: Value
    high: Value


class Logarithm(FittedStep, frozen=True, tag="log"):
    """log(value + offset); missing where that has none."""

    column: str
    offset: Value


class Exponent(FittedStep, frozen=True, tag="power"):
    """The power of the value's size, with its sign."""

    column: str
    exponent: Annotated[float, Meta(ge=1e-3, le=1e3)]


class Cut(FittedStep, frozen=True, tag="cut"):
    """The number of the bin: edges rise; a value beyond them is in the first or last bin."""

    column: str
    edges: Values


class Other(FittedStep, frozen=True, tag="other"):
    """Categories that are not listed have one more code."""

    column: str


class Lookup(FittedStep, frozen=True, tag="lookup"):
    """A number for each code; for what is not listed, and for what is missing (None: a missing number)."""

    column: str
    values: Values
    other: Value | None
    missing: Value | None


class FoldLookup(FittedStep, frozen=True, tag="fold_lookup"):
    """A lookup with different numbers for the rows of each fold, learned without these rows.

    Folds are parts of the base rows of a shard that take part (`fold_numbers`). ``values`` has the numbers of one fold
    after those of another, ``other`` and ``missing`` one number for each fold. ``full`` is for rows to predict.
    """

    column: str
    folds: Folds
    seed: Seed
    shuffle: bool
    values: Values
    other: Values
    missing: Values
    full: Lookup


class Hashed(FittedStep, frozen=True, tag="hashed"):
    """Categories as one of ``size`` codes, by their digests."""

    column: str
    size: Size


class Product(FittedStep, frozen=True, tag="product"):
    """Create a column: the product of columns, of which one may be listed twice."""

    factors: Factors
    output: str

    @property
    def reads(self) -> Sequence[str]:
        """The columns that it reads."""
        return self.factors


class Part(FittedStep, frozen=True, tag="date_part"):
    """Make a column: a part of a date, which is in days since 1970-01-01. Monday is the weekday 0."""

    column: str
    part: DatePart
    output: str


class Drop(FittedStep, frozen=True, tag="drop"):
    """The column is left out."""

    column: str

    @property
    def linear(self) -> bool:
        """Whether sums after it follow from sums before it."""
        return True


StepSpec = (
    Fill | FillCode | Missing | Scale | Clipped | Outside | Without | Logarithm | Exponent | Cut | Other | Lookup
    | FoldLookup | Hashed | Product | Part | Drop
)  # fmt: skip
_OF_CODES = (FillCode, Other, Lookup, FoldLookup, Hashed)


@dataclass
class Shapes:
    """The columns that steps leave, in order: `NUMBERS`, or how many codes there are."""

    sizes: dict[str, int] = field(default_factory=dict)
    hashable: set[str] = field(default_factory=set)  # categories that no step has changed yet

    @classmethod
    def of(cls, numbers: Iterable[str], categories: Mapping[str, int], steps: Iterable[StepSpec]) -> Shapes:
        """The shapes after ``steps``, from columns of numbers and columns of categories with their numbers of codes.

        Raises PartyError if a step does not fit.
        """
        found = cls(dict.fromkeys(numbers, NUMBERS) | dict(categories), set(categories))
        for step in steps:
            found.follow(step)
        return found

    @property
    def numbers(self) -> list[str]:
        """Columns of numbers."""
        return [name for name, size in self.sizes.items() if size == NUMBERS]

    @property
    def coded(self) -> dict[str, int]:
        """Columns of codes, with how many."""
        return {name: size for name, size in self.sizes.items() if size != NUMBERS}

    def follow(self, step: StepSpec) -> None:
        """One step more."""
        for name in step.reads:
            if name not in self.sizes:
                raise PartyError(f"a step reads column {name[:100]!r}, which is not there")
        name, output = step.reads[0], step.writes
        if isinstance(step, Drop):
            del self.sizes[name]
            return
        wants_codes = isinstance(step, _OF_CODES)
        if not isinstance(step, Missing) and any((self.sizes[each] == NUMBERS) is wants_codes for each in step.reads):
            raise PartyError(f"a step needs {'codes' if wants_codes else 'numbers'} in column {name[:100]!r}")
        if output != name or isinstance(step, Product):
            if output in self.sizes:
                raise PartyError(f"a step makes column {output[:100]!r}, which is there already")
            self.sizes[output] = NUMBERS
            return
        self._change(step, name)

    def _change(self, step: StepSpec, name: str) -> None:
        """The new shape of the column itself; a column that gets codes is placed after the existing ones."""
        match step:
            case Cut(edges=edges):
                if len(edges) < 2 or any(after <= before for before, after in pairwise(edges)):
                    raise PartyError(f"bins of column {name[:100]!r} need edges that rise")
                self.sizes.pop(name)
                self.sizes[name] = len(edges) - 1
            case Clipped() | Without():
                if step.low > step.high:
                    raise PartyError(f"column {name[:100]!r}: the low bound is above the high one")
            case FillCode(code=code):
                if code > self.sizes[name]:
                    raise PartyError(f"column {name[:100]!r} has no code {code}")
                self.sizes[name] = max(self.sizes[name], code + 1)
            case Other():
                if name not in self.hashable:
                    raise PartyError(f"column {name[:100]!r} has no categories that are not listed")
                self.sizes[name] += 1
            case Hashed(size=size):
                if name not in self.hashable:
                    raise PartyError(f"column {name[:100]!r} has no categories to hash")
                self.sizes[name] = size
            case Lookup(values=values):
                if len(values) != self.sizes[name]:
                    raise PartyError(f"column {name[:100]!r} needs a number for each of its codes")
                self.sizes.pop(name)
                self.sizes[name] = NUMBERS
            case FoldLookup(folds=folds, values=values, full=full):
                if {len(step.other), len(step.missing)} != {folds} or len(values) != folds * self.sizes[name]:
                    raise PartyError(f"column {name[:100]!r} needs numbers for each of its folds")
                self._change(full, name)
            case _:
                return
        self.hashable.discard(name)


def to_predict(steps: Iterable[StepSpec]) -> tuple[StepSpec, ...]:
    """The steps for rows that were not learned from: what folds have of their own is for training rows."""
    return tuple(step.full if isinstance(step, FoldLookup) else step for step in steps)


def fold_numbers(row_ids: NDArray[np.integer], folds: int, seed: int, shuffle: bool) -> NDArray[np.intp]:
    """The fold of each row, as scikit-learn's `KFold` deals rows in the order of their ids; equal ids are one row.

    >>> fold_numbers(np.array([7, 3, 9, 3, 5]), 2, 0, shuffle=False).tolist()
    [1, 0, 1, 0, 0]
    """
    known, places = np.unique(row_ids, return_inverse=True)
    order = np.arange(len(known))
    if shuffle:
        np.random.RandomState(seed).shuffle(order)
    found = np.empty(len(known), np.intp)
    for number, part in enumerate(np.array_split(order, folds)):
        found[part] = number
    return found[places]


def needed_for(steps: Sequence[StepSpec], names: Iterable[str]) -> list[StepSpec]:
    """Those of the steps that some columns depend on."""
    wanted = set(names)
    found: list[StepSpec] = []
    for step in reversed(steps):
        if step.writes in wanted and not isinstance(step, Drop):
            wanted.update(step.reads)
            found.append(step)
    return found[::-1]
