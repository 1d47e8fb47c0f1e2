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
from tablepuppet.pieces import over_pieces


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
            one = {alias: values if outputs == 1 else values[:, column] for alias, values in predictions.items()}
            self._add_up(one, target)
        return scores

    def _add_up(self, predictions: Mapping[str, Floats], target: NDArray[np.float64]) -> None:
        bases = {alias: np.ascontiguousarray(values, np.float64) for alias, values in predictions.items()}

        def add_up(part: slice) -> None:
            for number, (alias, values) in enumerate(bases.items()):
                table = self.mapping.tables[alias]
                # mode="clip" skips the bounds check
                found = values[part] if table.is_identity else values.take(table.index[part], mode="clip")
                if number:
                    target[part] += found
                else:
                    target[part] = found

        over_pieces(add_up, len(target))

    def scatter(self, values: Floats, aliases: Iterable[str]) -> dict[str, NDArray[np.float64]]:
        """Values of joined rows, summed at the base rows of each table."""
        return {alias: self.mapping.scatter_sum(alias, values) for alias in aliases}

    def scatter_centred(self, values: Floats, aliases: Iterable[str]) -> dict[str, NDArray[np.float64]]:
        """The same of values from which their mean over joined rows is taken."""
        sums = self.scatter(values, aliases)
        total = next(iter(sums.values())).sum(axis=0) if sums else 0.0
        return {
            alias: found - np.multiply.outer(self.mapping.counts(alias), total / len(self.mapping))
            for alias, found in sums.items()
        }
