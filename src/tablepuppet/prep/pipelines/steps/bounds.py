"""Steps that bound numbers: `Clip`, `Winsorize`, `Outliers`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from tablepuppet.errors import LearnError
from tablepuppet.prep.columns.statistics import NumberSummary
from tablepuppet.prep.encode.specs import FARTHEST, Clipped, Outside, Without
from tablepuppet.prep.pipelines.draft import Column, Draft, bounded
from tablepuppet.prep.pipelines.needs import Later, given
from tablepuppet.prep.pipelines.steps.step import PrepStep, is_number, setting

Method = Literal["iqr", "sd"]
Action = Literal["flag", "clip", "null"]
SLACK = 1e-6  # of a share, by rounding
FACTORS: dict[Method, float] = {"iqr": 1.5, "sd": 3.0}


@dataclass(frozen=True)
class Clip(PrepStep):
    """Values below ``low`` are ``low``, those above ``high`` are ``high``; None: no bound."""

    advice: ClassVar[str] = ""

    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        given = [each for each in (self.low, self.high) if each is not None]
        self.need(bool(given) and all(map(is_number, given)), "give low, high or both, as numbers", "low", "high")
        self.need(
            sorted(given) == given, "low must not be above high: low and high are numbers that rise", "low", "high"
        )

    def declare(self, column: Column, draft: Draft) -> None:
        low, high = -FARTHEST if self.low is None else self.low, FARTHEST if self.high is None else self.high
        clip_to(column, draft, given((low, high)))


@dataclass(frozen=True)
class Winsorize(PrepStep):
    """Clip to two quantiles."""

    advice: ClassVar[str] = "use Clip with bounds that you know"

    low: float = 0.05
    high: float = 0.95

    def __post_init__(self) -> None:
        super().__post_init__()
        ends = (self.low, self.high)
        self.need(
            all(map(is_number, ends)) and 0 <= ends[0] < ends[1] <= 1,
            "low and high are quantiles that rise",
            "low",
            "high",
        )

    def declare(self, column: Column, draft: Draft) -> None:
        clip_to(column, draft, draft.quantiles(column, [self.low, self.high]))


@dataclass(frozen=True)
class Outliers(PrepStep):
    """Values beyond the quartiles by ``factor`` times their distance (``iqr``), or that many deviations off the mean
    (``sd``, ddof 1, as `outlier_by_sd`): ``flag`` adds a column ``<name>_outlier`` of 0 and 1, ``clip`` moves them to
    the bound, ``null`` makes them missing. The usual factor is 1.5, and 3 of deviations.
    """

    method: Method = setting("iqr", "'iqr' or 'sd'", get_args(Method).__contains__)
    action: Action = setting("flag", "'flag', 'clip' or 'null'", get_args(Action).__contains__)
    factor: float | None = setting(None, "a number from 0", lambda factor: is_number(factor, 0))

    @property
    def instead_of_noise(self) -> str:
        """Quartiles."""
        return "use Outliers('sd', ...), or Clip with bounds that you know" if self.method == "iqr" else ""

    def declare(self, column: Column, draft: Draft) -> None:
        factor = FACTORS[self.method] if self.factor is None else self.factor
        bounds: Later[tuple[float, float]]
        if self.method == "sd":
            bounds = Later(
                lambda known: (known.mean - factor * known.sample_std, known.mean + factor * known.sample_std),
                draft.usable(column),
            )
        else:
            bounds = Later(
                lambda ends: (ends[0] - factor * (ends[1] - ends[0]), ends[1] + factor * (ends[1] - ends[0])),
                draft.quantiles(column, [0.25, 0.75]),
            )
        if self.action == "clip":
            clip_to(column, draft, bounds)
        elif self.action == "null":
            take_out(column, draft, bounds)
        else:
            name, made = column.name, f"{column.name}_outlier"
            step = Later(lambda bounds: Outside(name, bounded(bounds[0]), bounded(bounds[1]), made), bounds)
            draft.need(column, step)
            draft.make([column], made, step, "flag", is_filled=True)


def clip_to(column: Column, draft: Draft, bounds: Later[Any]) -> None:
    """Clip a column to a low and a high number."""
    name = column.name
    draft.apply(column, lambda ends: Clipped(name, bounded(ends[0]), bounded(ends[1])), bounds)


def take_out(column: Column, draft: Draft, bounds: Later[tuple[float, float]]) -> None:
    """Make values beyond bounds missing. How many there are below is asked for only if ranks are needed."""
    name, order, probe = column.name, column.order, f"{column.name}_below"
    below = draft.sums_with(column, probe, Later(lambda ends: Outside(name, bounded(ends[0]), FARTHEST, probe), bounds))
    draft.emit(column, lambda ends: Without(name, bounded(ends[0]), bounded(ends[1])), bounds)
    column.moments, column.is_filled = None, False
    if order is not None:

        def rows(below: NumberSummary) -> int:
            if not -SLACK <= below.mean <= 1 + SLACK:  # NaN is neither
                raise LearnError(
                    f"column {column.column.qualified}: what is said to be the share of its values below a bound is no "
                    f"number from 0 to 1 {draft.owners(column.column)}"
                )
            return round(below.mean * below.count)

        lost = Later(rows, below)
        left = Later(lambda after: after.count, draft.summary(column))
        column.order = lambda: order().shortened(lost, left)
