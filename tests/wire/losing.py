"""Parties that can be lost at will, at once and without a network: real parties behind real desks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tablepuppet as tp
from tablepuppet.party.config import Limits
from tablepuppet.party.databases.urls import open_database
from tablepuppet.party.request import Reply, Request
from tablepuppet.party.service import Party
from tablepuppet.privacy.signed_keys import TrialAuthority
from tablepuppet.wire.codec import decode
from tablepuppet.wire.desk import Desk
from tablepuppet.wire.engine import Engine, Transport
from tablepuppet.wire.protocol import LostError, read_reply
from tests.wire.services import KEY

TRIAL = TrialAuthority()


class LosingParty(Transport):
    """A party elsewhere. While it is ``lost``, requests do not arrive; if it is ``mute``, its replies do not."""

    def __init__(self, name: str, url: str):
        self.name, self.lost, self.mute = name, False, False
        database = open_database(name, url)
        party = Party(name, database, KEY, row_secret=name.encode(), identity=lambda: TRIAL.identity(name))
        self.desk = Desk(party, Limits())
        self.asked: list[tuple[int, list[str], bool]] = []  # sequence, ops, whether the reply arrived

    def call(self, request: Request, patience: float | None = None) -> Reply:
        """One request, one reply."""
        heard = not (self.lost or self.mute)
        if request.verb == "run":
            self.asked.append((request.sequence, [step.op for step in request.steps], heard))
        reply = None if self.lost else read_reply(decode(self.desk.answer("a", request)), request, self.name)
        if reply is None or not heard:
            raise LostError(f"party {self.name!r} does not answer")
        return reply


def losing(urls: Mapping[str, str], **settings: Any) -> tuple[tp.Federation, dict[str, LosingParty]]:
    """A federation of such parties."""
    settings = {"wire": "float64", "timeout": 0.2, **settings}
    fed = tp.Federation(urls, **settings)
    parties = {name: LosingParty(name, url) for name, url in urls.items()}
    fed.engine = Engine(parties)
    return fed, parties
