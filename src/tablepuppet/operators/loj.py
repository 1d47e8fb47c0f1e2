"""The LoJ operator: learning over a join is learning on its tables (Table 4).

Gather: predictions of base rows become scores of joined rows. Scatter: what the loss wants of joined rows is summed
at base rows (Eq. 10, 14), so that a party hears of each of its rows once, however often it is joined.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tablepuppet.mapping.table_mapping import Floats, TableMapping


@dataclass(frozen=True)
class LearningOverJoin:
    """Moves values between the joined rows and the tables of a relation."""

    mapping: TableMapping

    def gather(self, predictions: Mapping[str, Floats], outputs: int) -> NDArray[np.float64]:
        """The sum over tables of their predictions, for every joined row."""
        shape = (len(self.mapping),) if outputs == 1 else (len(self.mapping), outputs)
        scores = np.zeros(shape, order="F")
        for alias, values in predictions.items():
            scores += self.mapping.gather(alias, values)
        return scores

    def scatter(self, values: Floats, aliases: Iterable[str]) -> dict[str, NDArray[np.float64]]:
        """Values of joined rows, summed at the base rows of each table."""
        return {alias: self.mapping.scatter_sum(alias, values) for alias in aliases}
