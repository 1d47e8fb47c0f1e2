"""Nonlinear functions of numbers: `Log` and `Power`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from tablepuppet.prep.encode.specs import Exponent, Logarithm
from tablepuppet.prep.pipelines.draft import Column, Draft
from tablepuppet.prep.pipelines.needs import Later, given
from tablepuppet.prep.pipelines.steps.step import PrepStep, is_number, setting

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
        """Nothing is learned."""
        draft.apply(column, Exponent, column.name, float(self.exponent))
