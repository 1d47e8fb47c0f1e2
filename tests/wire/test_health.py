"""The health of a party whose database answers, does not, or is frozen."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tablepuppet.errors import PartyError
from tablepuppet.party.policy import Policy
from tablepuppet.party.service import Party
from tablepuppet.wire import metrics_page
from tablepuppet.wire.metrics_page import Health


class Frozen:
    """A database that answers nothing until it is thawed; as often as it is asked it is counted."""

    def __init__(self) -> None:
        self.thawed, self.asked, self.error = threading.Event(), 0, ""

    @contextmanager
    def reader(self) -> Iterator[None]:
        self.asked += 1
        assert self.thawed.wait(60)
        if self.error:
            raise PartyError(self.error)
        yield


def test_a_frozen_database_keeps_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever looks hears after a moment that it is down, however many look; one question at a time is under way."""
    monkeypatch.setattr(metrics_page, "SILENT", 0.1)
    monkeypatch.setattr(metrics_page, "FRESH", 0.0)
    frozen = Frozen()
    found = Health(Party("bank", frozen, b"k", Policy()))  # type: ignore[arg-type] # all that health asks of it
    with caplog.at_level(logging.INFO, "tablepuppet.party"):
        seen = [found.database() for _ in range(3)]
        assert [up for up, _ in seen] == [False] * 3
        assert frozen.asked == 1
        assert seen[-1][1] >= 0.1
        frozen.thawed.set()
        while not found.database()[0]:
            time.sleep(0.01)
        frozen.error = "the disk is gone"
        while found.database()[0]:
            time.sleep(0.01)
    assert caplog.messages == [
        "the database does not answer: no answer for 0.1 seconds",
        "the database answers again",
        "the database does not answer: the disk is gone",
    ]
