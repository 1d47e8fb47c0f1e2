"""A party's process that runs out of something: descriptors, disk. It refuses, loses nothing, and goes on."""

from __future__ import annotations

import resource
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import tablepuppet as tp
from tablepuppet.party.request import Request
from tablepuppet.wire.serve import _log_session
from tests.service.processes import Services

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sets limits of other processes")
ROWS, DESCRIPTORS = 400, 400
SQL = "SELECT x, z, y FROM items"


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    rng = np.random.default_rng(0)
    items = pa.table({"x": rng.random(ROWS), "z": rng.random(ROWS), "y": rng.random(ROWS)})
    with Services(tmp_path, {"store": {"items": items}}, "[limits]\nconnect_seconds = 2.0") as built:
        yield built


def limited(services: Services, what: int, most: int) -> Callable[[], None]:
    """Give the process less of something; what is returned takes the limit off again."""
    process = services.parties["store"].process
    assert process is not None
    before = resource.prlimit(process.pid, what)
    resource.prlimit(process.pid, what, (most, before[1]))

    def restored() -> None:
        resource.prlimit(process.pid, what, before)

    return restored


def answers(services: Services) -> bool:
    try:
        return len(services.federation(timeout=5.0).sql(SQL)) == ROWS
    except tp.TablePuppetError:
        return False


def until(fact: Callable[[], bool]) -> bool:
    for _ in range(30):
        if fact():
            return True
        time.sleep(0.2)
    return False


def test_sockets_use_up_all_descriptors(services: Services) -> None:
    """More idle connections than descriptors end no party: it clears its door, says so, and answers again."""
    party, fed = services.parties["store"], services.federation()
    relation = fed.sql(SQL, label="y")
    limited(services, resource.RLIMIT_NOFILE, party.open_files() + 40)
    lines = []
    for _ in range(DESCRIPTORS):
        line = socket.socket()
        line.setblocking(False)
        line.connect_ex(("127.0.0.1", party.port))
        lines.append(line)
    time.sleep(3.0)
    assert party.is_running()
    assert until(lambda: answers(services))  # while the sockets are still held
    assert party.is_running()
    for line in lines:
        line.close()
    tp.LinearRegression(rounds=2).fit(relation)  # the session that was open is there
    assert "connections that did not call" in (services.folder / "store.log").read_text()


def test_a_full_disk(services: Services) -> None:
    """What cannot be written down is refused in clear words; with room again the same run goes on to the same model."""
    fed = services.federation()
    undisturbed = tp.LinearRegression().fit(fed.sql(SQL, label="y"))
    relation = fed.sql(SQL, label="y")
    len(relation)
    restored = limited(services, resource.RLIMIT_FSIZE, 1)
    with pytest.raises(tp.PartyError, match=r"'store'.*cannot write|cannot write its audit log"):
        services.federation(timeout=3.0).sql(SQL, label="y")
    assert services.parties["store"].is_running()
    restored()
    again = tp.LinearRegression().fit(relation)
    np.testing.assert_allclose(again.coef_["items.x"], undisturbed.coef_["items.x"])


def test_a_session_name_in_the_log(services: Services) -> None:
    """A name that a caller chose cannot write lines of its own into the log, or control a terminal."""
    fed = services.federation()
    scans = fed.plan(SQL).plan.scans
    remote = fed.engine.transports["store"]
    with pytest.raises(tp.PartyError):
        remote.call(Request("open", "\x1b[2J\nsession ok", {"scans": scans, "wire": "float64"}, (), 0))
    assert answers(services)
    log = (services.folder / "store.log").read_text()
    assert "opened" in log
    assert all(line.isprintable() for line in log.splitlines())
    assert not any(line.startswith("session ok") for line in log.splitlines())


def test_what_the_log_says_of_a_session(caplog: pytest.LogCaptureFixture) -> None:
    """Names of callers and sessions reach the log without controls, and not whole."""
    with caplog.at_level("INFO", logger="tablepuppet.party"):
        _log_session("an\x1balyst", "\x1b[2J\nsession of another", "opened")
    assert caplog.records[0].getMessage().isprintable()
    assert "another" not in caplog.text
