"""The LoU operator: learning over a union is learning on its shards (Table 4).

Arrays over a table's rows are cut into its shards on the way down and put together on the way up; sums over rows
(gradients, Gram matrices) of shards add, masked where shards have agreed on that. Row arrays travel in the precision of
the wire.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Floats
from tablepuppet.mapping.batches import LastValues
from tablepuppet.mapping.table_mapping import ShardRows
from tablepuppet.operators.client import Bounds, Client, Pending
from tablepuppet.privacy.secure_sum import add_words

Instead = Callable[[str, ShardRows], Mapping[str, Any]]


@dataclass(frozen=True)
class LearningOverUnion:
    """Asks the shards of tables to compute, and puts their answers together."""

    client: Client
    wire: str

    def ask(
        self,
        op: str,
        aliases: Iterable[str],
        rows: Mapping[str, Floats] | None = None,
        by_alias: Mapping[str, Mapping[str, Any]] | None = None,
        instead: Instead | None = None,
        bounds: Bounds | None = None,
        by_shard: Callable[[str, ShardRows], Mapping[str, Any]] | None = None,
        **values: Any,
    ) -> Pending:
        """Ask ``op`` of the shards of ``aliases``.

        ``rows`` are arrays over the rows of tables: each shard gets its part. ``by_shard`` returns arguments for one
        shard, ``by_alias`` are those for one table, ``values`` for all. ``instead`` returns substitutes for lost
        shards. ``bounds`` are for an op whose replies are only added up (see `Client.ask`).
        """

        def arguments(alias: str, shard: ShardRows) -> Mapping[str, Any]:
            given = {**values, **by_alias[alias]} if by_alias and alias in by_alias else dict(values)
            if by_shard is not None:
                given |= by_shard(alias, shard)
            if rows is not None:
                given["rows"] = self.sent(rows[alias], shard)
            return given

        return self.client.ask(op, arguments, instead, bounds, set(aliases))

    def sent(self, rows: Floats, shard: ShardRows) -> Floats:
        """The part of a shard of an array over a table's rows, as it is sent."""
        return rows[shard.slice].astype(self.wire, copy=False)

    def last_values(self, shapes: Mapping[str, tuple[int, ...]]) -> LastValues:
        """The last values of base rows, of these shapes by table, which stand in for those of lost parties."""
        are_kept = self.client.outbox.when_lost.stand_in == "cache"
        return LastValues(self.client.tables, shapes, self.wire, are_kept=are_kept)

    def shards(self, alias: str) -> int:
        """How many shards of a table take part."""
        return len(self.client.shards(alias))

    def bound(self, rows: Floats) -> float:
        """No sum over a table's rows of Y times an encoded column is larger: sqrt(N) |Y|.

        By Cauchy and Schwarz, since the squares of an encoded column, each as often as its row is joined, add up to N.
        """
        return float(np.sqrt(len(self.client.rows)) * np.linalg.norm(rows.astype(np.float64)))

    @staticmethod
    def concatenate(replies: list[Mapping[str, Any]], name: str) -> Floats:
        """An array over the table's rows from those of its shards."""
        if len(replies) == 1:
            return np.asarray(replies[0][name])
        return np.concatenate([reply[name] for reply in replies])

    @staticmethod
    def add(replies: list[Mapping[str, Any]], name: str) -> NDArray[np.float64]:
        """A sum over the table's rows from those over its shards (Eq. 17)."""
        if "bits" in replies[0]:
            return add_words([reply[name] for reply in replies], replies[0]["bits"][name])
        return np.asarray(np.sum([reply[name] for reply in replies], axis=0, dtype=np.float64))
