"""kill -9 of each party in each phase of a run, and of the coordinator in each step of its save: the same model."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tablepuppet as tp
from tests.learn.materialised import ALL, JOIN, shop
from tests.service import dying
from tests.service.processes import Services, run_command

SQL = f"SELECT {ALL}, o.returned {JOIN}"
DYING = (sys.executable, dying.__file__)
PHASES = {"open": "keys.blind", "mapping": "rows.use", "round": "ridge.advance", "save": "parts.store"}
"""Phases of a run, and an op that a party is asked for in them first."""


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    with Services(tmp_path_factory.mktemp("services"), shop(1, orders=100), command=DYING) as found:
        yield found


def saved(services: Services, path: Path) -> dict[str, Any]:
    """Coefficients of a model that was fitted and saved over the parties, and loaded again."""
    fed = services.federation(wire="float64", timeout=240.0)
    tp.LogisticRegression(rounds=4).fit(fed.sql(SQL, label="returned")).save(path)
    return loaded(services, path)


def loaded(services: Services, path: Path) -> dict[str, Any]:
    coefficients: dict[str, Any] = tp.load(path, services.federation(wire="float64", timeout=240.0)).coef_
    return coefficients


def parts(services: Services) -> int:
    """How many parts of saved models parties keep."""
    return sum(len([*(party.state / "models").rglob("*.part")]) for party in services.parties.values())


def check_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=1e-9)


@pytest.fixture(scope="module")
def undisturbed(services: Services, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return saved(services, tmp_path_factory.mktemp("undisturbed") / "model")


@pytest.mark.parametrize("name", ["store0", "supplier0", "bank0"])
def test_a_party_killed_in_every_phase(
    services: Services, undisturbed: dict[str, Any], tmp_path: Path, name: str
) -> None:
    """In each phase killed before it has computed a request, started, killed before it has sent the reply, started: the
    run goes on and ends with the same model.
    """
    plan, before = services.folder / f"{name}.dies", parts(services)
    deaths = [f"{moment} {op}" for op in PHASES.values() for moment in dying.MOMENTS]
    plan.write_text("\n".join(deaths))
    with services.parties[name].restarted(len(deaths)) as codes:
        check_same(saved(services, tmp_path / "model"), undisturbed)
    assert codes == [-signal.SIGKILL] * len(deaths)
    assert plan.read_text() == ""
    assert parts(services) == before + len(services.parties)


def write_job(services: Services, output: str) -> str:
    federation = services.write_federation(wire="float64", timeout=240.0)
    path = services.folder / f"{output}.toml"
    path.write_text(
        f'federation = "{federation.name}"\nsql = """{SQL}"""\nlabel = "returned"\noutput = "{output}"\n'
        '[learner]\nkind = "LogisticRegression"\nrounds = 4\n[split]\ntest = 0.2\n'
    )
    return str(path)


@pytest.fixture(scope="module")
def whole(services: Services) -> Any:
    """What an undisturbed run of the job tells."""
    told = run_command("train", write_job(services, "whole"), "--json")
    assert told.returncode == 0, told.stderr
    return json.loads(told.stdout)


@pytest.mark.parametrize("step", dying.SAVE)
def test_a_coordinator_killed_in_a_step_of_its_save(services: Services, whole: Any, step: str) -> None:
    """kill -9 of `train` before each step of its save: `resume` ends with the model of an undisturbed run, and parties
    keep one part of it.
    """
    before, folder = parts(services), services.folder / f"before-{step}"
    killed = run_command("train", write_job(services, folder.name), command=DYING, DIES_BEFORE=step)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert (folder / "model" / "saving.json").exists()
    resumed = run_command("resume", str(folder), "--json")
    assert resumed.returncode == 0, resumed.stderr
    assert json.loads(resumed.stdout) | {"run": whole["run"]} == whole
    check_same(loaded(services, folder / "model"), loaded(services, services.folder / "whole" / "model"))
    assert parts(services) == before + len(services.parties)
    assert not (folder / "model" / "saving.json").exists()
    assert not (folder / "record").exists()
