"""The joined rows of parties in this process, pooled, which a federated learner never sees; and a model over them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tablepuppet.arrays import Array
from tablepuppet.errors import PrivacyError
from tablepuppet.learn.tables.parameters import TableParameters
from tablepuppet.operators.client import Client
from tablepuppet.prep.encode.encode import Encoding, encoded
from tablepuppet.prep.encode.encoded_table import EncodedTable
from tablepuppet.store.parts import Held


def joined_tables(client: Client, encoding: Encoding) -> dict[str, EncodedTable]:
    """The encoded rows of every table with features, one for every joined row."""
    client.outbox.send()  # parties encode their rows before they are looked at
    return {
        alias: _table(client, encoding, alias).repeated(client.rows.taken(alias, np.arange(client.tables[alias].rows)))
        for alias in client.tables
        if encoding.names(alias) and client.shards(alias)
    }


def _table(client: Client, encoding: Encoding, alias: str) -> EncodedTable:
    shards = []
    for shard in client.shards(alias):
        table = client.engine.capabilities(shard.party).table
        if table is None:
            raise PrivacyError(
                f"party {shard.party!r} runs elsewhere: its rows cannot be pooled for a centralised baseline"
            )
        shards.append(encoded(table(client.session, alias), client.view, encoding.id))
    codes = [np.concatenate(parts) for parts in zip(*(shard.codes for shard in shards), strict=True)]
    return EncodedTable(np.concatenate([shard.dense for shard in shards]), tuple(codes), shards[0].sizes)


class PooledModel(Held):
    """The models of all tables, linear or networks, applied to joined rows."""

    def __init__(self, encoding: Encoding, parts: Mapping[str, TableParameters], outputs: int, unit: float = 1.0):
        super().__init__({})
        self.encoding, self.parts, self.unit = encoding, dict(parts), unit
        self.shape = () if outputs == 1 else (outputs,)

    def predict(self, tables: Mapping[str, EncodedTable], rows: int) -> Array:
        """The sum over tables."""
        scores = np.zeros((rows, *self.shape))
        for alias, part in self.parts.items():
            scores += part.model.predict(part.theta, tables[alias])
        return scores

    def scores(self, client: Client) -> Array:
        """The sum over tables, in the label's own units."""
        return self.unit * self.predict(joined_tables(client, self.encoding), len(client.rows))

    def parameters(self) -> dict[str, Array]:
        """Parameters by table, in the label's own units."""
        return {alias: part.model.rescaled(part.theta, self.unit) for alias, part in self.parts.items()}
