"""The `TableMapping`: for each joined row its row in every table (the paper's p_i), and back (G_i).

Held by the coordinator only, and there by `JoinedRows` (joined_rows.py): others see `TableRows`, which are as long as
the tables. `gather` takes values of base rows to joined rows, `scatter_sum` adds values of joined rows up at their base
rows, and `RowSums` does so for many values at once. Base rows that join nothing have no place in it and cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tablepuppet.arrays import Array, Floats, Places, Scalar, mark, take
from tablepuppet.pieces import on_all_cores, pieces

SCATTER_CHUNK = 1 << 16  # joined rows at a time: the widened index stays in the cache
LONG_RUN = 16  # joined rows in a row from one base row, in the mean, that are quicker to add up as runs


@dataclass(frozen=True)
class ShardRows:
    """The rows of one shard that take part, and their place among the rows of the table."""

    party: str
    row_ids: NDArray[np.int32]
    start: int

    @cached_property
    def slice(self) -> slice:
        """Where the shard's rows stand in an array over the table's rows."""
        return slice(self.start, self.start + len(self.row_ids))


def one_after_another(row_ids: Iterable[tuple[str, NDArray[np.int32]]]) -> tuple[ShardRows, ...]:
    """Shards, from the row ids of each party, in an array over the table's rows."""
    shards, start = [], 0
    for party, own in row_ids:
        shards.append(ShardRows(party, own, start))
        start += len(own)
    return tuple(shards)


class TableRows(Protocol):
    """The rows of one table that take part: whose they are, and how often each is joined. As long as the table."""

    @property
    def shards(self) -> tuple[ShardRows, ...]:
        """The shards, whose rows stand one after another."""
        ...

    @property
    def rows(self) -> int:
        """Base rows that take part, over all shards."""
        ...

    @property
    def counts(self) -> NDArray[np.int64]:
        """How often each base row occurs among the joined rows (Eq. 11)."""
        ...

    @property
    def is_identity(self) -> bool:
        """Whether joined row j comes from base row j: then nothing needs to be moved."""
        ...


@dataclass(frozen=True)
class MappedTable:
    """One table use: which of its rows each joined row comes from."""

    index: Places  # (joined_rows,): place among the rows that take part
    shards: tuple[ShardRows, ...]

    @cached_property
    def rows(self) -> int:
        """Base rows that take part, over all shards."""
        return sum(len(shard.row_ids) for shard in self.shards)

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """How often each base row occurs among the joined rows (Eq. 11)."""
        if self.is_identity:
            return np.broadcast_to(np.int64(1), self.rows)  # takes no memory
        counts = np.zeros(self.rows, np.int64)
        for part in self.parts:
            counts += np.bincount(self.index[part], minlength=self.rows)
        return counts

    @cached_property
    def owners(self) -> NDArray[np.intp]:
        """The number of the shard that each joined row comes from."""
        return np.searchsorted([shard.slice.stop for shard in self.shards], self.index, side="right")

    @cached_property
    def parts(self) -> list[slice]:
        """Joined rows in parts that are long beside the base rows, so that sums of parts are few to add up."""
        return pieces(len(self.index), size=max(SCATTER_CHUNK, 4 * self.rows))

    @cached_property
    def runs(self) -> NDArray[np.intp] | None:
        """Where each base row's joined rows begin, if they stand in the order of base rows and are many; else None."""
        if len(self.index) < LONG_RUN * self.rows or not self.counts.all() or np.any(self.index[1:] < self.index[:-1]):
            return None
        return np.cumsum(self.counts) - self.counts

    @cached_property
    def is_identity(self) -> bool:
        """Whether joined row j comes from base row j: then nothing needs to be moved."""
        return len(self.index) == self.rows and bool(np.all(self.index == np.arange(self.rows, dtype=np.int32)))


class TableMapping:
    """The joined rows of a relation, as places in its tables."""

    def __init__(self, tables: Mapping[str, MappedTable], joined_rows: int):
        self.tables = dict(tables)
        self.joined_rows = joined_rows

    def __len__(self) -> int:
        return self.joined_rows

    @property
    def nbytes(self) -> int:
        """Memory of the indexes."""
        return sum(table.index.nbytes + sum(s.row_ids.nbytes for s in table.shards) for table in self.tables.values())

    def counts(self, alias: str) -> NDArray[np.int64]:
        """How often each base row of a table occurs among the joined rows."""
        return self.tables[alias].counts

    def gather(self, alias: str, values: NDArray[Scalar]) -> NDArray[Scalar]:
        """Values of base rows, (rows,) or (rows, classes), as values of joined rows: S_i values; column-major.

        Where every row is joined once, in order, these are the values themselves.
        """
        table = self.tables[alias]
        if table.is_identity:
            return values
        return take(values, table.index)

    def scatter_sum(self, alias: str, values: Floats) -> NDArray[np.float64]:
        """Values of joined rows summed at their base rows: S_i^T values (Eq. 10); quickest if column-major."""
        table = self.tables[alias]
        if table.is_identity:
            return np.asarray(values, np.float64)
        columns = [values] if values.ndim == 1 else list(values.T)
        sums = _sums_of_parts(table, columns) if table.runs is None else _sums_of_runs(table.runs, columns)
        return sums[0] if values.ndim == 1 else np.stack(sums).T

    def where(self, alias: str, chosen: NDArray[np.bool_]) -> TableMapping:
        """The mapping of only those joined rows whose row of one table is ``chosen``."""
        keep = take(chosen, self.tables[alias].index)
        return compact(
            {name: MappedTable(table.index[keep], table.shards) for name, table in self.tables.items()},
            int(np.count_nonzero(keep)),
        )

    def unreduced(self) -> TableMapping:
        """These joined rows without the reduction of duplicates: every table is as long as the join."""
        return TableMapping({alias: _unreduced(table) for alias, table in self.tables.items()}, self.joined_rows)


def _sums_of_runs(starts: NDArray[np.intp], columns: list[Floats]) -> list[NDArray[np.float64]]:
    return on_all_cores(lambda column: np.add.reduceat(column, starts, dtype=np.float64), columns)


def _sums_of_parts(table: MappedTable, columns: list[Floats]) -> list[NDArray[np.float64]]:
    def add_up(part: slice) -> list[NDArray[Any]]:
        index = table.index[part].astype(np.intp)
        return [np.bincount(index, column[part], minlength=table.rows) for column in columns]

    if len(table.parts) == 1:
        return add_up(table.parts[0])
    sums = [np.zeros(table.rows) for _ in columns]
    for found in on_all_cores(add_up, table.parts):
        for total, added in zip(sums, found, strict=True):
            total += added
    return sums


def _unreduced(table: MappedTable) -> MappedTable:
    owner = table.owners
    order = np.argsort(owner, kind="stable")  # joined rows by shard
    index = np.empty(len(order), np.int32)
    index[order] = np.arange(len(order), dtype=np.int32)
    places = [table.index[owner == number] - shard.start for number, shard in enumerate(table.shards)]
    shards = zip(table.shards, places, strict=True)
    return MappedTable(index, one_after_another((shard.party, shard.row_ids[own]) for shard, own in shards))


def compact(tables: Mapping[str, MappedTable], joined_rows: int) -> TableMapping:
    """The mapping without base rows that no joined row comes from."""
    return TableMapping({alias: _compact(table) for alias, table in tables.items()}, joined_rows)


def _compact(table: MappedTable) -> MappedTable:
    used = mark(table.rows, table.index)
    if used.all():
        return table
    place = np.cumsum(used, dtype=np.int32) - np.int32(1)
    shards = one_after_another((shard.party, shard.row_ids[used[shard.slice]]) for shard in table.shards)
    return MappedTable(take(place, table.index), shards)


class RowSums:
    """S_i^T as a sparse matrix, kept for one product after the other.

    Base rows are numbered as they first occur among the joined rows, so that what is added up next is mostly near what
    was before, and in the cache; the sums are put in the table's order in the end.
    """

    def __init__(self, table: MappedTable):
        from scipy.sparse import csc_array  # takes a while to load

        rows, joined = table.rows, len(table.index)
        first = np.full(rows, joined, np.int32)
        first[table.index[::-1]] = np.arange(joined - 1, -1, -1, dtype=np.int32)  # what is written last is the first
        order = np.argsort(first, kind="stable")
        numbers = np.empty(rows, np.int32)
        numbers[order] = np.arange(rows, dtype=np.int32)
        self._numbers = None if np.array_equal(order, np.arange(rows)) else numbers
        index = table.index if self._numbers is None else numbers.take(table.index)
        ends = np.arange(joined + 1, dtype=np.int32)
        self._sums = csc_array((np.ones(joined), index, ends), shape=(rows, joined))

    def of(self, columns: Array, precision: DTypeLike = np.float64) -> Floats:
        """S_i^T U, (rows, k), added up in double precision and rounded in the end."""
        found = self._sums @ columns
        ordered: Floats = np.empty(found.shape, precision)
        with np.errstate(over="ignore"):  # its caller looks whether all are finite
            for part in pieces(len(ordered), max(columns.shape[1], 1)):
                here = found[part] if self._numbers is None else found.take(self._numbers[part], 0, mode="clip")
                ordered[part] = here
        return ordered
