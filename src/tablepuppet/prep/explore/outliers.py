"""`relation.outlier_by_iqr()` and `relation.outlier_by_sd()`: the number of outliers of each column, over joined rows.

Bounds are computed from quartiles, or from means and standard deviations. The rows beyond them are counted from
histograms that parties refine at the bounds (`rows_below`). No value of a row is released, except quartiles of public
columns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real

import pyarrow as pa

from tablepuppet.errors import LearnError
from tablepuppet.operators.client import Client
from tablepuppet.prep.columns.selected import check_without_noise, find_numbers
from tablepuppet.prep.columns.statistics import NumberStatistics
from tablepuppet.prep.columns.values import shown_value
from tablepuppet.prep.explore.distribution import Distributions, rows_below
from tablepuppet.prep.explore.quantiles import quantiles_of
from tablepuppet.runs.figures import NOT_APPLICABLE
from tablepuppet.runs.table_view import TableResult, TableView, aligned, arrow_table
from tablepuppet.spelling import unknown_key
from tablepuppet.sql.query import OutputColumn
from tablepuppet.sql.types import family

Bounds = tuple[float, float]
_SCHEMA = pa.schema(
    [
        ("column", pa.string()),
        ("table", pa.string()),
        *((name, pa.float64()) for name in ("low", "high", "below", "above", "share")),
        ("exact", pa.bool_()),
    ]
)


@dataclass(frozen=True)
class Outlying:
    """The bounds of a column, and the joined rows beyond them; NaN of a column without a value."""

    column: OutputColumn
    low: float
    high: float
    below: float
    above: float
    count: float  # joined rows with a value
    exact: bool

    @property
    def outliers(self) -> float:
        """Joined rows beyond either bound."""
        return self.below + self.above

    @property
    def share(self) -> float:
        """The share of them among the rows with a value; NaN without any."""
        return self.outliers / self.count if self.count else math.nan


class FoundOutliers(TableResult):
    """Outliers by column: ``found["price"].outliers`` is their number, ``.low`` and ``.high`` the bounds."""

    def __init__(self, rule: str, found: Sequence[Outlying]):
        self._rule, self._found = rule, {each.column.name: each for each in found}

    def __getitem__(self, column: str) -> Outlying:
        for each in self._found.values():
            if column in (each.column.name, each.column.qualified):
                return each
        raise unknown_key("the table of outliers", column, self.columns)

    @property
    def columns(self) -> list[str]:
        """The columns that were checked."""
        return list(self._found)

    def to_arrow(self) -> pa.Table:
        """One row per column; bounds of dates are days since 1970-01-01."""
        names = ("low", "high", "below", "above", "share", "exact")
        rows = [
            {"column": each.column.name, "table": each.column.alias, **{name: getattr(each, name) for name in names}}
            for each in self._found.values()
        ]
        return arrow_table(rows, _SCHEMA)

    def table_view(self) -> TableView:
        sides = aligned(("column", "table"), ("low", "high", "below", "above", "share"))
        return TableView(f"Outliers: {self._rule}", sides, [_cells(each) for each in self._found.values()])


def _cells(each: Outlying) -> list[str]:
    if not each.count:
        return [each.column.name, each.column.alias, *[NOT_APPLICABLE] * 5]
    about = "" if each.exact else "≈ "
    counts = [f"{about}{count:,.0f}" for count in (each.below, each.above)]
    ends = [shown_value(end, family(each.column.type)) for end in (each.low, each.high)]
    return [each.column.name, each.column.alias, *ends, *counts, f"{about}{each.share:.2%}"]


def outlier_by_iqr(client: Client, columns: Sequence[str] | None, k: float) -> FoundOutliers:
    """Rows more than ``k`` interquartile ranges beyond a quartile."""
    listed = _checked(client, columns, k, "outlier_by_iqr")
    asked = Distributions(client, listed)
    bounds = {}
    for name, (low, high) in quantiles_of(asked, [0.25, 0.75]).items():
        width = high.value - low.value
        bounds[name] = (low.value - k * width, high.value + k * width)
    return FoundOutliers(f"{k:g} IQR beyond a quartile", _counted(asked, listed, bounds, "outlier_by_iqr"))


def outlier_by_sd(client: Client, columns: Sequence[str] | None, k: float) -> FoundOutliers:
    """Rows more than ``k`` standard deviations (ddof 1) from the mean."""
    listed = _checked(client, columns, k, "outlier_by_sd")
    numbers, asked = NumberStatistics(client, listed), Distributions(client, listed)
    bounds = {}
    for name, each in numbers.read().items():
        width = k * each.std(1) if each.count > 1 else 0.0
        bounds[name] = (each.mean - width, each.mean + width)
    return FoundOutliers(f"{k:g} standard deviations from the mean", _counted(asked, listed, bounds, "outlier_by_sd"))


def _checked(client: Client, columns: Sequence[str] | None, k: float, step: str) -> list[OutputColumn]:
    if not isinstance(k, Real) or isinstance(k, bool) or not 0 <= float(k) < math.inf:
        raise LearnError(f"{step}: k is a number from 0, not {k!r}")
    found = find_numbers(client.plan, columns, step)
    check_without_noise(client.plan, found, step)
    return found


def _counted(
    asked: Distributions, columns: Sequence[OutputColumn], bounds: Mapping[str, Bounds], step: str
) -> list[Outlying]:
    """Rows beyond the bounds; a column without finite bounds must have no values."""
    cuts = {name: [end for end in ends if not math.isnan(end)] for name, ends in bounds.items()}
    found, counts = [], rows_below(asked, cuts)
    for column in columns:
        counted, (low, high) = counts[column.name], bounds[column.name]
        if counted.total and math.isnan(low + high):
            raise LearnError(f"{step}: column {column.name!r} has NaN or infinite values; filter them in WHERE")
        below, above = (
            (float(counted.below[0]), counted.total - float(counted.up_to[1])) if counted.total else (0.0, 0.0)
        )
        found.append(Outlying(column, low, high, below, above, counted.total, counted.exact))
    return found
