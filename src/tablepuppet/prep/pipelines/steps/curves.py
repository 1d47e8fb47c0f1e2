"""Nonlinear functions of numbers: `Log` and `Power`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from tablepuppet.prep.encode.specs import Exponent, Logarithm
from tablepuppet.prep.pipelines.attempt import Attempt, Column
from tablepuppet.prep.pipelines.moments import Ranks
from tablepuppet.prep.pipelines.steps.step import PrepStep, is_number, setting

LEAST = 1e-300  # of a number that has a logarithm


@dataclass(frozen=True)
class Log(PrepStep):
    """log(value + offset), the natural logarithm; missing where that is not above 0."""

    advice: ClassVar[str] = ""

    offset: float = setting(0.0, "a number", lambda offset: is_number(offset, -1e100, 1e100))

    def fit(self, column: Column, attempt: Attempt) -> None:
        """Nothing is learned."""
        before, inner, offset = column.moments, column.ranks, float(self.offset)
        if inner is not None:
            before = attempt.moments(column)
        step = Logarithm(column.name, offset)
        attempt.emit(column, step)
        column.moments, column.is_filled = None, False
        if inner is not None and before is not None:
            count, chain = before.count, attempt.chain(column)

            def value_of(value: float) -> float:
                return step.value(value) if value + offset > 0 else math.log(LEAST)

            def ranks() -> Ranks:
                left = attempt.sums(column.alias, column.name, chain).count  # those without were the lowest
                return inner().shortened(count - left, left).mapped(value_of)

            column.ranks = ranks


@dataclass(frozen=True)
class Power(PrepStep):
    """sign(value) * |value| ** exponent; square roots by default."""

    advice: ClassVar[str] = ""

    exponent: float = setting(0.5, "a number from 0.001 to 1000", lambda exponent: is_number(exponent, 1e-3, 1e3))

    def fit(self, column: Column, attempt: Attempt) -> None:
        """Nothing is learned."""
        attempt.apply(column, Exponent(column.name, float(self.exponent)))
