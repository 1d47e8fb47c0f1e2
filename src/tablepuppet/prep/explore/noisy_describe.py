"""`describe`, `quantile`, `histogram` with a `Privacy`: what can be computed with noise, and the noise of each number.

Means, deviations and quantiles use values between bounds: a value outside counts as the nearest bound. Everything here
is computed from noisy replies only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tablepuppet.errors import LearnError
from tablepuppet.operators.client import Client
from tablepuppet.prep.columns.days import DATES, shown_value
from tablepuppet.prep.columns.given_bounds import bounds_of
from tablepuppet.prep.columns.selected import find_number, is_number
from tablepuppet.prep.explore.histograms import Histogram, checked_bins
from tablepuppet.prep.explore.noisy_distribution import NoisyDistribution
from tablepuppet.prep.explore.noisy_statistics import NoiseRequest, NoisyStatistics, NoisySummary, noisy_features
from tablepuppet.prep.explore.quantiles import Quantile, Quantiles, checked_shares, with_interval
from tablepuppet.prep.explore.statistics_promise import Spent
from tablepuppet.runs.events import Events
from tablepuppet.runs.figures import NOT_APPLICABLE, number, shown
from tablepuppet.runs.table_view import TableResult, TableView, aligned, arrow_table
from tablepuppet.sql.query import OutputColumn
from tablepuppet.sql.types import family

QUARTILES = {"q25": 0.25, "median": 0.5, "q75": 0.75}
LEFT_OUT = {
    "min, max": "a single row decides them; the bounds stand in for them",
    "distinct, top": "a single row can add a category; profile(privacy=...) has the frequent ones",
    "skew, kurtosis": "they depend on few rows far out, and have no form with noise here",
}
_SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("column", "table", "type")),
        ("count", pa.int64()),
        ("missing", pa.int64()),
        ("count_noise", pa.float64()),
        *((name, pa.float64()) for name in ("mean", "mean_noise", "std", "std_noise")),
        *((f"{name}{end}", pa.float64()) for name in QUARTILES for end in ("", "_low", "_high")),
        *((name, pa.float64()) for name in ("bound_low", "bound_high")),
    ]
)
_SHOWN = ("count", "missing", "mean", "std", *QUARTILES)


class NoisyDescription(TableResult):
    """Noisy statistics per column over joined rows: a readable table, and Arrow by `to_arrow`.

    ``spent`` is what they have cost, ``left_out`` which statistics have no form with noise, and why.
    """

    def __init__(self, rows: list[dict[str, Any]], spent: Spent):
        self._table, self.spent, self.left_out = arrow_table(rows, _SCHEMA), spent, dict(LEFT_OUT)

    def to_arrow(self) -> pa.Table:
        """One row per column; what does not apply to a column, or is hidden by noise, is null.

        ``count_noise``, ``mean_noise`` and ``std_noise`` are standard deviations of noise; that of ``missing`` is the
        one of ``count``. A quartile lies between ``_low`` and ``_high`` at two standard deviations. Dates are days
        since 1970-01-01.
        """
        return self._table

    def facts(self, column: str) -> dict[str, str]:
        """What is known of one column, by name, as it is shown; LearnError if it is not described."""
        rows = {row["column"]: row for row in self._table.to_pylist()}
        if column not in rows:
            raise LearnError(f"{column!r} is no described column; there are {', '.join(map(repr, rows))}")
        return {name: self._cell(rows[column], name) for name in _SHOWN}

    def _cell(self, row: Mapping[str, Any], name: str) -> str:
        kind, value = family(row["type"]), row[name]
        if value is None:
            return "hidden by noise" if row["bound_low"] is not None else NOT_APPLICABLE
        if name in ("count", "missing"):
            return f"{value:,} ± {number(row['count_noise'], 3)}"
        if name in QUARTILES:
            return with_interval(value, row[f"{name}_low"], row[f"{name}_high"], kind)
        days = " days" if kind in DATES else ""
        text = shown_value(value, kind) if name == "mean" else f"{shown(value)}{days}"
        return f"{text} ± {number(row[f'{name}_noise'], 3)}{days}"

    def table_view(self) -> TableView:
        """One row per column, for people."""
        rows = [
            [row["column"], row["table"], *(self._cell(row, name) for name in _SHOWN)]
            for row in self._table.to_pylist()
        ]
        return TableView(f"Joined rows with noise: {self.spent}", aligned(["column", "table"], _SHOWN), rows)


def noisy_describe(
    client: Client, noise: NoiseRequest, names: Sequence[str] | None, bounds: Mapping[str, Any] | None, events: Events
) -> NoisyDescription:
    """Count and missing of every feature; mean, standard deviation and quartiles of numbers."""
    columns = noisy_features(client, names, "describe")
    asked = NoisyStatistics(client, noise, "describe")
    wanted = want_columns(client, asked, columns, bounds, "describe")
    spent = asked.ask(events)
    return NoisyDescription([each.row() for each in wanted], spent)


@dataclass(frozen=True)
class WantedColumn:
    """What a row of a description is made of, as `NoisyStatistics` reads it; only numbers have a distribution."""

    column: OutputColumn
    summary: Callable[[], NoisySummary]
    distribution: Callable[[], NoisyDistribution] | None = None

    def row(self) -> dict[str, Any]:
        """The row of the column."""
        found = self.summary()
        row: dict[str, Any] = {"column": self.column.name, "table": self.column.alias, "type": self.column.type}
        row |= {"count": found.shown_count, "missing": round(found.rows) - found.shown_count}
        row |= {name: getattr(found, name) for name in ("count_noise", "mean", "mean_noise", "std", "std_noise")}
        if self.distribution is not None:
            distribution = self.distribution()
            row |= {"bound_low": distribution.low, "bound_high": distribution.high}
            for name, share in QUARTILES.items():
                row |= zip((name, f"{name}_low", f"{name}_high"), distribution.quantile(share), strict=True)
        return row


def want_columns(
    client: Client, asked: NoisyStatistics, columns: Sequence[OutputColumn], bounds: Mapping[str, Any] | None, step: str
) -> list[WantedColumn]:
    """Plan what a description is made of; PrivacyError if a number has no bounds."""
    known = bounds_of(client.plan, [column for column in columns if is_number(column)], bounds, step)
    return [
        WantedColumn(column, asked.moments(column, known[column.name]), asked.distribution(column, known[column.name]))
        if column.name in known
        else WantedColumn(column, asked.counts(column))
        for column in columns
    ]


def noisy_quantile(
    client: Client, noise: NoiseRequest, shares: float | Sequence[float], names: Sequence[str] | None,
    bounds: Mapping[str, Any] | None, events: Events,
) -> Quantiles:  # fmt: skip
    """Quantiles of numeric features; any number of them costs as much as one."""
    listed = checked_shares(shares)
    columns = noisy_features(client, names, "quantile")
    if names is None:
        columns = [column for column in columns if is_number(column)]
    columns = [find_number(client.plan, column.name, "quantile") for column in columns]
    known = bounds_of(client.plan, columns, bounds, "quantile")
    asked = NoisyStatistics(client, noise, "quantile")
    distributions = {column: asked.distribution(column, known[column.name]) for column in columns}
    spent = asked.ask(events)
    found = {}
    for column, read in distributions.items():
        estimates = map(read().quantile, listed)
        found[column] = [Quantile(value, exact=False, low=low, high=high) for value, low, high in estimates]
    return Quantiles(listed, found, spent)


def noisy_histogram(
    client: Client, noise: NoiseRequest, name: str, bins: int, bounds: Any, events: Events
) -> Histogram:
    """The histogram of one feature, in equally wide bins between bounds."""
    size = checked_bins(bins)
    [column] = noisy_features(client, [find_number(client.plan, name, "histogram").name], "histogram")
    given = None if bounds is None else {column.name: bounds}
    pair = bounds_of(client.plan, [column], given, "histogram")[column.name]
    asked = NoisyStatistics(client, noise, "histogram")
    read = asked.bins(column, pair, size)
    spent, rows = asked.ask(events), asked.rows(column.alias)
    counts, sigma = read()
    missing = round(min(max(rows - float(counts.sum()), 0.0), rows))
    return Histogram(column, np.linspace(*pair, size + 1), counts, missing, exact=False, noise=sigma, spent=spent)
