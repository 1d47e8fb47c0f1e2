"""`Impute`: replaces missing values by a learned or given one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal, get_args

import numpy as np

from tablepuppet.errors import LearnError
from tablepuppet.prep.columns.ordered import values_of
from tablepuppet.prep.columns.selected import is_public
from tablepuppet.prep.encode.specs import Fill, FillCode, Missing
from tablepuppet.prep.explore.distribution import Distribution
from tablepuppet.prep.pipelines.draft import Codes, Column, Draft, Kind, Order, Weights, bounded
from tablepuppet.prep.pipelines.moments import Moments, of_flag
from tablepuppet.prep.pipelines.needs import Later, given
from tablepuppet.prep.pipelines.steps.categories import list_categories, name_order
from tablepuppet.prep.pipelines.steps.step import PrepStep, is_number, setting
from tablepuppet.sql.query import OutputColumn

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

    def selected(self, draft: Draft) -> list[Column]:
        usual: tuple[Kind, ...] = ("number", "text") if self.strategy == "mode" else ("number",)
        usual = ("text",) if isinstance(self.fill, str) else usual
        return draft.select(self.columns, self.takes, usual)

    def declare(self, column: Column, draft: Draft) -> None:
        if column.kind == "text":
            self._declare_text(column, draft)
            return
        self.need(not isinstance(self.fill, str), f"column {column.column.qualified} needs a number as fill")
        before, order = draft.usable(column), column.order
        value = self._value(column, draft, before)
        draft.need(column, before, value)
        self._flag(column, draft, before)
        draft.emit(column, Fill, column.name, value)
        column.moments = Later(Moments.filled, before, value)
        column.order = None if order is None else partial(_filled, order, before, value)
        column.is_filled = True

    def _value(self, column: Column, draft: Draft, known: Later[Moments]) -> Later[float]:
        match self.strategy:
            case "mean":
                return Later(_mean, known)
            case "median":
                return Later(lambda found: bounded(found[0]), draft.quantiles(column, [0.5]))
            case "mode":
                self.need(
                    column.is_unchanged,
                    f"column {column.column.qualified} is changed by an earlier step; put strategy='mode' first",
                )
                return Later(_mode, draft, column.column, draft.cells(column.column))
            case _:
                return given(bounded(float(self.fill or 0.0)))

    def _declare_text(self, column: Column, draft: Draft) -> None:
        text = self.strategy in ("mode", "constant")
        self.need(text, f"column {column.column.qualified} has categories: strategy is 'mode' or 'constant' for those")
        weights, fill = list_categories(column, draft, None), str(self.fill)
        code: Later[int] = Later(lambda weights: int(weights.argmax()), weights)
        if self.strategy == "constant" and not column.is_filled:
            code = self._code_of_fill(column, draft)
            draft.need(column, code)
            column.most_codes += 1
        self._flag(column, draft, column.codes)
        if column.is_filled:
            return
        draft.emit(column, FillCode, column.name, code)

        def filled(codes: Codes, code: int) -> Codes:
            return Codes(codes.digests, codes.more if code < codes.size else (*codes.more, fill), 0.0)

        def weighed(weights: Weights, codes: Codes, code: int) -> Weights:
            found = np.append(weights, [0.0] * (code == len(weights)))
            found[code] += codes.missing
            return found

        column.weights, column.is_filled = Later(weighed, weights, column.codes, code), True
        column.codes = Later(filled, column.codes, code)

    def _code_of_fill(self, column: Column, draft: Draft) -> Later[int]:
        """The code of the category that is called like the fill; one more if there is none, or names are not known."""
        source, fill = column.column, name_order(column.column, str(self.fill))
        if draft.is_noisy or not is_public(draft.plan, source):
            return Later(lambda codes: codes.size, column.codes)

        def named(names: Sequence[str | None]) -> int:
            codes = (code for code, name in enumerate(names) if name is not None and name_order(source, name) == fill)
            return next(codes, len(names))

        return Later(named, draft.names(column))

    def _flag(self, column: Column, draft: Draft, before: Later[Moments] | Later[Codes]) -> None:
        if not self.indicator:
            return
        is_known = column.is_source and (column.kind == "number" or draft.counts_all(column))
        known = Later(lambda before: of_flag(draft.rows, before.missing / draft.rows), before) if is_known else None
        step = Missing(column.name, f"{column.name}_missing")
        draft.make([column], step.output, step, "flag", known, is_filled=True)


def _mean(known: Moments) -> float:
    return bounded(known.mean)


def _filled(order: Callable[[], Order], before: Later[Moments], value: Later[float]) -> Order:
    return order().filled(Later(lambda before: before.missing, before), value)


def _mode(draft: Draft, column: OutputColumn, found: Distribution) -> float:
    """The most frequent number, the lowest of several; LearnError if too many are to be listed, or not public."""
    lows, highs, weights = found.all_cells()
    if not len(lows) or not is_public(draft.plan, column) or (lows != highs).any():
        raise LearnError(
            f"Impute: column {column.qualified} is not public or has too many different numbers: its most frequent "
            "one is not to be had; use strategy='median', which fills with another number, or list it in "
            f"categorical {draft.owners(column)}"
        )
    words, places = np.unique(lows, return_inverse=True)
    return bounded(float(values_of(words[[np.bincount(places, weights).argmax()]])[0]))
