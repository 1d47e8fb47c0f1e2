"""Parties that are lost and come back: behind a network that fails, as processes that are killed, on record."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tablepuppet as tp
from benchmarks.proxy import Proxy
from tablepuppet.party.request import Request, Step
from tablepuppet.wire.engine import Engine
from tablepuppet.wire.outbox import Outbox, WhenLost
from tablepuppet.wire.protocol import LostError
from tablepuppet.wire.record import Record
from tests.learn.materialised import ALL, JOIN, shop
from tests.relations import write_party
from tests.service.processes import Services
from tests.wire.losing import LosingParty, losing
from tests.wire.services import calling, served

SQL = f"SELECT {ALL}, o.paid {JOIN}"


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("shop")
    return {name: write_party(folder, name, tables) for name, tables in shop().items()}


def after(rounds: dict[int, Callable[[], Any]]) -> Callable[[tp.Event], None]:
    """A callback that does something after given rounds."""
    return lambda event: rounds.get(event.fields.get("round", 0), lambda: None)()


def learn(relation: tp.Relation, rounds: dict[int, Callable[[], Any]]) -> tp.LinearRegression:
    return tp.LinearRegression(l2=1e-3, callbacks=[after(rounds)]).fit(relation)


def check_same(model: tp.LinearRegression, calm: tp.LinearRegression) -> None:
    assert model.converged_
    assert model.coef_.keys() == calm.coef_.keys()
    for name, value in calm.coef_.items():
        np.testing.assert_allclose(model.coef_[name], value, atol=1e-6)


@pytest.mark.parametrize(("fault", "mode"), [("cut", "cache"), ("stall", "zeros")])
def test_a_network_that_fails_for_some_rounds(urls: dict[str, str], fault: str, mode: Any) -> None:
    """Behind a connection that is cut or silent for longer than the timeout: rounds go on without the party, and once
    it is back the model is that of an undisturbed run.
    """
    with served(urls) as servers, ExitStack() as stack:
        proxies = {name: stack.enter_context(Proxy("127.0.0.1", server.port)) for name, server in servers.items()}
        places = {name: f"grpc://127.0.0.1:{proxy.port}" for name, proxy in proxies.items()}
        calm = learn(calling(servers, wire="float64").sql(SQL, label="paid"), {})
        fed = tp.Federation(places, wire="float64", timeout=5.0, on_party_lost=mode)
        supplier = proxies["supplier0"]
        model = learn(fed.sql(SQL, label="paid"), {2: getattr(supplier, fault), 3: supplier.restore})
        assert "supplier0" in model.history_[2]["lost"]
        check_same(model, calm)


def test_a_party_that_is_killed_and_started_again(tmp_path: Path) -> None:
    """kill -9 in a round, a start with the state_dir some rounds later: the model is that of an undisturbed run."""
    with Services(tmp_path, shop()) as services:
        calm = learn(services.federation(wire="float64").sql(SQL, label="paid"), {})
        fed = services.federation(wire="float64", timeout=5.0, on_party_lost="cache")
        supplier = services.parties["supplier0"]
        model = learn(fed.sql(SQL, label="paid"), {2: supplier.kill, 4: supplier.start})
        assert "supplier0" in model.history_[2]["lost"]
        check_same(model, calm)


def test_a_party_without_its_session(urls: dict[str, str]) -> None:
    """A party that comes back without what it held cannot go on: one clear error."""
    fed, parties = losing(urls, on_party_lost="cache")
    supplier = parties["supplier0"]

    def forget() -> None:
        supplier.lost = False
        supplier.desk.stop()
        supplier.desk._closing = False

    with pytest.raises(tp.PartyError, match="knows no such session"):
        learn(fed.sql(SQL, label="paid"), {2: lambda: setattr(supplier, "lost", True), 4: forget})


def put_on_record(fed: tp.Federation, parties: dict[str, LosingParty], folder: Path) -> None:
    """As after a start: answers are read from the record as far as it goes."""
    record = Record(folder)
    remote = {name: record.of(name, party, losses=True) for name, party in parties.items()}
    fed.engine = Engine(remote, record.new_session)


def test_a_run_on_record_is_lost_again(urls: dict[str, str], tmp_path: Path) -> None:
    """A run that is repeated from its record loses and finds the same parties in the same rounds."""
    fed, parties = losing(urls, on_party_lost="cache")
    supplier = parties["supplier0"]
    found = []
    for schedule in ({2: lambda: setattr(supplier, "lost", True), 4: lambda: setattr(supplier, "lost", False)}, {}):
        put_on_record(fed, parties, tmp_path / "record")
        asked = len(supplier.asked)
        found.append(learn(fed.sql(SQL, label="paid"), schedule))
    assert len(supplier.asked) == asked
    first, again = found
    assert [entry["lost"] for entry in first.history_] == [entry["lost"] for entry in again.history_]
    assert [entry["loss"] for entry in first.history_] == [entry["loss"] for entry in again.history_]
    assert first.history_[2]["lost"] == ["supplier0"]


@pytest.mark.parametrize("when", ["joined", "round"])
def test_a_run_that_ended_by_a_loss_asks_again(urls: dict[str, str], tmp_path: Path, when: str) -> None:
    """Where nothing stands in for a party the run ends; repeated from its record, it goes on when the party is back."""
    fed, parties = losing(urls, on_party_lost="cache")
    supplier, lost = parties["supplier0"], []

    def lose(event: tp.Event) -> None:
        supplier.lost = supplier.lost or event.name == when or (when == "round" and event.fields.get("round") == 3)

    def run() -> None:
        put_on_record(fed, parties, tmp_path / "record")
        fed.engine.keep_open = True
        relation = fed.sql(SQL, label="paid")
        model = learn(relation, {})
        lost.append([entry["lost"] for entry in model.history_])
        assert len(model.predict(relation)) == len(relation)

    stop = fed.events.subscribe(lose)
    with pytest.raises(tp.PartyError, match="'supplier0' does not answer"):
        run()
    stop()
    supplier.lost = False
    run()
    assert lost[0] == lost[-1]
    assert any(lost[0]) == (when == "round")


class Line:
    """An outbox to one party, and a step that it can be asked again and again."""

    def __init__(self, urls: dict[str, str], mode: Any = "cache"):
        fed, parties = losing({"bank0": urls["bank0"]})
        self.party: LosingParty = parties["bank0"]
        self.relation = fed.sql("SELECT credit, age FROM cards")
        self.told: list[bool] = []
        when_lost = WhenLost(mode, 0.2, lambda _, error: self.told.append(error is not None))
        self.outbox = Outbox(fed.engine, self.relation._session.id, when_lost)
        self.party.asked.clear()

    def use(self, view: str, instead: Callable[[], dict[str, Any]] | None = None) -> Any:
        arguments = {"view": view, "chosen": None, "counts": np.ones(20, np.uint8)}
        return self.outbox.ask("bank0", Step("rows.use", "cards", arguments), instead)

    def views(self) -> list[str]:
        return list(self.party.desk.party.table(self.outbox.session, "cards", "a").views)


@pytest.mark.parametrize("how", ["lost", "mute"])
def test_what_was_missed_arrives_in_its_order(urls: dict[str, str], how: str) -> None:
    """The unanswered request comes first, again under its number, then what waited; what was stood in for does not."""
    line = Line(urls)
    assert line.use("a").read() == {}
    setattr(line.party, how, True)
    before, stood_in = line.use("b"), line.use("c", lambda: {"x": 1})
    assert stood_in.read() == {"x": 1}
    assert (stood_in.missed, before.is_open) == (True, True)
    later, again = line.use("d"), line.use("e", lambda: {"x": 2})
    assert again.read() == {"x": 2}
    assert line.outbox.take_missed() == {"bank0"}
    setattr(line.party, how, False)
    now = line.use("f", lambda: {"x": 3})
    assert (now.read(), now.missed) == ({}, False)
    assert before.read() == later.read() == {}
    assert stood_in.read() == {"x": 1}
    assert line.views() == ["a", "b", "c", "d", "f"]
    assert line.told == [True, False]
    assert line.outbox.take_missed() == {"bank0"}
    assert line.outbox.take_missed() == set()
    assert [sequence for sequence, _, heard in line.party.asked if heard] == [1, 2, 3]


def test_tries_grow_rare(urls: dict[str, str]) -> None:
    """A try of a silent party may take a second: it is left alone for ever more trips, ten at most."""
    line = Line(urls)
    line.party.lost = True
    for number in range(60):
        line.use(f"v{number}", lambda: {}).read()
    assert len(line.party.asked) == 12  # in trips 0, 1, 2, 4, 7, 11, 16, 22, 29, 37, 46 and 56
    line.party.lost = False
    assert line.outbox.wait_for_all()
    assert line.outbox.lost == {}


def test_a_reader_that_nothing_stands_in_for(urls: dict[str, str]) -> None:
    """It waits for a party that is known to be lost, and is told if that stays so; or at once where a run must end."""
    line = Line(urls)
    line.party.lost = True
    for _ in range(2):
        with pytest.raises(LostError, match="'bank0' does not answer"):
            line.use("a").read()
    assert line.party.asked[0][0] == line.party.asked[-1][0] == 1
    failing = Line(urls, None)
    failing.party.lost = True
    with pytest.raises(LostError, match="'bank0' does not answer"):
        failing.use("a", lambda: {}).read()
    assert failing.told == []


@pytest.mark.parametrize("mode", ["cache", None])
def test_a_party_that_is_needed(urls: dict[str, str], mode: Any) -> None:
    """Nothing stands in for it: when it is lost the session is over, also when it is back."""
    line = Line(urls, mode)
    line.outbox.needed["bank0"] = "Nobody can do without it"
    line.party.lost = True
    with pytest.raises(tp.PrivacyError, match=r"'bank0' does not answer\. Nobody can do without it"):
        line.use("a", lambda: {}).read()
    line.party.lost, asked = False, len(line.party.asked)
    with pytest.raises(tp.PrivacyError, match="Nobody can do without it"):
        line.use("b", lambda: {}).read()
    assert len(line.party.asked) == asked
    assert line.told == []


def test_a_closed_session_needs_no_party(urls: dict[str, str]) -> None:
    """Ending a run with a lost party is no error."""
    line = Line(urls)
    line.party.lost = True
    with pytest.raises(LostError):
        line.party.call(Request("close", line.outbox.session))
    line.relation._session.close()
