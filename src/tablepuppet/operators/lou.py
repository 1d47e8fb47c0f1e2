"""The LoU operator: learning over a union is learning on its shards (Table 4).

Arrays over a table's rows are cut into its shards on the way down and put together on the way up; sums over rows
(gradients, Gram matrices) of shards add. Row arrays travel in the precision of the wire.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.mapping.table_mapping import Floats, ShardRows
from tablepuppet.operators.client import Client, Replies

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
        **values: Any,
    ) -> Replies:
        """Run ``op`` at the shards of ``aliases``: ``rows`` gives each its part of an array over the table's rows,
        ``by_alias`` values of one table, ``values`` those of all. ``instead`` stands in for shards that are lost.
        """
        chosen = set(aliases)

        def arguments(alias: str, shard: ShardRows) -> Mapping[str, Any] | None:
            if alias not in chosen:
                return None
            given = dict(values) | dict((by_alias or {}).get(alias, {}))
            if rows is not None:
                given["rows"] = rows[alias][shard.slice].astype(self.wire)
            return given

        return self.client.ask(op, arguments, instead)

    def shards(self, alias: str) -> int:
        """How many shards of a table take part."""
        return len(self.client.shards(alias))

    @staticmethod
    def concatenate(replies: list[Mapping[str, Any]], name: str) -> Floats:
        """An array over the table's rows from those of its shards."""
        parts = [reply[name] for reply in replies]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    @staticmethod
    def add(replies: list[Mapping[str, Any]], name: str) -> NDArray[np.float64]:
        """A sum over the table's rows from those over its shards (Eq. 17)."""
        return np.asarray(np.sum([reply[name] for reply in replies], axis=0, dtype=np.float64))
