"""`JoinedRows`, the only owner of the joined rows: which base rows they come from, and all that is as long as they are.

Others have three ways to work with them, none of which shows the index of a row:

- *functions of a block* of rows, with small arguments; their small results come back in the order of blocks. An
  algorithm names a column, such as scores or directions, and changes it by sending such a function. Functions and
  arguments can be pickled and hold no rows, so blocks may be stored anywhere;
- *sums and counts* of joined rows by base row, by group, or by pairs of base rows: as long as the tables;
- *values of joined rows* as a result, for users: predictions, labels, ids, products of a matrix.

Here rows are in memory, and all cores work on their blocks. Columns are kept until they are dropped, since allocating
memory in every round would cost more than the computation. Nothing here is sent over the wire.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import DTypeLike, NDArray

from tablepuppet.arrays import Array, Floats, Scalar
from tablepuppet.mapping.table_mapping import SCATTER_CHUNK, MappedTable, RowSums, ShardRows, TableMapping, TableRows
from tablepuppet.pieces import PIECE, on_all_cores, pieces

Column = str | tuple[str, int]  # a name, or a name and a slot of a column that has several
LABELS, SCORES, WEIGHTS = "labels", "scores", "weights"
MOVED = "moved"  # the base rows that joined rows have instead of their own, after `move`
Arguments = ParamSpec("Arguments")
Found = TypeVar("Found")
MOST_CELLS = 4  # times the joined rows: of more combinations of groups and base rows, few would be filled
NARROW = 2  # columns that are quicker to move by themselves than by a matrix of counts


@dataclass(frozen=True)
class Meetings:
    """Which groups of one table's rows meet which base rows of another, and in how many joined rows."""

    groups: NDArray[np.integer[Any]]
    rows: NDArray[np.integer[Any]]
    counts: NDArray[np.integer[Any]]


@dataclass(frozen=True)
class GroupedRows:
    """Joined rows that are in groups, and values of theirs."""

    rows: NDArray[np.intp]
    numbers: NDArray[np.integer[Any]]  # of groups, below ``size``
    size: int
    values: Sequence[Array]


@dataclass(frozen=True)
class GroupedSums:
    """Sums by group and base row, of the pairs that occur: by group, and by row within each group."""

    rows: NDArray[np.integer[Any]]  # of the table
    sizes: NDArray[np.integer[Any]]  # base rows of each group
    counts: NDArray[np.integer[Any]] | None  # joined rows of each pair; None: one each
    sums: Array  # (pairs, columns)


class Stored(dict[Column, NDArray[Any]]):
    """A block's part of every column as it is stored: the last axis is that of rows. A view is made once."""

    def __init__(self, columns: Mapping[str, NDArray[Any]], part: slice):
        super().__init__()
        self._columns, self._part = columns, part

    def __missing__(self, column: Column) -> NDArray[Any]:
        if isinstance(column, str):
            found = self._columns[column][..., self._part]
        else:
            found = self._columns[column[0]][column[1], ..., self._part]
        self[column] = found
        return found


class Block(dict[Column, NDArray[Any]]):
    """Some joined rows that follow each other, with their part of every column.

    ``block[column]`` has the shape of scores: (rows,) for one output, (rows, outputs) for several. ``stored[column]``
    is as it is stored. ``weights`` say how many joined rows each row represents (None: one), ``joined`` their sum.
    """

    def __init__(self, mapping: TableMapping, columns: Mapping[str, NDArray[Any]], part: slice):
        super().__init__()
        self.part, self.rows, self.stored = part, int(part.stop - part.start), Stored(columns, part)
        weights = columns.get(WEIGHTS)
        self.weights: Array | None = None if weights is None else weights[part]
        self.joined = float(self.rows if self.weights is None else self.weights.sum())
        self._tables = mapping.tables

    def __missing__(self, column: Column) -> NDArray[Any]:
        values = self.stored[column]
        if values.ndim == 2:
            values = values[0] if len(values) == 1 else values.T
        self[column] = values
        return values

    @cached_property
    def labels(self) -> NDArray[Any]:
        """The labels of these rows."""
        return self.stored[LABELS]

    def gathered(self, alias: str, values: Array) -> Array:
        """Values of a table's base rows, (outputs, base rows), as values of these rows: (outputs, rows)."""
        table = self._tables[alias]
        # mode="clip" skips the bounds check
        return values[:, self.part] if table.is_identity else values.take(table.index[self.part], 1, mode="clip")

    def taken(self, alias: str, values: NDArray[Any]) -> NDArray[Any]:
        """Values of a table's base rows, (base rows, width), at these rows: (rows, width)."""
        table = self._tables[alias]
        return values[self.part] if table.is_identity else values.take(table.index[self.part], 0, mode="clip")

    def taken_moved(self, values: NDArray[Any]) -> NDArray[Any]:
        """Values of the base rows of the table that was moved last, at these rows: (rows, width)."""
        return values.take(self.stored[MOVED], 0, mode="clip")


class JoinedRows:
    """The joined rows of a relation, with named columns; a row has ``outputs`` scores.

    With ``weights`` a row represents several joined rows with the same label and scores (mapping/merged.py).

    >>> rows = JoinedRows(TableMapping({}, 4), labels=np.array([1.0, 2.0, 3.0, 4.0]))
    >>> rows.total(lambda block, shift: float((block.labels + shift).sum()), 10.0)
    50.0
    """

    def __init__(
        self, mapping: TableMapping, outputs: int = 1, labels: NDArray[Any] | None = None, weights: Array | None = None
    ):
        self.mapping, self.outputs = mapping, outputs
        self.tables: Mapping[str, TableRows] = mapping.tables
        self.joined = len(mapping) if weights is None else int(weights.sum())  # joined rows that these represent
        given = {LABELS: labels, WEIGHTS: weights}
        self._columns: dict[str, NDArray[Any]] = {name: each for name, each in given.items() if each is not None}
        self._relabelled: list[JoinedRows] = []
        self._row_sums: dict[str, RowSums] = {}

    def __len__(self) -> int:
        return len(self.mapping)

    @classmethod
    def each_once(cls, aliases: Iterable[str], rows: int) -> JoinedRows:
        """Rows of tables that are as long as the join: joined row j comes from row j of each."""
        places = np.arange(rows, dtype=np.int32)
        whole = MappedTable(places, (ShardRows("", places, 0),))
        return cls(TableMapping(dict.fromkeys(aliases, whole), rows))

    @property
    def nbytes(self) -> int:
        """Memory of the mapping."""
        return self.mapping.nbytes

    # Other rows.

    def of_scores(self, outputs: int, labels: NDArray[Any] | None = None, weights: Array | None = None) -> JoinedRows:
        """These rows with ``outputs`` scores each, and no other columns yet."""
        return JoinedRows(self.mapping, outputs, labels, weights)

    def where(self, alias: str, chosen: NDArray[np.bool_]) -> JoinedRows:
        """Only those rows whose row of one table is ``chosen``."""
        return JoinedRows(self.mapping.where(alias, chosen))

    def unreduced(self) -> JoinedRows:
        """These rows without the reduction of duplicates: every table is as long as the join."""
        return JoinedRows(self.mapping.unreduced())

    def counts(self, alias: str) -> NDArray[Any] | None:
        """How often each base row of a table occurs among the joined rows; None if each occurs once."""
        weights = self._columns.get(WEIGHTS)
        if weights is not None:
            return self.mapping.scatter_sum(alias, weights)
        table = self.mapping.tables[alias]
        return None if table.is_identity else table.counts

    # Columns.

    def reserve(self, name: str, *shape: int, dtype: DTypeLike = np.float64) -> None:
        """Reserve a column of scores, or of arrays of this shape for each row; existing memory is used again.

        Values are not set.
        """
        wanted = (*(shape or (self.outputs,)), self.mapping.joined_rows)
        known = self._columns.get(name)
        if known is None or known.shape != wanted or known.dtype != dtype:
            self._columns[name] = np.empty(wanted, dtype)
            self._forget_blocks()

    def drop(self, *names: str) -> None:
        """Give the memory of columns back: of these, or of all, also of the same rows with other labels."""
        for name in names or list(self._columns):
            self._columns.pop(name, None)
        self._forget_blocks()
        for rows in [] if names else self._relabelled:
            rows.drop()

    def move(self, alias: str, order: NDArray[np.integer]) -> None:
        """Let `Block.taken_moved` see joined row j with the base row of a table that joined row ``order[j]`` has."""
        self._columns[MOVED] = self.mapping.tables[alias].index[order]
        self._forget_blocks()

    def set_scores(self, scores: Array) -> None:
        """Set the scores of all rows, without a copy."""
        self._columns[SCORES] = scores[None] if scores.ndim == 1 else scores.T
        self._forget_blocks()

    def hand_over(self, name: str) -> Array:
        """Return a whole column of scores as a result, and drop it here."""
        values = self._columns.pop(name)
        self._forget_blocks()
        return values[0] if len(values) == 1 else values.T

    def sums_at(
        self,
        alias: str,
        work: Callable[Concatenate[Block, Arguments], Array],
        *given: Arguments.args,
        **named: Arguments.kwargs,
    ) -> Array:
        """What ``work`` makes of a block, in the shape of scores, summed at the base rows of a table (Eq. 10)."""
        values = work(self._whole, *given, **named)
        sums = self.mapping.scatter_sum(alias, values)
        return sums.copy(order="K") if sums is values else sums  # the column will change

    def with_labels(
        self,
        work: Callable[Concatenate[Block, Arguments], NDArray[np.float64]],
        *given: Arguments.args,
        **named: Arguments.kwargs,
    ) -> JoinedRows:
        """These rows with other labels, computed by block, and with columns of their own."""
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
        return len(self._blocks)

    @cached_property
    def _blocks(self) -> list[Block]:
        return [Block(self.mapping, self._columns, part) for part in pieces(len(self), self.outputs)]

    def each(
        self, work: Callable[Concatenate[Block, Arguments], Found], *given: Arguments.args, **named: Arguments.kwargs
    ) -> list[Found]:
        """The results of ``work`` for each block, in order."""
        if len(self._blocks) == 1:
            return [work(self._blocks[0], *given, **named)]
        return self.some(1, work, *given, **named)

    def some(
        self,
        every: int,
        work: Callable[Concatenate[Block, Arguments], Found],
        *given: Arguments.args,
        **named: Arguments.kwargs,
    ) -> list[Found]:
        """The results of ``work`` for one in ``every`` blocks, in order."""
        return on_all_cores(lambda block: work(block, *given, **named), self._blocks[::every])

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

    def at_once(
        self, work: Callable[Concatenate[Block, Arguments], Found], *given: Arguments.args, **named: Arguments.kwargs
    ) -> Found:
        """The result of ``work`` for all rows as one block: where it needs all of them, such as ranks of scores."""
        return work(self._whole, *given, **named)

    @cached_property
    def _whole(self) -> Block:
        return Block(self.mapping, self._columns, slice(0, len(self)))

    def _forget_blocks(self) -> None:
        """Columns are others now: blocks look them up again."""
        self.__dict__.pop("_blocks", None)
        self.__dict__.pop("_whole", None)

    def total(
        self, work: Callable[Concatenate[Block, Arguments], Any], *given: Arguments.args, **named: Arguments.kwargs
    ) -> Any:
        """The sum of the results of ``work`` over all blocks."""
        return sum(self.each(work, *given, **named))

    # Single rows, for batches.

    def labels_of(self, places: NDArray[np.intp]) -> NDArray[Any]:
        """The labels of some rows."""
        return self._columns[LABELS][places]

    def taken_at(self, places: NDArray[np.intp], alias: str, values: NDArray[Any]) -> NDArray[Any]:
        """Values of a table's base rows, (base rows, width), at some rows: (rows, width)."""
        table = self.mapping.tables[alias]
        return values[places] if table.is_identity else values[table.index[places]]

    def put(self, name: str, places: NDArray[np.intp], scores: Array) -> None:
        """Write the scores of some rows into a column."""
        self._columns[name][:, places] = scores if scores.ndim == 1 else scores.T

    # Sums and counts, as long as tables.

    def sums(self, alias: str, values: Floats) -> Array:
        """Values of joined rows, (N,) or (N, k), summed at the base rows of a table: S_i^T values."""
        return self.mapping.scatter_sum(alias, values)

    def many_sums(self, alias: str, columns: Array, precision: DTypeLike = np.float64) -> Floats:
        """Columns, (N, k), summed at the base rows of a table and rounded; a sparse matrix is kept for another time."""
        if columns.shape[1] == 1 or self.tables[alias].is_identity:
            return self.sums(alias, columns)
        if alias not in self._row_sums:
            self._row_sums[alias] = RowSums(self.mapping.tables[alias])
        return self._row_sums[alias].of(columns, precision)

    def counts_by(
        self, alias: str, groups: NDArray[np.integer], size: int, weights: Array | None = None
    ) -> NDArray[Any]:
        """How often each row of a table is joined within each group of joined rows, (rows, size).

        ``groups`` are numbers of joined rows below ``size``; with ``weights`` a joined row counts as so many.
        """
        table = self.mapping.tables[alias]
        bins = table.rows * size

        def count(part: slice) -> NDArray[Any]:
            pairs = table.index[part] * np.int64(size) + groups[part]
            return np.bincount(pairs, None if weights is None else weights[part], bins)

        found = on_all_cores(count, pieces(len(groups), size=max(SCATTER_CHUNK, 4 * bins)))
        total = found[0] if len(found) == 1 else np.sum(found, axis=0)
        return np.asarray(total).reshape(table.rows, size)

    def grouped(self, groups: Column, size: int, columns: Sequence[Column]) -> GroupedRows:
        """The rows of groups, whose numbers are a column below ``size``; a row with a negative one is in none."""
        numbers = self._whole.stored[groups]
        chosen = np.flatnonzero(numbers >= 0)
        short = np.min_scalar_type(max(size - 1, 0))  # short numbers sort by radix
        values = [self._whole.stored[column][chosen] for column in columns]
        return GroupedRows(chosen, numbers[chosen].astype(short), size, values)

    def sums_by(self, alias: str, grouped: GroupedRows) -> GroupedSums:
        """Values of rows summed by (group, base row of a table)."""
        table, size = self.mapping.tables[alias], grouped.size
        if table.is_identity:
            order = np.argsort(grouped.numbers, kind="stable")
            by_group = np.bincount(grouped.numbers, minlength=size)
            values = _side_by_side([each[order] for each in grouped.values], len(order))
            return GroupedSums(grouped.rows[order], by_group, None, values)
        pairs = grouped.numbers * np.int64(table.rows) + table.index[grouped.rows]
        found = pairs
        if size * table.rows > MOST_CELLS * len(self):
            found, pairs = np.unique(pairs, return_inverse=True)
            counts = np.bincount(pairs, minlength=len(found))
            filled = np.arange(len(found))
        else:
            counts = np.bincount(pairs, minlength=size * table.rows)
            filled = found = np.flatnonzero(counts)
        sums = [np.bincount(pairs, each, len(counts))[filled] for each in grouped.values]
        by_group = np.bincount(found // max(table.rows, 1), minlength=size)
        return GroupedSums(found % max(table.rows, 1), by_group, counts[filled], _side_by_side(sums, len(found)))

    def carried(self, source: str, target: str, values: Floats, weights: Array | None = None) -> Array:
        """Values of one table's rows, (rows, k), summed at another's by how often they are joined: S_t^T S_s values.

        With ``weights``, (N,), S_t^T diag(weights) S_s values.
        """
        here, there = self.mapping.tables[source], self.mapping.tables[target]
        if weights is None and there.is_identity:
            return np.asarray(self.mapping.gather(source, values), np.float64)
        if weights is None and (here.is_identity or values.shape[1] <= NARROW):
            return self.mapping.scatter_sum(target, self.mapping.gather(source, values))
        from scipy.sparse import coo_array  # takes a while to load

        data = np.ones(len(self), np.int32) if weights is None else weights
        counted = coo_array((data, (there.index, here.index)), shape=(there.rows, here.rows)).tocsr()
        return np.asarray(counted @ values.astype(np.float64))

    def meetings(self, source: str, groups: NDArray[np.integer], size: int, target: str) -> Meetings:
        """Which groups of one table's rows, numbers below ``size``, meet which rows of another table.

        A pair is listed once, or as often as it meets if there are many different ones.
        """
        near, far = self.mapping.tables[source], self.mapping.tables[target]
        cells = size * far.rows
        if cells >= MOST_CELLS * len(self):  # few of them would be filled, or there are no rows
            return Meetings(self.mapping.gather(source, groups), far.index, np.ones(len(self), np.int64))
        starts = groups * np.int64(far.rows)  # where the cells of each row's group begin

        def count(part: slice) -> NDArray[np.int64]:
            return np.bincount(starts.take(near.index[part], mode="clip") + far.index[part], minlength=cells)

        parts = pieces(len(self), size=max(PIECE, 4 * cells))
        counts = np.asarray(np.sum(on_all_cores(count, parts), axis=0, dtype=np.int64))
        filled = np.flatnonzero(counts)
        return Meetings(*np.divmod(filled, far.rows), counts[filled])

    def fingerprint(self) -> str:
        """A digest of which base rows are joined with each other."""
        found = hashlib.sha256()
        for _, table in sorted(self.mapping.tables.items()):
            for part in (table.index, *(shard.row_ids for shard in table.shards)):
                found.update(len(part).to_bytes(8, "little") + np.ascontiguousarray(part).tobytes())
        return found.hexdigest()

    # Values of joined rows, as a result.

    def taken(self, alias: str, values: NDArray[Scalar]) -> NDArray[Scalar]:
        """Values of a table's base rows, (rows,) or (rows, k), as values of joined rows: S_i values."""
        return self.mapping.gather(alias, values)

    def added(self, values: Mapping[str, Floats], width: int, places: Mapping[str, NDArray[np.intp]]) -> Array:
        """S_1 A_1 + ... + S_M A_M, (N, width), of values A_i of base rows, (rows, k).

        A table's columns are those of ``places``, or all if it has as many.
        """
        left = dict(values)
        full = [alias for alias, each in left.items() if each.shape[1] == width]  # which fill all columns
        still = next((alias for alias in full if self.tables[alias].is_identity), None)
        first = full[0] if full and still is None else None
        if still is not None:
            found: Array = left.pop(still).astype(np.float64)  # nothing is to be moved
        else:
            found = np.empty((len(self), width)) if full else np.zeros((len(self), width))
        order = sorted(left.items(), key=lambda each: each[0] != first)

        def add(part: slice) -> None:
            block = Block(self.mapping, {}, part)
            for alias, each in order:
                if alias == first:
                    found[part] = block.taken(alias, each)
                elif each.shape[1] == width:
                    found[part] += block.taken(alias, each)
                else:
                    found[part, places[alias]] += block.taken(alias, each)

        if order:
            on_all_cores(add, pieces(len(self), max(width, 1)))
        return found

    def taken_column(self, alias: str, values: pa.ChunkedArray) -> pa.ChunkedArray:
        """An Arrow column of a table's base rows, as values of joined rows."""
        return values.take(pa.array(self.mapping.tables[alias].index))

    def labels(self) -> NDArray[Any]:
        """The labels of all rows."""
        return self._columns[LABELS]


def _side_by_side(columns: Sequence[NDArray[Any]], rows: int) -> Array:
    return np.stack(columns, axis=1, dtype=np.float64) if columns else np.empty((rows, 0))
