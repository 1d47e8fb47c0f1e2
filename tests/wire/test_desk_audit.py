"""What the desk and the server refuse before the party sees it, and what is computed again, are in the audit log."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.msgpack import Ext

import tablepuppet as tp
from tablepuppet.federation import Tls
from tablepuppet.party.config import Limits
from tablepuppet.party.request import Request, Step
from tablepuppet.party.service import Party
from tablepuppet.sql.catalog import Catalog
from tablepuppet.sql.parse import parse
from tablepuppet.sql.plan import plan
from tablepuppet.wire.codec import ARRAY, decode, encode
from tablepuppet.wire.desk import Desk
from tablepuppet.wire.flight_server import FlightServer
from tablepuppet.wire.flight_transport import FlightTransport
from tablepuppet.wire.journal import Journal
from tablepuppet.wire.protocol import VERSION, BusyError, read_reply
from tests.party.policed import ROWS, audit_lines, open_party, write_file
from tests.wire.services import Certificates


@pytest.fixture
def bank(tmp_path: Path) -> Party:
    return open_party(write_file(tmp_path))


def opening(party: Party, session: str = "s") -> Request:
    catalog = Catalog(party.describe("analyst"))
    scans = plan(parse("SELECT credit FROM cards", catalog), catalog).scans
    return Request("open", session, {"scans": scans, "wire": "float64"}, (), 0)


def using(sequence: int, session: str = "s") -> Request:
    arguments = {"view": f"v{sequence}", "chosen": None, "counts": np.ones(ROWS, np.uint8)}
    return Request("run", session, {}, (Step("rows.use", "cards", arguments),), sequence)


def outcome(desk: Desk, request: Request) -> Any:
    return read_reply(decode(desk.answer("analyst", request)), request, "bank")


def told(folder: Path) -> list[tuple[str, str, str]]:
    """Verb, outcome and rule of every line but those of `describe`."""
    lines = [(line["verb"], line["outcome"], line["rule"]) for line in audit_lines(folder)]
    return [line for line in lines if line[0] != "describe"]


def test_refusals_of_the_desk_are_lines(bank: Party, tmp_path: Path) -> None:
    """A full party, a number out of order, a session that nobody knows and a party that stops."""
    desk = Desk(bank, Limits(sessions=1))
    outcome(desk, opening(bank))
    for request, error in (
        (opening(bank, "t"), BusyError),
        (using(5), tp.PartyError),
        (using(1, "nowhere"), tp.PartyError),
    ):
        with pytest.raises(error):
            outcome(desk, request)
    desk.stop()
    with pytest.raises(BusyError):
        outcome(desk, using(1))
    assert told(tmp_path) == [
        ("open", "ok", ""),
        ("open", "denied", "sessions"),
        ("run", "failed", "PartyError"),
        ("run", "failed", "PartyError"),
        ("close", "ok", ""),
        ("run", "failed", "BusyError"),
    ]
    assert {line["bytes"] for line in audit_lines(tmp_path) if line["outcome"] != "ok"} == {0}


def test_what_the_party_refuses_is_one_line(bank: Party, tmp_path: Path) -> None:
    """An error of the party itself is not written down a second time by the desk."""
    desk = Desk(bank, Limits())
    outcome(desk, opening(bank))
    with pytest.raises(tp.PartyError):
        outcome(desk, Request("run", "s", {}, (Step("no.such.op", "cards"),), 1))
    assert told(tmp_path) == [("open", "ok", ""), ("run", "failed", "PartyError")]


def test_what_cannot_be_written_down_is_a_line(bank: Party, tmp_path: Path) -> None:
    """A request that the journal has no room for is refused, and the log says so."""
    desk = Desk(bank, Limits(), Journal(tmp_path / "sessions", "bank"))
    outcome(desk, opening(bank))
    shutil.rmtree(tmp_path / "sessions")
    with pytest.raises(tp.PartyError, match="cannot write down"):
        outcome(desk, using(1))
    assert told(tmp_path) == [("open", "ok", ""), ("run", "failed", "disk")]


@pytest.mark.parametrize("asked", [2, 3], ids=["the last again", "the next"])
def test_what_is_computed_again_did_not_leave(tmp_path: Path, asked: int) -> None:
    """After a restart the requests of the journal are lines without releases; only a reply that leaves has them."""
    file = write_file(tmp_path)
    party, journal = open_party(file), Journal(tmp_path / "sessions", "bank")
    desk = Desk(party, Limits(), journal)
    for request in (opening(party), using(1), using(2)):
        outcome(desk, request)
    before = len(audit_lines(tmp_path))
    outcome(Desk(open_party(file), Limits(), journal), using(asked))
    lines = audit_lines(tmp_path)[before:]
    restored = [line for line in lines if line["outcome"] == "restored"]
    assert [line["verb"] for line in restored] == ["open", "run", "run"][:asked]
    assert {(line["bytes"], *line["releases"]) for line in restored} == {(0,)}
    assert [line["outcome"] for line in lines[asked:]] == ["ok"]


def test_a_restored_reply_leaves_once_it_is_logged(tmp_path: Path) -> None:
    """Who went on with the next request cannot have the reply before it, which the log does not tell of."""
    file = write_file(tmp_path)
    party, journal = open_party(file), Journal(tmp_path / "sessions", "bank")
    first = Desk(party, Limits(), journal)
    for request in (opening(party), using(1)):
        outcome(first, request)
    desk = Desk(open_party(file), Limits(), journal)
    with pytest.raises(tp.PartyError, match="request 7 of this session"):
        outcome(desk, using(7))
    with pytest.raises(tp.PartyError, match="request 1 of this session came after request 1"):
        outcome(desk, using(1))


@pytest.mark.parametrize("secret", ["_row_secret", "_blinding_key"])
def test_other_secrets_end_a_session(tmp_path: Path, secret: str) -> None:
    """With another order of rows or another key, a session does not go on as if nothing had happened."""
    file = write_file(tmp_path)
    party, journal = open_party(file), Journal(tmp_path / "sessions", "bank")
    outcome(Desk(party, Limits(), journal), opening(party))
    again = open_party(file)
    setattr(again, secret, b"another secret of 32 bytes......")
    with pytest.raises(tp.PartyError, match="its data, its secrets or the rules of its columns have changed"):
        outcome(Desk(again, Limits(), journal), using(1))


def served(party: Party, certificates: Certificates) -> FlightServer:
    return FlightServer(Desk(party, Limits(message_bytes=2000)), "127.0.0.1:0", certificates.server("bank"))


def call(server: FlightServer, tls: Tls, message: Any) -> Any:
    remote = FlightTransport("bank", f"grpc+tls://127.0.0.1:{server.port}", tls.read(), 20.0)
    return remote._exchange(encode(message), 20.0)


def test_refusals_of_the_server_are_lines(bank: Party, tmp_path: Path) -> None:
    """A caller that is not allowed, whatever it sends, and messages that are none, with the caller's name."""
    certificates = Certificates(tmp_path / "certificates")
    server = served(bank, certificates)
    impossible = Ext(ARRAY, msgspec.msgpack.encode(["<f8", [1 << 47, 1 << 47, 1 << 47, 0], False]))
    messages = (
        [99],
        [VERSION, "steal", "", 0, {}, []],
        [VERSION, "run", "s", 1, {"x": np.zeros(999)}, []],
        [VERSION, "run", "s", 1, {"x": impossible}, []],  # of which NumPy says so, when it is made
    )
    try:
        for noise in ([VERSION, "describe", "", 0, {}, []], "noise"):
            assert call(server, certificates.client("eve"), noise)[1] == "PrivacyError"
        for message in messages:
            assert call(server, certificates.client("analyst"), message)[1] == "PartyError"
        assert call(server, certificates.client("analyst"), [VERSION, "describe", "", 0, {}, []])[1] == "ok"
    finally:
        server.shutdown()
    found = [(line["caller"], line["verb"], line["outcome"], line["rule"]) for line in audit_lines(tmp_path)]
    assert found == [
        *[("eve", "", "denied", "allow")] * 2,
        ("analyst", "", "failed", "VersionError"),
        ("analyst", "", "failed", "PartyError"),
        ("analyst", "", "denied", "message_bytes"),
        ("analyst", "", "failed", "ValueError"),
        ("analyst", "describe", "ok", ""),
    ]
