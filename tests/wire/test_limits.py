"""What one caller can take of a party: models, sessions, journals, replies, time and memory have limits with names."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tablepuppet as tp
import tablepuppet.learn.party_ops
from tablepuppet.learn.tables.dense import Network
from tablepuppet.learn.tables.linear import Linear
from tablepuppet.party.config import Limits, PartyFile
from tablepuppet.party.request import Request, Step
from tablepuppet.party.service import Party
from tablepuppet.sql.catalog import Catalog
from tablepuppet.sql.parse import parse
from tablepuppet.sql.plan import plan
from tablepuppet.wire.codec import decode
from tablepuppet.wire.desk import Desk
from tablepuppet.wire.journal import Journal
from tablepuppet.wire.protocol import BusyError, read_reply
from tests.party.policed import ROWS, limit, open_party, write_file

NAMES = {"view": "v", "encoding": "e", "model": "of the caller's choice"}
ENCODED: list[tuple[str, dict[str, Any]]] = [
    ("rows.use", {"view": "v", "chosen": None, "counts": np.ones(ROWS, np.uint8)}),
    ("encode.build", {"view": "v", "encoding": "e", "columns": ["credit"], "means": np.zeros(1), "scales": np.ones(1),
                      "categories": []}),
]  # fmt: skip


class Calls:
    """A desk, and a caller that numbers its requests."""

    def __init__(self, folder: Path, limits: str = "", *, journal: bool = False):
        self.folder, self.file = folder, write_file(folder, limits)
        self.limits = PartyFile.load(self.file).limits
        self.journal = Journal(folder / "sessions", "bank", self.limits.journal_bytes) if journal else None
        self.begin()

    def begin(self) -> None:
        """A new process of the party."""
        self.party: Party = open_party(self.file)
        self.desk = Desk(self.party, self.limits, self.journal)
        self.numbers: dict[str, int] = getattr(self, "numbers", {})

    def open(self, session: str = "s", sql: str = "SELECT credit FROM cards") -> Any:
        catalog = Catalog(self.party.describe("analyst"))
        scans = plan(parse(sql, catalog), catalog).scans
        self.numbers[session] = 0
        return self.ask(Request("open", session, {"scans": scans, "wire": "float64"}, (), 0))

    def run(self, *steps: tuple[str, dict[str, Any]], session: str = "s") -> Any:
        self.numbers[session] += 1
        listed = tuple(Step(op, "cards", arguments) for op, arguments in steps)
        return self.ask(Request("run", session, {}, listed, self.numbers[session]))

    def ask(self, request: Request) -> Any:
        return read_reply(decode(self.desk.answer("analyst", request)), request, "bank")

    def held(self) -> int:
        return self.party._account("analyst").total


def test_a_large_model_is_refused_before_it_is_made(tmp_path: Path) -> None:
    """A tiny request cannot make a party take memory for a model beyond the caller's limit."""
    calls = Calls(tmp_path, f"memory_bytes = {64 << 20}")
    calls.open()
    calls.run(*ENCODED)
    with pytest.raises(tp.PartyError, match=r"'bank'.*limits\.memory_bytes"):
        calls.run(("model.start", {**NAMES, "seed": 1, "spec": Network([3000, 3000], 1)}))
    with pytest.raises(tp.PartyError, match="another shape"):
        calls.run(("ridge.shard", {**NAMES, "joined_rows": ROWS, "spec": Linear(10_000), "means": np.zeros(10**6)}))
    calls.run(("model.start", {**NAMES, "seed": 1, "spec": Network([4], 1)}))


def test_models_under_any_name_go_with_their_session(tmp_path: Path) -> None:
    """What a session has made is freed when it is closed, whatever the caller called it."""
    calls = Calls(tmp_path)
    calls.open()
    before = calls.held()
    calls.run(*ENCODED)
    calls.run(("model.start", {**NAMES, "seed": 1, "spec": Network([50, 50], 1)}))
    assert calls.held() > before + 8 * 2500
    calls.ask(Request("close", "s"))
    assert calls.held() == 0
    assert not any(held for held, _ in calls.party._models.values())


def test_models_that_grow_are_counted(tmp_path: Path) -> None:
    """Steps that a model remembers are bytes of the caller's too."""
    calls = Calls(tmp_path, f"memory_bytes = {1 << 20}")
    calls.open()
    calls.run(*ENCODED)
    calls.run(("model.start", {**NAMES, "seed": 1, "spec": Network([100], 1)}))
    turn = ("lbfgs.turn", {**NAMES, "rows": np.ones(ROWS), "l2": 0.1, "memory": 10_000})
    calls.run(turn)
    with pytest.raises(tp.PartyError, match=r"limits\.memory_bytes"):
        calls.run(*[turn] * 500)


def test_sessions_that_come_back_are_counted(tmp_path: Path) -> None:
    """After a restart no more sessions are brought back from the journal than may be open."""
    calls = Calls(tmp_path, "sessions_per_caller = 2", journal=True)
    for number in range(4):
        calls.open(f"s{number}")
        calls.run(ENCODED[0], session=f"s{number}")
        calls.desk.close(("analyst", f"s{number}"), "expired", forget=False)
    calls.begin()
    for number in range(2):
        calls.run(ENCODED[1], session=f"s{number}")
    with pytest.raises(BusyError, match="as many sessions as it allows"):
        calls.run(ENCODED[1], session="s2")
    calls.ask(Request("close", "s0"))
    calls.numbers["s2"] -= 1
    calls.run(ENCODED[1], session="s2")


def test_sessions_that_were_left_make_room(tmp_path: Path) -> None:
    """Those that a caller has not used for a minute, if it may have no others; one that is used again comes back."""
    calls = Calls(tmp_path, "sessions_per_caller = 2", journal=True)
    for name in ("killed", "busy"):
        calls.open(name)
        calls.run(ENCODED[0], session=name)
    calls.desk._lines["analyst", "killed"].used -= 61
    calls.open("next")
    assert set(calls.desk._lines) == {("analyst", "busy"), ("analyst", "next")}
    calls.desk._lines["analyst", "next"].used -= 61
    calls.run(ENCODED[1], session="killed")
    assert set(calls.desk._lines) == {("analyst", "busy"), ("analyst", "killed")}
    with pytest.raises(BusyError, match=r"sessions_per_caller\); of yours, one ends in 3,[56]\d\d s if it is not used"):
        calls.open("more")


def test_refusals_are_not_written_down_whole(tmp_path: Path) -> None:
    """Large requests that are refused leave a line in the journal, and the session is restored past them."""
    calls = Calls(tmp_path, journal=True)
    calls.open()
    calls.run(*ENCODED)
    large = (
        "model.gradient",
        {"view": "v", "encoding": "e", "spec": Linear(10_000), "rows": np.ones((ROWS + 1, 10_000))},
    )
    for _ in range(5):
        with pytest.raises(tp.PartyError, match="do not fit"):
            calls.run(("ridge.start", {**NAMES, "joined_rows": ROWS, "spec": Linear(1)}), large)
    [path] = (tmp_path / "sessions").glob("*/*.journal")
    assert path.stat().st_size < 20_000
    calls.begin()
    [reply] = calls.run(("model.predict", NAMES))  # what was computed before the refusals is there
    assert reply["outputs"].shape == (ROWS,)


def test_a_refusal_is_answered_again_after_a_restart(tmp_path: Path) -> None:
    """Who did not hear of a refusal hears the same words when the party is back."""
    calls = Calls(tmp_path, journal=True)
    calls.open()
    calls.run(*ENCODED)
    large = ("model.gradient", {"view": "v", "encoding": "e", "spec": Linear(1), "rows": np.ones((ROWS + 1, 20_000))})
    with pytest.raises(tp.PartyError) as first:
        calls.run(large)
    calls.begin()
    calls.numbers["s"] -= 1
    with pytest.raises(tp.PartyError) as again:
        calls.run(large)
    assert str(first.value) == str(again.value)


def test_a_full_journal_refuses_and_loses_nothing(tmp_path: Path) -> None:
    """Beyond a caller's bytes a request is refused by name and not computed; closing a session makes room."""
    calls = Calls(tmp_path, "journal_bytes = 100000", journal=True)
    calls.open("old")
    calls.run(*ENCODED, session="old")
    calls.open("s")
    with pytest.raises(tp.PartyError, match=r"'bank'.*limits\.journal_bytes"):
        calls.run(("rows.use", {"view": "w", "chosen": np.zeros(ROWS, np.int32), "counts": np.ones(100_000)}))
    calls.numbers["s"] -= 1
    calls.run(ENCODED[0])
    calls.begin()
    calls.run(ENCODED[1])  # all that was answered is there again
    for number in range(40):
        calls.open(f"other{number}")
        calls.ask(Request("close", f"other{number}"))
    assert calls.journal is not None
    assert sum(calls.journal._bytes.values()) == 2 * 4096


def test_a_failed_write_keeps_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that cannot be written down takes nothing away from those that were."""
    calls = Calls(tmp_path, journal=True)
    calls.open()
    calls.run(ENCODED[0])
    with monkeypatch.context() as patch:
        patch.setattr("tablepuppet.wire.journal.os.open", _no_descriptor)
        with pytest.raises(tp.PartyError, match="cannot write down a request"):
            calls.run(ENCODED[1])
    calls.numbers["s"] -= 1
    calls.begin()
    calls.run(ENCODED[1])


def _no_descriptor(*_: object) -> int:
    raise OSError(24, "Too many open files")


def test_a_reply_is_bounded_before_it_is_computed(tmp_path: Path) -> None:
    """Parameters without a byte cannot ask for a reply of gigabytes."""
    calls = Calls(tmp_path, "reply_bytes = 1000000")
    calls.open()
    nothing = {"view": "v", "encoding": "none", "columns": [], "means": np.zeros(0), "scales": np.zeros(0),
               "categories": []}  # fmt: skip
    calls.run(ENCODED[0], ("encode.build", nothing))
    with pytest.raises(tp.PartyError, match=r"'bank'.*limits\.reply_bytes"):
        calls.run(
            ("model.apply", {"view": "v", "encoding": "none", "spec": Linear(10_000), "theta": np.zeros((0, 10_000))})
        )


def test_all_steps_of_a_reply_count(tmp_path: Path) -> None:
    """Many small steps make no large reply."""
    calls = Calls(tmp_path, "reply_bytes = 20000")
    calls.open()
    calls.run(*ENCODED)
    step = ("model.apply", {"view": "v", "encoding": "e", "spec": Linear(10), "theta": np.zeros((1, 10))})
    calls.run(step)
    with pytest.raises(tp.PartyError, match=r"limits\.reply_bytes"):
        calls.run(*[step] * 20)


def test_time_of_a_request(tmp_path: Path) -> None:
    """A request that computes for too long ends with an error, between two of its steps or within one."""
    calls = Calls(tmp_path)
    calls.open()
    calls.run(*ENCODED)
    calls.run(("model.start", {**NAMES, "seed": 1, "spec": Network([400, 400], 1)}))
    limit(calls.party, request_seconds=0.2)
    solve = {**NAMES, "rows": np.ones(ROWS), "proximal": 0.1, "l2": 0.1, "steps": 10_000}
    for request in (
        [("proximal.solve", solve)],
        [("model.apply", {**_image(), "spec": Linear(9000), "theta": np.zeros((1, 9000))})] * 5000,
    ):
        with pytest.raises(tp.PartyError, match=r"'bank'.*0\.2 s.*limits\.request_seconds"):
            calls.run(*request)


def _image() -> dict[str, Any]:
    return {"view": "v", "encoding": "e"}


def test_time_of_an_expression(tmp_path: Path) -> None:
    """A database that evaluates for too long is interrupted."""
    calls = Calls(tmp_path, "request_seconds = 0.05")
    long = " || ".join(["lpad(region, 9000, 'x')"] * 5)
    many = ", ".join(f"levenshtein({long}, '{number}{'a' * 100}') AS c{number}" for number in range(2))
    with pytest.raises(tp.PartyError, match=r"limits\.request_seconds"):
        calls.open(sql=f"SELECT {many} FROM cards")


def test_memory_of_an_expression(tmp_path: Path) -> None:
    """What is read of a table takes no more memory than the operator allows; less is read."""
    calls = Calls(tmp_path, "expression_bytes = 200000")
    with pytest.raises(tp.PartyError, match=r"'bank'.*'cards'.*limits\.expression_bytes"):
        calls.open(sql="SELECT lpad(region, 9000, 'x') AS x FROM cards")
    calls.open(sql="SELECT lpad(region, 90, 'x') AS x FROM cards")


def test_tables_that_are_read_count(tmp_path: Path) -> None:
    """What open sessions have read is in the caller's memory."""
    calls = Calls(tmp_path, "memory_bytes = 5000")
    for number in range(6):
        calls.open(f"s{number}")
    with pytest.raises(tp.PartyError, match=r"limits\.memory_bytes"):
        calls.open("s9")
    calls.ask(Request("close", "s0"))
    calls.open("again")


def test_calls_of_one_caller_at_once(tmp_path: Path) -> None:
    """A caller that sends many requests at the same time is told to try again, and the others are answered."""
    calls = Calls(tmp_path, "calls_per_caller = 2")
    calls.open()
    line = calls.desk._lines["analyst", "s"]
    line.lock.acquire()
    waiting = [threading.Thread(target=calls.desk.answer, args=("analyst", Request("run", "s", {}, (), 9)))] * 2
    waiting = [threading.Thread(target=thread._target, args=thread._args) for thread in waiting]  # type: ignore[attr-defined]
    for thread in waiting:
        thread.start()
    while calls.desk._calls["analyst"] < 2:
        time.sleep(0.01)
    with pytest.raises(BusyError, match=r"limits\.calls_per_caller"):
        calls.ask(Request("describe"))
    line.lock.release()
    for thread in waiting:
        thread.join()
    calls.ask(Request("describe"))


def test_saved_models_take_so_many_bytes(tmp_path: Path) -> None:
    """Parts of saved models beyond a caller's bytes are refused; forgetting one makes room."""
    (tmp_path / "state").mkdir()
    write_file(tmp_path, "kept_bytes = 60000", top='state_dir = "state"')
    calls = Calls.__new__(Calls)
    calls.file, calls.limits, calls.journal = tmp_path / "party.toml", Limits(), None
    calls.begin()
    calls.open()
    calls.run(*ENCODED)
    calls.run(("model.start", {**NAMES, "seed": 1, "spec": Network([50, 50], 1)}))

    def store(number: int) -> None:
        given = {"view": "v", "model": NAMES["model"], "saved": f"m{number}", "part": f"p{number}", "unit": 1.0}
        calls.run(("parts.store", given))

    store(0)
    store(1)
    with pytest.raises(tp.PartyError, match=r"'bank'.*limits\.kept_bytes"):
        store(2)
    calls.run(("parts.settle", {"saved": "m0", "keep": ""}))
    store(2)
