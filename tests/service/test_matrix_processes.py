"""Programs over a matrix whose parties are processes: kill -9 of a party or of the coordinator, and the same model."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import tablepuppet as tp
from tests import warm
from tests.learn.materialised import ALL, JOIN, shop
from tests.service import dying
from tests.service.processes import Services

SQL = f"SELECT {ALL}, o.returned {JOIN}"
ONE = "SELECT o.price, o.quantity, o.returned FROM orders o"
DYING = (sys.executable, dying.__file__)
Numbers = NDArray[np.float64]


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    folder = tmp_path_factory.mktemp("services")
    with Services(folder, shop(1, orders=100), of_tables="matrix = true", command=DYING) as found:
        yield found


def opened(services: Services, sql: str = SQL, plan: Any = "heuristic") -> tuple[Any, Numbers]:
    relation = services.federation(wire="float64", timeout=240.0).sql(sql, label="returned")
    return relation.matrix(plan=plan), relation.label().astype(np.float64)


def fitted(services: Services) -> Numbers:
    x, y = opened(services)
    return np.asarray(tp.linalg.lm(x, y).coef, np.float64)


def clustered(services: Services) -> Numbers:
    return tp.linalg.kmeans(np.tanh(opened(services)[0]), k=3, runs=2, max_iter=4).centres


def separated(services: Services) -> Numbers:
    x, y = opened(services, ONE, "parties")
    return np.asarray(tp.linalg.l2svm(x, y).coef, np.float64)


PROGRAMS: dict[str, tuple[Callable[[Services], Numbers], list[str]]] = {
    "lm": (fitted, ["matrix.gram", "matrix.sums_by", "matrix.times"]),
    "kmeans": (clustered, ["matrix.apply", "matrix.times", "matrix.sums_by"]),
    "l2svm": (separated, ["matrix.keep_times", "matrix.kept_sums", "matrix.sums_by"]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_party_killed_in_a_program(services: Services, name: str) -> None:
    """Before it has computed each kind of step, and before it has sent the reply: what it keeps, functions of columns
    and vectors among it, comes back through its journal, and the model is the same.
    """
    program, ops = PROGRAMS[name]
    expected, plan = program(services), services.folder / "store0.dies"
    deaths = [f"{moment} {op}" for op in ops for moment in dying.MOMENTS]
    plan.write_text("\n".join(deaths))
    with services.parties["store0"].restarted(len(deaths)) as codes:
        found = program(services)
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert codes == [-signal.SIGKILL] * len(deaths)


SCRIPT = """
import json, os, signal, sys
import tablepuppet as tp
from tests import warm
from tablepuppet.algebra.linalg.progress import Progress

federation, sql, folder, rounds = sys.argv[1:]
written, write = 0, Progress.write

def dies(self, **state):
    global written
    write(self, **state)
    written += 1
    if written == int(rounds):
        os.kill(os.getpid(), signal.SIGKILL)

Progress.write = dies
fed = tp.Federation.load(federation)
model = tp.linalg.kmeans(fed.sql(sql).matrix(), k=5, runs=6, max_iter=9, folder=folder)
print(json.dumps({"centres": model.centres.tolist(), "rounds": written, "trips": fed.engine.traffic.trips}))
"""


def run_script(services: Services, folder: Path, rounds: int) -> subprocess.CompletedProcess[str]:
    federation = services.write_federation(wire="float64", timeout=240.0)
    told = [str(federation), f"SELECT {ALL} {JOIN}", str(folder), str(rounds)]
    return warm.run([sys.executable, "-c", SCRIPT, *told], timeout=240)


def test_a_coordinator_killed_in_a_program(services: Services, tmp_path: Path) -> None:
    """After two rounds of k-means: started again, it goes on with the third, and ends as one that was not killed.

    The slowest of six runs takes six rounds or more, whatever order blinded keys give the joined rows.
    """
    whole = json.loads(run_script(services, tmp_path / "whole", 0).stdout)
    assert whole["rounds"] > 3
    killed = run_script(services, tmp_path / "run", 2)
    assert killed.returncode == -signal.SIGKILL
    again = json.loads(run_script(services, tmp_path / "run", 0).stdout)
    np.testing.assert_allclose(again["centres"], whole["centres"], atol=1e-12)
    assert again["rounds"] == whole["rounds"] - 2
    assert again["trips"] < whole["trips"]
