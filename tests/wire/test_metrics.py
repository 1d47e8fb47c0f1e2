"""Metrics of a party: every limit that runs out is counted, labels hold nothing of a caller's, series do not grow."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from prometheus_client import generate_latest

import tablepuppet as tp
import tablepuppet.learn.party_ops
from tablepuppet.errors import TablePuppetError
from tablepuppet.learn.tables.dense import Network
from tablepuppet.learn.tables.linear import Linear
from tablepuppet.party.arguments import PredictionNoise
from tablepuppet.party.config import Limits, PartyFile
from tablepuppet.party.metrics import BEYOND_LIMITS, Metrics
from tablepuppet.party.request import Request, Step
from tablepuppet.versions import PROTOCOL
from tablepuppet.wire.codec import encode
from tablepuppet.wire.flight_server import FlightServer
from tablepuppet.wire.flight_transport import FlightTransport
from tablepuppet.wire.journal import Journal
from tablepuppet.wire.protocol import VERSION
from tests.party.policed import CANARY, PIN, ROWS, audit_lines, limit, write_file
from tests.wire.services import Certificates
from tests.wire.test_limits import ENCODED, NAMES, Calls

NEVER = {"snapshot_ttl", "database_connections"}  # how long something is kept; requests wait for a connection
AT_THE_DOOR = {"connections", "connect_seconds", "descriptors"}  # test_doorkeeper.py
APPLY = ("model.apply", {"view": "v", "encoding": "e", "spec": Linear(1), "theta": np.ones(1)})


class Watched(Calls):
    """Calls to a party with a state folder, a journal and metrics."""

    def __init__(self, folder: Path, limits: str = "", table: str = ""):
        (folder / "state").mkdir(exist_ok=True)
        self.folder, self.file = folder, write_file(folder, limits, table, top='state_dir = "state"')
        settings = PartyFile.load(self.file)
        self.limits = settings.limits
        self.journal = Journal(folder / "sessions", "bank", self.limits.journal_bytes)
        self.begin()
        self.metrics = Metrics("bank", settings.policy(), msgspec.structs.asdict(self.limits))
        self.party._audit.metrics = self.metrics
        self.party.measure(self.metrics)
        self.desk.measure(self.metrics)

    def value(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"tablepuppet_{name}", labels) or 0.0

    def encoded(self) -> None:
        self.open()
        self.run(*ENCODED)


SCENES: dict[str, tuple[str, str, Callable[[Watched], Any]]] = {}  # limits, settings of the table, what reaches it


def scene(
    name: str, limits: str = "", table: str = ""
) -> Callable[[Callable[[Watched], Any]], Callable[[Watched], Any]]:
    def add(function: Callable[[Watched], Any]) -> Callable[[Watched], Any]:
        SCENES[name] = (limits, table, function)
        return function

    return add


@scene("sessions", "sessions = 1")
@scene("sessions_per_caller", "sessions_per_caller = 1")
def too_many_sessions(calls: Watched) -> None:
    calls.open("s")
    calls.open("t")


@scene("idle", "idle = 0.0")
def silent(calls: Watched) -> None:
    calls.open()
    time.sleep(0.01)
    calls.desk.expire()


@scene("resume_window", "resume_window = 60.0")
def nobody_came_back(calls: Watched) -> None:
    assert calls.journal is not None
    calls.open()
    calls.desk.stop()
    [path] = (calls.folder / "sessions").glob("*/*.journal")
    os.utime(path, (0, 0))
    calls.journal._checked = -1000.0
    calls.desk.expire()


@scene("calls_per_caller", "calls_per_caller = 1")
def at_once(calls: Watched) -> None:
    with calls.desk._one_call("analyst", Request("describe")):
        calls.ask(Request("describe"))


@scene("work_per_caller", "work_per_caller = 1")
def must_wait(calls: Watched) -> None:
    with calls.party._at_work("analyst"):
        other = threading.Thread(target=calls.ask, args=(Request("describe"),))
        other.start()
        while not calls.value("limit_reached_total", limit="work_per_caller"):
            time.sleep(0.01)
    other.join()


def over_the_wire(calls: Watched, message: Any, *, enter: bool = True) -> None:
    """One message through a server."""
    certificates = Certificates(calls.folder / "certificates")
    server = FlightServer(calls.desk, "127.0.0.1:0", certificates.server("bank"))
    server.enter = lambda peer, caller: enter
    try:
        tls = certificates.client("analyst").read()
        found = FlightTransport("bank", f"grpc+tls://127.0.0.1:{server.port}", tls, 20.0)._exchange(encode(message), 20)
        assert found[1] != "ok"
    finally:
        server.shutdown()


@scene("message_bytes", "message_bytes = 2000")
def too_large(calls: Watched) -> None:
    over_the_wire(calls, [VERSION, "run", "s", 1, {"x": np.zeros(999)}, []])


@scene("connections_per_caller")
def too_many_connections(calls: Watched) -> None:
    over_the_wire(calls, [VERSION, "describe", "", 0, {}, []], enter=False)


@scene("reply_bytes", "reply_bytes = 2000")
def long_replies(calls: Watched) -> None:
    calls.encoded()
    calls.run(*[APPLY] * 10)


@scene("request_seconds")
def slow(calls: Watched) -> None:
    calls.encoded()
    limit(calls.party, request_seconds=-1.0)
    calls.run(APPLY)


@scene("releases_per_request", "releases_per_request = 1", "budget = { epsilon = 50.0, require_dp = true }")
def many_releases(calls: Watched) -> None:
    calls.encoded()
    calls.run(*[("model.apply", {**APPLY[1], "noise": PredictionNoise(3.0, 100.0)})] * 2)


@scene("ledger_releases", "ledger_releases = 1")
@scene("epsilon", "", "budget = { epsilon = 0.3, require_dp = false }")
@scene("epsilon_per_caller", "", "budget = { epsilon_per_caller = 0.3, require_dp = false }")
def many_labels(calls: Watched) -> None:
    calls.open(sql="SELECT credit, fraud FROM cards")
    calls.run(ENCODED[0])
    for epsilon in (0.2, 0.25):
        given = {"view": "v", "column": "fraud", "epsilon": epsilon, "bounds": (0.0, 1.0)}
        calls.run(("label.private_numbers", given))


@scene("expression_bytes", "expression_bytes = 200000")
def large_texts(calls: Watched) -> None:
    calls.open(sql="SELECT lpad(region, 9000, 'x') AS x FROM cards")


@scene("memory_bytes", "memory_bytes = 3000")
def much_memory(calls: Watched) -> None:
    calls.encoded()
    calls.run(("model.start", {**NAMES, "seed": 1, "spec": Network([50, 50], 1)}))


@scene("kept_bytes", "kept_bytes = 30000")
@scene("max_models", "max_models = 1")
def many_saved(calls: Watched) -> None:
    calls.encoded()
    calls.run(("model.start", {**NAMES, "seed": 1, "spec": Network([50, 50], 1)}))
    for number in range(2):
        given = {"view": "v", "model": NAMES["model"], "saved": f"m{number}", "part": f"p{number}", "unit": 1.0}
        calls.run(("parts.store", given))


@scene("journal_bytes", "journal_bytes = 20000")
def long_requests(calls: Watched) -> None:
    calls.open()
    calls.run(("rows.use", {"view": "w", "chosen": np.zeros(ROWS, np.int32), "counts": np.ones(100_000)}))


@scene("max_prediction_rounds", "max_prediction_rounds = 1")
def many_rounds(calls: Watched) -> None:
    calls.encoded()
    calls.run(APPLY, APPLY)


@scene("max_matrix_columns", "max_matrix_columns = 1", "matrix = true")
def many_vectors(calls: Watched) -> None:
    calls.encoded()
    calls.run(("matrix.times", {"view": "v", "encoding": "e", "directions": np.ones((1, 2))}))


@scene("max_filters", "max_filters = 0")
def a_filter(calls: Watched) -> None:
    calls.open(sql="SELECT credit FROM cards WHERE day > 3")


@scene("max_expressions", "max_expressions = 0")
def an_expression(calls: Watched) -> None:
    calls.open(sql="SELECT credit + 1 AS x FROM cards")


@scene("max_splits", "max_splits = 0")
def a_split(calls: Watched) -> None:
    calls.open()
    calls.run(ENCODED[0], ("rows.sample", {"view": "v", "ranks": np.arange(30)}))


@scene("max_refinements", "max_refinements = 0")
def refined(calls: Watched) -> None:
    calls.open()
    one = np.array([192], np.int64)
    given = {"view": "v", "columns": ["credit"], "places": np.zeros(1, np.int32), "prefixes": one, "depth": 1}
    calls.run(ENCODED[0], ("statistics.buckets", given))


@scene("max_failures", "max_failures = 1")
def failing(calls: Watched) -> None:
    with pytest.raises(tp.PartyError):
        calls.open("s", "SELECT (region IN (1, 2)) AS x FROM cards")
    calls.open("t", "SELECT (region IN (3, 4)) AS x FROM cards")


@scene("fits", "fits = 1")
def many_fits(calls: Watched) -> None:
    calls.encoded()
    for name in "ab":
        calls.run(("model.start", {**NAMES, "model": name, "seed": 1, "spec": Network([4], 1)}))


@scene("views", "views = 1")
def many_views(calls: Watched) -> None:
    calls.open()
    for name in "ab":
        calls.run(("rows.use", {**ENCODED[0][1], "view": name}))


@scene("disk")
def nowhere_to_write(calls: Watched) -> None:
    calls.open()
    shutil.rmtree(calls.folder / "sessions")
    calls.run(ENCODED[0])


def test_every_limit_has_a_scene() -> None:
    """A limit that is added must be counted too."""
    known = {*(field.name for field in msgspec.structs.fields(Limits)), *BEYOND_LIMITS}
    assert known == SCENES.keys() | AT_THE_DOOR | NEVER


@pytest.mark.parametrize("name", SCENES)
def test_a_limit_that_runs_out_is_counted(tmp_path: Path, name: str) -> None:
    """Once, under its own name and no other; where a request was refused, the audit log has the same name."""
    limits, table, reach = SCENES[name]
    calls = Watched(tmp_path, limits, table)
    refused = False
    try:
        reach(calls)
    except TablePuppetError:
        refused = True
    reached = {each: calls.value("limit_reached_total", limit=each) for each in (*SCENES, *AT_THE_DOOR)}
    assert {each: count for each, count in reached.items() if count} == {name: 1.0}
    if refused:
        last = [line for line in audit_lines(tmp_path) if line["outcome"] not in ("ok", "restored")][-1]
        assert (last["rule"], last["outcome"]) == (name, "failed" if name == "disk" else "denied")
        assert calls.value("refusals_total", rule=name) == 1


def test_what_is_counted(tmp_path: Path) -> None:
    """Requests, bytes and seconds by words of this package; gauges by callers of the policy."""
    calls = Watched(tmp_path, table="budget = { epsilon = 2.0, epsilon_per_caller = 1.0, require_dp = false }")
    calls.encoded()
    calls.run(APPLY)
    with pytest.raises(tp.PartyError):
        calls.run(("model.apply", {**APPLY[1], "theta": np.ones(7)}))
    with pytest.raises(tp.PrivacyError):
        calls.run(("matrix.times", {"view": "v", "encoding": "e", "directions": np.ones(1)}))
    outcomes = {
        (op, outcome): calls.value("requests_total", verb="run", op=op, outcome=outcome)
        for op in ("model.apply", "matrix.times")
        for outcome in ("ok", "failed", "denied")
    }
    assert {key for key, count in outcomes.items() if count == 1} == {
        ("model.apply", "ok"), ("model.apply", "failed"), ("matrix.times", "denied"),
    }  # fmt: skip
    assert calls.value("sent_bytes_total", release="PREDICTIONS") == 8 * ROWS + 1
    assert calls.value("received_bytes_total", release="PREDICTIONS") > 8
    assert calls.value("refusals_total", rule="matrix") == 1
    assert calls.value("request_seconds_count", verb="run") == 5
    assert calls.value("seconds_total", verb="run", op="model.apply") > 0
    assert calls.value("sessions", caller="analyst") == 1
    assert calls.value("memory_bytes", caller="analyst") == calls.held()
    assert calls.value("journal_bytes", caller="analyst") >= 4096
    assert calls.value("limit", limit="sessions") == 32
    assert calls.value("epsilon_left", table="cards", caller="") == 2.0
    assert calls.value("build_info", party="bank", version=tp.__version__, protocol=str(PROTOCOL)) == 1
    calls.ask(Request("close", "s"))
    assert calls.value("sessions", caller="analyst") == 0


def series(calls: Watched) -> set[str]:
    return {line.rpartition(" ")[0] for line in generate_latest(calls.metrics.registry).decode().splitlines()}


def hostile(calls: Watched, number: int) -> None:
    """Whatever of a request its sender can choose, with words that should be nowhere."""
    word = f"{CANARY}{number}"
    calls.numbers[session := f"canary{number}"] = 0
    with pytest.raises(TablePuppetError):
        calls.ask(Request("run", session, {}, (Step(word, word, {word: word}),), number))
    calls.open(session)
    for step in (
        Step(word, "cards", {}),
        Step("model.apply", word, {}),
        Step("model.apply", "cards", {"view": word, "encoding": word, "spec": Linear(1), "theta": np.ones(1)}),
        Step("statistics.buckets", "cards", {"view": word, "columns": [word]}),
        Step("parts.settle", "cards", {"saved": word, "keep": word}),
    ):
        calls.numbers[session] += 1
        with pytest.raises(TablePuppetError):
            calls.ask(Request("run", session, {}, (step,), calls.numbers[session]))
    for sql in (f"SELECT credit FROM cards WHERE region = '{word}'", f"SELECT credit AS x{number} FROM cards"):
        calls.open(f"{session}-{len(sql)}", sql)
    calls.desk.answer(word, Request("describe"))
    calls.party.note_refusal(word, word, "", tp.PartyError(word))
    for name in (session, *(key[1] for key in list(calls.desk._lines))):
        calls.ask(Request("close", name))


def test_no_caller_adds_series_or_words(tmp_path: Path) -> None:
    """Ops, tables, columns, sessions, models and callers that do not exist make no series, and no word is repeated."""
    calls = Watched(tmp_path)
    hostile(calls, 0)
    before = series(calls)
    for number in range(1, 15):
        hostile(calls, number)
    assert series(calls) == before
    text = generate_latest(calls.metrics.registry).decode()
    for word in (CANARY, "canary", str(PIN)[:6], "region0", "town1"):
        assert word not in text


def test_callers_that_are_not_named_are_others(tmp_path: Path) -> None:
    """What somebody holds whom the policy does not name is counted without the name."""
    calls = Watched(tmp_path)
    for number in range(5):
        calls.party._account(f"{CANARY}{number}").put(("x",), 100)
    assert calls.value("memory_bytes", caller="other") == 500
    assert CANARY not in generate_latest(calls.metrics.registry).decode()


def test_what_cannot_be_read_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A ledger that is gone takes its gauges away, not the page; the log says so once."""
    calls = Watched(tmp_path)
    shutil.rmtree(tmp_path / "state")
    for _ in range(3):
        found = series(calls)
    assert not any("epsilon_spent{" in each for each in found)
    assert any("tablepuppet_limit{" in each for each in found)
    assert caplog.text.count("tablepuppet_epsilon_spent cannot be read now") == 1
