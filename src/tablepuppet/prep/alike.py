"""Which rows of a table are alike: equal in all their encoded values, so that every model gives them one prediction.

The party compares its rows; the coordinator learns which are equal, never a value. That is no more than predictions
show, which are equal for such rows whatever the model, so the op needs the same release.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from tablepuppet.operators.client import Client, Pending, Replies
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.ops import Values, op
from tablepuppet.party.release import Release
from tablepuppet.party.returns import ROWS, Numbers
from tablepuppet.prep.encode import Encoding
from tablepuppet.prep.encoded_rows import encoded
from tablepuppet.prep.encoded_table import EncodedTable

MOST_GROUPS = 1 << 16  # of alike rows: with more there is little to gain by merging them


@op(
    "rows.alike",
    asked="searches over `l2`",
    releases=Release.PREDICTIONS,
    returns={"first": Numbers((ROWS,), "i", least=0, most=ROWS, or_none=True)},
)
def alike(table: LocalTable, view: str, encoding: str) -> Values:
    """For each row the place of the first row that is equal to it in all encoded values; nothing if few are equal."""
    data = encoded(table, view, encoding)
    some = data.repeated(slice(None, None, max(1, len(data.dense) // (2 * MOST_GROUPS))))
    found = first_of_each(some)
    if found is not None and len(some.dense) < len(data.dense):  # a look at some of them is cheap
        found = first_of_each(data)
    return {"first": np.zeros(0, np.int32) if found is None else found.astype(np.int32)}


def first_of_each(data: EncodedTable) -> NDArray[np.intp] | None:
    """The place of the first row with the same values; None if there are too many groups of such rows.

    Column after column, rows that were equal so far are told apart by their next value.
    """
    groups = firsts = np.zeros(len(data.dense), np.intp)
    for column in (*data.dense.T, *data.codes):
        _, values = np.unique(column, return_inverse=True)
        groups = groups * (values.max(initial=0) + 1) + values
        _, firsts, groups = np.unique(groups, return_index=True, return_inverse=True)
        if len(firsts) > MOST_GROUPS:
            return None
    return firsts[groups]


class AlikeRows:
    """The alike rows of each table with encoded columns: asked for when made, read when looked at.

    They are not asked for where a party counts replies: rounds need them all.
    """

    def __init__(self, client: Client, encoding: Encoding):
        self._client, self._aliases = client, list(encoding.numbers)
        tables = [client.plan.tables[alias] for alias in encoding.numbers]
        self._asked: Pending | None = None
        if all(shard.max_rounds is None for table in tables for shard in table.shards):
            told = {"encoding": encoding.id}
            self._asked = client.ask("rows.alike", lambda alias, _: told if alias in self._aliases else None)

    def read(self) -> dict[str, NDArray[np.int32]]:
        """By table, for each base row the place of the first one that is alike, among rows of the same shard.

        Nothing if a shard has too few alike rows, or was not asked.
        """
        return {} if self._asked is None else _by_table(self._client, self._aliases, self._asked.read())


def _by_table(client: Client, aliases: Iterable[str], replies: Replies) -> dict[str, NDArray[np.int32]]:
    found = {}
    for alias in aliases:
        parts = list(zip(client.shards(alias), replies[alias], strict=True))
        if any(len(reply["first"]) < len(shard.row_ids) for shard, reply in parts):
            return {}
        if parts:
            found[alias] = np.concatenate([shard.start + reply["first"] for shard, reply in parts]).astype(np.int32)
    return found
