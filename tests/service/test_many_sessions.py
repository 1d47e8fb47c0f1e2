"""Many sessions at one party: fifty at the same time, and hundreds one after the other."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest

import tablepuppet as tp
from tests.service.processes import Services

ROWS, SESSIONS, CYCLES = 20_000, 50, 200
LIMITS = "[limits]\nsessions = 64\nsessions_per_caller = 64\nconnections_per_caller = 64\nmax_filters = 100"


def table() -> pa.Table:
    rng = np.random.default_rng(0)
    return pa.table({"x": rng.random(ROWS), "z": rng.random(ROWS), "y": rng.random(ROWS)})


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    tables = {"items": table()}
    built = Services(tmp_path_factory.mktemp("many"), {"store": tables})
    built.parties["store"].write(built.urls["store"], tables, built.certificates.files("store"), LIMITS)
    with built:
        yield built


def test_fifty_sessions_at_once(services: Services) -> None:
    """Each of fifty sessions that are open together gets what belongs to it."""
    values = table()["x"].to_numpy()
    all_open = threading.Barrier(SESSIONS)

    federations = [services.federation(timeout=120.0) for _ in range(SESSIONS)]

    def one(number: int) -> None:
        try:
            relation = federations[number].sql(f"SELECT x, z FROM items WHERE x > {number / 100}")
        except tp.TablePuppetError:
            all_open.abort()
            raise
        passing = values[values > number / 100]
        all_open.wait(timeout=200)
        described = relation.describe().to_arrow().to_pylist()
        assert len(relation) == len(passing)
        assert described[0]["mean"] == pytest.approx(passing.mean())

    with ThreadPoolExecutor(SESSIONS) as pool:
        failed = [done.exception() for done in [pool.submit(one, number) for number in range(SESSIONS)]]
    assert [error for error in failed if not isinstance(error, threading.BrokenBarrierError | None)] == []


def test_sessions_leave_nothing_behind(services: Services) -> None:
    """After hundreds of sessions the party has no more memory and files than after some."""
    party, fed = services.parties["store"], services.federation()

    def cycle() -> None:
        relation = fed.sql("SELECT x, z, y FROM items")
        assert len(relation) == ROWS
        relation._session.close()

    tp.LinearRegression().fit(fed.sql("SELECT x, z, y FROM items", label="y"))
    for _ in range(20):
        cycle()
    memory, files = party.memory(), party.open_files()
    for _ in range(CYCLES):
        cycle()
    assert party.memory() - memory < 32 << 20  # a session's rows, 200 times, would be 96 MB
    assert party.open_files() - files <= 2
