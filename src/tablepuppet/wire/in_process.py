"""The transport to a party in this process: no server, no copies."""

from __future__ import annotations

from threading import BoundedSemaphore

import numpy as np
from numpy.typing import NDArray

from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.request import Reply, Request
from tablepuppet.party.service import HERE, Party
from tablepuppet.pieces import cores
from tablepuppet.wire.transport import Capabilities, Transport

_CORES = BoundedSemaphore(cores())  # parties in this process share its cores; those elsewhere have their own


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
