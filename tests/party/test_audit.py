"""The audit log: nothing leaves that is not written down, and nothing is written down that may not leave."""

from __future__ import annotations

import json
import os
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

import tablepuppet as tp
from tablepuppet.party.audit import AuditLog
from tablepuppet.party.release import Release
from tests.party.policed import CANARY, PIN, audit_lines, federation, open_party, write_file


def test_every_request_is_a_line(tmp_path: Path) -> None:
    """A line says who asked for what, which releases left and how many bytes; sessions can be told apart."""
    began = datetime.now(UTC) - timedelta(milliseconds=1)
    relation = federation(open_party(write_file(tmp_path))).sql("SELECT credit, fraud FROM cards", label="fraud")
    tp.LinearRegression(rounds=2).fit(relation)
    relation._session.close()
    lines = audit_lines(tmp_path)
    assert {line["caller"] for line in lines} == {"analyst"}
    assert {line["outcome"] for line in lines} == {"ok"}
    assert [line["verb"] for line in lines[:2]] == ["describe", "open"]
    assert lines[-1]["verb"] == "close"
    assert len({line["session"] for line in lines[1:]}) == 1
    [labels] = [line for line in lines if line["op"].startswith("label.")]
    assert (labels["tables"], labels["releases"]) == (["cards"], ["LABELS"])
    assert 60 <= labels["bytes"] <= 160  # a byte for each of sixty labels
    assert all(line["time"].endswith("+00:00") for line in lines)
    times = [datetime.fromisoformat(line["time"]) for line in lines]
    assert began <= times[0]
    assert times == sorted(times)


def test_refusals_and_failures_are_lines(tmp_path: Path) -> None:
    """A denied request is logged with its rule, a failed one with its kind of error; nothing left for either."""
    party = open_party(write_file(tmp_path))
    with pytest.raises(tp.PrivacyError):
        party.describe("eve")
    with pytest.raises(tp.PartyError):
        party.run("analyst", "nowhere", "keys.blind", "cards", {})
    with pytest.raises(tp.PartyError):
        party.run("analyst", "s", f"{CANARY}.op", CANARY, {"x": CANARY})
    told = [(line["caller"], line["verb"], line["op"], line["outcome"], line["rule"]) for line in audit_lines(tmp_path)]
    assert told == [
        ("eve", "describe", "", "denied", "allow"),
        ("analyst", "run", "keys.blind", "failed", "PartyError"),
        ("analyst", "run", "", "failed", "PartyError"),
    ]
    assert {(line["bytes"], tuple(line["releases"])) for line in audit_lines(tmp_path)} == {(0, ())}
    assert CANARY not in (tmp_path / "audit.jsonl").read_text()


def test_no_value_and_no_literal_is_written(tmp_path: Path) -> None:
    """Neither cells nor what the analyst's SQL compares them with are in the log."""
    fed = federation(open_party(write_file(tmp_path)))
    relation = fed.sql(
        f"SELECT town, open, credit + 0.2578125 AS x, fraud FROM cards WHERE region <> '{CANARY}'", label="fraud"
    )
    relation.describe()
    tp.LogisticRegression(rounds=2).fit(relation)
    text = (tmp_path / "audit.jsonl").read_text(encoding="utf-8")
    assert not [word for word in (CANARY, str(PIN)[:8], "88.5", "0.2578125", "town0") if word in text]


def test_what_cannot_be_logged_is_refused(tmp_path: Path) -> None:
    """Without a log no verb is answered; with one again, all are."""
    party = open_party(write_file(tmp_path, top='audit_log = "logs/audit.jsonl"'))
    with pytest.raises(tp.PartyError, match="cannot write its audit log, so it answers nothing"):
        party.describe("analyst")
    (tmp_path / "logs").mkdir()
    assert [shard.name for shard in party.describe("analyst")] == ["cards"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_refuses(tmp_path: Path) -> None:
    """A disk without room is no reason to answer without a line."""
    party = open_party(write_file(tmp_path, top='audit_log = "/dev/full"'))
    with pytest.raises(tp.PartyError, match="its operator must make room"):
        party.describe("analyst")


def test_a_torn_line_does_not_spoil_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a line that was half written, the next one stands on its own."""
    log = AuditLog(tmp_path / "log")
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:10]))
    with pytest.raises(tp.PartyError), log.entry("a", "s", "open"):
        pass
    monkeypatch.undo()
    with log.entry("b", "s", "open"):
        pass
    torn, whole = (tmp_path / "log").read_text().splitlines()
    assert len(torn) == 10
    assert json.loads(whole)["caller"] == "b"


def test_the_log_is_appended_to_and_can_be_moved(tmp_path: Path) -> None:
    """A second start goes on in the same file, which is its owner's alone; a file that was moved is begun anew."""
    path = tmp_path / "log"
    for caller in ("a", "b"):
        log = AuditLog(path)
        with log.entry(caller, "s", "close"):
            pass
        log.close()
    assert [json.loads(line)["caller"] for line in path.read_text().splitlines()] == ["a", "b"]
    assert path.stat().st_mode & 0o777 == 0o600
    with log.entry("c", "s", "close"):
        pass
    path.rename(tmp_path / "log.1")
    with log.entry("d", "s", "close"):
        pass
    assert [json.loads(line)["caller"] for line in path.read_text().splitlines()] == ["d"]


def test_many_threads_write_whole_lines(tmp_path: Path) -> None:
    """Lines of requests that are answered at the same time do not mix."""
    log = AuditLog(tmp_path / "log")

    def ask(caller: str) -> None:
        for _ in range(50):
            with log.entry(caller, "s", "run", releases=Release.COUNTS) as entry:
                entry.reply({"x": np.zeros(4), "n": 1})

    threads = [threading.Thread(target=ask, args=(f"caller{i}" * 20,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert len(lines) == 400
    assert {line["bytes"] for line in lines} == {lines[0]["bytes"]}
    assert lines[0]["bytes"] > 32
