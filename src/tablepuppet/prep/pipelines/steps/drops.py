"""Steps that remove columns: `DropConstant` and `DropMissing`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tablepuppet.prep.pipelines.attempt import Attempt, Column, Kind
from tablepuppet.prep.pipelines.steps.step import PrepStep, is_number, setting
from tablepuppet.runs.figures import number

LEAVE_OUT = "leave such columns out of SELECT"


@dataclass(frozen=True)
class DropConstant(PrepStep):
    """Leave out numbers whose variance (ddof 0) is at most ``variance``, and text that is the same everywhere."""

    takes: ClassVar[tuple[Kind, ...]] = ("number", "flag", "text")
    usual: ClassVar[tuple[Kind, ...]] = ("number", "flag", "text")
    advice: ClassVar[str] = LEAVE_OUT

    variance: float = setting(0.0, "a number from 0", lambda variance: is_number(variance, 0))

    def fit(self, column: Column, attempt: Attempt) -> None:
        """Look at the variance."""
        if column.kind == "text":
            drop_if_same(column, attempt)
            return
        known = attempt.moments(column)
        if known.squares == 0.0:
            attempt.drop_for("has one value only")
        elif self.variance and known.squares / known.count <= self.variance:
            attempt.drop_for(f"has a variance of {number(known.squares / known.count)}, not above {self.variance:g}")


def drop_if_same(column: Column, attempt: Attempt) -> None:
    """Leave out a text that has one category, or none."""
    distinct, missing = attempt.categories(column)
    if not distinct:
        attempt.drop_for("is empty")
    elif distinct == 1 and not missing:
        attempt.drop_for("has one value only")


@dataclass(frozen=True)
class DropMissing(PrepStep):
    """Leave out columns that lack a value in more than this share of the joined rows."""

    takes: ClassVar[tuple[Kind, ...]] = ("number", "text")
    usual: ClassVar[tuple[Kind, ...]] = ("number", "text")
    advice: ClassVar[str] = LEAVE_OUT

    share: float = setting(0.5, "a number from 0 to 1", lambda share: is_number(share, 0, 1))

    def fit(self, column: Column, attempt: Attempt) -> None:
        """Count those missing."""
        rows = attempt.statistics.rows
        missing = attempt.categories(column)[1] if column.kind == "text" else attempt.moments(column).missing
        if missing > self.share * rows:
            attempt.drop_for(f"lacks a value in {missing / rows:.0%} of the joined rows")
