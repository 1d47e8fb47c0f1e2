"""The ledger of a party that is a process of its own, killed while it charges: never less on disk than was released."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tablepuppet as tp
from tablepuppet.party.ledger import FILE, Ledger
from tablepuppet.privacy_plan import plan_privacy
from tablepuppet.wire.record import Record
from tests.service.processes import COMMAND, Services

ROWS = 300
DIES = """
import os, signal
from tablepuppet.party.ledger import Ledger
charge = Ledger.charge
def killed(self, *told, **named):
    {before}
    charge(self, *told, **named)
    {after}
Ledger.charge = killed
from tablepuppet.cli import main
main()
"""
KILL = "os.kill(os.getpid(), signal.SIGKILL)"
PRIVACY = tp.Privacy(label_epsilon=2.0, label_classes=(0, 1))


@pytest.fixture
def services(tmp_path: Path) -> Services:
    row = np.arange(ROWS)
    cards = pa.table({"id": row, "x": np.sin(row), "fraud": row * 7 % 5 // 3})
    return Services(tmp_path, {"bank": {"cards": cards}})


def labels(fed: tp.Federation) -> bytes:
    """The noisy labels as they come."""
    relation = fed.sql("SELECT x, fraud FROM cards", label="fraud")
    learner = tp.LogisticRegression(privacy=PRIVACY)
    assert relation.query.label is not None
    asked = learner._ask_labels(relation.client, relation.query.label)
    return bytes(asked.read()["cards"][0]["codes"].tobytes())


@pytest.mark.parametrize(
    ("before", "after", "spent"), [(KILL, "", 0.0), ("", KILL, 2.0)], ids=["before the charge", "after the charge"]
)
def test_killed_while_charging(services: Services, before: str, after: str, spent: float) -> None:
    """kill -9 around the charge, then a restart: labels come, the same as ever, and are charged once."""
    bank = services.parties["bank"]
    bank.command = [sys.executable, "-c", DIES.format(before=before or "pass", after=after or "pass")]
    with services:
        first = bank.process
        assert first is not None
        bank.command = COMMAND
        found: list[bytes] = []
        asking = threading.Thread(target=lambda: found.append(labels(services.federation())))
        asking.start()
        first.wait(timeout=60)  # it kills itself
        ledger = Ledger(bank.state / FILE, "bank")
        assert not found
        assert ledger.spent("cards").pure == spent
        bank.start()
        asking.join(timeout=120)
        assert len(found) == 1
        assert ledger.spent("cards").pure == ledger.spent("cards", "analyst").pure == 2.0
        assert labels(services.federation()) == found[0]  # another session, the same release
        bank.kill()
        bank.start()
        assert labels(services.federation()) == found[0]
        assert ledger.spent("cards").pure == 2.0


def test_a_fit_beyond_the_budget_is_refused_before_it_is_charged(tmp_path: Path) -> None:
    """Over the wire too: a fit that fits spends the budget, the next is refused whole, as is the plan of its job. A
    run that is resumed is held against what was left when it began, not against what it has spent itself.
    """
    row = np.arange(ROWS)
    cards = pa.table({"id": row, "x": np.sin(row), "fraud": row * 7 % 5 // 3})
    with Services(
        tmp_path, {"bank": {"cards": cards}}, of_tables="budget = { epsilon = 3.0, require_dp = false }"
    ) as services:
        ledger = Ledger(services.parties["bank"].state / FILE, "bank")
        privacy = tp.Privacy(feature_epsilon=2.0, delta=1e-4)

        def fit(**settings: Any) -> tp.LinearRegression:
            relation = services.federation(**settings).sql("SELECT x, fraud FROM cards", label="fraud")
            return tp.LinearRegression(privacy=privacy).fit(relation)

        first = fit(record=Record(tmp_path / "record"))
        spent = ledger.spent("cards")
        assert 1.5 < spent.epsilon(1e-6) <= 3.0
        with pytest.raises(tp.PrivacyError, match=r"party 'bank', table 'cards': epsilon .* is left of the 3 that all"):
            fit()
        again = fit(record=Record(tmp_path / "record"))
        assert again.intercept_ == first.intercept_
        services.write_federation()
        (tmp_path / "job.toml").write_text(
            'federation = "federation.toml"\nsql = "SELECT x, fraud FROM cards"\nlabel = "fraud"\noutput = "run"\n'
            '[learner]\nkind = "LinearRegression"\n[learner.privacy]\nfeature_epsilon = 2.0\ndelta = 1e-4\n'
        )
        with pytest.raises(tp.PrivacyError, match="nothing was spent on it"):
            plan_privacy(tmp_path / "job.toml")
        assert ledger.spent("cards") == spent
