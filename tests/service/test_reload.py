"""A party that reads its file again on SIGHUP, as a process: rules, callers and certificates change, sessions stay."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from cryptography import x509
from prometheus_client.parser import text_string_to_metric_families

import tablepuppet as tp
from tablepuppet.privacy.certificates import issue
from tests.service.processes import Services, free_port, run_command


class Store(Services):
    """A store with metrics, whose file is changed while it serves."""

    port = 0

    @property
    def log(self) -> str:
        """What it has logged."""
        return (self.folder / "store.log").read_text()

    def reload(self, old: str = "", new: str = "") -> str:
        """Change a part of the party file and ask to read it again; the lines that it then logs of it."""
        party, before = self.parties["store"], len(self.log)
        text = party.file.read_text()
        assert old in text
        party.file.write_text(text.replace(old, new))
        assert party.process is not None
        party.process.send_signal(signal.SIGHUP)
        while "party file" not in self.log[before:]:
            assert party.is_running()
            time.sleep(0.05)
        return self.log[before:]

    def metrics(self) -> dict[tuple[str, ...], float]:
        """Every sample by its name and the values of its labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=20) as reply:
            found = text_string_to_metric_families(reply.read().decode())
        return {
            (each.name.removeprefix("tablepuppet_"), *each.labels.values()): each.value
            for family in found
            for each in family.samples
        }


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    rng = np.random.default_rng(0)
    tables = {
        "items": pa.table({"x": rng.random(60), "y": rng.random(60)}),
        "orders": pa.table({"x": rng.random(40), "y": rng.random(40)}),
    }
    port = free_port()
    built = Store(tmp_path, {"store": tables}, f"metrics = {port}")
    built.port = port
    with built:
        yield built


ITEMS = "[tables.items]\nmin_rows = 1\n"


def test_rules_change_and_sessions_stay(store: Store) -> None:
    """A session over another table goes on where it is; one over the changed table meets the new rule."""
    fed = store.federation(timeout=30.0)
    items, orders = (fed.sql(f"SELECT x, y FROM {name}", label="y") for name in ("items", "orders"))
    assert (len(items), len(orders)) == (60, 40)
    hashes = {key for key in store.metrics() if key[0] == "policy_info"}
    told = store.reload(ITEMS, ITEMS.replace("1", "50"))
    assert "1 sessions were put away" in told
    assert tp.LinearRegression().fit(orders).evaluate(orders)["rmse"] > 0
    assert tp.LinearRegression().fit(items).evaluate(items)["rmse"] > 0  # 60 rows are enough; it came back
    assert store.log.count(": restored") == 1
    assert {key for key in store.metrics() if key[0] == "policy_info"} != hashes
    store.reload(ITEMS.replace("1", "50"), ITEMS.replace("1", "61"))
    with pytest.raises(tp.PrivacyError, match="min_rows"):
        tp.LinearRegression().fit(fed.sql("SELECT x, y FROM items", label="y"))


def test_a_caller_that_is_taken_out_is_refused(store: Store) -> None:
    """Also in the middle of its session; and let in again."""
    fed = store.federation(timeout=10.0)
    orders = fed.sql("SELECT x, y FROM orders", label="y")
    store.reload('allow = ["analyst"]', 'allow = ["nobody"]')
    for asked in (fed.catalog, lambda: orders.describe()):
        with pytest.raises(tp.PrivacyError, match="allow"):
            asked()
    store.reload('allow = ["nobody"]', 'allow = ["analyst"]')
    assert len(fed.sql("SELECT x, y FROM orders", label="y")) == 40


def test_a_wrong_file_changes_nothing(store: Store) -> None:
    """The party goes on with the rules that it had, and says what is wrong; what needs a restart is said too."""
    assert "everything stays as it was" in store.reload(ITEMS, "[tables.itmes]\nmin_rows = 1\n")
    assert len(store.federation(timeout=10.0).sql("SELECT x, y FROM items", label="y")) == 60
    store.reload("[tables.itmes]\nmin_rows = 1\n", ITEMS)
    store.reload(ITEMS, ITEMS.replace("[tables", "[limits]\nsessions = 3\n[tables"))
    while "need a restart" not in store.log:
        time.sleep(0.05)
    assert store.log.rstrip().endswith("have no effect yet: limits")


def test_a_new_certificate_is_shown(store: Store) -> None:
    """Callers find the new certificate at the same port, their sessions go on, and metrics say when it ends."""
    fed = store.federation(timeout=30.0)
    orders = fed.sql("SELECT x, y FROM orders", label="y")
    certificate = Path(store.certificates.files("store")[0])
    before = store.metrics()["certificate_expiry_seconds",]
    for path in (certificate, certificate.with_suffix(".key")):
        path.unlink()
    issue(store.certificates.folder, "store", days=20)
    store.reload()
    now = x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc.timestamp()
    assert store.metrics()["certificate_expiry_seconds",] == now != before
    assert tp.LinearRegression().fit(orders).evaluate(orders)["rmse"] > 0
    assert ": restored" not in store.log
    while "the certificate of this party ends in 19 days" not in store.log:
        assert store.parties["store"].is_running()
        time.sleep(0.05)


def test_health_asks_the_database(store: Store) -> None:
    """/healthz says 200 while tables can be read and 503 while not, and metrics say the same."""

    def healthy() -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{store.port}/healthz", timeout=20) as reply:
                return int(reply.status)
        except urllib.error.HTTPError as error:
            return error.code

    check = [sys.executable, str(Path(__file__).parents[2] / "deploy" / "healthcheck.py")]
    check.append(str(store.parties["store"].file))
    assert (healthy(), subprocess.run(check).returncode) == (200, 0)
    found = store.metrics()
    assert found["database_up",] == 1
    assert found["free_disk_bytes", "state_dir"] > 0
    assert ("caller_requests_total", "analyst", "ok") not in found
    store.federation().catalog()
    assert store.metrics()["caller_requests_total", "analyst", "ok"] == 1
    database = Path(store.urls["store"].partition("://")[2])
    away = database.rename(database.with_name("away"))
    while healthy() != 503:
        time.sleep(0.5)
    assert store.metrics()["database_up",] == 0
    assert subprocess.run(check, capture_output=True).returncode == 1
    away.rename(database)
    while healthy() != 200:
        time.sleep(0.5)


def test_an_operator_lists_and_ends_sessions(store: Store) -> None:
    """`party sessions` shows who has which tables open; one that is ended is gone for its caller."""
    orders = store.federation(timeout=10.0).sql("SELECT x, y FROM orders", label="y")
    file = str(store.parties["store"].file)
    shown = json.loads(run_command("party", "sessions", file, "--json").stdout)
    assert [(each["caller"], each["tables"]) for each in shown] == [("analyst", ["orders"])]
    assert shown[0]["session"] in run_command("party", "sessions", file).stdout
    unknown = run_command("party", "sessions", file, "--end", "no such session")
    assert (unknown.returncode, "no open session" in unknown.stderr) == (1, True)
    assert "Ended: 1 session." in run_command("party", "sessions", file, "--end", shown[0]["session"][:8]).stdout
    with pytest.raises(tp.PartyError, match="no such session"):
        orders.describe()
    store.parties["store"].end()
    away = run_command("party", "sessions", file)
    assert (away.returncode, "is not being served" in away.stderr) == (1, True)


def test_a_database_that_starts_later(store: Store) -> None:
    """After a reboot the party serves before its database does: it is not healthy, refuses by a reference, takes over
    other rules meanwhile, and works once the database is there.
    """
    party, database = store.parties["store"], Path(store.urls["store"].partition("://")[2])
    party.end()
    away = database.rename(database.with_name("away"))
    party.start()
    assert "the database does not answer, and requests that need it are refused until it does" in store.log
    assert store.metrics()["database_up",] == 0
    fed = store.federation(timeout=1.0)
    with pytest.raises(tp.PartyError, match="database not available, reference"):
        fed.sql("SELECT x, y FROM items", label="y")
    assert "the party file was read again" in store.reload(ITEMS, ITEMS.replace("1", "61"))
    away.rename(database)
    while store.log.count("the database answers, and all published tables are there") < 1:
        assert party.is_running()
        time.sleep(0.1)
    with pytest.raises(tp.PrivacyError, match="min_rows"):
        store.federation().sql("SELECT x, y FROM items", label="y").describe()
    assert len(store.federation().sql("SELECT x, y FROM orders", label="y")) == 40
    away = database.rename(away)
    assert "does not answer" in store.reload("[tables.items", "[tables.itmes")
    away.rename(database)
    while "the database answers, but it is not as the party file says: " not in store.log:
        assert party.is_running()
        time.sleep(0.1)
