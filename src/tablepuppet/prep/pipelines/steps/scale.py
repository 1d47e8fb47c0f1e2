"""Rising functions of numbers: `Standardize`, `MinMax` and `Robust` centre and scale, `Log` and `Power` are curves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tablepuppet.errors import LearnError
from tablepuppet.party.arguments import LEAST_SCALE, MOST_SCALE
from tablepuppet.prep.encode.specs import Exponent, Logarithm, Scale
from tablepuppet.prep.pipelines.draft import Column, Draft, bounded
from tablepuppet.prep.pipelines.moments import Moments
from tablepuppet.prep.pipelines.needs import Later, given
from tablepuppet.prep.pipelines.steps.step import PrepStep, is_number, setting
from tablepuppet.sql.query import OutputColumn


@dataclass(frozen=True)
class Standardize(PrepStep):
    """Mean 0 and standard deviation 1 (ddof 0), as scikit-learn's `StandardScaler`; a constant is only centred."""

    advice: ClassVar[str] = ""

    def declare(self, column: Column, draft: Draft) -> None:
        known = draft.usable(column)
        scale_by(draft, column, Later(_standard, known))


def _standard(known: Moments) -> tuple[float, float]:
    return known.mean, known.std if known.squares else 1.0


@dataclass(frozen=True)
class MinMax(PrepStep):
    """From ``low`` to ``high``, as scikit-learn's `MinMaxScaler`; ends of columns that are not public are estimates.

    Later rows may lie beyond.
    """

    advice: ClassVar[str] = ""

    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.need(
            is_number(self.low) and is_number(self.high) and self.low < self.high,
            "low is a number below high",
            "low",
            "high",
        )

    def declare(self, column: Column, draft: Draft) -> None:

        def between(ends: tuple[float, float]) -> tuple[float, float]:
            scale = (ends[1] - ends[0]) / (self.high - self.low) or 1.0
            return ends[0] - self.low * scale, scale

        scale_by(draft, column, Later(between, draft.ends(column)))


@dataclass(frozen=True)
class Robust(PrepStep):
    """Median 0 and a distance of 1 between two percentiles, as scikit-learn's `RobustScaler`."""

    advice: ClassVar[str] = "use Standardize or MinMax"

    quantile_range: Sequence[float] = (25.0, 75.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        ends = list(self.quantile_range)
        right = len(ends) == 2 and all(map(is_number, ends)) and 0 <= ends[0] < ends[1] <= 100
        self.need(right, "quantile_range is two percentiles that rise, such as (25, 75)", "quantile_range")
        object.__setattr__(self, "quantile_range", tuple(ends))

    def declare(self, column: Column, draft: Draft) -> None:
        low, high = self.quantile_range
        found = draft.quantiles(column, [0.5, low / 100, high / 100])
        scale_by(draft, column, Later(lambda found: (found[0], found[2] - found[1] or 1.0), found))


def scale_by(draft: Draft, column: Column, by: Later[tuple[float, float]]) -> None:
    """(value - centre) / scale, of numbers whose moments are known; LearnError if the scale is out of range."""
    known = column.moments
    assert known is not None, "a scale is learned from them"
    step = draft.apply(column, _fitted, draft, column.column, by)
    column.moments = Later(_scaled, known, step)


def _fitted(draft: Draft, column: OutputColumn, by: tuple[float, float]) -> Scale:
    centre, scale = by
    if not LEAST_SCALE <= scale <= MOST_SCALE:
        raise LearnError(
            f"column {column.qualified} has values that differ by next to nothing, or by too much to be squared; "
            f"multiply or divide it in SELECT, or leave it out {draft.owners(column)}"
        )
    return Scale(column.name, bounded(centre), scale)


def _scaled(known: Moments, step: Scale) -> Moments:
    return known.scaled(step.centre, step.scale)


LEAST = 1e-300  # of a number that has a logarithm


@dataclass(frozen=True)
class Log(PrepStep):
    """log(value + offset), the natural logarithm; missing where that is not above 0."""

    advice: ClassVar[str] = ""

    offset: float = setting(0.0, "a number", lambda offset: is_number(offset, -1e100, 1e100))

    def declare(self, column: Column, draft: Draft) -> None:
        """Nothing is learned; for ranks the rows that have a logarithm are counted, since the others are the lowest."""
        order, step = column.order, Logarithm(column.name, float(self.offset))
        before = draft.moments(column)
        if order is not None:
            draft.need(column, before)
        draft.emit(column, lambda: step)
        column.moments, column.is_filled = None, False
        if order is not None:

            def value_of(value: float) -> float:
                return step.value(value) if value + step.offset > 0 else math.log(LEAST)

            left = Later(lambda after: after.count, draft.summary(column))
            lost = Later(lambda before, left: before.count - left, before, left)
            column.order = lambda: order().shortened(lost, left).mapped(given(value_of))


@dataclass(frozen=True)
class Power(PrepStep):
    """sign(value) * |value| ** exponent; square roots by default."""

    advice: ClassVar[str] = ""

    exponent: float = setting(0.5, "a number from 0.001 to 1000", lambda exponent: is_number(exponent, 1e-3, 1e3))

    def declare(self, column: Column, draft: Draft) -> None:
        draft.apply(column, Exponent, column.name, float(self.exponent))
