"""The joined rows of parties in this process, pooled: what a federated learner never sees."""

from __future__ import annotations

import numpy as np

from tablepuppet.errors import PrivacyError
from tablepuppet.operators.client import Client
from tablepuppet.prep.encode import Encoding, encoded
from tablepuppet.prep.encoded_table import EncodedTable


def joined_tables(client: Client, encoding: Encoding) -> dict[str, EncodedTable]:
    """The encoded rows of every table with features, one for every joined row."""
    client.outbox.send()  # parties encode their rows before they are looked at
    return {
        alias: _table(client, encoding, alias).repeated(client.mapping.tables[alias].index)
        for alias in client.mapping.tables
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
