"""How many joined rows are below given values, from cells that are refined only at these values (distribution.py).

The counts are exact for public columns. For others a value may be inside a cell with too few rows to be divided. Then
rows are assumed to be evenly distributed in the cell, as for quantiles, and ``exact`` is False.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tablepuppet.arrays import Array
from tablepuppet.prep.columns.ordered import words_of
from tablepuppet.prep.explore.distribution import Distribution, Distributions


@dataclass(frozen=True)
class Below:
    """Joined rows of one column by values: below each, and up to it."""

    below: Array
    up_to: Array
    total: float
    exact: bool


def rows_below(asked: Distributions, values: Mapping[str, Sequence[float]]) -> dict[str, Below]:
    """Rows below the values that are listed for each column."""
    words = {name: [int(word) for word in words_of(np.array(listed, float))] for name, listed in values.items()}

    def cells_at(known: Distribution) -> Iterable[int]:
        for word in words[known.column.name]:
            yield from known.open_cells(word, word)

    asked.refine(cells_at)
    return {name: _counted(each, words[name]) for name, each in asked.read().items()}


def _counted(known: Distribution, words: Sequence[int]) -> Below:
    below, up_to = [_count(known, word) for word in words], [_count(known, word + 1) for word in words]
    exact = all(is_exact for _, is_exact in below + up_to)
    return Below(np.array([count for count, _ in below]), np.array([count for count, _ in up_to]), known.total, exact)


def _count(known: Distribution, word: int) -> tuple[float, bool]:
    """(joined rows whose words are lower, whether no cell reaches across)."""
    lows, highs, weights = known.all_cells()
    lower = highs < np.uint64(word)
    across = ~lower & (lows < np.uint64(word))
    count = float(weights[lower].sum())
    for low, high, weight in zip(lows[across].tolist(), highs[across].tolist(), weights[across].tolist(), strict=True):
        count += weight * (word - low) / (high - low + 1)
    return count, not across.any()
