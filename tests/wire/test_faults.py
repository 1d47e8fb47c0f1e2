"""Real traffic through a network that cuts, stalls and corrupts: the same model, or one clear error in time."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tablepuppet as tp
from benchmarks.proxy import Proxy
from tablepuppet.federation import Tls
from tablepuppet.wire.flight_server import FlightServer
from tablepuppet.wire.journal import Journal
from tests.learn.materialised import ALL, JOIN, shop
from tests.relations import write_party
from tests.wire.services import Certificates, served

SQL = f"SELECT {ALL}, o.returned {JOIN}"
SETTINGS: dict[str, Any] = {"solver": "sgd", "rounds": 4, "batch_size": 30, "lr": 0.05}


class Net:
    """Three parties, the way to one of them leads through a proxy."""

    def __init__(self, servers: dict[str, FlightServer], proxy: Proxy, tls: Tls):
        self.proxy, self.tls = proxy, tls
        self.urls = {name: f"grpc+tls://127.0.0.1:{server.port}" for name, server in servers.items()}
        self.urls["bank0"] = f"grpc+tls://127.0.0.1:{proxy.port}"

    def federation(self, **settings: Any) -> tp.Federation:
        return tp.Federation(self.urls, wire="float64", tls=self.tls, **settings)

    def learned(self, disturb: Callable[[], None] = lambda: None, **settings: Any) -> dict[str, Any]:
        def callback(event: tp.Event) -> None:
            if event.fields.get("done") == 2:
                disturb()

        model = tp.LogisticRegression(**SETTINGS, callbacks=[callback])
        return model.fit(self.federation(**settings).sql(SQL, label="returned")).coef_


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Net]:
    folder = tmp_path_factory.mktemp("net")
    urls = {name: write_party(folder, name, tables) for name, tables in shop(1).items()}
    certificates = Certificates(folder / "certificates")
    with ExitStack() as stack:
        servers = stack.enter_context(served(urls, certificates, state=folder / "state"))
        proxy = stack.enter_context(Proxy("127.0.0.1", servers["bank0"].port))
        yield Net(servers, proxy, certificates.client("analyst"))


@pytest.fixture(scope="module")
def undisturbed(net: Net) -> dict[str, Any]:
    return net.learned()


def after(seconds: float, work: Callable[[], None]) -> None:
    threading.Timer(seconds, work).start()


def check_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    for name, value in expected.items():
        assert np.allclose(found[name], value, atol=1e-12)


def test_a_cut_is_mended(net: Net, undisturbed: dict[str, Any]) -> None:
    """Connections that break and come back half a second later change nothing."""

    def disturb() -> None:
        net.proxy.cut()
        after(0.5, net.proxy.restore)

    check_same(net.learned(disturb), undisturbed)


def test_a_stall_is_waited_out(net: Net, undisturbed: dict[str, Any]) -> None:
    """A network that holds everything back for a second changes nothing."""

    def disturb() -> None:
        net.proxy.stall()
        after(1.0, net.proxy.restore)

    check_same(net.learned(disturb), undisturbed)


@pytest.mark.parametrize("way", ["up", "down"])
def test_corrupt_bytes_are_noticed(net: Net, undisturbed: dict[str, Any], way: str) -> None:
    """A flipped byte on the way breaks the connection, not the model."""
    check_same(net.learned(lambda: net.proxy.corrupt(1, up=way == "up", down=way == "down")), undisturbed)


def test_a_stall_without_end_is_one_error(net: Net) -> None:
    """A party that never answers ends the run within the timeout, by its name."""
    relation = net.federation(timeout=1.5).sql(SQL, label="returned")
    assert len(relation)
    net.proxy.stall()
    try:
        with pytest.raises(tp.PartyError, match=r"'bank0' at .* does not answer within 1\.5 s"):
            tp.LogisticRegression(**SETTINGS).fit(relation)
    finally:
        net.proxy.restore()


def test_waiting_is_told(net: Net, undisturbed: dict[str, Any]) -> None:
    """With on_party_lost="wait" a long silence is a warning, and the run ends with its model."""
    told: list[tp.Event] = []

    def disturb() -> None:
        net.proxy.cut()
        after(2.5, net.proxy.restore)

    check_same(net.learned(disturb, on_party_lost="wait", timeout=0.5, callbacks=[told.append]), undisturbed)
    assert any(event.name == "party.silent" and "bank0" in event.message for event in told)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_full_disk_is_one_clear_error(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    """A party that cannot write its journal computes nothing and says why; with room it goes on."""
    relation = net.federation(timeout=3.0).sql(SQL, label="returned")
    assert len(relation)
    where = Journal._file
    monkeypatch.setattr(Journal, "_file", lambda self, key: Path("/dev/full"))
    monkeypatch.setattr(Journal, "_cut", staticmethod(lambda path, size: None))
    with pytest.raises(tp.PartyError, match="cannot write down a request"):
        relation.describe()
    monkeypatch.setattr(Journal, "_file", where)
    assert len(net.federation().sql(SQL, label="returned"))


def test_a_slow_party_only_takes_longer(net: Net, undisturbed: dict[str, Any]) -> None:
    """Latency and little bandwidth change the time, not the model."""
    port = int(net.urls["store0"].rpartition(":")[2])
    with Proxy("127.0.0.1", port, latency=0.01, bandwidth=200_000) as slow:
        near = dict(net.urls)
        net.urls["store0"] = f"grpc+tls://127.0.0.1:{slow.port}"
        try:
            check_same(net.learned(), undisturbed)
        finally:
            net.urls.update(near)


def test_sessions_end_where_the_coordinator_ends(net: Net) -> None:
    """Closing a relation frees its session at every party."""
    relation = net.federation().sql(SQL)
    assert len(relation)
    relation._session.close()
    with pytest.raises(tp.PartyError, match="knows no such session"):
        relation.describe()
