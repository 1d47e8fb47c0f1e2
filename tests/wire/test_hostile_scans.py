"""An analyst who writes own scans: an operator is shown what is read, and no scan slips past another's rules."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path

import numpy as np
import pytest

import tablepuppet as tp
from tablepuppet.errors import ApprovalError
from tablepuppet.party.approval import list_jobs
from tablepuppet.party.config import PartyFile
from tablepuppet.party.database import Reader
from tablepuppet.party.published import open_deliveries, open_published
from tablepuppet.party.readings import Readings
from tablepuppet.party.request import Request
from tablepuppet.party.snapshot import Snapshot
from tablepuppet.sql.plan import BranchScan, Scan, text_of
from tablepuppet.wire.reload import changed
from tests.party.policed import audit_lines
from tests.relations import write_party
from tests.wire.hostile import Attacker, accounts, write_bank

OTHER = '[tables.other]\nmin_rows = 0\n[tables.other.columns]\nid = "key"\namount = "feature"'


def attacker(folder: Path, table: str = "", limits: str = "") -> Attacker:
    """An analyst of a bank with two tables."""
    write_party(folder, "bank", {"cards": accounts(), "other": accounts(20)})
    return Attacker(write_bank(folder, table=table, limits=limits, more=OTHER))


def opening(attacker: Attacker, *scans: Scan, session: str = "s") -> Request:
    """A request that opens scans."""
    return Request("open", session, {"scans": scans, "wire": "float64", "nonces": (attacker.nonce(),)})


def test_an_operator_is_shown_what_is_read(tmp_path: Path) -> None:
    """A name is not taken for a filter, a comment for a part of the query, or a union for its first part."""
    analyst = attacker(tmp_path, "require_approval = true")
    scan = analyst.scan("SELECT amount FROM cards", keys=())
    both = (BranchScan(0, ()), BranchScan(1, ()))
    north = "(code = 'C1')"
    read = {**scan.columns, "code": "VARCHAR"}
    shown = {
        "SELECT amount FROM cards AS cards": scan,
        f'SELECT amount FROM cards AS "c WHERE {north}"': dataclasses.replace(scan, alias=f"c WHERE {north}"),
        f'SELECT amount AS "amount FROM cards WHERE {north}" FROM cards AS cards': dataclasses.replace(
            scan, outputs={f"amount FROM cards WHERE {north}": "amount"}
        ),
        "SELECT amount + 1 AS a FROM cards AS cards": dataclasses.replace(
            scan, outputs={"a": f"amount /* only WHERE {north} */ + 1"}
        ),
        f"SELECT amount FROM cards AS cards WHERE {north} and, in another part of a union, all rows": (
            dataclasses.replace(scan, filters=(north, ""), branches=both, columns=read)
        ),
    }
    for number, (text, each) in enumerate(shown.items()):
        assert text_of(each) == text
        with pytest.raises(ApprovalError):
            analyst.send(opening(analyst, each, session=f"s{number}"))
    assert {each.job.sql[0] for each in list_jobs(tmp_path / "state")} == set(shown)
    assert text_of(dataclasses.replace(scan, filters=("1 = 1) OR (",))).endswith(" WHERE '1 = 1) OR ('")


def test_two_scans_of_one_alias_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a table that needs approval would be read under the rules of one that does not."""
    analyst = attacker(tmp_path, "require_approval = true")
    hidden = analyst.scan("SELECT amount FROM cards AS other WHERE amount > 3", keys=())
    open_to_all = analyst.scan("SELECT amount FROM other", keys=())
    read = counted_reads(monkeypatch)
    with pytest.raises(tp.PartyError, match="two tables of the relation have one alias"):
        analyst.send(opening(analyst, hidden, open_to_all))
    assert read == []


def counted_reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tables that are read from now on."""
    read: list[str] = []
    take = Readings._taken

    def noted(readings: Readings, caller: str, scan: Scan, reader: Reader, secret: bytes | None) -> Snapshot:
        read.append(scan.table)
        return take(readings, caller, scan, reader, secret)

    monkeypatch.setattr(Readings, "_taken", noted)
    return read


def test_many_scans_are_read_while_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small request cannot have a party read a table a thousand times before its caller's limit is looked at."""
    analyst = attacker(tmp_path, limits="memory_bytes = 20_000\nmax_failures = 1")
    plain = analyst.scan("SELECT amount FROM cards", keys=())
    scan = analyst.scan("SELECT amount + 1 AS more FROM cards", keys=())
    read = counted_reads(monkeypatch)
    for name, each in {"plain": plain, "computed": scan}.items():
        read.clear()
        scans = [dataclasses.replace(each, alias=f"a{number}") for number in range(1000)]
        with pytest.raises(tp.PartyError, match=r"limits\.memory_bytes"):
            analyst.send(opening(analyst, *scans, session=name))
        assert 1 < len(read) < 50
    with pytest.raises(tp.PrivacyError, match="max_failures"):  # it is counted as before
        analyst.send(opening(analyst, scan, session="last"))


def test_a_request_without_a_step_is_logged(tmp_path: Path) -> None:
    """An honest caller asks so whether a party is back; it is a line of the log like any other."""
    analyst = attacker(tmp_path)
    analyst.open("s", analyst.scan("SELECT amount FROM cards"))
    assert analyst.send(Request("run", "s", {}, (), 1)) == []
    last = audit_lines(tmp_path)[-1]
    assert (last["verb"], last["session"], last["outcome"]) == ("run", "s", "ok")


def test_names_that_a_caller_chose_do_not_fill_the_log(tmp_path: Path) -> None:
    """A refused request names a hundred tables at most in its line."""
    analyst = attacker(tmp_path)
    scan = analyst.scan("SELECT amount FROM cards", keys=())
    scans = [dataclasses.replace(scan, table=f"t{number:04}", alias=f"a{number}") for number in range(500)]
    with pytest.raises(tp.PrivacyError, match="is not published"):
        analyst.send(opening(analyst, *scans))
    [line] = [line for line in audit_lines(tmp_path) if line["verb"] == "open"]
    assert (len(line["tables"]), line["tables"][-1]) == (101, "and 400 more")


def test_a_purpose_that_is_demanded_now_is_demanded_of_open_sessions(tmp_path: Path) -> None:
    """A party that reads its file again puts away all sessions: one without a purpose does not come back."""
    analyst = attacker(tmp_path)
    analyst.open("s", analyst.scan("SELECT amount FROM cards"))
    before = PartyFile.load(analyst.file)
    analyst.file.write_text(analyst.file.read_text().replace("[limits]", "require_purpose = true\n[limits]"))
    now = PartyFile.load(analyst.file)
    analyst.desk.party.adopt(now.policy(), open_published(now), open_deliveries(now))
    assert analyst.desk.put_away(changed(before, now)) == 1
    with pytest.raises(tp.PrivacyError, match="require_purpose"):
        analyst.use("s", "v", np.arange(60), np.ones(60, np.int64))


def test_a_relation_that_opens_while_rules_change_has_the_new_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tables are known only when it is open: it is put away then, and comes back under the new rules."""
    analyst = attacker(tmp_path)
    scan, before = analyst.scan("SELECT amount FROM cards"), PartyFile.load(analyst.file)
    reads, goes_on = threading.Event(), threading.Event()
    held = Readings._snapshots

    def slow(readings: Readings, caller: str, scans: tuple[Scan, ...]) -> list[Snapshot]:
        reads.set()
        goes_on.wait(60)
        return held(readings, caller, scans)

    monkeypatch.setattr(Readings, "_snapshots", slow)
    request = opening(analyst, scan)
    opened = threading.Thread(target=analyst.send, args=(request,))
    opened.start()
    assert reads.wait(60)
    now = PartyFile.load(write_bank(tmp_path, table="require_approval = true", more=OTHER))
    analyst.desk.party.adopt(now.policy(), open_published(now), open_deliveries(now))
    freed: list[int] = []
    reloaded = threading.Thread(target=lambda: freed.append(analyst.desk.put_away(changed(before, now))))
    reloaded.start()
    goes_on.set()
    opened.join(60)
    reloaded.join(60)
    assert freed == [1]
    analyst.sent["s"] = 0
    with pytest.raises(ApprovalError):
        analyst.run("s", "statistics.numbers", view="v", columns=["amount"])
