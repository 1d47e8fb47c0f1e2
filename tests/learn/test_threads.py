"""How parties of one process share its cores, and how many trips a fit makes."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import scipy.linalg  # noqa: F401 - which has a BLAS of its own
from threadpoolctl import ThreadpoolController

import tablepuppet as tp
from benchmarks.learning.trips import counted
from tablepuppet.learn.threads import one_thread
from tablepuppet.pieces import cores
from tablepuppet.prep.encode.encoded_table import EncodedTable
from tests.relations import federation

ROWS = 60
JOIN = "SELECT o.size, c.age, o.price FROM orders o JOIN clients c ON o.client = c.id"


def shop(folder: Path, shards: int = 1) -> tp.Federation:
    """Orders of one party and clients of another, the latter in shards."""
    rng = np.random.default_rng(0)
    orders = {"client": rng.integers(0, 20, ROWS), "size": rng.normal(size=ROWS), "price": rng.normal(size=ROWS)}
    clients = pa.table({"id": np.arange(20), "age": rng.normal(size=20)})
    parties = {"seller": {"orders": pa.table(orders)}}
    parties |= {
        f"bank{shard}": {"clients": clients.slice(shard * 20 // shards, 20 // shards)} for shard in range(shards)
    }
    return federation(folder, parties)


def blas_threads() -> list[int]:
    return [entry["num_threads"] for entry in ThreadpoolController().info() if entry["user_api"] == "blas"]


def set_blas_threads(threads: int) -> None:
    for library in ThreadpoolController().select(user_api="blas").lib_controllers:
        library.clear_controlling_thread(force=True)
        library.set_num_threads(threads)


@pytest.fixture
def two_threads() -> Iterator[None]:
    """BLAS has two threads, which it has not in tests."""
    before = blas_threads()
    set_blas_threads(2)
    yield
    set_blas_threads(before[0])


@pytest.mark.skipif(cores() < 2, reason="on one core parties work one after the other")
def test_parties_work_at_the_same_time_with_one_thread_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, two_threads: None
) -> None:
    """Two tables' products wait for each other and so must run together, each with one BLAS thread; a fit leaves the
    number of threads as it was.
    """
    relation, together, seen = shop(tmp_path).sql(JOIN, label="price"), threading.Barrier(2), []
    times = EncodedTable.times

    def meet(table: EncodedTable, theta: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> object:
        together.wait(timeout=30)
        seen.extend(blas_threads())
        return times(table, theta)

    monkeypatch.setattr(EncodedTable, "times", meet)
    tp.LinearRegression(rounds=3, tol=0.0).fit(relation)
    assert seen
    assert set(seen) == {1}
    assert set(blas_threads()) == {2}


def test_whoever_asks_has_one_thread(two_threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """BLAS: not only the thread that was the first to ask; also if another one leaves last. Libraries that are loaded
    later are held too.
    """
    seen = list[int]()

    def work(*waits: threading.Event) -> None:
        with one_thread():
            waits[0].set()
            waits[1].wait(timeout=30)
            seen.extend(blas_threads())

    for _ in range(2):
        first, second = threading.Event(), threading.Event()
        threads = [threading.Thread(target=work, args=each) for each in ((first, second), (second, first))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=30)
        assert set(blas_threads()) == {2}
    assert seen
    assert set(seen) == {1}
    with one_thread():
        set_blas_threads(2)  # as those of a new library are
        monkeypatch.setitem(sys.modules, "tests.learn.of_a_new_library", threading)
        with one_thread():
            assert set(blas_threads()) == {1}
    assert set(blas_threads()) == {2}


@pytest.mark.parametrize(("shards", "trips"), [(1, 1), (2, 2)])
def test_trips_of_a_round(tmp_path: Path, shards: int, trips: int) -> None:
    """A round is one trip, and two with several shards of a table whose Gram matrices add up; benchmarks count them."""
    fed, made = shop(tmp_path, shards), []
    traffic = fed.engine.traffic
    model = tp.LinearRegression(solver="lbfgs", tol=0.0, callbacks=[lambda _: made.append(traffic.trips)], rounds=4)
    with counted() as seen:
        model.fit(fed.sql(JOIN, label="price"))
    assert len(seen.made) == traffic.trips
    assert sum(size for _, size in seen.made) == traffic.bytes
    rounds = [later - earlier for earlier, later in itertools.pairwise(made)][: len(model.history_) - 1]
    assert rounds
    assert set(rounds) == {trips}
