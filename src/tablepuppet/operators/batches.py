"""Mini-batches of joined rows, with duplicates reduced: for each base row of a batch, one value is sent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tablepuppet.mapping.table_mapping import Floats, TableMapping
from tablepuppet.privacy.secure_sum import FEWEST

Array = NDArray[np.float64]
Places = NDArray[np.int32]


@dataclass(frozen=True)
class Batch:
    """Some joined rows: for each table the distinct base rows, and the index of each joined row among them."""

    rows: NDArray[np.intp]
    places: Mapping[str, Places]  # distinct base rows, ascending
    index: Mapping[str, NDArray[np.intp]]  # joined row of the batch -> which of them

    def gather(self, predictions: Mapping[str, Floats], intercept: Array) -> Array:
        """Scores of the batch's joined rows."""
        outputs = len(intercept)
        scores = np.zeros(len(self.rows) if outputs == 1 else (len(self.rows), outputs)) + intercept
        for alias, values in predictions.items():
            scores += values[self.index[alias]]
        return scores

    def scatter(self, alias: str, values: Array) -> Array:
        """Values of joined rows summed at the distinct base rows (Eq. 10)."""
        sums = np.zeros((len(self.places[alias]), *values.shape[1:]))
        np.add.at(sums, self.index[alias], values)
        return sums


def batches(
    mapping: TableMapping, tables: list[str], size: int, seed: int, epoch: int, secured: Iterable[str] = ()
) -> Iterator[Batch]:
    """The joined rows in an order drawn from the seed and the epoch, ``size`` at a time.

    Of ``secured`` tables a batch has rows of three shards or more, or their sum would be that of one or two: it takes
    more rows until it has, and what is left over at the end goes with the last.
    """
    order = np.random.default_rng([seed, epoch]).permutation(len(mapping))
    owners = [mapping.tables[alias].owners[order] for alias in secured]
    start, ends = 0, []
    for end in [*range(size, len(order), size), len(order)]:
        if all(len(np.unique(owner[start:end])) >= FEWEST for owner in owners):
            ends.append(end)
            start = end
    for rows in np.split(order, ends[:-1]) if len(order) else ():
        found = {alias: np.unique(mapping.tables[alias].index[rows], return_inverse=True) for alias in tables}
        yield Batch(
            rows, {a: places for a, (places, _) in found.items()}, {a: index for a, (_, index) in found.items()}
        )
