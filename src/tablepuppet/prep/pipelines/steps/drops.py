"""Steps that remove columns: `DropConstant` and `DropMissing`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tablepuppet.prep.pipelines.draft import Column, Draft, Kind
from tablepuppet.prep.pipelines.moments import Moments
from tablepuppet.prep.pipelines.needs import Dropped, Later
from tablepuppet.prep.pipelines.steps.step import PrepStep, is_number, setting
from tablepuppet.runs.figures import number
from tablepuppet.sql.query import OutputColumn

LEAVE_OUT = "leave such columns out of SELECT"


@dataclass(frozen=True)
class DropConstant(PrepStep):
    """Leave out numbers whose variance (ddof 0) is at most ``variance``, and text that is the same everywhere."""

    takes: ClassVar[tuple[Kind, ...]] = ("number", "flag", "text")
    usual: ClassVar[tuple[Kind, ...]] = ("number", "flag", "text")
    advice: ClassVar[str] = LEAVE_OUT

    variance: float = setting(0.0, "a number from 0", lambda variance: is_number(variance, 0))

    def declare(self, column: Column, draft: Draft) -> None:
        if column.kind == "text":
            drop_if_same(column, draft)
        else:
            draft.check(column, _vary, column.column, self.variance, draft.moments(column))


def _vary(column: OutputColumn, least: float, known: Moments) -> None:
    if known.squares == 0.0:
        raise Dropped(column, "has one value only")
    if least and known.squares / known.count <= least:
        raise Dropped(column, f"has a variance of {number(known.squares / known.count)}, not above {least:g}")


def drop_if_same(column: Column, draft: Draft) -> None:
    """Leave out a text that has one category, or none."""
    source = column.column

    def differ(found: tuple[int, float]) -> None:
        distinct, missing = found
        if not distinct:
            raise Dropped(source, "is empty")
        if distinct == 1 and not missing:
            raise Dropped(source, "has one value only")

    draft.check(column, differ, draft.distinct(column))


@dataclass(frozen=True)
class DropMissing(PrepStep):
    """Leave out columns that lack a value in more than this share of the joined rows."""

    takes: ClassVar[tuple[Kind, ...]] = ("number", "text")
    usual: ClassVar[tuple[Kind, ...]] = ("number", "text")
    advice: ClassVar[str] = LEAVE_OUT

    share: float = setting(0.5, "a number from 0 to 1", lambda share: is_number(share, 0, 1))

    def declare(self, column: Column, draft: Draft) -> None:
        source = column.column

        def some(missing: float) -> None:
            if missing > self.share * draft.rows:
                raise Dropped(source, f"lacks a value in {missing / draft.rows:.0%} of the joined rows")

        missing: Later[float]
        if column.kind == "text":
            missing = Later(lambda found: found[1], draft.distinct(column))
        else:
            missing = Later(lambda known: known.missing, draft.moments(column))
        draft.check(column, some, missing)
