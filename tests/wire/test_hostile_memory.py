"""Memory against a hostile analyst: no small request, and no number of them at once, makes a party take much of it."""

from __future__ import annotations

import itertools
import threading
import time
import tracemalloc
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

import tablepuppet as tp
import tablepuppet.learn.party_ops
from tablepuppet.learn.tables.linear import Linear
from tablepuppet.party import allowance, grant
from tablepuppet.party.request import Request
from tablepuppet.party.service import Party
from tablepuppet.sql import expression
from tablepuppet.wire.codec import encode
from tablepuppet.wire.flight_server import AS_OBJECTS, InFlight
from tablepuppet.wire.protocol import BusyError
from tests.party.policed import limit
from tests.wire.hostile import Attacker, accounts, write_bank

EVERY, ONCE = np.arange(60), np.ones(60, np.uint8)
VIEW = {"view": "v", "encoding": "e"}


def encoded(folder: Path, limits: str = "", sql: str = "SELECT amount FROM cards", **settings: str) -> Attacker:
    """An analyst with an open session whose rows are encoded."""
    attacker = Attacker(write_bank(folder, limits=limits, **settings))
    attacker.open("s", attacker.scan(sql))
    attacker.use("s", "v", EVERY, ONCE)
    build = {"columns": ["amount"], "means": np.zeros(1), "scales": np.ones(1), "categories": [], "private": True}
    attacker.run("s", "encode.build", **VIEW, **build)
    return attacker


def ask(attacker: Attacker, session: str, op: str, outputs: int, **arguments: Any) -> dict[str, Any]:
    theta = np.ones((1, outputs) if outputs > 1 else 1)
    return attacker.run(session, op, **VIEW, spec=Linear(outputs), theta=theta, **arguments)


def test_a_row_is_named_no_more_often_than_there_are_rows(tmp_path: Path) -> None:
    """One byte of a request for each place of a batch, or rank of a split, took eight or more for each column."""
    attacker = encoded(tmp_path)
    often = np.zeros(61, np.uint8)
    for op, given in (("model.apply", {}), ("model.gradient", {"rows": np.ones(61)})):
        with pytest.raises(tp.PartyError, match="61 places are more than the 60 rows"):
            ask(attacker, "s", op, 1, places=often, **given)
    with pytest.raises(tp.PartyError, match="60 rows that take part, and no more"):
        attacker.run("s", "rows.sample", view="v", ranks=often)
    assert ask(attacker, "s", "model.apply", 1, places=often[:60])["outputs"].shape == (60,)


def test_a_noisy_reply_is_bounded_before_it_is_made(tmp_path: Path) -> None:
    """60,000 rows with 3,000 noisy predictions each took 5.6 GB and minutes, were charged, and then refused."""
    budget = "[tables.cards.budget]\nepsilon = 1000.0\nrequire_dp = false"
    for limits, words in ((f"reply_bytes = {60 * 8 * 99}", "reply_bytes"), ("memory_bytes = 190000", "memory_bytes")):
        attacker = encoded(tmp_path / words, limits, more=budget)
        noise = {"multiplier": 1.0, "bound": 1.0}
        assert ask(attacker, "s", "model.apply", 2, noise=noise)["outputs"].shape == (60, 2)
        assert attacker.desk.party._ledger is not None
        before = attacker.desk.party._ledger.spent("cards")
        with pytest.raises(tp.PartyError, match=rf"limits\.{words}"):
            ask(attacker, "s", "model.apply", 100, noise=noise)
        assert attacker.desk.party._ledger.spent("cards") == before


def test_copies_of_a_long_text_are_bounded(tmp_path: Path) -> None:
    """A row may be listed as often as it is joined, but not so often that its text fills the memory."""
    rows = accounts().set_column(2, "code", pa.array(["x" * 50_000, *(f"C{i}" for i in range(59))]))
    attacker = Attacker(write_bank(tmp_path, rows, limits=f"memory_bytes = {4 << 20}"))
    text = attacker.file.read_text().replace('code = ["key", "feature", "filter"]', 'code = ["feature", "id"]')
    attacker.file.write_text(text)
    attacker.restart()
    attacker.open("s", attacker.scan("SELECT code FROM cards"))
    attacker.use("s", "v", np.r_[EVERY, np.zeros(90, np.int64)], np.ones(150, np.uint8))
    asked = {"column": "code", "family": "text", "blinding": "b", "most": None}
    for op, given in (("statistics.categories", asked), ("rows.ids", {"columns": ["code"]})):
        with pytest.raises(tp.PartyError, match=r"limits\.memory_bytes"):
            attacker.run("s", op, view="v", **given)
    attacker.use("s", "w", EVERY, ONCE)
    assert len(attacker.run("s", "rows.ids", view="w", columns=["code"])["lengths0"]) == 60


def test_replies_that_are_kept_count(tmp_path: Path) -> None:
    """The last reply of every session is kept to be sent again: all of them are in the caller's memory."""
    attacker = encoded(tmp_path, "memory_bytes = 350000")
    account = attacker.desk.party._account("analyst")
    before = account.total
    assert ask(attacker, "s", "model.apply", 400)["outputs"].nbytes == 192_000
    assert account.total - before > 192_000
    attacker.open("t", attacker.scan("SELECT amount FROM cards"))
    attacker.use("t", "v", EVERY, ONCE)
    build = {"columns": ["amount"], "means": np.zeros(1), "scales": np.ones(1), "categories": []}
    attacker.run("t", "encode.build", **VIEW, **build)
    with pytest.raises(tp.PartyError, match=r"limits\.memory_bytes"):
        ask(attacker, "t", "model.apply", 400)
    ask(attacker, "s", "model.apply", 1)  # which takes the place of the large one
    assert ask(attacker, "t", "model.apply", 400)["outputs"].nbytes == 192_000
    attacker.send(Request("close", "s"))
    attacker.send(Request("close", "t"))
    assert account.total == 0


def test_a_kept_reply_counts_after_a_restart(tmp_path: Path) -> None:
    """A session that comes back keeps its last reply too, where there is room."""
    attacker = encoded(tmp_path)
    first = ask(attacker, "s", "model.apply", 400)
    for limits, fits in (("", True), ("memory_bytes = 100000", False)):
        write_bank(tmp_path, limits=limits)
        attacker.restart()
        attacker.sent["s"] -= 1
        if fits:
            assert np.array_equal(ask(attacker, "s", "model.apply", 400)["outputs"], first["outputs"])
            assert attacker.desk.party._account("analyst").total > 192_000
            continue
        with pytest.raises(tp.PartyError, match=r"limits\.memory_bytes"):
            ask(attacker, "s", "model.apply", 400)


def test_requests_of_a_caller_are_computed_some_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes memory while it is computed; the others of this caller wait, and those of other callers do not."""
    attacker = encoded(tmp_path, "work_per_caller = 2")
    party, goes_on = attacker.desk.party, threading.Event()
    inside: list[str] = []
    both = threading.Semaphore(0)

    def slow(self: Party, caller: str) -> list[Any]:
        inside.append(caller)
        both.release()
        assert goes_on.wait(60)
        return []

    monkeypatch.setattr(Party, "describe", slow)
    callers = ["analyst"] * 4 + ["auditor"]
    threads = [threading.Thread(target=party.answer, args=(caller, Request("describe"))) for caller in callers]
    for thread in threads:
        thread.start()
    for _ in range(3):
        assert both.acquire(timeout=60)
    assert not both.acquire(timeout=0.5)
    assert sorted(inside) == ["analyst", "analyst", "auditor"]
    goes_on.set()
    for thread in threads:
        thread.join()
    assert len(inside) == 5


def test_waiting_takes_time_of_the_request(tmp_path: Path) -> None:
    """Whoever waits for too long is told so."""
    attacker = encoded(tmp_path, "work_per_caller = 1")
    party = attacker.desk.party
    limit(party, request_seconds=0.1)
    with party._at_work("analyst"), pytest.raises(tp.PartyError, match=r"limits\.request_seconds"):
        attacker.send(Request("describe"))
    limit(party, request_seconds=None)
    attacker.send(Request("describe"))


def test_bytes_of_requests_at_once() -> None:
    """Many large requests at the same time hold no more than one may; a single one is bounded elsewhere."""
    flying = InFlight("bank", 1000)
    with ExitStack() as stack:
        first = stack.enter_context(flying.request("analyst"))
        first(100)
        first(1000)  # its own header is not in its way
        second = stack.enter_context(flying.request("analyst"))
        with pytest.raises(BusyError, match=r"'bank' is busy.*'analyst'.*limits\.message_bytes"):
            second(1)
        stack.enter_context(flying.request("auditor"))(900)
    with flying.request("analyst") as grow:
        grow(1000)
    assert not flying._held


def test_the_header_of_a_request_is_counted_as_objects() -> None:
    """A header of small things takes more memory than it has bytes; of what it becomes, little is not counted."""
    header = encode([{} for _ in range(100_000)]).header
    tracemalloc.start()
    read = msgspec.msgpack.decode(header)
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(read) == 100_000
    assert used < 1.5 * AS_OBJECTS * len(header)


# Expressions


@pytest.mark.parametrize("text", ["amount IN (" + "1, " * 40_000 + "1)", "amount IN (" + "1" * 200_000 + ")"])
def test_long_expressions_are_refused(tmp_path: Path, text: str) -> None:
    """DuckDB took 7 KB of memory to read a value of a list: a request of 4 MB took all that a machine has."""
    attacker = Attacker(write_bank(tmp_path))
    with pytest.raises(tp.QueryError, match="put a long list of values into a table and join it"):
        attacker.open("s", attacker.scan(filters=(text,)))


def test_few_long_expressions_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree of 2 MB was kept for each of the last 4,096 expressions, whoever had sent it and long after."""
    attacker = Attacker(write_bank(tmp_path, limits="max_filters = 1"))
    monkeypatch.setattr(expression, "_checked", expression._Kept(expression.MOST_KEPT_LETTERS))
    for number in range(8):
        text = f"amount IN ({'1, ' * 1000}{' ' * 150_000}{number})"
        with suppress(tp.PrivacyError):
            attacker.open(f"s{number}", attacker.scan("SELECT amount FROM cards", filters=(text,)))
    kept = expression._checked._found
    assert sum(map(len, kept)) <= expression.MOST_KEPT_LETTERS
    assert not any(text.endswith(" 0)") for text in kept)


def test_reading_expressions_takes_the_time_of_a_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a row is read, too: of a scan with more expressions than there is time for, the rest is not read."""
    read = list[str]()

    def reading(text: str) -> tuple[str, ...]:
        read.append(text)
        return expression.columns_of(text)

    now = itertools.count(time.monotonic())  # a second has passed whenever the clock is looked at
    attacker = Attacker(write_bank(tmp_path, limits="request_seconds = 100"))
    scan = attacker.scan(f"SELECT {', '.join(f'amount + {n} AS more{n}' for n in range(400))} FROM cards")
    monkeypatch.setattr(allowance, "time", SimpleNamespace(monotonic=lambda: float(next(now))))
    monkeypatch.setattr(grant, "columns_of", reading)
    with pytest.raises(tp.PartyError, match="request_seconds"):
        attacker.open("s", scan)
    assert 0 < len(read) < 400
