"""A party answers four verbs; what it does not know is an error that names it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tablepuppet as tp
from tablepuppet.party.databases.urls import open_database
from tablepuppet.party.request import Request
from tablepuppet.party.service import HERE, Party
from tablepuppet.party.snapshot import Snapshot, take_snapshot
from tablepuppet.sql.catalog import Catalog, Shard
from tablepuppet.sql.parse import parse
from tablepuppet.sql.plan import Scan, plan
from tests.relations import write_party

ROWS = pa.table({"k": [3, 1, None, 1], "x": [0.5, 1.5, 2.5, None]})


@pytest.fixture
def party(tmp_path: Path) -> Party:
    """A party with one table, and the session ``s`` open on it."""
    found = Party("p0", open_database("p0", write_party(tmp_path, "p0", {"t": ROWS})), b"secret of all parties")
    catalog = Catalog(found.describe(HERE))
    scans = plan(parse("SELECT a.x FROM t a JOIN t b USING (k) WHERE b.x > 1", catalog), catalog).scans
    assert found.open(HERE, "s", scans) == {"a": 4, "b": 2}
    return found


def test_describe_tells_the_schema(party: Party) -> None:
    """`describe` tells names, types, the number of rows, and which columns are public."""
    columns = {"k": "BIGINT", "x": "DOUBLE"}
    open_to_all: Any = {
        "cross_statistics": True, "embeddings": (None, None), "matrix": True, "values": ("k", "x"),
        "label_means": True,
    }  # fmt: skip
    assert party.describe(HERE) == [Shard("p0", "t", columns, 4, public=("k", "x"), **open_to_all)]


def test_run_blinds_keys(party: Party) -> None:
    """`run` computes an op on a table of a session: here two distinct keys, a NULL, and a digest that both share."""
    here, there = party.run(HERE, "s", "keys.blind", "a", {}), party.run(HERE, "s", "keys.blind", "b", {})
    assert here["digests0"].shape == (2, 16)
    assert here["codes0"].tolist().count(2) == 1
    assert there["digests0"].tolist()[0] in here["digests0"].tolist()
    assert party.run(HERE, "s", "keys.blind", "a", {})["codes0"].tolist() == here["codes0"].tolist()


def test_unknown_names(party: Party) -> None:
    """An unknown op, session, table, argument or view is a PartyError that names it."""
    for session, op, alias, arguments, message in (
        ("s", "no.such", "a", {}, "no op 'no.such'"),
        ("other", "keys.blind", "a", {}, "no open session has table 'a'"),
        ("s", "keys.blind", "c", {}, "no open session has table 'c'"),
        ("s", "keys.blind", "a", {"extra": 1}, "unexpected keyword argument 'extra'"),
        ("s", "rows.sample", "a", {"view": "v0"}, "missing a required argument: 'ranks'"),
        ("s", "rows.sample", "a", {"view": "v9", "ranks": np.arange(1)}, "no rows are announced for relation 'v9'"),
    ):
        with pytest.raises(tp.PartyError, match=message):
            party.run(HERE, session, op, alias, arguments)


def test_close_frees_a_session(party: Party) -> None:
    """After `close` nothing of a session is left; closing what is closed is no error."""
    party.close(HERE, "s")
    party.close(HERE, "s")
    assert not party._sessions
    with pytest.raises(tp.PartyError, match="open the relation again"):
        party.run(HERE, "s", "keys.blind", "a", {})


def test_sample_follows_the_source(tmp_path: Path) -> None:
    """Ranks count rows in the order of the source, whatever order the row ids have."""
    rows = pa.table({"x": np.arange(100.0)})
    chosen = []
    for secret in (None, b"one", b"two"):
        folder = tmp_path / str(secret)
        folder.mkdir()
        party = Party("p0", open_database("p0", write_party(folder, "p0", {"t": rows})), b"", row_secret=secret)
        catalog = Catalog(party.describe(HERE))
        party.open(HERE, "s", plan(parse("SELECT x FROM t", catalog), catalog).scans)
        row_ids = np.arange(20, 60, dtype=np.int32)
        party.run(HERE, "s", "rows.use", "t", {"view": "v", "chosen": row_ids, "counts": np.ones(40, np.uint8)})
        told = party.run(HERE, "s", "rows.sample", "t", {"view": "v", "ranks": np.array([0, 3, 39])})["chosen"]
        picked = row_ids[np.unpackbits(told, count=40).astype(bool)]
        snapshot = party.table("s", "t").snapshot
        everything = np.sort(snapshot.position(row_ids))
        assert sorted(snapshot.position(picked).tolist()) == everything[[0, 3, 39]].tolist()
        chosen.append(tuple(picked.tolist()))
    assert len(set(chosen)) == 3


@pytest.mark.parametrize("seconds", [0.0, 60.0])
def test_a_callers_next_run_may_reuse_what_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """Within ``snapshot_ttl`` a caller's same query is not read again; keys are blinded anew, nobody shares it."""
    database = open_database("p0", write_party(tmp_path, "p0", {"t": ROWS}))
    party = Party("p0", database, b"secret of all parties", row_secret=b"order", snapshot_ttl=seconds)
    catalog = Catalog(party.describe(HERE))
    scans = plan(parse("SELECT a.x FROM t a JOIN t b USING (k)", catalog), catalog).scans
    read: list[str] = []

    def taking(scan: Scan, *rest: Any, **named: Any) -> Snapshot:
        read.append(scan.alias)
        return take_snapshot(scan, *rest, **named)

    monkeypatch.setattr("tablepuppet.party.readings.take_snapshot", taking)
    digests = []
    for caller, session in (("a", "s1"), ("a", "s2"), ("b", "s1")):
        [described] = party.answer(caller, Request("describe"))
        party.open(caller, session, scans, nonces=[described["nonce"]])
        digests.append(party.run(caller, session, "keys.blind", "a", {})["digests0"].tolist())
    assert len(read) == (2 * 2 if seconds else 3 * 2)
    assert len({str(each) for each in digests}) == 3
