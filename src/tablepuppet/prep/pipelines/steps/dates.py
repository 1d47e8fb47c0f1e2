"""`DateParts`: year, month and so on of dates and timestamps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, get_args

from tablepuppet.prep.columns.days import DatePart
from tablepuppet.prep.columns.selected import is_date
from tablepuppet.prep.encode.specs import Part
from tablepuppet.prep.pipelines.draft import Column, Draft, Selector
from tablepuppet.prep.pipelines.steps.step import PrepStep


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
        """Nothing is learned."""
        named = f"column {column.column.qualified} ({column.column.type})"
        self.need(column.is_source and is_date(column.column), f"{named} is no date or timestamp")
        self.need(column.is_unchanged, f"{named} is changed by an earlier step; put DateParts first")
        draft.need(column, draft.moments(column))  # it may be empty
        for part in self.parts:
            made = Part(column.name, part, f"{column.name}_{part}")
            draft.make([column], made.output, made)
        if not self.keep:
            draft.hide(column)
