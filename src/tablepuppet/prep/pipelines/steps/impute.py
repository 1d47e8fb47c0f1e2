"""`Impute`: replaces missing values by a learned or given one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np

from tablepuppet.prep.columns.selected import is_public
from tablepuppet.prep.encode.specs import Fill, FillCode, Missing
from tablepuppet.prep.pipelines.attempt import Attempt, Column, Kind, bounded
from tablepuppet.prep.pipelines.moments import of_flag
from tablepuppet.prep.pipelines.steps.categories import list_categories, name_order
from tablepuppet.prep.pipelines.steps.step import PrepStep, is_number, setting

Strategy = Literal["mean", "median", "mode", "constant"]


@dataclass(frozen=True)
class Impute(PrepStep):
    """Fill missing values, as scikit-learn's `SimpleImputer`: by ``strategy``, or with ``fill``.

    Numbers take each strategy; categories take ``mode``, and ``constant``, which makes missing the category that is
    called ``fill``: one of its own, unless a public column has a category of that name. With ``indicator`` a column
    ``<name>_missing`` of 0 and 1 is added. Without ``columns`` all numbers are filled, and with ``mode`` all categories
    too.
    """

    takes: ClassVar[tuple[Kind, ...]] = ("number", "text")

    strategy: Strategy = setting("mean", f"one of {', '.join(get_args(Strategy))}", get_args(Strategy).__contains__)
    fill: float | str | None = setting(
        None, "a number or a text", lambda fill: isinstance(fill, str) or is_number(fill)
    )
    indicator: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        needs_fill = self.strategy == "constant"
        self.need(self.fill is not None or not needs_fill, "strategy='constant' needs fill, such as fill=0")
        self.need(self.fill is None or needs_fill, "fill goes with strategy='constant'", "strategy")

    @property
    def instead_of_noise(self) -> str:
        """Medians and modes."""
        return "use strategy 'mean', or 'constant' with fill" if self.strategy in ("median", "mode") else ""

    def selected(self, attempt: Attempt) -> list[Column]:
        """The columns that it works on now."""
        usual: tuple[Kind, ...] = ("number", "text") if self.strategy == "mode" else ("number",)
        usual = ("text",) if isinstance(self.fill, str) else usual
        return attempt.select(self.columns, self.takes, usual)

    def fit(self, column: Column, attempt: Attempt) -> None:
        """Learn what to fill with."""
        if column.kind == "text":
            self._fit_text(column, attempt)
            return
        self.need(not isinstance(self.fill, str), f"column {column.column.qualified} needs a number as fill")
        before = attempt.usable(column)
        value = bounded(self._value(column, attempt))
        if self.indicator:
            self._flag(column, attempt, before.missing)
        inner = column.ranks
        attempt.emit(column, Fill(column.name, value))
        column.moments, column.is_filled = before.filled(value), True
        if inner is not None:
            column.ranks = lambda: inner().filled(before.missing, value)

    def _value(self, column: Column, attempt: Attempt) -> float:
        match self.strategy:
            case "mean":
                return attempt.usable(column).mean
            case "median":
                return attempt.ranks(column).quantile(0.5)
            case "mode":
                self.need(
                    attempt.is_unchanged(column),
                    f"column {column.column.qualified} is changed by an earlier step; put strategy='mode' first",
                )
                return attempt.statistics.mode(column.column)
            case _:
                return float(self.fill or 0.0)

    def _fit_text(self, column: Column, attempt: Attempt) -> None:
        text = self.strategy in ("mode", "constant")
        self.need(text, f"column {column.column.qualified} has categories: strategy is 'mode' or 'constant' for those")
        weights, code = list_categories(column, attempt, None), 0
        if not column.is_filled:
            code = int(weights.argmax()) if self.strategy == "mode" else self._code_of_fill(column, attempt)
        if self.indicator:
            self._flag(column, attempt, column.missing)
        if column.is_filled:
            return
        if code == len(weights):
            column.more, weights = (*column.more, str(self.fill)), np.append(weights, 0.0)
        attempt.emit(column, FillCode(column.name, code))
        weights[code] += column.missing
        column.weights, column.missing, column.is_filled = weights, 0.0, True

    def _code_of_fill(self, column: Column, attempt: Attempt) -> int:
        """The code of the category that is called like the fill; one more if there is none, or names are not known."""
        fill, statistics = name_order(column, str(self.fill)), attempt.statistics
        if statistics.is_noisy or not is_public(statistics.plan, column.column):
            return column.size
        names = [*statistics.names(column.column, column.digests), *column.more]
        codes = (code for code, name in enumerate(names) if name is not None and name_order(column, name) == fill)
        return next(codes, column.size)

    def _flag(self, column: Column, attempt: Attempt, missing: float) -> None:
        rows = attempt.statistics.rows
        is_known = column.is_source and (column.kind == "number" or attempt.counts_all(column))
        known = of_flag(rows, missing / rows) if is_known else None
        attempt.make(column, Missing(column.name, f"{column.name}_missing"), "flag", moments=known, is_filled=True)
