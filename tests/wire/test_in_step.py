"""Functions in step: their trips are shared, they run in order and one at a time, and errors end all of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import tablepuppet as tp
from tablepuppet.party.request import Step
from tablepuppet.wire.in_step import _Turns, in_step, own_clock
from tablepuppet.wire.outbox import Outbox
from tests.relations import federation
from tests.wire.test_outbox import ROWS
from tests.wire.test_outbox import trips as trips  # a fixture


@pytest.fixture
def relation(tmp_path: Path) -> tp.Relation:
    return federation(tmp_path, {"p": ROWS}).sql("SELECT x, c FROM t")


@pytest.fixture
def outbox(relation: tp.Relation) -> Outbox:
    return relation.client.outbox


def asking(outbox: Outbox, name: str, times: int, done: list[str], wrong: int = -1) -> Callable[[], None]:
    """A function that asks a party so many times, one after another, and says each time that it was answered."""

    def work() -> None:
        for number in range(times):
            if number == wrong:
                raise tp.LearnError(f"{name} fails")
            answer = outbox.ask("p", Step("keys.blind", "t"))
            assert answer.read() == {}
            done.append(f"{name}{number}")

    return work


def test_trips_are_shared(outbox: Outbox, trips: list[list[str]]) -> None:
    """Three functions with up to three questions take three trips; whoever has ended is not waited for."""
    done: list[str] = []
    in_step(outbox, [asking(outbox, name, times, done) for name, times in (("a", 1), ("b", 3), ("c", 2), ("d", 0))])
    assert [len(ops) for ops in trips] == [3, 2, 1]
    assert sorted(done) == ["a0", "b0", "b1", "b2", "c0", "c1"]
    first = list(done)
    done.clear()
    in_step(outbox, [asking(outbox, name, times, done) for name, times in (("a", 1), ("b", 3), ("c", 2), ("d", 0))])
    assert done == first
    assert outbox.let_others is None
    asking(outbox, "alone", 2, done)()
    assert len(trips) == 6 + 2


@pytest.mark.parametrize("place", [0, 1, 2])
def test_an_error_ends_all(outbox: Outbox, place: int) -> None:
    """The error of one is raised; the others end at their next question, and no thread is left."""
    done: list[str] = []
    works = [asking(outbox, name, 5, done, 1 if number == place else -1) for number, name in enumerate("abc")]
    with pytest.raises(tp.LearnError, match=f"{'abc'[place]} fails"):
        in_step(outbox, works)
    assert len(done) <= 6
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("in-step")]
    in_step(outbox, [asking(outbox, "z", 1, done)])
    assert done[-1] == "z0"


def test_a_failing_party_is_one_error(outbox: Outbox) -> None:
    """A refused question fails the trip for all who share it; the party's error is raised."""
    done: list[str] = []

    def wrong() -> None:
        outbox.ask("p", Step("keys.blind", "nowhere")).read()

    with pytest.raises(tp.PartyError, match="'nowhere'"):
        in_step(outbox, [asking(outbox, "a", 2, done), wrong])


def test_a_thread_that_has_ended_is_forgotten() -> None:
    """A later thread with the same id does not wait for a turn that never comes."""
    turns = _Turns(2)

    def again() -> None:
        turns.begin(0)
        turns.end(0)
        turns.let_others()  # as a later thread would, which happens to have this id

    thread = threading.Thread(target=again, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()


def test_a_clock_stands_still_while_others_run(outbox: Outbox) -> None:
    """Seconds of all functions add up to no more than those of all together."""
    seconds: list[float] = []

    def work() -> None:
        began = own_clock()
        for _ in range(3):
            time.sleep(0.01)
            outbox.ask("p", Step("keys.blind", "t")).read()
        seconds.append(own_clock() - began)

    began = time.perf_counter()
    in_step(outbox, [work] * 4)
    assert len(seconds) == 4
    assert sum(seconds) <= time.perf_counter() - began
