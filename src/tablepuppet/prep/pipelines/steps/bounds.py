"""Steps that bound numbers: `Clip`, `Winsorize`, `Outliers`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from tablepuppet.prep.encode.specs import FARTHEST, Clipped, Outside, Without
from tablepuppet.prep.pipelines.attempt import Attempt, Column, bounded
from tablepuppet.prep.pipelines.moments import Ranks
from tablepuppet.prep.pipelines.steps.step import PrepStep, is_number, setting

Method = Literal["iqr", "sd"]
Action = Literal["flag", "clip", "null"]
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

    def fit(self, column: Column, attempt: Attempt) -> None:
        """Nothing is learned."""
        low, high = -FARTHEST if self.low is None else self.low, FARTHEST if self.high is None else self.high
        clip_to(column, attempt, low, high)


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

    def fit(self, column: Column, attempt: Attempt) -> None:
        """Learn the quantiles."""
        ranks = attempt.ranks(column)
        clip_to(column, attempt, ranks.quantile(self.low), ranks.quantile(self.high))


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

    def fit(self, column: Column, attempt: Attempt) -> None:
        """Learn the bounds."""
        factor = FACTORS[self.method] if self.factor is None else self.factor
        if self.method == "sd":
            known = attempt.usable(column)
            low, high = known.mean - factor * known.sample_std, known.mean + factor * known.sample_std
        else:
            ranks = attempt.ranks(column)
            first, third = ranks.quantile(0.25), ranks.quantile(0.75)
            low, high = first - factor * (third - first), third + factor * (third - first)
        low, high = bounded(low), bounded(high)
        if self.action == "clip":
            clip_to(column, attempt, low, high)
        elif self.action == "null":
            take_out(column, attempt, low, high)
        else:
            attempt.make(column, Outside(column.name, low, high, f"{column.name}_outlier"), "flag", is_filled=True)


def clip_to(column: Column, attempt: Attempt, low: float, high: float) -> None:
    """Clip a column."""
    attempt.apply(column, Clipped(column.name, bounded(low), bounded(high)))


def take_out(column: Column, attempt: Attempt, low: float, high: float) -> None:
    """Make values beyond bounds missing. How many there are below is asked for only if ranks are."""
    inner, probe = column.ranks, f"{column.name}_below"
    below_chain = attempt.chain(column, Outside(column.name, low, FARTHEST, probe))
    attempt.emit(column, Without(column.name, low, high))
    left_chain = attempt.chain(column)
    column.moments, column.is_filled = None, False
    if inner is not None:

        def ranks() -> Ranks:
            below = attempt.sums(column.alias, probe, below_chain)
            left = attempt.sums(column.alias, column.name, left_chain).count
            return inner().shortened(round(below.mean * below.count), left)

        column.ranks = ranks
