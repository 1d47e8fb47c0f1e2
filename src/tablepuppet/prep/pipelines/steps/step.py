"""The base class of steps: settings, and the columns that a step works on.

A step is declared once for each of its columns, before anybody is asked. What it needs (moments, ends, quantiles,
categories, names, sums of the label) it takes from the draft, as `Later` values; what it learns are functions of these,
and result in fitted steps (specs.py) that the draft sends to parties.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from typing import Any, ClassVar, Self

from tablepuppet.errors import LearnError
from tablepuppet.prep.pipelines.draft import Column, Draft, Kind, Selector
from tablepuppet.spelling import check_names


def setting(default: Any, allowed: str, fits: Callable[[Any], bool]) -> Any:
    """A setting with its allowed values, in words and as a test; None is allowed too where it is the default."""
    return field(default=default, metadata={"allowed": allowed, "fits": fits})


@dataclass(frozen=True)
class PrepStep:
    """A step of a pipeline. ``columns`` are names, patterns or types; by default all that it is made for."""

    takes: ClassVar[tuple[Kind, ...]] = ("number", "flag")  # kinds of columns that may be named
    usual: ClassVar[tuple[Kind, ...]] = ("number",)  # those of them that are meant if none is named

    advice: ClassVar[str] = "leave it out, or compute what you need in SELECT"  # with noise; "": it has a form for it

    columns: Sequence[str | Selector] | None = field(default=None, kw_only=True)

    def __new__(cls, *values: object, **named: object) -> Self:
        """Raise ArgumentError for a setting that there is not."""
        check_names(cls.__name__, named, [each.name for each in fields(cls)])
        return super().__new__(cls)

    def __post_init__(self) -> None:
        listed = self.columns
        if isinstance(listed, str | Selector):
            raise LearnError(f"{self.name}: columns is a list, such as columns=[{str(listed)!r}]")
        if listed is not None and not all(isinstance(each, str | Selector) for each in listed):
            raise LearnError(
                f"{self.name}: columns lists names, patterns such as 'i.*', or types such as tp.prep.numbers"
            )
        if listed is not None:
            object.__setattr__(self, "columns", tuple(map(_read, listed)))
        for each in fields(self):
            value = getattr(self, each.name)
            if "fits" in each.metadata and not (value is None and each.default is None):
                self.need(each.metadata["fits"](value), f"{each.name} is {each.metadata['allowed']}", each.name)

    @property
    def name(self) -> str:
        """As it is written."""
        return type(self).__name__

    def __str__(self) -> str:
        given = [(each.name, getattr(self, each.name)) for each in fields(self) if each.name != "columns"]
        listed = [] if self.columns is None else [f"columns=[{', '.join(map(str, self.columns))}]"]
        return f"{self.name}({', '.join([f'{name}={value!r}' for name, value in given] + listed)})"

    @property
    def instead_of_noise(self) -> str:
        """What to write instead under feature privacy; nothing if it has a form with noise."""
        return self.advice

    def selected(self, draft: Draft) -> list[Column]:
        """The columns that it works on."""
        return draft.select(self.columns, self.takes, self.usual)

    def declare_all(self, columns: Sequence[Column], draft: Draft) -> None:
        """Declare it for each of its columns."""
        for column in columns:
            self.declare(column, draft)

    def declare(self, column: Column, draft: Draft) -> None:
        """Say what it needs of a column, what it learns from that, and what becomes of the column."""
        raise NotImplementedError

    def need(self, is_right: bool, message: str, *settings: str) -> None:
        """LearnError unless a setting is right; the error repeats what was given for ``settings``."""
        if not is_right:
            given = " and ".join(repr(getattr(self, name)) for name in settings)
            raise LearnError(f"{self.name}: {message}{', not ' if given else ''}{given}")


def _read(item: str | Selector) -> str | Selector:
    """A type as a job file writes it."""
    if isinstance(item, str) and item.startswith("type:"):
        kind: Any = item.removeprefix("type:")
        if kind not in ("number", "text", "date", "boolean", "flag"):
            raise LearnError(f"{item!r} is no type of columns; there are type:number, text, date, boolean and flag")
        return Selector(kind)
    return item


def is_number(value: Any, least: float = -math.inf, most: float = math.inf) -> bool:
    """Whether a setting is a number within limits."""
    is_real = isinstance(value, Real) and not isinstance(value, bool)
    return is_real and bool(least <= value <= most)


def is_whole(value: Any, least: int, most: float = math.inf) -> bool:
    """Whether a setting is a whole number within limits."""
    return isinstance(value, Integral) and is_number(value, least, most)
