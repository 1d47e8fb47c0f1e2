"""The client operator: every shard of every table computes the same op on its own rows (Table 4).

The coordinator's side of `run`. It splits arrays over a table's rows into its shards, calls all parties at the
same time, and leaves shards alone that have no row in the relation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tablepuppet.mapping.table_mapping import ShardRows, TableMapping
from tablepuppet.sql.plan import Plan
from tablepuppet.wire.engine import Engine, call_all
from tablepuppet.wire.messages import Request

Replies = dict[str, list[Mapping[str, Any]]]  # alias -> one reply per shard that takes part


@dataclass
class Client:
    """Talks to the shards of one relation within one session."""

    engine: Engine
    session: str
    view: str
    plan: Plan
    mapping: TableMapping
    rows_read: Mapping[tuple[str, str], int]  # (party, alias) -> rows of the snapshot
    _announced: bool = field(default=False, init=False)

    def shards(self, alias: str) -> list[ShardRows]:
        """The shards of a table with at least one row in the relation."""
        return [shard for shard in self.mapping.tables[alias].shards if len(shard.row_ids)]

    def ask(self, op: str, arguments: Callable[[str, ShardRows], Mapping[str, Any] | None]) -> Replies:
        """Run ``op`` at every shard; ``arguments`` gives those of one shard, or None to leave it out."""
        if not self._announced:
            self._announced = True
            self.ask("rows.use", self._rows)
        asked: list[tuple[str, str, Request]] = []
        for alias in self.mapping.tables:
            for shard in self.shards(alias):
                given = arguments(alias, shard)
                if given is not None:
                    request = Request("run", self.session, op, alias, {"view": self.view, **given})
                    asked.append((alias, shard.party, request))
        replies: Replies = {alias: [] for alias in self.mapping.tables}
        answers = call_all(self.engine, [(party, request) for _, party, request in asked])
        for (alias, _, _), reply in zip(asked, answers, strict=True):
            replies[alias].append(reply)
        return replies

    def _rows(self, alias: str, shard: ShardRows) -> Mapping[str, Any]:
        """Which rows of a shard take part and how often: told once, before the first op."""
        counts = self.mapping.counts(alias)[shard.slice]
        read = self.rows_read[shard.party, alias]
        everything = len(shard.row_ids) == read and bool(np.all(shard.row_ids == np.arange(read, dtype=np.int32)))
        narrow = counts.astype(np.min_scalar_type(int(counts.max(initial=0))))
        return {"row_ids": None if everything else shard.row_ids, "counts": narrow}
