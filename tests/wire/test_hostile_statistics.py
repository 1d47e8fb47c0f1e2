"""Statistics against a hostile analyst: counted where they tell of rows, and bounded in time, memory and reply."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tablepuppet as tp
import tablepuppet.learn.party_ops
from tablepuppet.party.allowance import Allowance, allowed
from tablepuppet.party.policy import CallerLimits
from tablepuppet.prep.encode.frame import Frame
from tablepuppet.prep.encode.program import run
from tablepuppet.prep.encode.specs import FittedStep, Scale
from tests.wire.hostile import Attacker, accounts, write_bank

ROWS = 60
ONE_MORE = np.r_[2, np.ones(ROWS - 1, np.int32)].astype(np.int32)
NO_DIGESTS = np.zeros((0, 16), np.uint8)


def opened(folder: Path, sql: str = "SELECT amount FROM cards", rows: int = ROWS, **settings: str) -> Attacker:
    """An analyst with a session ``s``, all of whose rows take part once in view ``v``."""
    attacker = Attacker(write_bank(folder, accounts(rows), **settings))
    attacker.open("s", attacker.scan(sql, keys=()))
    attacker.run("s", "rows.use", view="v", chosen=None, counts=np.ones(rows, np.uint8))
    return attacker


def test_time_is_looked_at_between_the_steps_of_a_pipeline(tmp_path: Path) -> None:
    """Any number of steps may be asked for; the first one after the limit is not begun."""
    attacker = opened(tmp_path)
    frame = Frame(attacker.desk.party.table("s", "cards", "analyst"), "v", "b", {})
    steps: list[FittedStep] = [Scale("amount", 0.0, 1.0)]
    run(steps, frame)
    with (
        allowed(Allowance("bank", CallerLimits(request_seconds=0.0))),
        pytest.raises(tp.PartyError, match="request_seconds"),
    ):
        run(steps, frame)


def buckets(attacker: Attacker, view: str, *prefixes: int, depth: int) -> dict[str, Any]:
    given = {"places": np.zeros(len(prefixes), np.int32), "prefixes": np.array(prefixes, np.uint64), "depth": depth}
    return attacker.run("s", "statistics.buckets", view=view, columns=["amount"], **given)


def test_counts_of_rows_are_other_rows(tmp_path: Path) -> None:
    """With one row counted twice, cells tell where it is. Listed in another order, the same counts are of another row:
    that is another refinement, and in the same order, however it is written, it is not.
    """
    attacker = opened(tmp_path, limits="max_refinements = 2")
    every = np.arange(ROWS)
    [prefix] = buckets(attacker, "v", 0, depth=0)["nexts"].tolist()
    for number, (order, counts) in enumerate(
        ((every, ONE_MORE), (every[::-1], ONE_MORE[::-1]), (every, ONE_MORE.astype(np.uint8)), (every[::-1], ONE_MORE))
    ):
        attacker.use("s", f"w{number}", order, counts)
        buckets(attacker, f"w{number}", prefix, depth=1)
    attacker.use("s", "next", np.roll(every, 7), ONE_MORE)
    with pytest.raises(tp.PrivacyError, match=r"has had 2 refined histograms.*rule max_refinements"):
        buckets(attacker, "next", prefix, depth=1)


def test_a_bucket_is_named_once(tmp_path: Path) -> None:
    """A request of some bytes for each could ask for the same reply 65,536 times."""
    attacker = opened(tmp_path)
    [prefix] = buckets(attacker, "v", 0, depth=0)["nexts"].tolist()
    with pytest.raises(tp.PartyError, match="name each bucket once"):
        buckets(attacker, "v", prefix, prefix, depth=1)


@pytest.mark.parametrize(
    ("op", "given"),
    [
        ("statistics.numbers", {"columns": ["amount", "more"]}),
        ("statistics.numbers", {"columns": ["amount", "more"], "shape": True}),
        ("statistics.ids", {"columns": ["amount", "more"]}),
        ("statistics.products", {"columns": ["amount", "more"]}),
        ("columns.numbers", {"columns": ["amount", "more"]}),
        ("statistics.buckets", {"columns": ["amount"], "places": np.zeros(200, np.int32),
                                "prefixes": np.arange(200, dtype=np.uint64), "depth": 1}),
        ("statistics.crosstab", {"columns": ["code", "half"], "families": ["text", "number"], "blinding": "b",
                                 "most": 1000, "first_pool": NO_DIGESTS, "second_pool": NO_DIGESTS}),
        ("statistics.groups", {"columns": ["amount", "code"], "family": "text", "blinding": "b", "most": 1000,
                               "pool": NO_DIGESTS, "pool_missing": False}),
    ],
)  # fmt: skip
def test_time_is_looked_at_within_an_op(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, op: str, given: dict[str, Any]
) -> None:
    """One op over many columns, buckets or categories ends when the time of its request is up."""
    sql = "SELECT amount, amount * 2 AS more, code, CAST(floor(amount / 2) AS INTEGER) AS half FROM cards"
    attacker = opened(tmp_path, sql, table="cross_statistics = true\nmin_group = 1")
    attacker.run("s", op, view="v", **given)
    looks: list[int] = []

    def ends_later() -> None:
        looks.append(1)
        if len(looks) == 2:
            raise tp.PartyError("time is up")

    monkeypatch.setattr("tablepuppet.party.local_table.check_time", ends_later)
    for module in ("correlation", "distribution", "pooled"):
        monkeypatch.setattr(f"tablepuppet.prep.explore.{module}.check_time", ends_later)
    with pytest.raises(tp.PartyError, match="time is up"):
        attacker.run("s", op, view="v", **given)


def test_products_take_little_memory(tmp_path: Path) -> None:
    """Booleans are a bit in memory and eight bytes as numbers: not all of them are numbers at once."""
    rows, names = 50_000, [f"b{number}" for number in range(60)]
    conditions = ", ".join(f"amount > {number * 1000} AS {name}" for number, name in enumerate(names))
    attacker = opened(tmp_path, f"SELECT {conditions} FROM cards", rows)
    tracemalloc.start()
    moments = attacker.run("s", "statistics.products", view="v", columns=names)["moments"]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert moments[0, 0, 0] == rows
    assert peak < 8 * rows * len(names) * 4  # all at once took seven times their bytes as numbers


def test_sent_columns_are_bounded_before_they_are_made(tmp_path: Path) -> None:
    """One number per row and column: what may not be sent is not made."""
    attacker = opened(tmp_path, limits="reply_bytes = 20000", table="cross_statistics = true", rows=3000)
    tracemalloc.start()
    with pytest.raises(tp.PartyError, match=r"limits\.reply_bytes"):
        attacker.run("s", "columns.numbers", view="v", columns=["amount"])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 24_000 * 6
    with pytest.raises(tp.PartyError, match=r"limits\.reply_bytes"):
        buckets(attacker, "v", *range(60_000), depth=2)


def test_rows_that_are_listed_often_take_room_as_numbers(tmp_path: Path) -> None:
    """A bit of each is a number, or six, to an op."""
    attacker = opened(tmp_path, "SELECT amount > 3 AS x FROM cards", limits="memory_bytes = 1000000")
    for often, fits in ((200, True), (700, False)):
        listed = np.tile(np.arange(ROWS), often)
        attacker.use("s", "w", listed, np.ones(len(listed), np.uint8))
        if fits:
            attacker.run("s", "statistics.numbers", view="w", columns=["x"], shape=True)
            continue
        with pytest.raises(tp.PartyError, match=r"limits\.memory_bytes"):
            attacker.run("s", "statistics.numbers", view="w", columns=["x"], shape=True)
