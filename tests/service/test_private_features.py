"""Feature privacy of parties that are processes: demanded, charged once, and drawn again after kill -9."""

from __future__ import annotations

import struct
import sys
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import tablepuppet as tp
from tablepuppet.party.ledger import FILE, Ledger
from tests.relations import collect_garbage
from tests.service.processes import COMMAND, Services

ROWS = 300
DELTA = 1e-5
CANARY = 48151623.4208
BOTH = tp.Privacy(feature_epsilon=4.0, prediction_epsilon=2.0, delta=DELTA, label_epsilon=5.0, label_classes=(0, 1))
SQL = "SELECT c.x, c.big, s.z, c.fraud FROM cards c JOIN shops s USING (id)"
DIES = """
import os, signal
from tablepuppet.party.ledger import Ledger
charge, calls = Ledger.charge, []
def killed(self, *told, **named):
    charge(self, *told, **named)
    calls.append(1)
    if len(calls) == 4:
        os.kill(os.getpid(), signal.SIGKILL)
Ledger.charge = killed
from tablepuppet.cli import main
main()
"""


@pytest.fixture
def services(tmp_path: Path) -> Services:
    """A bank and a shop, both of which demand differential privacy."""
    row = np.arange(ROWS)
    cards = pa.table({"id": row, "x": np.sin(row), "big": CANARY + row, "fraud": row * 7 % 5 // 3})
    shops = pa.table({"id": row, "z": np.cos(row)})
    found = Services(tmp_path, {"bank": {"cards": cards}, "shop": {"shops": shops}})
    for party in found.parties.values():
        text = party.file.read_text().replace(
            "min_rows = 1", "min_rows = 1\nbudget = { require_dp = true, delta = 1e-5 }"
        )
        party.file.write_text(text)
    return found


def fit(fed: tp.Federation) -> tp.LogisticRegression:
    """One private fit."""
    return tp.LogisticRegression(privacy=BOTH).fit(fed.sql(SQL, label="fraud"))


def kept(services: Services) -> bytes:
    """All that parties have written down: audit, log, ledger, journals."""
    files = [path for path in services.folder.rglob("*") if path.is_file() and path.suffix not in (".parquet", ".crt")]
    return b"\0".join(path.read_bytes() for path in files)


def test_demanded_charged_and_repeated(services: Services) -> None:
    """A table that demands privacy is learned from with noise only; its ledger has what is stated or a little more;
    a party that is killed stands where it stood, with the same noise and nothing charged twice. A saved model predicts
    with noise, which is charged, after a restart.
    """
    bank = services.parties["bank"]
    with services:
        fed = services.federation()
        with pytest.raises(tp.PrivacyError, match=r"label_epsilon=\.\.\., feature_epsilon=\.\.\., prediction_epsilon"):
            tp.LogisticRegression().fit(fed.sql(SQL, label="fraud"))
        given = tp.Privacy(feature_epsilon=1.0, label_epsilon=5.0, label_classes=(0, 1))
        with pytest.raises(tp.PrivacyError, match=r"prediction_epsilon=\.\.\."):
            tp.LogisticRegression(privacy=given).fit(fed.sql(SQL, label="fraud"))
        ledger = Ledger(bank.state / FILE, "bank")
        assert ledger.spent("cards").epsilon(DELTA) == 0.0
        model = fit(fed)
        before, spent = model.coef_, ledger.spent("cards")
        assert before
        stated = model.privacy_["tables"]["cards"]
        assert (
            stated["epsilon"] + stated["label"] <= spent.epsilon(DELTA) < 1.35 * (stated["epsilon"] + stated["label"])
        )
        bank.kill()
        bank.start()
        assert model.coef_ == before
        assert ledger.spent("cards") == spent
        model.save(services.folder / "model")
        assert ledger.spent("cards") == spent
        bank.kill()
        bank.start()
        fed = services.federation()
        loaded = tp.load(services.folder / "model", fed)
        assert loaded.privacy_ == model.privacy_
        assert {name: float(np.sum(value)) for name, value in loaded.coef_.items()} == pytest.approx(
            {name: float(np.sum(value)) for name, value in before.items()}
        )
        assert set(loaded.predict(fed.sql(SQL, label="fraud"))) <= {0, 1}
        assert loaded.privacy_["epsilon"] > model.privacy_["epsilon"]
        assert ledger.spent("cards").epsilon(DELTA) > spent.epsilon(DELTA)
        collect_garbage()  # closed sessions take their journals with them
        written = kept(services)
        for value in CANARY + np.arange(ROWS):
            for trace in (struct.pack("<d", value), struct.pack(">d", value), repr(float(value)).encode()):
                assert trace not in written


def test_killed_while_charging(services: Services) -> None:
    """kill -9 after a charge in the middle of a fit: the fit goes on after a restart and is charged once."""
    bank = services.parties["bank"]
    bank.command = [sys.executable, "-c", DIES]
    with services:
        first = bank.process
        assert first is not None
        bank.command = COMMAND
        found: list[tp.LogisticRegression] = []
        fed = services.federation()
        asking = threading.Thread(target=lambda: found.append(fit(fed)))
        asking.start()
        first.wait(timeout=60)
        bank.start()
        asking.join(timeout=120)
        assert len(found) == 1
        ledger = Ledger(bank.state / FILE, "bank")
        once = ledger.spent("cards")
        again = fit(services.federation())
        assert again.privacy_["tables"]["cards"] == found[0].privacy_["tables"]["cards"]
        assert ledger.spent("cards").gaussian == pytest.approx(2 * np.array(once.gaussian), rel=1e-6)
        assert once.pure == pytest.approx(5.0, abs=1e-3)
