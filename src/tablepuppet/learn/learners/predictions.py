"""Predictions for joined rows, and how they become a table in Python, in files and on the screen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tablepuppet.errors import LearnError
from tablepuppet.operators.delivery import Delivery
from tablepuppet.operators.ids import joined_ids
from tablepuppet.relation import Relation
from tablepuppet.runs.figures import shown
from tablepuppet.runs.table_view import TableResult, TableView, side

PREDICTION = "prediction"
SHOWN_ROWS = 10


@dataclass(frozen=True)
class Predictions:
    """Numbers (rows,) of a regressor, or probabilities (rows, classes) of a classifier."""

    values: NDArray[np.float64]
    classes: NDArray[Any] | None = None

    @property
    def labels(self) -> NDArray[Any]:
        """The number, or the most probable class, of every row."""
        return self.values if self.classes is None else self.classes[self.values.argmax(axis=1)]

    def table(self, beside: pa.Table) -> PredictionTable:
        """The columns of ``beside``, ``prediction``, and for classifiers ``probability=<class>`` of each class."""
        found = {PREDICTION: pa.array(self.labels)}
        for place, name in enumerate(() if self.classes is None else self.classes):
            found[f"probability={name}"] = pa.array(np.ascontiguousarray(self.values[:, place]))
        taken = [name for name in beside.column_names if name in found]
        if taken:
            raise LearnError(f"ids: a column of predictions is called {taken[0]!r} too; name the id's alias too")
        for name, column in found.items():
            beside = beside.append_column(name, column)
        return PredictionTable(beside)


class PredictionTable(TableResult):
    """Predictions beside ids, one row per joined row: an Arrow table that is printed as a table.

    Whatever an Arrow table has it has too: ``found["prediction"]``, ``found.slice(0, 3).to_pylist()``.
    """

    def __init__(self, table: pa.Table):
        self._table = table

    def to_arrow(self) -> pa.Table:
        """The Arrow table itself."""
        return self._table

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, key: str | int | slice) -> Any:
        return self._table[key]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # so that copies, which have no table yet, do not ask for it for ever
            raise AttributeError(name)
        return getattr(self._table, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self._table)})

    def table_view(self) -> TableView:
        """The first rows and how many there are."""
        first = self._table.slice(0, SHOWN_ROWS)
        sides = {name: side(first[name].to_pylist()) for name in first.column_names}
        rows = [[_cell(value) for value in row.values()] for row in first.to_pylist()]
        more = f"; these are the first {SHOWN_ROWS}" if len(self) > SHOWN_ROWS else ""
        return TableView(f"Predictions: {len(self):,} joined rows{more}", sides, rows)


def _cell(value: Any) -> str:
    """A value of a row: an id or a year is no count, and a class is written as in ``probability=<class>``.

    >>> _cell(500001), _cell(False), _cell(0.65892)
    ('500001', 'False', '0.6589')
    """
    return str(value) if isinstance(value, int) else shown(value)


def handed_out(
    predict: Callable[[Relation], Predictions],
    relation: Relation,
    features: Iterable[str],
    ids: Sequence[str] | None,
    deliver_to: str | None,
    combine: Literal["mean"] | None,
) -> Any:
    """Predictions in the requested form: an array, a table with ids, or the receipt of a delivery.

    ``features`` are aliases of the tables that predictions are made from. An impossible request is refused before
    predictions are made, since they may cost epsilon.
    """
    if deliver_to is None:
        if combine is not None:
            raise LearnError("combine is for deliver_to: joined rows have one prediction each")
        beside = None if ids is None else joined_ids(relation.client, ids)
        found = predict(relation)
        return found.labels if beside is None else found.table(beside)
    if ids is not None:
        raise LearnError("give ids or deliver_to: predictions that are delivered are known by the party's keys")
    delivery = Delivery.asked(relation.client, deliver_to, combine, features)
    found = predict(relation)
    return delivery.send(found.values, found.classes)
