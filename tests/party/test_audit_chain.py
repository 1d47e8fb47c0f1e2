"""The chain of the audit log: what was changed, taken out or cut off shows; what a crash leaves does not."""

from __future__ import annotations

import gzip
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

import tablepuppet as tp
from tablepuppet.party.audit import AuditLog, calling_from
from tablepuppet.party.audit_chain import HEAD, SECRET, Trail, read_trail
from tablepuppet.party.audit_report import read_audit
from tablepuppet.party.syslog import MOST, Syslog
from tests.party.policed import CANARY, audit_lines, federation, open_party, write_file


def fill(folder: Path, count: int = 6) -> Path:
    """A log of some lines, with its state folder."""
    log = AuditLog(folder / "log", state=folder / "state")
    for number in range(count):
        with log.entry(f"caller{number}", "s", "close"):
            pass
    log.close()
    return folder / "log"


def trail(folder: Path) -> Trail:
    """What is found of the log in a folder."""
    return read_trail(folder / "log", folder / "state", lambda line: True)


def change(path: Path, edit: dict[int, bytes | None]) -> None:
    """Replace lines by their places, or take them out."""
    lines = path.read_bytes().splitlines()
    kept = [edit.get(place, line) for place, line in enumerate(lines)]
    path.write_bytes(b"".join(line + b"\n" for line in kept if line is not None))


def test_a_log_as_it_was_written_is_whole(tmp_path: Path) -> None:
    """Numbers go on after a restart, and nothing is wrong."""
    fill(tmp_path)
    fill(tmp_path)
    found = trail(tmp_path)
    assert (found.first, found.last, found.problems, found.notes, found.keyed) == (1, 12, [], [], True)
    assert [line["n"] for line in found.lines] == list(range(1, 13))
    assert (tmp_path / "state" / SECRET).stat().st_mode & 0o777 == 0o600


def test_a_changed_line_is_named(tmp_path: Path) -> None:
    """Another caller in a line does not fit its mark; with its own mark made up, the next line does not follow."""
    log = fill(tmp_path)
    line = log.read_bytes().splitlines()[2].replace(b"caller2", b"caller9")
    change(log, {2: line})
    assert trail(tmp_path).problems == ["log, line 3: line 3 was changed: its mark does not fit"]
    change(log, {2: line[:-34] + b"0" * 32 + b'"}'})
    assert [text.partition(": ")[2] for text in trail(tmp_path).problems] == [
        "line 3 was changed: its mark does not fit",
        "line 4 does not follow the line before it, which was changed",
    ]


def test_lines_that_were_taken_out_moved_or_added_show(tmp_path: Path) -> None:
    """A gap, another order, a repeated line and a line without a mark are each found."""
    log = fill(tmp_path)
    whole = log.read_bytes()
    lines = whole.splitlines()
    change(log, {1: None, 2: None})
    assert trail(tmp_path).problems == ["log, line 2: lines 2 to 3 are missing"]
    log.write_bytes(whole)
    change(log, {1: lines[2], 2: lines[1]})
    assert "stands after" in trail(tmp_path).problems[1]
    log.write_bytes(whole + lines[5] + b"\n")
    assert "moved or come twice" in trail(tmp_path).problems[0]
    log.write_bytes(whole + b'{"time":"2026-01-01","caller":"x"}\n')
    assert "it has no mark" in trail(tmp_path).problems[0]
    change(log, {2: lines[2] + b'\n{"caller":"x","mac":"none"}', 6: None})
    assert [text.partition(": ")[0] for text in trail(tmp_path).problems] == ["log, line 4"]


def test_lines_without_a_mark_are_older_than_all_others_or_forged(tmp_path: Path) -> None:
    """Before the first line of all they are a note; before a later one, they stand where others were."""
    log = fill(tmp_path)
    whole, old = log.read_bytes(), b'{"caller":"x"}\n'
    log.write_bytes(old + whole)
    found = trail(tmp_path)
    assert (found.problems, len(found.notes), len(found.lines)) == ([], 1, 7)
    log.write_bytes(old * 2 + b"".join(whole.splitlines(keepends=True)[2:]))
    assert [text.partition(": ")[0] for text in trail(tmp_path).problems] == ["log, line 1", "log, line 2"]


def test_an_end_that_was_cut_off_shows(tmp_path: Path) -> None:
    """The head knows how many lines there were, also if the whole log is gone; a party goes on after the gap."""
    log = fill(tmp_path)
    change(log, {4: None, 5: None})
    assert trail(tmp_path).problems == ["lines 5 to 6 are missing at the end"]
    fill(tmp_path, 1)
    assert trail(tmp_path).problems == ["log, line 5: lines 5 to 6 are missing"]
    log.unlink()
    assert trail(tmp_path).problems == ["lines 1 to 7 are missing at the end"]


def test_who_has_no_secret_cannot_make_a_line(tmp_path: Path) -> None:
    """A chain that was computed again without the party's secret fits nowhere."""
    log = fill(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    log.write_bytes(fill(other).read_bytes())
    assert len(trail(tmp_path).problems) == 6


def test_rotated_files_are_read_in_their_order(tmp_path: Path) -> None:
    """The chain goes on in a new file; files that are gone are a note, a file in between that is gone an error."""
    log = fill(tmp_path)
    log.rename(tmp_path / "log.2")
    (tmp_path / "log.2.gz").write_bytes(gzip.compress((tmp_path / "log.2").read_bytes()))
    (tmp_path / "log.2").unlink()
    fill(tmp_path)
    log.rename(tmp_path / "log-20260101")
    fill(tmp_path)
    found = trail(tmp_path)
    assert (found.first, found.last, found.problems, found.notes) == (1, 18, [], [])
    (tmp_path / "log.2.gz").unlink()
    assert (trail(tmp_path).problems, trail(tmp_path).notes) == (
        [],
        ["the first line here is number 7; older ones are in files that are not beside the log"],
    )
    fill(tmp_path)
    (tmp_path / "log.2").write_bytes(b"")
    log.rename(tmp_path / "log.1")
    (tmp_path / "log.1").write_bytes((tmp_path / "log.1").read_bytes())
    fill(tmp_path)
    (tmp_path / "log.1").unlink()
    assert trail(tmp_path).problems == ["log, line 1: lines 13 to 24 are missing"]


def test_a_rotation_while_a_party_writes_breaks_nothing(tmp_path: Path) -> None:
    """The same process goes on in a new file."""
    log = AuditLog(tmp_path / "log", state=tmp_path / "state")
    for number in range(6):
        if number == 3:
            (tmp_path / "log").rename(tmp_path / "log.1")
        with log.entry("a", "s", "close"):
            pass
    found = trail(tmp_path)
    assert (found.last, found.problems, found.notes) == (6, [], [])


KILLED = """
import os, sys
from pathlib import Path
from tablepuppet.party.audit import AuditLog
folder = Path(sys.argv[1])
log = AuditLog(folder / "log", state=folder / "state")
write = os.write
def half(file, data):
    write(file, data[: len(data) // 2])
    os.kill(os.getpid(), 9)
for number in range(3):
    with log.entry("a", "s", "close"):
        pass
os.write = half
with log.entry("a", "s", "close"):
    pass
"""


def test_a_process_killed_in_the_middle_of_a_line_leaves_a_note(tmp_path: Path) -> None:
    """The torn line is reported and is no error; the next start begins a new line with its number."""
    ended = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert ended.returncode == -signal.SIGKILL
    found = trail(tmp_path)
    assert (found.last, found.problems) == (3, [])
    assert found.notes == ["log, line 4: a part of a line, or none of this log; it has no mark"]
    fill(tmp_path, 2)
    found = trail(tmp_path)
    assert (found.last, found.problems, len(found.notes)) == (5, [], 1)


def test_a_kill_between_line_and_head_is_no_break(tmp_path: Path) -> None:
    """A log that is ahead of its head, by lines with right marks, is whole, and goes on from its end."""
    fill(tmp_path)
    head = (tmp_path / "state" / HEAD).read_bytes()
    fill(tmp_path, 1)
    (tmp_path / "state" / HEAD).write_bytes(head)
    assert trail(tmp_path).problems == []
    fill(tmp_path, 1)
    found = trail(tmp_path)
    assert (found.last, found.problems) == (8, [])


def test_a_line_that_could_not_be_written_has_no_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a full disk the next line takes the number."""
    log = AuditLog(tmp_path / "log", state=tmp_path / "state")
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:10]))
    with pytest.raises(tp.PartyError), log.entry("a", "s", "open"):
        pass
    monkeypatch.undo()
    with log.entry("b", "s", "open"):
        pass
    found = trail(tmp_path)
    assert (found.last, found.problems) == (1, [])


@pytest.mark.parametrize("name", [SECRET, HEAD])
@pytest.mark.parametrize("content", [None, b"", b"x" * 32])
def test_a_lost_or_damaged_file_of_the_chain_is_refused(tmp_path: Path, name: str, content: bytes | None) -> None:
    """A party does not begin a new chain silently."""
    fill(tmp_path)
    path = tmp_path / "state" / name
    path.unlink()
    if content is not None:
        path.write_bytes(content)
        path.chmod(0o600)
    with pytest.raises(tp.ConfigError, match="begin a new chain"):
        fill(tmp_path)
    (tmp_path / "kept").mkdir()
    for moved in (tmp_path / "log", tmp_path / "state" / SECRET, tmp_path / "state" / HEAD):
        if moved.exists():
            moved.rename(tmp_path / "kept" / moved.name)
    fill(tmp_path)
    assert (trail(tmp_path).first, trail(tmp_path).problems) == (1, [])


def test_without_a_state_folder_the_chain_is_plain(tmp_path: Path) -> None:
    """Accidents show, and the report says that intent would not."""
    for _ in range(2):
        log = AuditLog(tmp_path / "log")
        with log.entry("a", "s", "close"):
            pass
    found = read_trail(tmp_path / "log", None, lambda line: True)
    assert (found.last, found.problems, found.keyed) == (2, [], False)


def test_lines_say_columns_rows_run_purpose_and_digests(tmp_path: Path) -> None:
    """Every line of a session says what it is for; the digest of a filter is the same for the same filter only."""
    (tmp_path / "state").mkdir()
    party = open_party(write_file(tmp_path, top='state_dir = "state"'))
    digests = []
    for where in ("day < 6", "day < 5", "day < 6"):
        fed = federation(party)
        fed.purpose = "fraud in 2026"
        with calling_from("10.0.0.7:4321"):
            relation = fed.sql(f"SELECT credit, fraud FROM cards WHERE {where}", label="fraud")
            tp.LinearRegression(rounds=1).fit(relation)
        relation._session.close()
        lines = [line for line in audit_lines(tmp_path) if line["run"] == fed._run]
        assert {line["purpose"] for line in lines} == {"fraud in 2026"}
        assert {line["address"] for line in lines} == {"10.0.0.7:4321", ""}  # closed from here
        assert len({(line["query"], line["filter"]) for line in lines}) == 1
        digests.append(lines[0]["filter"])
        [opened] = [line for line in lines if line["verb"] == "open"]
        assert opened["columns"] == ["cards.credit", "cards.day", "cards.fraud"]
        [labels] = [line for line in lines if line["op"].startswith("label.")]
        assert labels["columns"] == ["cards.fraud"]
        assert labels["rows"] == opened["rows"] > 40
        assert ["*"] in [line["columns"] for line in lines]
        assert lines[-1]["verb"] == "close"
    assert digests[0] == digests[2] != digests[1]
    assert "day <" not in (tmp_path / "audit.jsonl").read_text()
    assert read_audit(tmp_path / "party.toml").problems == []


def test_the_text_of_a_query_is_there_if_the_operator_wants_it(tmp_path: Path) -> None:
    """With audit_text the line of `open` has the SQL, literals included; no other line has it."""
    party = open_party(write_file(tmp_path, top="audit_text = true"))
    federation(party).sql(f"SELECT credit FROM cards WHERE region <> '{CANARY}'").describe()
    texts = [line["text"] for line in audit_lines(tmp_path) if "text" in line]
    assert texts == [f"SELECT credit FROM cards AS cards WHERE (region <> '{CANARY}')"]


def test_a_report_filters_lines_and_checks_all(tmp_path: Path) -> None:
    """Lines by caller and time; a broken line that is not asked for breaks the report all the same."""
    file = write_file(tmp_path)
    party = open_party(file)
    for caller in ("analyst", "auditor", "analyst"):
        party.describe(caller)
    assert [line["n"] for line in read_audit(file, caller="analyst").lines] == [1, 3]
    second = str(audit_lines(tmp_path)[1]["time"])
    assert [line["n"] for line in read_audit(file, since=second).lines][-2:] == [2, 3]
    assert read_audit(file, since="2999-01-01").lines == []
    log = tmp_path / "audit.jsonl"
    log.write_bytes(log.read_bytes().replace(b"auditor", b"analyst"))
    found = read_audit(file, since="2999-01-01")
    assert (found.whole, len(found.problems)) == (False, 1)
    with pytest.raises(tp.ConfigError, match="give a day or a moment, such as 2026-01-31"):
        read_audit(file, since="yesterday")
    assert json.loads(json.dumps(found.lines)) == []


def test_a_syslog_that_misses_lines_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One that takes lines and never reads them holds up nothing, and what it misses is told once."""
    path = str(tmp_path / "syslog")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as silent:
        silent.bind(path)
        syslog = Syslog(path, "bank")
        for _ in range(2 * MOST):
            syslog.send(b"{}" * 100)
        told = [record.getMessage() for record in caplog.records]
    assert told == [f"syslog at {path} is too slow for the audit log: it misses lines, the file has them"]


def test_syslog_by_a_local_socket(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Lines arrive one by one, whole and named; also at a daemon that starts later, or again, which is warned of and
    said when it is over.
    """
    caplog.set_level("INFO", "tablepuppet.party")
    path, long = str(tmp_path / "log"), b"x" * 20_000

    def take(syslog: Syslog, line: bytes) -> str:
        """Start a daemon; that line, which is sent until it arrives."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as daemon:
            daemon.bind(path)
            daemon.settimeout(0.2)
            while True:
                syslog.send(line)
                with suppress(TimeoutError):
                    if line.decode() in (found := daemon.recv(1 << 16).decode()):
                        return found

    syslog = Syslog(path, "bank")
    syslog.send(b"too early")
    while not caplog.records:
        time.sleep(0.01)
    for line in (b'{"n":1}', long):
        assert take(syslog, line) == f"<86>tablepuppet-bank: {line.decode()}"  # authpriv.info
        Path(path).unlink()
        syslog.send(b"between two daemons")
    syslog.close()
    told = {record.getMessage() for record in caplog.records}
    assert told == {
        f"syslog at {path} does not take lines of the audit log now; the file has them",
        f"syslog at {path} takes lines of the audit log again",
    }
