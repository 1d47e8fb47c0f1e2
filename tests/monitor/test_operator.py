"""The operator's page of a party: what its audit log says in sums, whatever callers wrote into it."""

from __future__ import annotations

import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

import tablepuppet as tp
from tablepuppet.monitor import operator
from tablepuppet.monitor.audit_state import AuditState, csv_lines
from tablepuppet.monitor.markup import joined
from tablepuppet.party.config import PartyFile
from tests import warm
from tests.monitor.writing import HOSTILE
from tests.party.policed import CANARY, audit_lines, federation, open_party, write_file


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A party that was asked for a fit, and by a stranger."""
    found = write_file(tmp_path)
    party = open_party(found)
    relation = federation(party).sql("SELECT credit, fraud FROM cards", label="fraud")
    tp.LinearRegression(rounds=2).fit(relation)
    relation._session.close()  # a line of the log, too
    with pytest.raises(tp.PrivacyError):
        party.describe(HOSTILE)
    return found


def test_sums_are_those_of_the_log(file: Path) -> None:
    """Requests, refusals by rule, and bytes by release, table and caller; by caller, by day, and as the log grows."""
    lines = audit_lines(file.parent)
    state = AuditState(Path(PartyFile.load(file).audit_log))
    state.look()
    state.look()
    found = state.sums()
    assert sum(each.requests for each in found.values()) == len(lines)
    assert found[HOSTILE].rules == {"allow": 1}
    labels = sum(line["bytes"] for line in lines if line["releases"] == ["LABELS"])
    assert found["analyst"].releases["LABELS", "cards"][1] == labels > 0
    assert state.sums("analyst").keys() == {"analyst"}
    assert not state.sums(day="2999-01-01")
    assert [line.caller for line in state.lines(refused=True)] == [HOSTILE]
    with pytest.raises(tp.PrivacyError):
        open_party(file).describe("eve")
    state.look()
    assert state.callers == sorted(["analyst", "eve", HOSTILE])


def test_what_callers_wrote_is_text(file: Path) -> None:
    """On the page and in the CSV, where no cell is a formula; no value of a row is there at all."""
    state, settings = AuditState(Path(PartyFile.load(file).audit_log)), PartyFile.load(file)
    state.look()
    parts = [operator.callers_table, operator.refusals, operator.releases_table, operator.newest_lines]
    page = "".join(str(part(state, "", "")) for part in parts)
    page += operator.choose(state, HOSTILE, "") + operator.sentence(state, "bank", "", "")
    page += operator.budgets(file, settings) + operator.sessions(settings) + operator.resources(settings)
    assert "&lt;img" in page
    assert "<img" not in page
    assert CANARY not in page
    assert "Set state_dir in the party file" in page  # what to do to see sessions
    assert "all requests" in joined(part(state, "nobody", "") for part in parts)
    written = "".join(csv_lines(state.log))
    assert written.count("\r\n") == len(audit_lines(file.parent)) + 1
    assert CANARY not in written
    assert "".join(csv_lines(state.log, "nobody")).count("\r\n") == 1
    state.read([b'{"time": "2026-01-01T00:00", "caller": "=1+1", "op": "x"}', b"no JSON"])
    assert "=1+1" in state.callers


def test_it_is_a_program_of_its_own(file: Path) -> None:
    """It opens with its token only, exports CSV, and neither program loads what reads the other's files."""
    pytest.importorskip("nicegui", reason="the extra `monitor` is not installed")
    command = [sys.executable, "-m", "tablepuppet", "party", "monitor", str(file), "--no-open"]
    process = warm.start(command, cwd=file.parent, stdout=subprocess.PIPE)
    assert process.stdout is not None
    address = process.stdout.readline().partition(": ")[2].strip()
    with urllib.request.urlopen(address, timeout=60) as reply:
        assert "1 refused" in reply.read().decode()
    csv = address.replace("?token=", "") + "/audit.csv?caller=analyst"
    with urllib.request.urlopen(csv, timeout=60) as reply:
        assert reply.headers["content-type"].startswith("text/csv")
        assert b"LABELS" in reply.read()
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(csv.replace("/audit", "x/audit"), timeout=60)
    process.kill()
    process.wait()
    process.close()
    loaded = "import sys, tablepuppet.monitor.{} as m; print(*(n for n in sys.modules if n.startswith('tablepuppet')))"
    for program, others in (("analyst", ("audit", "wire.control", "operator")), ("operator", ("run_files", "analyst"))):
        listed = subprocess.run(
            [sys.executable, "-c", loaded.format(program)], capture_output=True, text=True, check=True
        ).stdout
        assert f"tablepuppet.monitor.{program}" in listed
        assert not [name for name in listed.split() if any(name.endswith(other) for other in others)]
