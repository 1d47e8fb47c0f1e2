"""How many joined rows are below given values, from cells that are refined only at these values (distribution.py).

The counts are exact for public columns. For others a value may be inside a cell with too few rows to be divided. Then
rows are assumed to be evenly distributed in the cell, as for quantiles, and ``exact`` is False.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tablepuppet.operators.client import Client
from tablepuppet.prep.distribution import Distribution, Distributions
from tablepuppet.prep.ordered import image
from tablepuppet.prep.quantiles import Quantile, quantile_of, ranked_cells
from tablepuppet.sql.query import OutputColumn

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Below:
    """Joined rows of one column by values: below each, and up to it."""

    below: Floats
    up_to: Floats
    total: float
    exact: bool


class RowsBelow:
    """The distributions of several columns: the first histograms are asked for when made."""

    def __init__(self, client: Client, columns: Iterable[OutputColumn]):
        self._asked = Distributions(client, columns)

    def quantiles(self, shares: Sequence[float]) -> dict[str, list[Quantile]]:
        """As `relation.quantile`, by column."""
        self._asked.refine(lambda known: ranked_cells(known, shares))
        return {name: [quantile_of(each, share) for share in shares] for name, each in self._asked.read().items()}

    def read(self, values: Mapping[str, Sequence[float]]) -> dict[str, Below]:
        """Rows below the values that are listed for each column."""
        words = {name: [int(word) for word in image(np.array(listed, float))] for name, listed in values.items()}
        self._asked.refine(lambda known: _cells_at(known, words[known.column.name]))
        return {name: _counted(each, words[name]) for name, each in self._asked.read().items()}


def _cells_at(known: Distribution, words: Iterable[int]) -> Iterable[tuple[int, int]]:
    """The cells around words that can be cut."""
    for word in words:
        yield from known.open_cells(word, word)


def _counted(known: Distribution, words: Sequence[int]) -> Below:
    below, up_to, exact = [], [], True
    for word in words:
        parts = [_count(known, at) for at in (word, word + 1)]
        below.append(parts[0][0])
        up_to.append(parts[1][0])
        exact &= parts[0][1] and parts[1][1]
    return Below(np.array(below), np.array(up_to), known.total, exact)


def _count(known: Distribution, word: int) -> tuple[float, bool]:
    """(joined rows whose words are lower, whether no cell reaches across)."""
    count, exact = 0.0, True
    for cells in known.cells:
        lower = cells.highs < np.uint64(word)
        across = np.flatnonzero(~lower & (cells.lows < np.uint64(word)))
        count += float(cells.weights[lower].sum())
        for place in across.tolist():
            low, high = int(cells.lows[place]), int(cells.highs[place])
            count += float(cells.weights[place]) * (word - low) / (high - low + 1)
            exact = False
    return count, exact
