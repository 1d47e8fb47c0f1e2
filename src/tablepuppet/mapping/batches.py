"""Mini-batches of joined rows, with duplicates reduced: for each base row of a batch, one value is sent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array, Floats, Places
from tablepuppet.mapping.joined_rows import JoinedRows
from tablepuppet.mapping.table_mapping import ShardRows, TableRows
from tablepuppet.privacy.secure_sum import FEWEST


@dataclass(frozen=True)
class Batch:
    """Some joined rows: for each table the distinct base rows, and which of them each joined row comes from."""

    number: int  # in the run: it rises from batch to batch
    epoch: int  # from 1
    is_last: bool  # of its epoch
    rows: NDArray[np.intp]
    places: Mapping[str, Places]  # distinct base rows, ascending
    base: Mapping[str, NDArray[np.intp]]  # joined row of the batch -> which of them

    def mine(self, alias: str, part: slice) -> NDArray[np.bool_]:
        """Which of the batch's base rows of a table a shard holds."""
        places = self.places[alias]
        return np.asarray((places >= part.start) & (places < part.stop))

    def within(self, alias: str, part: slice) -> Places:
        """The base rows of the batch that a shard holds, counted from its start."""
        return np.asarray(self.places[alias][self.mine(alias, part)] - np.int32(part.start), np.int32)

    def counts(self, alias: str) -> Places:
        """How often each of its base rows is joined in the batch."""
        return np.bincount(self.base[alias], minlength=len(self.places[alias])).astype(np.int32)

    def gather(self, predictions: Mapping[str, Floats], intercept: Array) -> Array:
        """Scores of the batch's joined rows."""
        outputs = len(intercept)
        scores = np.zeros(len(self.rows) if outputs == 1 else (len(self.rows), outputs)) + intercept
        for alias, values in predictions.items():
            scores += values[self.base[alias]]
        return scores

    def scatter(self, alias: str, values: Array) -> Array:
        """Values of joined rows summed at the distinct base rows (Eq. 10)."""
        sums = np.zeros((len(self.places[alias]), *values.shape[1:]))
        np.add.at(sums, self.base[alias], values)
        return sums


def no_rows(tables: Iterable[str]) -> Batch:
    """A batch without rows: what is before the first, and after the last."""
    nothing = np.zeros(0, np.intp)
    places = dict.fromkeys(tables, np.zeros(0, np.int32))
    return Batch(-1, 0, False, nothing, places, dict.fromkeys(places, nothing))


class LastValues:
    """The last value of every base row by table, for the rows of lost parties; zeros where there is none."""

    def __init__(
        self, tables: Mapping[str, TableRows], shapes: Mapping[str, tuple[int, ...]], wire: str, *, are_kept: bool
    ):
        """``shapes`` are those of a row's value, by table; unless they ``are_kept``, all stay zeros."""
        self._tables, self._shapes, self._wire, self._are_kept = tables, shapes, wire, are_kept
        self._values: dict[str, Floats] = {}

    def of(self, alias: str) -> Floats:
        """The last values of a table, by base row."""
        if alias not in self._values:
            self._values[alias] = np.zeros((self._tables[alias].rows, *self._shapes[alias]), self._wire)
        return self._values[alias]

    def at(self, batch: Batch, alias: str, shard: ShardRows) -> Floats:
        """Those of the base rows of a batch that a shard holds."""
        return self.of(alias)[shard.slice][batch.within(alias, shard.slice)]

    def keep(self, batch: Batch, values: Mapping[str, Floats]) -> None:
        """Store the values of a batch, unless zeros are to stand in for lost parties."""
        if self._are_kept:
            for alias, found in values.items():
                self.of(alias)[batch.places[alias]] = found


def batches(
    joined: JoinedRows, tables: list[str], size: int, seed: int, epoch: int, secured: Iterable[str] = ()
) -> Iterator[Batch]:
    """The joined rows in an order drawn from the seed and the epoch, ``size`` at a time.

    Of ``secured`` tables a batch has rows of three shards or more, or their sum would be that of one or two: it takes
    more rows until it has, and what is left over at the end goes with the last.
    """
    order = np.random.default_rng([seed, epoch]).permutation(len(joined))
    owners = [joined.mapping.tables[alias].owners[order] for alias in secured]
    cuts, start, ends = [*range(size, len(order), size), len(order)], 0, []
    for end in cuts:
        if all(len(np.unique(owner[start:end])) >= FEWEST for owner in owners):
            ends.append(end)
            start = end
    parts = np.split(order, ends[:-1]) if len(order) else []
    for place, rows in enumerate(parts):
        found = {alias: np.unique(joined.mapping.tables[alias].index[rows], return_inverse=True) for alias in tables}
        places = {alias: distinct for alias, (distinct, _) in found.items()}
        base = {alias: which for alias, (_, which) in found.items()}
        yield Batch((epoch - 1) * len(cuts) + place, epoch, place == len(parts) - 1, rows, places, base)


def batches_of_epochs(
    joined: JoinedRows, tables: list[str], size: int, seed: int, epochs: int, secured: Iterable[str] = ()
) -> Iterator[Batch]:
    """The batches of all epochs, one after the other."""
    for epoch in range(1, epochs + 1):
        yield from batches(joined, tables, size, seed, epoch, secured)
