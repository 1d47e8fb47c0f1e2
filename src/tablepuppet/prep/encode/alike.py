"""Which rows of a table are alike: equal in all their encoded values, so that every model gives them one prediction.

The party compares its rows; the coordinator learns which are equal, never a value. That is no more than predictions
show, which are equal for such rows whatever the model, so the op needs the same release.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tablepuppet.errors import PartyError
from tablepuppet.operators.client import Client, Pending, Replies
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.ops import Values, op
from tablepuppet.party.release import Release
from tablepuppet.party.returns import ROWS, Numbers
from tablepuppet.prep.encode.encode import Encoding, encoded
from tablepuppet.prep.encode.encoded_table import EncodedTable

MOST_GROUPS = 1 << 16  # of alike rows: with more there is little to gain by merging them
LOOK = 1 << 12  # rows that are compared first, drawn at random
LEAST = 1 << 5  # of them that equal another, or there are more groups than that: about LOOK ** 2 / (2 * MOST_GROUPS)


@op(
    "rows.alike",
    asked="searches over `l2`; k-means",
    releases=Release.PREDICTIONS,
    returns={"first": Numbers((ROWS,), "i", least=0, most=ROWS, or_none=True)},
)
def alike(table: LocalTable, view: str, encoding: str) -> Values:
    """For each row the place of the first row that is equal to it in all encoded values; nothing if few are equal."""
    found = first_of_each(encoded(table, view, encoding))
    return {"first": np.zeros(0, np.int32) if found is None else found}


def first_of_each(data: EncodedTable) -> NDArray[np.int32] | None:
    """The place of the first row with the same values; None if there are too many groups of such rows.

    A look at some rows finds cheaply that values are all different, as measurements are.
    """
    rows = len(data.dense)
    if rows > 2 * LOOK:
        places = np.random.default_rng(0).choice(rows, LOOK, replace=False)
        if _compared(data.repeated(places), LOOK - LEAST) is None:
            return None
    return _compared(data, MOST_GROUPS)


def _compared(data: EncodedTable, most: int) -> NDArray[np.int32] | None:
    """The first row of each row's group; None if there are more groups than ``most``.

    Column after column, rows that were equal so far are distinguished by their next value.
    """
    rows = len(data.dense)
    groups, count = np.zeros(rows, np.int32), min(rows, 1)
    for column in (*data.codes, *data.dense.T):
        if count > most:
            return None
        if count == rows:
            break
        values, different = _numbered(column)
        groups, count = _numbered(groups * np.int64(different) + values)
    if count > most:
        return None
    firsts = np.zeros(count, np.int32)
    firsts[groups[::-1]] = np.arange(rows - 1, -1, -1, dtype=np.int32)  # what is written last is the first row
    return firsts[groups]


def _numbered(values: NDArray[np.generic]) -> tuple[NDArray[np.int32], int]:
    """(the number of each value, how many different ones there are)."""
    coded = pa.array(np.ascontiguousarray(values)).dictionary_encode()
    return coded.indices.to_numpy(), len(coded.dictionary)


class AlikeRows:
    """The alike rows of tables, or of each with encoded columns: asked for when made, read when looked at.

    They are not asked for where a party counts replies: rounds need them all.
    """

    def __init__(self, client: Client, encoding: Encoding, aliases: Iterable[str] | None = None):
        self._client, self._aliases = client, list(encoding.numbers if aliases is None else aliases)
        tables = [client.plan.tables[alias] for alias in self._aliases]
        self._asked: Pending | None = None
        if all(shard.max_rounds is None for table in tables for shard in table.shards):
            named = {"encoding": encoding.id}
            self._asked = client.ask("rows.alike", dict.fromkeys(self._aliases, named))

    def read(self) -> dict[str, NDArray[np.int32]] | None:
        """By table, for each base row the place of the first one that is alike, among rows of the same shard.

        None if a shard has too few alike rows, or was not asked.
        """
        return None if self._asked is None else _by_table(self._client, self._aliases, self._asked.read())


def _by_table(client: Client, aliases: Iterable[str], replies: Replies) -> dict[str, NDArray[np.int32]] | None:
    found = {}
    for alias in aliases:
        parts = list(zip(client.shards(alias), replies[alias], strict=True))
        if any(len(reply["first"]) < len(shard.row_ids) for shard, reply in parts):
            return None
        for shard, reply in parts:
            if reply["first"].max(initial=0) >= len(shard.row_ids):
                raise PartyError(
                    f"party {shard.party!r}, table {alias!r}: sent places of alike rows beyond its "
                    f"{len(shard.row_ids):,} rows"
                )
        if parts:
            found[alias] = np.concatenate([shard.start + reply["first"].astype(np.int32) for shard, reply in parts])
    return found
