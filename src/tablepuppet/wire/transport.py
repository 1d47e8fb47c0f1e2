"""A `Transport` calls one party (its only method is `call`); `Capabilities` lists what else that party can do.

Input: a request. Output: the party's reply. A party in this process is called as it is, without a server and without
copies; `flight_transport.py` calls one elsewhere, and `record.py` keeps what another transport brought.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from threading import BoundedSemaphore
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.request import Reply, Request
from tablepuppet.party.service import HERE, Party
from tablepuppet.pieces import cores

_CORES = BoundedSemaphore(cores())  # parties in this process share its cores; those elsewhere have their own


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


class InProcessTransport(Transport):
    """Hands requests to a party in this process, in the name of ``caller``."""

    def __init__(self, party: Party, caller: str = HERE):
        self.party, self._caller = party, caller
        self.capabilities = Capabilities(
            is_service=False, positions=self._positions, table=self._table, category_secrets=party
        )

    def call(self, request: Request, patience: float | None = None) -> Reply:
        """The party's reply. It comes at once, so ``patience`` is not used."""
        with _CORES:
            return self.party.answer(self._caller, request)

    def _table(self, session: str, alias: str) -> LocalTable:
        return self.party.table(session, alias, self._caller)

    def _positions(self, session: str, alias: str, row_ids: NDArray[np.int32]) -> NDArray[np.int64]:
        return self._table(session, alias).positions(row_ids)
