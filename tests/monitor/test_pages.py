"""The monitor in a real browser: Debian's Chromium, without a window. Where there is none these tests are skipped."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tablepuppet.cli.commands import monitor
from tablepuppet.errors import ConfigError
from tests import warm
from tests.monitor.writing import HOSTILE, begin, learn
from tests.small_job import write_job

pytest.importorskip("nicegui", reason="the extra `monitor` is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: apt-get install chromium")
FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()
PATIENCE = 30_000  # milliseconds


class Watched:
    """A page of a browser, and what it should not do."""

    def __init__(self, page: Any, address: str):
        self.page, self.base = page, address.replace("?token=", "")
        self.wrong: list[str] = []
        page.on("console", lambda said: self.wrong.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: self.wrong.append(str(error)))
        page.on("dialog", self._dismiss)
        page.on("request", lambda asked: self._check(asked.url))

    def _dismiss(self, dialog: Any) -> None:
        self.wrong.append("a dialog")
        dialog.dismiss()

    def _check(self, url: str) -> None:
        if not url.startswith(("http://127.0.0.1:", "ws://127.0.0.1:", "data:", "blob:")):
            self.wrong.append(f"a request to {url}")

    def open(self, path: str = "") -> None:
        """Open a page and wait until it is there."""
        self.page.goto(f"{self.base}/{path}")
        self.page.wait_for_selector(".tp nav", timeout=PATIENCE)

    def sees(self, text: str) -> None:
        """Wait for a text."""
        self.page.get_by_text(text).first.wait_for(timeout=PATIENCE)

    def check(self) -> None:
        """Nothing went wrong, and a page is accessible as far as axe-core can say."""
        from axe_playwright_python.sync_playwright import Axe

        found = Axe().run(self.page).response["violations"]
        serious = [
            (each["id"], each["nodes"][0]["html"]) for each in found if each["impact"] in ("serious", "critical")
        ]
        assert not serious
        assert not self.wrong


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A federation, and a folder for runs."""
    found = write_job(tmp_path_factory.mktemp("watched"))
    (found / "runs").mkdir()
    return found


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    """Where a monitor of the folder is, its token included."""
    command = [sys.executable, "-m", "tablepuppet", "monitor", "federation.toml", "runs", "--no-open"]
    process = warm.start(command, cwd=folder, stdout=subprocess.PIPE)
    assert process.stdout is not None
    line = process.stdout.readline()
    yield line.partition(": ")[2].strip()
    process.kill()
    process.wait()
    process.close()


@pytest.fixture
def browser(address: str) -> Iterator[Watched]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as started:
        shown = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield Watched(shown.new_page(), address)
        shown.close()


def status(url: str, **headers: str) -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_who_has_no_token_gets_nothing(address: str) -> None:
    """Neither a page nor a file nor a web socket; nor does who names another host, as DNS rebinding does."""
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{32}", address)
    base, token = address.split("/?token=")
    assert status(address) == status(f"{base}/{token}/data") == 200
    socket_io = "/_nicegui_ws/socket.io/?EIO=4&transport=polling"
    for path in ("", "/", f"/?token={token[:-1]}", f"/{token}x/", "/data", socket_io):
        assert status(base + path) == 403
    assert status(f"{base}/x/?token={token}", Host="evil.example") == 403
    assert status(address, Origin="http://evil.example") == 403
    host, port = base.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as line:
        upgrade = "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
        first = "GET /_nicegui_ws/socket.io/?EIO=4&transport=websocket HTTP/1.1", "Host: 127.0.0.1"
        line.sendall("\r\n".join([*first, *upgrade, "Sec-WebSocket-Version: 13", "", ""]).encode())
        assert b" 403 " in line.recv(100)


def test_what_cannot_be_watched_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not exist, two federation files, and a port that is taken; as advised, it is served."""
    file, other = tmp_path / "one.toml", tmp_path / "two.toml"
    file.touch()
    other.touch()
    with pytest.raises(ConfigError, match="does not exist: name a federation file, a run folder or a folder with"):
        monitor([tmp_path / "runs"])
    with pytest.raises(ConfigError, match="name one federation file, and run folders"):
        monitor([file, other])
    served: list[Any] = []
    monkeypatch.setattr("uvicorn.Server.run", lambda self, sockets: served.extend(sockets))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(ConfigError, match=r"port \d+ cannot be listened at .*: name another with --port"):
            monitor([tmp_path], port=taken.getsockname()[1])
        monitor([tmp_path], port=0)
    assert [each.close() for each in served] == [None]


@needs_browser
def test_a_run_is_seen_as_it_goes(browser: Watched, folder: Path) -> None:
    """From nothing to a round, a party that is lost, hostile names, and a refusal: without loading the page again."""
    browser.open()
    browser.sees("No runs are here yet.")
    browser.check()
    file, events = begin(folder / "runs" / "late")
    learn(events, ["bank", HOSTILE], 52)
    browser.sees("late: round 52 of at most 400, learning; loss 0.5000, constant 0.6910; 2 parties answering")
    assert browser.page.locator(".tile.bad").count() == 0
    events.emit("warning", "party.lost", f"party {HOSTILE} is lost", party=HOSTILE)
    browser.page.locator(".tile.bad", has_text=HOSTILE).wait_for(timeout=PATIENCE)
    browser.check()
    browser.page.set_viewport_size({"width": 390, "height": 800})
    assert browser.page.evaluate("document.documentElement.scrollWidth") <= 390
    browser.page.keyboard.press("Tab")
    browser.page.keyboard.press("Tab")
    assert browser.page.evaluate("document.activeElement.tagName") == "A"
    file.end("failed", f"party 'bank' refuses: policy rule min_rows {HOSTILE}")
    browser.sees("late: failed: party 'bank' refuses: policy rule min_rows")
    browser.page.locator("#newest").click()
    browser.sees("Budgets of tables when the fit began")
    browser.check()


@needs_browser
def test_every_page_opens(browser: Watched, folder: Path) -> None:
    """In light and dark, without an error in the console, a request elsewhere or a serious finding of axe."""
    file, events = begin(folder / "runs" / "whole")
    learn(events, ["bank", "store"], 5, part=("l2 = 1", "fold 0"))
    learn(events, ["bank", "store"], 5)
    file.end("finished", metrics={"test": {"accuracy": 0.76}})
    browser.open("?words=whole")
    browser.page.get_by_role("link", name="whole", exact=True).click()
    browser.sees("finished, done after 5 rounds")
    run = browser.page.url.removeprefix(browser.base + "/")
    for path, text in (
        (run, "Candidates by folds"),
        (f"{run}/timeline", "Timeline of"),
        (f"{run}/party/bank", "bytes up"),
        (f"compare?run={run.removeprefix('run/')}", "Runs side by side"),
        ("infrastructure", "opened in this process"),
        ("channel/bank", "Channel between the coordinator and bank"),
        ("data", "Columns of orders"),
        ("run/nothing", "This run is not here any more"),
    ):
        browser.open(path)
        browser.sees(text)
        for scheme in ("light", "dark"):
            browser.page.emulate_media(color_scheme=scheme)
            browser.check()
