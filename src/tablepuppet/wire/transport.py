"""A `Transport`: calls one party (its only method is `call`); `Capabilities` lists what else that party can do.

Input: a request. Output: the party's reply. Each kind of transport is a file: `in_process.py`,
`flight_transport.py`, and `record.py`, which keeps what another transport brought.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.request import Reply, Request


class CategorySecrets(Protocol):
    """A party whose secrets of categories are saved with a model, in the caller's own folder."""

    def category_secret(self, blinding: str) -> bytes:
        """The secret under which a model's categories are blinded."""
        ...

    def adopt_category_secret(self, blinding: str, secret: bytes) -> None:
        """Use the secret of a saved model."""
        ...

    def knows_categories(self, blinding: str, key: str) -> bool:
        """Whether it blinds categories by the secret of a model that was fitted under the blinding key of this mark."""
        ...


@dataclass(frozen=True)
class Capabilities:
    """What can be done with a party beyond `Transport.call`; None where it cannot. The defaults are a service's."""

    is_service: bool = True  # run by somebody: it may be lost, has a certificate, stores sessions and parts of models
    positions: Callable[[str, str, NDArray[np.int32]], NDArray[np.int64]] | None = None
    """(session, alias, row ids) -> where these rows stand in their source."""
    table: Callable[[str, str], LocalTable] | None = None
    """(session, alias) -> the table itself, for baselines that pool rows."""
    category_secrets: CategorySecrets | None = None
    drop_losses: Callable[[int], None] | None = None
    """Drop the last n losses from the record."""


class Transport(ABC):
    """Calls one party."""

    capabilities: Capabilities = Capabilities()

    @abstractmethod
    def call(self, request: Request, patience: float | None = None) -> Reply:
        """One request, one reply.

        LostError if the party is silent for its timeout; with ``patience`` it is tried once, for so many seconds.
        """
