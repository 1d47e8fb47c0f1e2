"""What a model predicts for joined rows, and the one way it becomes a table: in Python, in files, on the screen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tablepuppet.errors import LearnError

PREDICTION = "prediction"


@dataclass(frozen=True)
class Predictions:
    """Numbers (rows,) of a regressor, or probabilities (rows, classes) of a classifier."""

    values: NDArray[np.float64]
    classes: NDArray[Any] | None = None

    @property
    def labels(self) -> NDArray[Any]:
        """The number, or the most probable class, of every row."""
        return self.values if self.classes is None else self.classes[self.values.argmax(axis=1)]

    def table(self, beside: pa.Table) -> pa.Table:
        """The columns of ``beside``, ``prediction``, and for classifiers ``probability=<class>`` of each class."""
        found = {PREDICTION: pa.array(self.labels)}
        for place, name in enumerate(() if self.classes is None else self.classes):
            found[f"probability={name}"] = pa.array(np.ascontiguousarray(self.values[:, place]))
        taken = [name for name in beside.column_names if name in found]
        if taken:
            raise LearnError(f"ids: a column of predictions is called {taken[0]!r} too; name the id's alias too")
        for name, column in found.items():
            beside = beside.append_column(name, column)
        return beside
