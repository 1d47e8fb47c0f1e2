"""The LoJ operator: learning over a join is learning on its tables (Table 4).

Gather: predictions of base rows become scores of joined rows. Scatter: what the loss wants of joined rows is summed
at base rows (Eq. 10, 14), so that a party hears of each of its rows once, however often it is joined.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import take
from tablepuppet.mapping.table_mapping import Floats, TableMapping

PIECE = 1 << 15  # joined rows at a time: the tables' parts of a sum are added up in the cache


@dataclass(frozen=True)
class LearningOverJoin:
    """Moves values between the joined rows and the tables of a relation."""

    mapping: TableMapping

    def gather(
        self, predictions: Mapping[str, Floats], outputs: int, out: NDArray[np.float64] | None = None
    ) -> NDArray[np.float64]:
        """The sum over tables of their predictions, for every joined row; written to ``out`` if that is given."""
        shape = (len(self.mapping),) if outputs == 1 else (len(self.mapping), outputs)
        scores = np.empty(shape, order="F") if out is None else out
        if not predictions:
            scores[:] = 0.0
        for column in range(outputs):
            target = scores if outputs == 1 else scores[:, column]
            self._add_up({a: v if outputs == 1 else v[:, column].copy() for a, v in predictions.items()}, target)
        return scores

    def _add_up(self, predictions: Mapping[str, Floats], target: NDArray[np.float64]) -> None:
        for start in range(0, len(target), PIECE):
            part = slice(start, start + PIECE)
            for number, (alias, values) in enumerate(predictions.items()):
                table = self.mapping.tables[alias]
                found = values[part] if table.is_identity else take(values, table.index[part])
                if number:
                    target[part] += found
                else:
                    target[part] = found

    def scatter(self, values: Floats, aliases: Iterable[str]) -> dict[str, NDArray[np.float64]]:
        """Values of joined rows, summed at the base rows of each table."""
        return {alias: self.mapping.scatter_sum(alias, values) for alias in aliases}

    def scatter_centred(self, values: Floats, aliases: Iterable[str]) -> dict[str, NDArray[np.float64]]:
        """The same of values from which their mean over joined rows is taken."""
        mean = values.mean(axis=0)
        return {
            alias: self.mapping.scatter_sum(alias, values) - np.multiply.outer(self.mapping.counts(alias), mean)
            for alias in aliases
        }
