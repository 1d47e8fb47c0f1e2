"""Steps that centre and scale numbers: `Standardize`, `MinMax`, `Robust`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tablepuppet.party.arguments import LEAST_SCALE, MOST_SCALE
from tablepuppet.prep.encode.specs import Scale
from tablepuppet.prep.pipelines.attempt import Attempt, Column, bounded
from tablepuppet.prep.pipelines.steps.step import PrepStep, is_number


@dataclass(frozen=True)
class Standardize(PrepStep):
    """Mean 0 and standard deviation 1 (ddof 0), as scikit-learn's `StandardScaler`; a constant is only centred."""

    advice: ClassVar[str] = ""

    def fit(self, column: Column, attempt: Attempt) -> None:
        """Learn mean and deviation."""
        known = attempt.usable(column)
        scale_by(attempt, column, known.mean, known.std if known.squares else 1.0)


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

    def fit(self, column: Column, attempt: Attempt) -> None:
        """Learn the ends."""
        ranks = attempt.ranks(column)
        scale = (ranks.most - ranks.least) / (self.high - self.low) or 1.0
        scale_by(attempt, column, ranks.least - self.low * scale, scale)


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

    def fit(self, column: Column, attempt: Attempt) -> None:
        """Learn median and percentiles."""
        low, high = self.quantile_range
        ranks = attempt.ranks(column)
        scale_by(attempt, column, ranks.quantile(0.5), ranks.quantile(high / 100) - ranks.quantile(low / 100) or 1.0)


def scale_by(attempt: Attempt, column: Column, centre: float, scale: float) -> None:
    """(value - centre) / scale; LearnError if the scale is out of range."""
    if not LEAST_SCALE <= scale <= MOST_SCALE:
        raise attempt.refusal(
            column,
            f"column {column.column.qualified} has values that differ by next to nothing, or by too much to be "
            f"squared; multiply or divide it in SELECT, or leave it out {attempt.statistics.owners(column.alias)}",
        )
    centre, known = bounded(centre), column.moments
    attempt.apply(column, Scale(column.name, centre, scale))
    column.moments = None if known is None else known.scaled(centre, scale)
