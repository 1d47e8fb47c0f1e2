"""Columns made of others: `DateParts` of dates, `Polynomial` and `Interactions` of numbers of one table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, combinations_with_replacement
from typing import ClassVar, get_args

from tablepuppet.prep.columns.selected import is_date
from tablepuppet.prep.columns.values import DatePart
from tablepuppet.prep.encode.specs import Part, Product
from tablepuppet.prep.pipelines.draft import Column, Draft, Selector
from tablepuppet.prep.pipelines.steps.step import PrepStep, is_whole, setting


@dataclass(frozen=True)
class DateParts(PrepStep):
    """A column ``<name>_<part>`` of numbers for each part; the date itself is left out unless ``keep`` says otherwise.

    Monday is the weekday 0, weeks are those of ISO 8601, and days of the year begin with 1.
    """

    advice: ClassVar[str] = ""

    parts: Sequence[DatePart] = ("year", "month", "weekday")
    keep: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        listed = (self.parts,) if isinstance(self.parts, str) else tuple(self.parts)
        known = get_args(DatePart)
        self.need(bool(listed) and set(listed) <= set(known), f"parts are some of {', '.join(known)}", "parts")
        object.__setattr__(self, "parts", tuple(dict.fromkeys(listed)))

    def selected(self, draft: Draft) -> list[Column]:
        """The columns that it works on: dates, if none is named."""
        wanted = [Selector("date")] if self.columns is None else self.columns
        return draft.select(wanted, self.takes, ())

    def declare(self, column: Column, draft: Draft) -> None:
        named = f"column {column.column.qualified} ({column.column.type})"
        self.need(column.is_source and is_date(column.column), f"{named} is no date or timestamp")
        self.need(column.is_unchanged, f"{named} is changed by an earlier step; put DateParts first")
        draft.need(column, draft.moments(column))  # it may be empty
        for part in self.parts:
            made = Part(column.name, part, f"{column.name}_{part}")
            draft.make([column], made.output, made)
        if not self.keep:
            draft.hide(column)


MOST_DEGREE = 5


@dataclass(frozen=True)
class Polynomial(PrepStep):
    """Powers and products up to ``degree``, as scikit-learn's `PolynomialFeatures` without a bias, within each table.

    New columns are called ``a^2`` and ``a*b``.
    """

    advice: ClassVar[str] = ""

    degree: int = setting(2, f"a whole number from 2 to {MOST_DEGREE}", lambda degree: is_whole(degree, 2, MOST_DEGREE))
    interaction_only: bool = False

    def declare_all(self, columns: Sequence[Column], draft: Draft) -> None:
        by_table: dict[str, list[Column]] = {}
        for column in columns:
            by_table.setdefault(column.alias, []).append(column)
        choose = combinations if self.interaction_only else combinations_with_replacement
        for listed in by_table.values():
            for degree in range(2, self.degree + 1):
                for factors in choose(listed, degree):
                    self._make(draft, factors)

    def _make(self, draft: Draft, factors: tuple[Column, ...]) -> None:
        powers: dict[str, int] = {}
        for each in factors:
            powers[each.name] = powers.get(each.name, 0) + 1
        name = "*".join(each if power == 1 else f"{each}^{power}" for each, power in powers.items())
        product = Product([each.name for each in factors], name)
        draft.make(factors, name, product, is_filled=all(each.is_filled for each in factors))


@dataclass(frozen=True)
class Interactions(Polynomial):
    """Products of different numbers of one table."""

    interaction_only: bool = True
