"""Inner products that tables tell of what they remember: of one size for all, or they cannot be added up."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tablepuppet.errors import PartyError
from tablepuppet.operators.client import Client

Array = NDArray[np.float64]


def check_products(client: Client, told: Mapping[str, Array], size: int) -> None:
    """PartyError unless what each table told, by alias, is of so many vectors."""
    for alias, products in told.items():
        if len(products) != size:
            [shard, *_] = client.shards(alias)
            raise PartyError(
                f"party {shard.party!r}, table {client.plan.tables[alias].name!r}: it tells inner products of "
                f"{len(products)} vectors, not of {size}; ask its operator, and whether it runs the same version"
            )
