"""Everything that is as long as the joined rows of a relation: mapping, labels, and columns of numbers for solvers.

Input: functions of a block of rows, with small arguments. Output: their small results, in the order of blocks. An
algorithm names a column and changes it by sending such a function; it never holds the column itself. So rows may be
stored anywhere: here they are in memory, and all cores work on their blocks. Columns are kept until they are dropped,
since allocating memory in every round would cost more than the computation. Nothing here is sent over the wire.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tablepuppet.mapping.table_mapping import TableMapping
from tablepuppet.pieces import on_all_cores, pieces

Array = NDArray[np.float64]
Column = str | tuple[str, int]  # a name, or a name and a slot of a column that has several
LABELS, SCORES, WEIGHTS = "labels", "scores", "weights"
Arguments = ParamSpec("Arguments")
Found = TypeVar("Found")


class Block:
    """Some joined rows that follow each other, with their part of every column."""

    __slots__ = ("_columns", "_mapping", "part")

    def __init__(self, mapping: TableMapping, columns: Mapping[str, NDArray[Any]], part: slice):
        self._mapping, self._columns, self.part = mapping, columns, part

    def __len__(self) -> int:
        return int(self.part.stop - self.part.start)

    def __getitem__(self, column: Column) -> NDArray[Any]:
        """A column in the shape of scores: (rows,) for one output, (rows, outputs) for several."""
        values: NDArray[Any] = self.stored(column)
        if values.ndim == 2:
            return values[0] if len(values) == 1 else values.T
        return values

    def stored(self, column: Column) -> NDArray[Any]:
        """A column as it is stored: the last axis is that of rows."""
        if isinstance(column, str):
            return self._columns[column][..., self.part]
        name, slot = column
        return self._columns[name][slot, ..., self.part]

    def gathered(self, alias: str, values: Array) -> Array:
        """Values of a table's base rows, (outputs, base rows), as values of these rows: (outputs, rows)."""
        table = self._mapping.tables[alias]
        # mode="clip" skips the bounds check
        return values[:, self.part] if table.is_identity else values.take(table.index[self.part], 1, mode="clip")

    def taken(self, alias: str, values: NDArray[Any]) -> NDArray[Any]:
        """Values of a table's base rows, (base rows, width), at these rows: (rows, width)."""
        table = self._mapping.tables[alias]
        return values[self.part] if table.is_identity else values[table.index[self.part]]

    @property
    def labels(self) -> NDArray[Any]:
        """The labels of these rows."""
        return self._columns[LABELS][self.part]

    @property
    def weights(self) -> Array | None:
        """How many joined rows each row represents; None: one."""
        found = self._columns.get(WEIGHTS)
        return None if found is None else found[self.part]

    @property
    def joined(self) -> float:
        """How many joined rows these rows represent."""
        return float(len(self)) if self.weights is None else float(self.weights.sum())


class JoinedRows:
    """The joined rows of a relation, with named columns; a row has ``outputs`` scores.

    With ``weights`` a row represents several joined rows with the same label and scores (operators/merged.py).

    >>> rows = JoinedRows(TableMapping({}, 4), labels=np.array([1.0, 2.0, 3.0, 4.0]))
    >>> rows.total(lambda block, shift: float((block.labels + shift).sum()), 10.0)
    50.0
    """

    def __init__(
        self, mapping: TableMapping, outputs: int = 1, labels: NDArray[Any] | None = None, weights: Array | None = None
    ):
        self.mapping, self.outputs = mapping, outputs
        self.joined = len(mapping) if weights is None else int(weights.sum())  # joined rows that these represent
        given = {LABELS: labels, WEIGHTS: weights}
        self._columns: dict[str, NDArray[Any]] = {name: each for name, each in given.items() if each is not None}
        self._relabelled: list[JoinedRows] = []

    def __len__(self) -> int:
        return len(self.mapping)

    def counts(self, alias: str) -> NDArray[Any] | None:
        """How often each base row of a table occurs among the joined rows; None if each occurs once."""
        weights = self._columns.get(WEIGHTS)
        if weights is not None:
            return self.mapping.scatter_sum(alias, weights)
        return None if self.mapping.tables[alias].is_identity else self.mapping.counts(alias)

    # Columns.

    def reserve(self, name: str, *shape: int, dtype: DTypeLike = np.float64) -> None:
        """Reserve a column of scores, or of arrays of this shape for each row; existing memory is used again.

        Values are not set.
        """
        wanted = (*(shape or (self.outputs,)), len(self))
        known = self._columns.get(name)
        if known is None or known.shape != wanted or known.dtype != dtype:
            self._columns[name] = np.empty(wanted, dtype)

    def drop(self, *names: str) -> None:
        """Give the memory of columns back: of these, or of all, also of the same rows with other labels."""
        for name in names or list(self._columns):
            self._columns.pop(name, None)
        for rows in [] if names else self._relabelled:
            rows.drop()

    def set_scores(self, scores: Array) -> None:
        """Set the scores of all rows, without a copy."""
        self._columns[SCORES] = scores[None] if scores.ndim == 1 else scores.T

    def hand_over(self, name: str) -> Array:
        """Return a whole column of scores as a result, and drop it here."""
        values = self._columns.pop(name)
        return values[0] if len(values) == 1 else values.T

    def whole(self) -> Block:
        """All rows as one block, for results that need all at once, such as ranks of scores."""
        return Block(self.mapping, self._columns, slice(0, len(self)))

    def sums_at(self, alias: str, column: Column, work: Callable[[Array], Array]) -> Array:
        """A column, after ``work`` on it, summed at the base rows of a table (Eq. 10)."""
        values = work(self.whole()[column])
        sums = self.mapping.scatter_sum(alias, values)
        return sums.copy(order="K") if sums is values else sums  # the column will change

    def with_labels(
        self,
        work: Callable[Concatenate[Block, Arguments], NDArray[np.float64]],
        *given: Arguments.args,
        **named: Arguments.kwargs,
    ) -> JoinedRows:
        """The same rows with other labels, computed by block, and with separate columns."""
        found = JoinedRows(self.mapping, self.outputs, np.empty(len(self)), self._columns.get(WEIGHTS))

        def write(block: Block) -> None:
            found._columns[LABELS][block.part] = work(block, *given, **named)

        self.each(write)
        self._relabelled.append(found)
        return found

    # Work on blocks.

    @property
    def blocks(self) -> int:
        """How many blocks there are."""
        return len(pieces(len(self), self.outputs))

    def each(
        self, work: Callable[Concatenate[Block, Arguments], Found], *given: Arguments.args, **named: Arguments.kwargs
    ) -> list[Found]:
        """The results of ``work`` for each block, in order."""
        return self.some(1, work, *given, **named)

    def some(
        self,
        every: int,
        work: Callable[Concatenate[Block, Arguments], Found],
        *given: Arguments.args,
        **named: Arguments.kwargs,
    ) -> list[Found]:
        """The results of ``work`` for one in ``every`` blocks, in order."""
        blocks = [Block(self.mapping, self._columns, part) for part in pieces(len(self), self.outputs)[::every]]
        return on_all_cores(lambda block: work(block, *given, **named), blocks)

    def one_by_one(
        self,
        most: int,
        work: Callable[Concatenate[Block, Arguments], Found],
        *given: Arguments.args,
        **named: Arguments.kwargs,
    ) -> list[Found]:
        """The results of ``work``, which is not for several threads, for blocks of at most ``most`` rows, in order."""
        blocks = (Block(self.mapping, self._columns, part) for part in pieces(len(self), size=most))
        return [work(block, *given, **named) for block in blocks]

    def total(
        self, work: Callable[Concatenate[Block, Arguments], Any], *given: Arguments.args, **named: Arguments.kwargs
    ) -> Any:
        """The sum of the results of ``work`` over all blocks."""
        return sum(self.each(work, *given, **named))

    # Single rows, for batches.

    def labels_of(self, places: NDArray[np.intp]) -> NDArray[Any]:
        """The labels of some rows."""
        return self._columns[LABELS][places]

    def put(self, name: str, places: NDArray[np.intp], scores: Array) -> None:
        """Write the scores of some rows into a column."""
        self._columns[name][:, places] = scores if scores.ndim == 1 else scores.T
