"""Coefficients with standard errors, what follows from them, and how they are printed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, ndtri, stdtr, stdtrit

from tablepuppet.arrays import Array
from tablepuppet.runs.figures import NOT_APPLICABLE, number, shown
from tablepuppet.runs.table_view import Align, NamedNumbers, TableView

Categories = Mapping[str, Sequence[str | None]]  # names by column, in the order of codes, as `X.categories` has them
DECIMALS = ((4, True), (3, True), (3, False), (3, False), (3, True), (3, True))
"""Of coef, std err, t, P>|t| and the ends of its interval, and whether very small ones have digits instead: as
statsmodels prints them."""
NO_ERRORS = "No standard errors: the Gram matrix was refused, singular, or too large"
UNITS = "coef is per unit of a column of X: of rel.matrix(), numbers are standardised, categories 0 or 1"
MOST_LISTED = 5  # categories of a group that others are compared with


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

    def summary(
        self, title: str, facts: Mapping[str, object], columns: Iterable[str], categories: Categories | None
    ) -> Summary:
        """Facts of a model, and a line for each coefficient; ``columns`` are those of X."""
        letter = "z" if math.isinf(self.freedom) else "t"
        heads = ("coef", "std err", letter, f"P>|{letter}|", "[0.025", "0.975]")
        numbers = np.column_stack([self.values, self.errors, self.statistics, self.p_values, self.intervals])
        sides: dict[str, Align] = {"": "left", **dict.fromkeys(heads, "right")}
        known = category_names(categories)
        rows = [
            [known.get(name, name), *(_cell(value, *how) for value, how in zip(row, DECIMALS, strict=True))]
            for name, row in zip(self.names, numbers, strict=True)
        ]
        notes = [UNITS, baselines(columns, self.names, known), NO_ERRORS if np.isnan(self.errors).all() else ""]
        return Summary(facts_view(title, facts), TableView(". ".join(filter(None, notes)), sides, rows))


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


def category_names(categories: Categories | None) -> dict[str, str]:
    """Category columns with what they mean, by their names in X.

    >>> category_names({"i.kind": ["toy", None]})
    {'i.kind=0': 'i.kind=0 (toy)'}
    """
    listed = [
        (f"{column}={code}", name) for column, names in (categories or {}).items() for code, name in enumerate(names)
    ]
    return {column: f"{column} ({name})" for column, name in listed if name is not None}


def baselines(columns: Iterable[str], names: Sequence[str], known: Mapping[str, str]) -> str:
    """The categories that those with a coefficient are compared with: all others of their group.

    >>> baselines(["kind=0", "kind=1", "kind=2", "colour=0", "colour=1"], ["intercept", "kind=2"], {"kind=1": "tool"})
    'Categories are compared with kind=0 or tool'
    """
    groups: dict[str, list[str]] = {}
    for column in columns:
        if "=" in column:
            groups.setdefault(column.partition("=")[0], []).append(column)
    used, found = set(names), []
    for group, listed in groups.items():
        others = [known.get(column, column) for column in listed if column not in used]
        if 0 < len(others) < len(listed):
            found.append(" or ".join(others) if len(others) <= MOST_LISTED else f"{len(others):,} others of {group}")
    return f"Categories are compared with {', '.join(found)}" if found else ""


def facts_view(title: str, facts: Mapping[str, object]) -> TableView:
    """The upper table of a summary."""
    return TableView(title, {"": "left", "value": "right"}, [[name, shown(value)] for name, value in facts.items()])


def _cell(value: float, decimals: int, by_size: bool) -> str:
    """A number with this many decimals, or digits if it is very small or large.

    >>> _cell(35990.4, 4, True), _cell(-0.00001, 3, False), _cell(0.5, 4, True), _cell(math.nan, 3, False)
    ('35,990', '0.000', '0.5000', '-')
    """
    if math.isnan(value):
        return NOT_APPLICABLE
    if by_size and not 1e-4 <= abs(value) < 1e4:
        return number(value, decimals)
    return f"{round(value, decimals) + 0.0:.{decimals}f}"  # no -0.000
