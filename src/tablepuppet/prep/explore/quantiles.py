"""`relation.quantile()`: quantiles over joined rows, as NumPy's ``linear``, from histograms that parties refine.

They are exact for public columns. For others the value at a rank is estimated within the smallest cell that has enough
rows (distribution.py), and ``exact`` is False. All columns and quantiles are refined together, in at most eight trips.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike

from tablepuppet.arrays import Array
from tablepuppet.errors import LearnError
from tablepuppet.operators.client import Client
from tablepuppet.prep.columns.selected import check_without_noise, find_number, find_numbers, is_date, is_number
from tablepuppet.prep.columns.values import as_date, shown_value
from tablepuppet.prep.explore.distribution import Distribution, Distributions
from tablepuppet.prep.explore.noisy_statistics import NoiseRequest, NoisyStatistics, Spent, noisy_features
from tablepuppet.runs.events import Events
from tablepuppet.runs.figures import NOT_APPLICABLE
from tablepuppet.runs.table_view import TableResult, TableView, aligned, arrow_table
from tablepuppet.spelling import unknown_key
from tablepuppet.sql.query import OutputColumn
from tablepuppet.sql.types import Family, family

_SCHEMA = pa.schema(
    [
        ("column", pa.string()),
        ("table", pa.string()),
        ("type", pa.string()),
        ("quantile", pa.float64()),
        ("value", pa.float64()),
        ("exact", pa.bool_()),
        ("date", pa.timestamp("us")),
    ]
)
_NOISY = pa.schema([*_SCHEMA, ("low", pa.float64()), ("high", pa.float64())])


@dataclass(frozen=True)
class Quantile:
    """The value below which a share of the joined rows lies; NaN if no row has a value.

    With a `Privacy`, ``low`` and ``high`` are how far noise may have moved it, at two standard deviations.
    """

    value: float
    exact: bool
    low: float | None = None
    high: float | None = None


class Quantiles(TableResult):
    """Quantiles by column: ``found["price"]`` is an array in the order that was asked for; `to_arrow` has all."""

    def __init__(
        self, shares: Sequence[float], found: Mapping[OutputColumn, Sequence[Quantile]], spent: Spent | None = None
    ):
        self.shares, self._found, self.spent = list(shares), dict(found), spent

    def __getitem__(self, column: str) -> Array:
        for each, values in self._found.items():
            if column in (each.name, each.qualified):
                return np.array([value.value for value in values])
        raise unknown_key("quantile", column, [each.name for each in self._found])

    def to_arrow(self) -> pa.Table:
        """One row per column and quantile; dates are days since 1970-01-01, and timestamps in ``date``.

        With a `Privacy` there are ``low`` and ``high`` too.
        """
        rows = [
            {
                "column": column.name, "table": column.alias, "type": column.type, "quantile": share,
                "value": each.value, "exact": each.exact, "low": each.low, "high": each.high,
                "date": as_date(each.value) if is_date(column) else None,
            }
            for column, values in self._found.items()
            for share, each in zip(self.shares, values, strict=True)
        ]  # fmt: skip
        return arrow_table(rows, _SCHEMA if self.spent is None else _NOISY)

    def table_view(self) -> TableView:
        rows = [
            [column.name, column.alias, *(_cell(column, value) for value in values)]
            for column, values in self._found.items()
        ]
        title = "Quantiles of the joined rows" + ("" if self.spent is None else f" with noise: {self.spent}")
        return TableView(title, aligned(("column", "table"), (f"{share:g}" for share in self.shares)), rows)


def _cell(column: OutputColumn, found: Quantile) -> str:
    kind = family(column.type)
    if math.isnan(found.value):
        return "hidden by noise" if found.low is not None else NOT_APPLICABLE
    if found.low is not None and found.high is not None:
        return with_interval(found.value, found.low, found.high, kind)
    return ("" if found.exact else "≈ ") + shown_value(found.value, kind)


def with_interval(value: float, low: float, high: float, kind: Family) -> str:
    """A noisy value for people, with how far noise may have moved it."""
    return f"{shown_value(value, kind)} ({shown_value(low, kind)} to {shown_value(high, kind)})"


def quantile(
    client: Client, shares: float | Sequence[float], names: Sequence[str] | None, events: Events,
    noise: NoiseRequest | None = None,
) -> Quantiles:  # fmt: skip
    """Quantiles of numeric columns; with noise, of features, where any number of them costs as much as one."""
    listed = checked_shares(shares)
    if noise is None:
        columns = find_numbers(client.plan, names, "quantile")
        check_without_noise(client.plan, columns, "quantile")
        exact = quantiles_of(Distributions(client, columns), listed)
        return Quantiles(listed, {column: exact[column.name] for column in columns})
    features = noisy_features(client, names, "quantile")
    if names is None:
        features = [column for column in features if is_number(column)]
    columns = [find_number(client.plan, column.name, "quantile") for column in features]
    asked = NoisyStatistics(client, noise, "quantile")
    known = asked.bounds(columns)
    distributions = {column: asked.distribution(column, known[column.name]) for column in columns}
    spent, found = asked.ask(events), {}
    for column, read in distributions.items():
        estimates = map(read().quantile, listed)
        found[column] = [Quantile(value, exact=False, low=low, high=high) for value, low, high in estimates]
    return Quantiles(listed, found, spent)


def checked_shares(shares: float | Sequence[float]) -> list[float]:
    """Quantiles as a list; LearnError unless each is from 0 to 1."""
    listed = list(shares) if isinstance(shares, Sequence | np.ndarray) and not isinstance(shares, str) else [shares]
    for share in listed:
        if not isinstance(share, Real) or isinstance(share, bool) or not 0 <= share <= 1:
            raise LearnError(f"quantile: a quantile is a number from 0 to 1, such as 0.5 for the median, not {share!r}")
    return [float(share) for share in listed]


def quantiles_of(asked: Distributions, shares: Sequence[float]) -> dict[str, list[Quantile]]:
    """Quantiles of columns, by name and in the order of shares; their histograms are refined for it."""
    asked.refine(lambda known: _ranked_cells(known, shares))
    return {name: _quantiles_of(each, shares) for name, each in asked.read().items()}


def _ranked_cells(known: Distribution, shares: Iterable[float]) -> Iterable[int]:
    """The cells that may hold a quantile that is looked for."""
    total = known.total
    if not total:
        return ()
    below, above, _ = _ranks(shares, total)
    return known.open_around(np.concatenate([below, above, [total - 1] * known.may_have_nan]))


def _ranks(shares: Iterable[float], count: float) -> tuple[Array, Array, Array]:
    """(ranks below, ranks above, how far between them): NumPy's method ``linear``."""
    places = (count - 1) * np.array(list(shares), np.float64)
    below = np.floor(places)
    return below, np.minimum(below + 1, count - 1), places - below


def _quantiles_of(known: Distribution, shares: Sequence[float]) -> list[Quantile]:
    """Quantiles, as precisely as the cells allow."""
    total = known.total
    if not total or (known.may_have_nan and math.isnan(known.values([total - 1])[0][0])):
        return [Quantile(math.nan, exact=True)] * len(shares)  # as in NumPy
    below, above, parts = _ranks(shares, total)
    values, exact = (each.reshape(2, -1) for each in known.values(np.concatenate([below, above])))
    return list(map(Quantile, between(values[0], values[1], parts).tolist(), (exact[0] & exact[1]).tolist()))


def between(one: ArrayLike, other: ArrayLike, parts: ArrayLike) -> Array:
    """The values at parts of the way from the lower to the higher of two: NumPy's quantiles of them, to the last bit.

    >>> between(1.0, 3.0, 0.25).tolist()
    1.5
    """
    low, high, part = np.minimum(one, other), np.maximum(one, other), np.asarray(parts)
    with np.errstate(over="ignore", invalid="ignore"):
        away = high - low
        found = np.where(part >= 0.5, high - away * (1 - part), low + away * part)  # from the nearer one
        overflows = np.isinf(away) & np.isfinite(low) & np.isfinite(high)  # as NumPy does
        return np.asarray(np.where(overflows, low * (1.0 - part) + high * part, found))
