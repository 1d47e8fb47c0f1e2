"""Metrics of a party's process, read over HTTP as Prometheus does."""

from __future__ import annotations

import resource
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from prometheus_client.parser import text_string_to_metric_families

import tablepuppet as tp
from tablepuppet.versions import PROTOCOL
from tests.service.processes import Services, free_port

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sets limits of other processes")
ROWS, CANARY = 400, "canary-town"


class Watched(Services):
    """A store with metrics."""

    port = 0

    def values(self) -> dict[tuple[str, ...], float]:
        """Every sample by its name and the values of its labels, which are in the order of their names."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=20) as reply:
            self.text = reply.read().decode()
        found = [each for family in text_string_to_metric_families(self.text) for each in family.samples]
        return {(each.name.removeprefix("tablepuppet_"), *each.labels.values()): each.value for each in found}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Watched]:
    rng = np.random.default_rng(0)
    towns = [CANARY if number % 9 else "elsewhere" for number in range(ROWS)]
    items = pa.table({"x": rng.random(ROWS) + 481516, "town": towns, "y": rng.random(ROWS)})
    port = free_port()
    built = Watched(tmp_path, {"store": {"items": items}}, f"metrics = {port}\n[limits]\nsessions = 1")
    built.port = port
    with built:
        yield built


def test_a_fit_is_seen(store: Watched) -> None:
    """Sessions, connections, ops, bytes and limits of a run; none of its values, names of its session, or texts."""
    assert not any(key[0] == "sessions" for key in store.values())
    relation = store.federation().sql(f"SELECT x, town, y FROM items WHERE town <> '{CANARY}-not'", label="y")
    tp.LinearRegression().fit(relation)
    while not store.values()["connections",]:  # the party looks at its door every second
        time.sleep(0.1)
    during = store.values()
    assert during["sessions", "analyst"] == 1
    assert during["memory_bytes", "analyst"] > 8 * ROWS
    assert during["journal_bytes", "analyst"] > 0
    assert during["requests_total", "keys.blind", "ok", "run"] == 1
    assert during["requests_total", "", "ok", "open"] == 1
    assert during["sent_bytes_total", "LABELS"] > 4 * ROWS
    assert during["limit_reached_total", "sessions"] == 0
    assert during["build_info", "store", str(PROTOCOL), tp.__version__] == 1
    assert during["process_open_fds",] > 3
    with pytest.raises(tp.PartyError, match=r"limits\.sessions"):
        store.federation(timeout=10.0).sql("SELECT x FROM items")
    after = store.values()
    assert after["limit_reached_total", "sessions"] >= 1
    for word in (CANARY, "481516", relation.client.session, "elsewhere", "SELECT"):
        assert word not in store.text


def test_a_full_disk_is_seen(store: Watched) -> None:
    """A party that cannot write refuses, counts it, and goes on."""
    process = store.parties["store"].process
    assert process is not None
    before = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, before[1]))
    fed = store.federation(timeout=3.0)
    with pytest.raises(tp.PartyError, match="cannot write"):
        fed.catalog()
    found = store.values()
    assert found["limit_reached_total", "disk"] >= 1
    assert found["requests_total", "", "failed", "describe"] >= 1
    assert ("requests_total", "", "ok", "describe") not in found
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, before)
    assert fed.catalog()
