"""Numbers dealt to the base rows of a table in the order of its sources: the same rows get them in every process.

The coordinator draws the numbers, of folds or of the sides of a split, and does not know the order. Parties know it,
and say which of their rows stand at the ranks that a bit of the numbers is set for (``rows.sample`` of party/rows.py).
So k different numbers reveal log2(k) bits of each row's place, rounded up, and count as so many splits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.mapping.table_mapping import ShardRows
from tablepuppet.operators.client import Client

Numbers = NDArray[np.int64]
Listed = NDArray[np.integer | np.bool_]


def dealt(client: Client, alias: str, numbers: Listed, classes: Numbers | None = None) -> Numbers:
    """What `deal` has asked for, in a trip of its own."""
    return deal(client, alias, numbers, classes)()


def deal(client: Client, alias: str, numbers: Listed, classes: Numbers | None = None) -> Callable[[], Numbers]:
    """Ask for the number of each base row of a table, (rows,), of ``numbers`` that are listed in the order of the
    source; the result reads them.

    Shards stand one after another in the order of their parties' names. With ``classes``, 0, 1, ... for each base row,
    numbers are listed for the rows of class 0, then for those of class 1, and so on.
    """
    shards = sorted(client.shards(alias), key=lambda shard: shard.party)
    if not shards:
        return lambda: np.zeros(0, np.int64)
    groups = np.zeros(client.tables[alias].rows, np.int64) if classes is None else classes
    own = dict(zip((shard.party for shard in shards), _of_shards(numbers, groups, shards), strict=True))
    sent = {} if classes is None else {s.party: {"classes": _narrow(groups[s.slice])} for s in shards}

    def arguments(bit: int, name: str, shard: ShardRows) -> Mapping[str, Any] | None:
        if name != alias:
            return None
        return {"ranks": _narrow(np.flatnonzero(own[shard.party] >> bit & 1)), **sent.get(shard.party, {})}

    bits = range(int(np.max(numbers, initial=0)).bit_length())
    asked = [client.ask("rows.sample", partial(arguments, bit)) for bit in bits]  # in one trip

    def read() -> Numbers:
        found = np.zeros(len(groups), np.int64)
        for bit, pending in zip(bits, asked, strict=True):
            for shard, reply in zip(client.shards(alias), pending.read()[alias], strict=True):
                found[shard.slice] |= np.unpackbits(reply["chosen"], count=len(shard.row_ids)).astype(np.int64) << bit
        return found

    return read


def dealt_to_groups(client: Client, alias: str, numbers: Listed, groups: Numbers) -> Numbers:
    """The number of each base row if all rows of a group have that of the group.

    ``groups`` are 0, 1, ... for each base row; ``numbers`` are listed in the order of the groups' first rows.
    """
    is_first = np.zeros(len(groups), np.int64)
    is_first[np.cumsum(np.bincount(groups)) - np.bincount(groups)] = 1  # where each group's rows begin
    first = dealt(client, alias, is_first, groups).astype(bool)
    listed = np.append(numbers, np.zeros(len(groups) - len(numbers), np.int64))
    of_group = np.zeros(len(numbers), np.int64)
    of_group[groups[first]] = dealt(client, alias, listed, (~first).astype(np.int64))[first]
    return of_group[groups]


def _of_shards(numbers: Listed, groups: Numbers, shards: Sequence[ShardRows]) -> list[Numbers]:
    """The numbers of each shard, for its rows by class and then by the order of its source."""
    size = int(groups.max(initial=0)) + 1
    counts = np.array([np.bincount(groups[shard.slice], minlength=size) for shard in shards])  # (shards, classes)
    before = np.cumsum(counts, axis=0) - counts  # rows of a class in the shards before
    starts = np.append(0, np.cumsum(counts.sum(axis=0))[:-1]) + before  # of a shard's rows of each class in ``numbers``
    return [
        numbers[np.repeat(start - (np.cumsum(count) - count), count) + np.arange(count.sum())].astype(np.int64)
        for start, count in zip(starts, counts, strict=True)
    ]


def _narrow(values: Numbers) -> NDArray[np.integer]:
    return values.astype(np.min_scalar_type(int(values.max(initial=0))))
