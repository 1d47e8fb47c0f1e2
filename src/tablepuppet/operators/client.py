"""The client operator: every shard of every table computes the same op on its own rows (Table 4).

The coordinator's side of `run`. It splits arrays over a table's rows into its shards and leaves shards alone that have
no row in the relation. Whatever is asked before a reply is read shares a trip.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import mark
from tablepuppet.mapping.table_mapping import ShardRows, TableMapping
from tablepuppet.operators.secure_sum import Bounds, SecureTables
from tablepuppet.party.request import Step
from tablepuppet.sql.plan import Plan
from tablepuppet.wire.engine import Engine
from tablepuppet.wire.outbox import Answer, Outbox


class Replies(Mapping[str, list[Mapping[str, Any]]]):
    """By alias, one reply per shard that takes part; the first that is read makes the trip."""

    def __init__(self, answers: Mapping[str, list[Answer]]):
        self._answers = answers

    def __getitem__(self, alias: str) -> list[Mapping[str, Any]]:
        return [answer.read() for answer in self._answers[alias]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._answers)

    def __len__(self) -> int:
        return len(self._answers)

    def missed(self, alias: str) -> list[bool]:
        """For each of these replies, whether it only stands in for that of a party that is lost."""
        return [answer.missed for answer in self._answers[alias]]


@dataclass
class Client:
    """Talks to the shards of one relation within one session."""

    engine: Engine
    outbox: Outbox
    view: str
    plan: Plan
    mapping: TableMapping
    rows_read: Mapping[tuple[str, str], int]  # (party, alias) -> rows of the snapshot
    secured: SecureTables = field(default_factory=SecureTables)  # of the session
    encodings: set[str] = field(default_factory=set, init=False)  # that shards have built over these rows
    _announced: bool = field(default=False, init=False)

    @property
    def session(self) -> str:
        """The session at the parties."""
        return self.outbox.session

    def new_name(self) -> str:
        """A name that nobody else uses, the same if the run is repeated."""
        return self.outbox.new_name()

    def shards(self, alias: str) -> list[ShardRows]:
        """The shards of a table with at least one row in the relation."""
        return [shard for shard in self.mapping.tables[alias].shards if len(shard.row_ids)]

    def ask(
        self,
        op: str,
        arguments: Callable[[str, ShardRows], Mapping[str, Any] | None],
        instead: Callable[[str, ShardRows], Mapping[str, Any]] | None = None,
        bounds: Bounds | None = None,
    ) -> Replies:
        """Run ``op`` at every shard; ``arguments`` gives those of one shard, or None to leave it out.

        ``instead`` gives the reply that stands in for that of a shard whose party is lost. ``bounds`` are for an op
        whose replies are only added up: where a table's shards have a roster, they mask them.
        """
        if not self._announced:
            self._announced = True
            self.ask("rows.use", self._rows)
        answers: dict[str, list[Answer]] = {alias: [] for alias in self.mapping.tables}
        for alias in self.mapping.tables:
            given = [(shard, told) for shard in self.shards(alias) if (told := arguments(alias, shard)) is not None]
            masked = self.secured.wanted(alias, tuple(shard.party for shard, _ in given), bounds) if given else {}
            for shard, told in given:
                step = Step(op, alias, {"view": self.view, **told, **masked})
                stand_in = None if instead is None else partial(instead, alias, shard)
                answers[alias].append(self.outbox.ask(shard.party, step, stand_in))
        return Replies(answers)

    def _rows(self, alias: str, shard: ShardRows) -> Mapping[str, Any]:
        """Which rows of a shard take part and how often: told once, before the first op."""
        counts = self.mapping.counts(alias)[shard.slice]
        read = self.rows_read[shard.party, alias]
        narrow = counts.astype(np.min_scalar_type(int(counts.max(initial=0))))
        return {"chosen": _chosen(shard.row_ids, read), "counts": narrow}


def _chosen(row_ids: NDArray[np.int32], read: int) -> NDArray[np.integer] | None:
    """None for all rows in order; else a bit for each row that was read, or row ids where those take fewer bytes."""
    rising = bool(np.all(row_ids[1:] > row_ids[:-1]))
    if rising and len(row_ids) == read:
        return None
    if not rising or row_ids.nbytes <= -(-read // 8):
        return row_ids
    return np.packbits(mark(read, row_ids))
