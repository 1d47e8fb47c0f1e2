"""Coefficients with standard errors, what follows from them, and how they are printed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri, stdtr, stdtrit

from tablepuppet.runs.table_view import Align, NamedNumbers, TableView, shown

Array = NDArray[np.float64]
DECIMALS = ((4, True), (3, True), (3, False), (3, False), (3, True), (3, True))
"""Of coef, std err, t, P>|t| and the ends of its interval, and whether very small ones have digits instead: as
statsmodels prints them."""


@dataclass(frozen=True)
class Estimates:
    """Coefficients by name, the intercept first. ``freedom`` is that of their t distribution: infinite, the normal one.

    Standard errors are NaN where they were not computed.
    """

    names: list[str]
    values: Array
    errors: Array
    freedom: float = math.inf

    @property
    def statistics(self) -> Array:
        """Coefficients in standard errors: t or z values."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return self.values / self.errors

    @property
    def p_values(self) -> Array:
        """How likely statistics as large are, on either side, if the coefficient were zero."""
        below = -np.abs(self.statistics)
        return np.asarray(2 * (ndtr(below) if math.isinf(self.freedom) else stdtr(self.freedom, below)))

    @property
    def intervals(self) -> Array:
        """The 95 % confidence intervals, (coefficients, 2)."""
        reach = float(ndtri(0.975) if math.isinf(self.freedom) else stdtrit(self.freedom, 0.975))
        return np.stack([self.values - reach * self.errors, self.values + reach * self.errors], axis=1)

    def named(self, values: Array) -> NamedNumbers:
        """One number per coefficient, by its name."""
        return NamedNumbers(dict(zip(self.names, values.tolist(), strict=True)))

    def summary(self, title: str, facts: Mapping[str, object]) -> Summary:
        """Facts of a model, and a line for each coefficient."""
        letter = "z" if math.isinf(self.freedom) else "t"
        heads = ("coef", "std err", letter, f"P>|{letter}|", "[0.025", "0.975]")
        numbers = np.column_stack([self.values, self.errors, self.statistics, self.p_values, self.intervals])
        sides: dict[str, Align] = {"": "left", **dict.fromkeys(heads, "right")}
        rows = [
            [name, *(_cell(number, *how) for number, how in zip(row, DECIMALS, strict=True))]
            for name, row in zip(self.names, numbers, strict=True)
        ]
        return Summary(facts_view(title, facts), TableView("", sides, rows))


@dataclass(frozen=True)
class Summary:
    """What `summary()` returns: text where it is printed, a table in a notebook."""

    facts: TableView
    coefficients: TableView

    def __str__(self) -> str:
        return f"{self.facts.text()}\n{self.coefficients.text()}"

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return self.facts.html() + self.coefficients.html()


def facts_view(title: str, facts: Mapping[str, object]) -> TableView:
    """The upper table of a summary."""
    return TableView(title, {"": "left", "value": "right"}, [[name, shown(value)] for name, value in facts.items()])


def _cell(number: float, decimals: int, by_size: bool) -> str:
    """A number with this many decimals, or digits if it is very small or large."""
    if math.isnan(number):
        return ""
    is_plain = not by_size or 1e-4 <= abs(number) < 1e4
    return f"{number:.{decimals}f}" if is_plain else f"{number:.{decimals}g}"
