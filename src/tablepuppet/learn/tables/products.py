"""Inner products of the vectors that tables store: all tables must return the same size, or they cannot be added."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tablepuppet.errors import PartyError
from tablepuppet.operators.client import Client

Array = NDArray[np.float64]


def check_products(client: Client, by_table: Mapping[str, Array], size: int) -> None:
    """PartyError unless each table, by alias, returned the inner products of ``size`` vectors."""
    for alias, products in by_table.items():
        if len(products) != size:
            [shard, *_] = client.shards(alias)
            raise PartyError(
                f"party {shard.party!r}, table {client.plan.tables[alias].name!r}: it returns inner products of "
                f"{len(products)} vectors, not of {size}; ask its operator, and whether it runs the same version"
            )
