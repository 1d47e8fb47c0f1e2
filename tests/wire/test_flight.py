"""Parties as services: the same results as in one process, callers by certificate, and requests computed once."""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.flight as flight
import pytest
from adbc_driver_postgresql import dbapi

import tablepuppet as tp
from tablepuppet.federation import Tls
from tablepuppet.mapping.table_mapping import TableMapping
from tablepuppet.party.config import Limits
from tablepuppet.party.databases.urls import open_database
from tablepuppet.party.request import Request, Step
from tablepuppet.party.service import Party
from tablepuppet.wire.codec import SMALL, decode, encode
from tablepuppet.wire.desk import Desk
from tablepuppet.wire.flight_server import FlightServer
from tablepuppet.wire.flight_transport import FlightTransport
from tablepuppet.wire.protocol import VERSION, BusyError, read_reply
from tests.learn.materialised import ALL, JOIN, shop
from tests.relations import collect_garbage, in_process, order_rows_by, party_of, write_party
from tests.wire.services import KEY, Certificates, calling, served

SQL = f"SELECT {ALL}, o.returned {JOIN}"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates") / "ca")


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory, postgres_url: str) -> Iterator[dict[str, str]]:
    """The shop in Parquet, DuckDB and Arrow, its items in PostgreSQL."""
    folder, parties = tmp_path_factory.mktemp("shop"), shop(2)
    kinds = ["parquet", "duckdb", "arrow"]
    found = {
        name: write_party(folder, name, tables, kinds[place % 3])
        for place, (name, tables) in enumerate(parties.items())
    }
    with dbapi.connect(postgres_url, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA flight")
        cursor.execute("SET search_path TO flight")
        cursor.adbc_ingest("items", parties["supplier0"]["items"], mode="create", db_schema_name="flight")
        yield found | {"supplier0": f"{postgres_url}&options=-csearch_path%3Dflight"}
        cursor.execute("DROP SCHEMA flight CASCADE")


@pytest.fixture(scope="module")
def services(urls: dict[str, str], certificates: Certificates) -> Iterator[dict[str, FlightServer]]:
    with served(urls, certificates) as servers:
        yield servers


@pytest.mark.parametrize("wire", ["float32", "float64"])
@pytest.mark.parametrize("solver", ["auto", "admm", "sgd"])
def test_the_same_as_in_one_process(
    urls: dict[str, str], services: dict[str, FlightServer], certificates: Certificates, wire: Any, solver: Any
) -> None:
    """Parties with PostgreSQL, DuckDB, Parquet and Arrow files: over Flight and mutual TLS the mapping, coefficients,
    predictions and bytes of one process.
    """
    near_fed = tp.Federation(urls, wire=wire)
    parties = {name: party_of(near_fed.engine, name) for name in urls}
    for name, party in parties.items():  # the order of rows is a secret of party and caller: these have the same
        order_rows_by(party, name.encode())
    near_fed.engine = in_process(parties, "analyst")
    found = []
    for fed in (calling(services, certificates, wire=wire), near_fed):
        relation = fed.sql(SQL, label="returned")
        model = tp.LogisticRegression(solver=solver, rounds=5, batch_size=50, tol=0.0).fit(relation)
        predicted = model.predict_proba(relation)
        found.append((relation.mapping, model.coef_, predicted, sum(entry["bytes"] for entry in fed.traffic)))
    far, near = found
    check_same_mapping(far[0], near[0])
    tolerance = 1e-10 if wire == "float64" else 1e-5
    assert far[1].keys() == near[1].keys()
    for name, value in near[1].items():
        assert far[1][name] == pytest.approx(value, abs=tolerance)
    assert far[2] == pytest.approx(near[2], abs=tolerance)
    if wire == "float64":
        assert far[3] == pytest.approx(near[3], rel=0.02)
    else:  # in one process nothing is rounded, and numbers are counted as they are
        assert far[3] < near[3]


def check_same_mapping(far: TableMapping, near: TableMapping) -> None:
    assert far.tables.keys() == near.tables.keys()
    for alias, table in near.tables.items():
        assert np.array_equal(far.tables[alias].index, table.index)
        for one, other in zip(far.tables[alias].shards, table.shards, strict=True):
            assert (one.party, one.start) == (other.party, other.start)
            assert np.array_equal(one.row_ids, other.row_ids)


def test_labels_of_all_kinds_travel(tmp_path: Path) -> None:
    """Classes arrive as the values they are, dates too."""
    import pyarrow as pa

    days = [datetime.date(2024, 1, 1), datetime.date(2024, 1, 2)] * 10
    table = pa.table(
        {
            "x": np.arange(20.0),
            "day": days,
            "text": ["a", "b"] * 10,
            "moment": [datetime.datetime(2024, 1, 1, hour) for hour in (1, 2)] * 10,
            "whole": [1, 2] * 10,
        }
    )
    url = write_party(tmp_path, "p", {"t": table}, "parquet")
    with served({"p": url}) as servers:
        for label in ("day", "text", "moment", "whole"):
            sql = f"SELECT x, {label} FROM t"
            far = tp.LogisticRegression().fit(calling(servers).sql(sql, label=label))
            near = tp.LogisticRegression().fit(tp.Federation({"p": url}).sql(sql, label=label))
            assert far.classes_.tolist() == near.classes_.tolist()
            assert far.classes_.dtype == near.classes_.dtype


def test_listening_beyond_this_machine_needs_tls(urls: dict[str, str]) -> None:
    """Plaintext is for loopback, or where it is asked for."""
    desk = Desk(Party("p", open_database("p", urls["bank0"]), KEY), Limits())
    with pytest.raises(tp.ConfigError, match="needs TLS"):
        FlightServer(desk, "0.0.0.0:0", None)
    FlightServer(desk, "0.0.0.0:0", None, insecure=True).shutdown()
    with pytest.raises(tp.ConfigError, match="cannot listen"):
        FlightServer(desk, "no.such.host:0", None, insecure=True)


def test_a_party_that_is_not_there(certificates: Certificates) -> None:
    """Nobody at the address: an error that names the party, within the timeout."""
    fed = tp.Federation({"gone": "grpc://127.0.0.1:9"}, timeout=0.5)
    with pytest.raises(tp.PartyError, match=r"'gone' at grpc://127\.0\.0\.1:9 does not answer within 0\.5 s"):
        fed.catalog()


def test_settings_of_parties_elsewhere(urls: dict[str, str], tmp_path: Path) -> None:
    """A URL without a port, TLS without a certificate, and mixing without the key are errors that say what to give."""
    with pytest.raises(tp.ConfigError, match="needs a host and a port"):
        tp.Federation({"p": "grpc://host"})
    with pytest.raises(tp.ConfigError, match="needs a certificate"):
        tp.Federation({"p": "grpc+tls://host:8815"})
    with pytest.raises(tp.ConfigError, match="give key_file"):
        tp.Federation({"p": "grpc://host:8815", "q": urls["bank0"]})
    with pytest.raises(tp.ConfigError, match="does not exist"):
        tp.Federation({"p": "grpc+tls://host:8815"}, tls=Tls("a", "b", "c"))


def test_different_blinding_keys_are_noticed(urls: dict[str, str]) -> None:
    """Parties that blind under different keys would join nothing: the catalog says so."""
    with (
        served({"bank0": urls["bank0"]}) as one,
        served({"bank1": urls["bank1"]}, key=b"z" * 32) as other,
        pytest.raises(tp.ConfigError, match="'bank0' and 'bank1' blind under different keys"),
    ):
        calling(one | other).catalog()


def test_models_go_with_their_session(urls: dict[str, str]) -> None:
    """A party keeps its part of a model for as long as the learner lives, also for other relations, and no longer."""
    with served({"bank0": urls["bank0"]}) as servers:
        fed, party = calling(servers), servers["bank0"].desk.party
        model = tp.LinearRegression(rounds=2).fit(fed.sql("SELECT age, credit FROM cards", label="credit"))
        assert model.evaluate(fed.sql("SELECT age, credit FROM cards WHERE age > 0", label="credit"))
        assert any(held for held, _ in party._models.values())
        del model
        collect_garbage()
        assert not any(held for held, _ in party._models.values())
        assert not party._sessions


# The desk


def opening(party: Party, session: str = "s") -> Request:
    from tablepuppet.sql.catalog import Catalog
    from tablepuppet.sql.parse import parse
    from tablepuppet.sql.plan import plan

    catalog = Catalog(party.answer("", Request("describe"))[0]["tables"])
    scans = plan(parse("SELECT credit, age FROM cards", catalog), catalog).scans
    return Request("open", session, {"scans": scans, "wire": "float64"}, (Step("keys.blind", "cards"),), 0)


@pytest.fixture
def bank(urls: dict[str, str]) -> Party:
    return Party("bank0", open_database("bank0", urls["bank0"]), KEY, row_secret=b"x")


def outcome(desk: Desk, request: Request, caller: str = "a") -> Any:
    message = decode(desk.answer(caller, request))
    return read_reply(message, request, "bank0")


def using(rows: int, sequence: int, view: str = "v") -> Request:
    arguments = {"view": view, "chosen": None, "counts": np.ones(rows, np.uint8)}
    return Request("run", "s", {}, (Step("rows.use", "cards", arguments),), sequence)


def test_a_repeat_is_not_computed_again(bank: Party, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last request again gets the stored reply; an older or a later number is refused."""
    desk = Desk(bank, Limits())
    [opened, _] = outcome(desk, opening(bank))
    rows = opened["rows"]["cards"]
    assert outcome(desk, opening(bank))[0] == opened
    outcome(desk, using(rows, 1))
    computed: list[str] = []
    run = Party.run
    monkeypatch.setattr(Party, "run", lambda *given: computed.append(given[3]) or run(*given))  # type: ignore[func-returns-value]
    outcome(desk, using(rows, 1))
    assert computed == []
    outcome(desk, using(rows, 2, "w"))
    assert computed == ["rows.use"]
    for wrong in (1, 4, 0):
        with pytest.raises(tp.PartyError, match=f"request {wrong} of this session came after request 2"):
            outcome(desk, using(rows, wrong))


def test_a_request_that_overtakes_another_is_refused(urls: dict[str, str], tmp_path: Path) -> None:
    """Over Flight: a request that comes before the one before it is refused and changes nothing; in their order both
    are computed.
    """
    with served({"bank0": urls["bank0"]}, state=tmp_path) as servers:
        party = servers["bank0"].desk.party
        far = FlightTransport("bank0", f"grpc://127.0.0.1:{servers['bank0'].port}", None, 60.0)
        rows = far.call(opening(party))[0]["rows"]["cards"]
        with pytest.raises(tp.PartyError, match=r"request 2 of .* came after request 0; .* overtook another"):
            far.call(using(rows, 2, "w"))
        caller = next(iter(party._sessions))[0]
        assert not party.table("s", "cards", caller).views
        for sequence, view in enumerate("vw", start=1):
            assert far.call(using(rows, sequence, view)) == [{}]
        assert list(party.table("s", "cards", caller).views) == ["v", "w"]


def test_a_failed_step_is_stored_too(bank: Party) -> None:
    """A request that fails at the party fails again in the same words; the next one goes on."""
    desk = Desk(bank, Limits())
    rows = outcome(desk, opening(bank))[0]["rows"]["cards"]
    wrong = Request("run", "s", {}, (Step("no.such.op", "cards"),), 1)
    for _ in range(2):
        with pytest.raises(tp.PartyError, match=r"no op 'no\.such\.op'"):
            outcome(desk, wrong)
    assert outcome(desk, using(rows, 2)) == [{}]


def test_sessions_belong_to_their_callers(bank: Party) -> None:
    """Another caller with the same session name finds nothing of it."""
    desk = Desk(bank, Limits())
    rows = outcome(desk, opening(bank))[0]["rows"]["cards"]
    with pytest.raises(tp.PartyError, match="knows no such session"):
        outcome(desk, using(rows, 1), caller="b")
    outcome(desk, opening(bank), caller="b")
    desk.answer("b", Request("close", "s"))
    assert outcome(desk, using(rows, 1)) == [{}]


def test_too_many_sessions_are_told_to_wait(bank: Party) -> None:
    """A full party says so, and has room again after a close."""
    desk = Desk(bank, Limits(sessions=2, sessions_per_caller=2))
    outcome(desk, opening(bank, "s1"))
    outcome(desk, opening(bank, "s2"))
    with pytest.raises(BusyError, match="busy"):
        outcome(desk, opening(bank, "s3"))
    desk.answer("a", Request("close", "s1"))
    outcome(desk, opening(bank, "s3"))


def test_a_busy_party_is_asked_again(urls: dict[str, str]) -> None:
    """A coordinator waits for room within its timeout."""
    with served({"bank0": urls["bank0"]}, limits=Limits(sessions=1)) as servers:
        first = calling(servers).sql("SELECT credit FROM cards")
        release = threading.Timer(0.5, first._session.close)
        release.start()
        assert len(calling(servers, timeout=20.0).sql("SELECT age FROM cards"))
        release.join()


def test_silent_sessions_expire(bank: Party) -> None:
    """A session that nobody uses is freed, and its caller is told so."""
    ended: list[tuple[str, str, str]] = []
    desk = Desk(bank, Limits(idle=0.05), log=lambda *what: ended.append(what))
    rows = outcome(desk, opening(bank))[0]["rows"]["cards"]
    time.sleep(0.1)
    with pytest.raises(tp.PartyError, match="silent for too long"):
        outcome(desk, using(rows, 1))
    assert ended == [("a", "s", "opened"), ("a", "s", "expired")]
    assert not bank._sessions


def test_stopping_refuses_and_frees(bank: Party) -> None:
    """A party that stops frees its sessions and takes no new ones."""
    desk = Desk(bank, Limits())
    outcome(desk, opening(bank))
    desk.stop()
    assert not bank._sessions
    with pytest.raises(BusyError, match="stopping"):
        outcome(desk, opening(bank, "t"))


def test_a_bug_tells_its_kind_only(
    bank: Party, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What goes wrong unforeseen may quote a row: neither the caller nor the log hear its words."""
    desk = Desk(bank, Limits())
    outcome(desk, opening(bank))

    def broken(*_: Any) -> Any:
        raise KeyError("CANARY-17")

    monkeypatch.setattr(Party, "run", broken)
    with pytest.raises(tp.PartyError, match=r"failed on run \(KeyError\)"):
        outcome(desk, using(3, 1))
    assert "CANARY" not in caplog.text


# The port


def raw(server: FlightServer, frames: list[bytes]) -> Any:
    """What a party answers to these frames."""
    client = flight.FlightClient(f"grpc://127.0.0.1:{server.port}")
    options = flight.FlightCallOptions(timeout=20)
    writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(b""), options)
    for frame in frames:
        writer.write_metadata(frame)
    writer.done_writing()
    answer = reader.read_chunk().app_metadata.to_pybytes()
    writer.close()
    client.close()
    from tablepuppet.wire.codec import decode_header

    return decode_header(answer).message


def test_strange_requests_get_an_error_reply(urls: dict[str, str]) -> None:
    """Noise, other versions, unknown verbs and sizes beyond the limit are answered with an error, not with silence."""
    with served({"bank0": urls["bank0"]}, limits=Limits(message_bytes=1000)) as servers:
        server = servers["bank0"]
        too_long = encode([VERSION, "run", "s", 1, {"x": np.zeros(SMALL)}, []])
        for frames, words in (
            ([], "empty"),
            ([b"\xc1"], "cannot be read"),
            ([encode([99, "describe", "", 0, {}, []]).header], "version 99"),
            ([encode([VERSION, "steal", "", 0, {}, []]).header], "describe, open, run, close"),
            ([too_long.header], "more than the 1,000"),
            ([b"\x90" * 5000], "header has 5,000 bytes"),
            ([encode([VERSION, "describe", "", 0, {"a": 1}, []]).header], "neither arguments nor steps"),
        ):
            version, kind, text = raw(server, frames)
            assert (version, kind) == (99 if words == "version 99" else VERSION, "PartyError")
            assert words in text
        assert raw(server, [encode([VERSION, "describe", "", 0, {}, []]).header])[1] == "ok"
