"""Skew and kurtosis of columns over joined rows, with the results of pandas, from central sums of the shards.

A party returns sums of powers about its own mean, over the same rows as ``statistics.numbers``. The coordinator
converts them to the mean of all shards. The sums are accurate whatever the offset of the values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.operators.client import Client
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.ops import Values, op
from tablepuppet.party.release import Release
from tablepuppet.party.returns import Asked, Numbers, Wrong
from tablepuppet.prep.statistics import present_numbers
from tablepuppet.sql.query import OutputColumn


@dataclass(frozen=True)
class CentralSums:
    """Count, mean, and sums of the second to fourth power about it; sums of even powers are not negative."""

    def check(self, value: Any, asked: Asked, reply: Mapping[str, Any]) -> None:
        """Raise `Wrong` unless it is such an array."""
        Numbers(("columns", 5), finite=False).check(value, asked, reply)
        count, _, second, _, fourth = value.T
        if not ((count >= 0) & (count == np.rint(count))).all() or (second < 0).any() or (fourth < 0).any():
            raise Wrong("has counts that are none, or sums of squares below 0")
        if asked.joined is not None and (count > asked.joined).any():
            raise Wrong("has counts of more rows than are joined")


@op(
    "statistics.shape",
    asked="`describe`, `quantile`, `histogram`",
    releases=Release.STATISTICS,
    columns=("columns",),
    returns={"sums": CentralSums()},
)
def shape_sums(table: LocalTable, view: str, columns: Sequence[str]) -> Values:
    """Count, mean, and sums of the second, third and fourth power about the mean; NaN where a value is not finite.

    A column with a value in fewer rows than the policy's ``min_group`` counts as one without any.
    """
    rows = []
    for name in columns:
        values, weights = present_numbers(table, view, name)
        total = float(weights.sum())
        if not total or not np.isfinite(values).all():
            rows.append([total, *[math.nan] * 4])
            continue
        mean = float(weights @ values) / total
        mean += float(weights @ (values - mean)) / total
        centred = np.zeros_like(values) if values.min() == values.max() else values - mean
        squares = centred**2
        powers = (squares, squares * centred, squares**2)
        rows.append([total, mean, *(float(weights @ power) for power in powers)])
    return {"sums": np.array(rows, np.float64).reshape(-1, 5)}


@dataclass(frozen=True)
class Shape:
    """Skew and excess kurtosis without bias; NaN where rows are too few, constant or not finite."""

    skew: float
    kurtosis: float


class ShapeStatistics:
    """Skew and kurtosis of columns: asked for at construction, read on first use."""

    def __init__(self, client: Client, columns: Iterable[OutputColumn]):
        self._by_alias: dict[str, list[str]] = {}
        for column in columns:
            self._by_alias.setdefault(column.alias, []).append(column.name)
        self._replies = client.ask(
            "statistics.shape", lambda alias, _: {"columns": self._by_alias[alias]} if alias in self._by_alias else None
        )

    def read(self) -> dict[str, Shape]:
        """By column."""
        return {
            name: shape_of([reply["sums"][place] for reply in self._replies.read()[alias]])
            for alias, names in self._by_alias.items()
            for place, name in enumerate(names)
        }


def shape_of(shards: Sequence[NDArray[np.float64]]) -> Shape:
    """Skew and kurtosis of a column from the central sums of its shards (Pébay 2008).

    >>> round(shape_of([np.array([4.0, 2.5, 5.0, 0.0, 10.25])]).kurtosis, 6)
    -1.2
    """
    sums = np.array(shards, np.float64).reshape(-1, 5)
    some = sums[sums[:, 0] > 0]
    n, means, second, third, fourth = some.T
    count = float(n.sum())
    with np.errstate(all="ignore"):
        away = means - (float(n @ means) / count if count else 0.0)
        m2 = float(np.sum(second + n * away**2))
        m3 = float(np.sum(third + 3 * away * second + n * away**3))
        m4 = float(np.sum(fourth + 4 * away * third + 6 * away**2 * second + n * away**4))
    return Shape(_skew(count, m2, m3), _kurtosis(count, m2, m4))


def _skew(n: float, m2: float, m3: float) -> float:
    if n < 3 or not math.isfinite(m2 * m3) or not m2**1.5 > 0:
        return math.nan
    return float(n * math.sqrt(n - 1) / (n - 2) * m3 / m2**1.5)


def _kurtosis(n: float, m2: float, m4: float) -> float:
    if n < 4 or not math.isfinite(m2 * m4) or not m2**2 > 0:
        return math.nan
    return (n * (n + 1) * (n - 1) * m4 / m2**2 - 3 * (n - 1) ** 2) / ((n - 2) * (n - 3))
