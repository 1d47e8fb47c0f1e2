"""The page of metrics: what is there, for whom, and that no reader can take much of the party."""

from __future__ import annotations

import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress

import pytest
from prometheus_client import CollectorRegistry, Counter

import tablepuppet as tp
from tablepuppet.wire.metrics_page import AT_ONCE, MetricsPage


@pytest.fixture
def page() -> Iterator[MetricsPage]:
    registry = CollectorRegistry()
    Counter("sheep", "Counted.", registry=registry).inc(3)
    found = MetricsPage(registry, "127.0.0.1", 0)
    yield found
    found.close()


def read(page: MetricsPage, path: str = "/metrics", method: str = "GET") -> str:
    asked = urllib.request.Request(f"http://127.0.0.1:{page.port}{path}", method=method)
    with urllib.request.urlopen(asked, timeout=20) as reply:
        return str(reply.read().decode())


def test_there_is_one_page(page: MetricsPage) -> None:
    """`GET /metrics` and nothing else."""
    assert "sheep_total 3.0" in read(page)
    for path, method in (("/", "GET"), ("/metrics/../etc/passwd", "GET"), ("/metrics", "POST"), ("/metrics", "PUT")):
        with pytest.raises(urllib.error.HTTPError) as refused:
            read(page, path, method)
        assert refused.value.code in (404, 501)
        assert "Python" not in str(refused.value.headers)


def test_silent_readers_are_hung_up_on(page: MetricsPage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever connects and asks nothing, or letter by letter, has its time; more than a few at once have none."""
    monkeypatch.setattr("tablepuppet.wire.metrics_page.PATIENCE", 0.5)
    lines = [socket.create_connection(("127.0.0.1", page.port)) for _ in range(20)]
    for line in lines[:AT_ONCE]:
        line.sendall(b"GET /metr")
    for line in lines:
        line.settimeout(20)
        with suppress(ConnectionResetError):  # it had sent something that nobody read
            assert line.recv(100) == b""
        line.close()
    for _ in range(100):  # the places are free again
        try:
            assert "sheep" in read(page)
            return
        except (OSError, urllib.error.URLError):
            time.sleep(0.05)
    raise AssertionError("the page does not come back")


def test_the_page_comes_back_when_there_are_threads_again(page: MetricsPage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader for whom the system has no thread is hung up on, and takes no place from later ones."""

    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as changed:
        changed.setattr(threading.Thread, "start", fail)
        for _ in range(2 * AT_ONCE):
            with pytest.raises((ConnectionError, urllib.error.URLError)):
                read(page)
    assert "sheep" in read(page)


def test_a_port_that_is_taken(page: MetricsPage) -> None:
    """The error names the setting and the port."""
    with pytest.raises(tp.ConfigError, match=rf"metrics: cannot listen at '127\.0\.0\.1', port {page.port}"):
        MetricsPage(CollectorRegistry(), "127.0.0.1", page.port)
