"""`describe`, `quantile`, `histogram` with a `Privacy`: what can be computed with noise, and the noise of each number.

Means, deviations and quantiles use values between bounds: a value outside counts as the nearest bound. Everything here
is computed from noisy replies only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tablepuppet.errors import LearnError
from tablepuppet.operators.client import Client
from tablepuppet.prep.given_bounds import bounds_of
from tablepuppet.prep.histograms import Histogram, checked_bins
from tablepuppet.prep.noisy_distribution import NoisyDistribution
from tablepuppet.prep.noisy_statistics import NoiseRequest, NoisyStatistics, noisy_features
from tablepuppet.prep.quantiles import Quantile, Quantiles, as_shown, checked_shares
from tablepuppet.prep.selected import find_number, is_date, is_number
from tablepuppet.prep.statistics_promise import Spent
from tablepuppet.runs.events import Events
from tablepuppet.runs.table_view import Align, ShownAsTable, TableView, shown
from tablepuppet.sql.query import OutputColumn

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


class NoisyDescription(ShownAsTable):
    """Noisy statistics per column over joined rows: a readable table, and Arrow by `to_arrow`.

    ``spent`` is what they have cost, ``left_out`` which statistics have no form with noise, and why.
    """

    def __init__(self, rows: list[dict[str, Any]], columns: Sequence[OutputColumn], spent: Spent):
        self._table, self.spent, self.left_out = pa.Table.from_pylist(rows, schema=_SCHEMA), spent, dict(LEFT_OUT)
        self._columns = {column.name: column for column in columns}

    def to_arrow(self) -> pa.Table:
        """One row per column; what does not apply to a column, or is hidden by noise, is null.

        ``count_noise``, ``mean_noise`` and ``std_noise`` are standard deviations of noise; that of ``missing`` is the
        one of ``count``. A quartile lies between ``_low`` and ``_high`` at two standard deviations. Dates are days
        since 1970-01-01.
        """
        return self._table

    def facts(self, column: str) -> dict[str, str]:
        """What is known of one column, by name, as it is shown; LearnError if it is not described."""
        row = next((row for row in self._table.to_pylist() if row["column"] == column), None)
        if row is None:
            raise LearnError(f"{column!r} is no described column; there are {', '.join(map(repr, self._columns))}")
        return {name: self._cell(row, name) for name in _SHOWN}

    def _cell(self, row: Mapping[str, Any], name: str) -> str:
        column, value = self._columns[row["column"]], row[name]
        if value is None:
            return "hidden by noise" if row["bound_low"] is not None else ""
        if name in ("count", "missing"):
            return f"{value:,} ± {row['count_noise']:,.3g}"
        if name in QUARTILES:
            return (
                f"{as_shown(column, value)} "
                f"({as_shown(column, row[f'{name}_low'])} to {as_shown(column, row[f'{name}_high'])})"
            )
        days = " days" if is_date(column) else ""
        text = as_shown(column, value) if name == "mean" else f"{shown(value)}{days}"
        return f"{text} ± {row[f'{name}_noise']:,.3g}{days}"

    def table_view(self) -> TableView:
        """One row per column, for people."""
        sides: dict[str, Align] = {"column": "left", "table": "left", **dict.fromkeys(_SHOWN, "right")}
        rows = [
            [row["column"], row["table"], *(self._cell(row, name) for name in _SHOWN)]
            for row in self._table.to_pylist()
        ]
        return TableView(f"Joined rows with noise: {self.spent}", sides, rows)


def noisy_describe(
    client: Client, noise: NoiseRequest, names: Sequence[str] | None, bounds: Mapping[str, Any] | None, events: Events
) -> NoisyDescription:
    """Count and missing of every feature; mean, standard deviation and quartiles of numbers."""
    columns = noisy_features(client, names, "describe")
    asked = NoisyStatistics(client, noise, "describe")
    want_description(client, asked, columns, bounds, "describe")
    spent = asked.ask(events)
    return NoisyDescription(description_rows(asked, columns, distributions_of(asked, columns)), columns, spent)


def want_description(
    client: Client, asked: NoisyStatistics, columns: Sequence[OutputColumn], bounds: Mapping[str, Any] | None, step: str
) -> None:
    """Name what a description is made of; PrivacyError if a number has no bounds."""
    known = bounds_of(client.plan, [column for column in columns if is_number(column)], bounds, step)
    for column in columns:
        if column.name in known:
            asked.want_moments(column, known[column.name])
            asked.want_distribution(column, known[column.name])
        else:
            asked.want_counts(column)


def distributions_of(asked: NoisyStatistics, columns: Sequence[OutputColumn]) -> dict[str, NoisyDistribution]:
    """The distributions of numbers, by name."""
    return {column.name: asked.distribution(column) for column in columns if is_number(column)}


def description_rows(
    asked: NoisyStatistics, columns: Sequence[OutputColumn], distributions: Mapping[str, NoisyDistribution]
) -> list[dict[str, Any]]:
    """One row per column."""
    rows = []
    for column in columns:
        row: dict[str, Any] = {"column": column.name, "table": column.alias, "type": column.type}
        if column.name in distributions:
            found, distribution = asked.moments(column), distributions[column.name]
            count = found.count
            row |= {"mean": _known(found.mean), "mean_noise": _known(found.mean_noise)}
            row |= {"std": _known(found.std), "std_noise": _known(found.std_noise)}
            row |= {"bound_low": distribution.low, "bound_high": distribution.high}
            for name, share in QUARTILES.items():
                estimates = zip(("", "_low", "_high"), distribution.quantile(share), strict=True)
                row |= {f"{name}{end}": _known(value) for end, value in estimates}
        else:
            count = asked.counts(column)
        row |= {"count": count.shown, "missing": round(count.rows) - count.shown, "count_noise": count.noise}
        rows.append(row)
    return rows


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
    for column in columns:
        asked.want_distribution(column, known[column.name])
    spent = asked.ask(events)
    found = {}
    for column in columns:
        distribution = asked.distribution(column)
        estimates = [distribution.quantile(share) for share in listed]
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
    asked.want_bins(column, pair, size)
    spent = asked.ask(events)
    counts, sigma = asked.bins(column, size)
    missing = round(min(max(asked.rows(column) - float(counts.sum()), 0.0), asked.rows(column)))
    return Histogram(column, np.linspace(*pair, size + 1), counts, missing, exact=False, noise=sigma, spent=spent)


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
