"""Jobs with networks across parties: a coordinator that is killed in the middle goes on to the same model."""

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

pytest.importorskip("pytorch_tabnet", reason="networks need the extra `deep`")

DYING = (sys.executable, dying.__file__)
NETWORK = 'bottom = { kind = "mlp", hidden = [4], embedding = 3 }\ntop = [4]\nbatch_size = 50\n'
LEARNERS = {
    "SplitNNClassifier": (NETWORK + "epochs = 4", ["fit 2"]),
    "FedOnceClassifier": (NETWORK + "embedding = 3\nguest_epochs = 4\nepochs = 3\nrounds = 3", ["guests 1", "fit 4"]),
    "TabVFLClassifier": (
        "latent = 5\nsteps = 2\npretrain_epochs = 2\nepochs = 2\nbatch_size = 100",
        ["pretrain 1", "fit 1"],
    ),
}
"""Settings in a job file, and after which events the coordinator is killed."""


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    allowed = "embeddings = { max_width = 30, max_epochs = 400 }"
    with Services(tmp_path_factory.mktemp("services"), shop(1, orders=150), of_tables=allowed) as found:
        yield found


def write_job(services: Services, kind: str, output: str) -> str:
    federation = services.write_federation(wire="float64", timeout=240.0)
    path = services.folder / f"{output}.toml"
    path.write_text(
        f'federation = "{federation.name}"\nsql = """SELECT {ALL}, o.returned {JOIN}"""\nlabel = "returned"\n'
        f'output = "{output}"\n[learner]\nkind = "{kind}"\n{LEARNERS[kind][0]}\n[split]\ntest = 0.2\n'
    )
    return str(path)


def top_of(services: Services, folder: Path) -> Any:
    model: Any = tp.load(folder / "model", services.federation(wire="float64"))
    return model._model.top.theta


@pytest.mark.parametrize("kind", LEARNERS)
def test_a_coordinator_killed_in_the_middle_of_a_run(services: Services, kind: str) -> None:
    """`resume` ends with the metrics and the parameters of an undisturbed run."""
    told = run_command("train", write_job(services, kind, f"{kind}-whole"), "--json")
    assert told.returncode == 0, told.stderr
    whole, expected = json.loads(told.stdout), top_of(services, services.folder / f"{kind}-whole")
    for number, after in enumerate(LEARNERS[kind][1]):
        folder = services.folder / f"{kind}-{number}"
        killed = run_command("train", write_job(services, kind, folder.name), command=DYING, DIES_AFTER=after)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert not (folder / "model").exists()
        resumed = run_command("resume", str(folder), "--json")
        assert resumed.returncode == 0, resumed.stderr
        assert json.loads(resumed.stdout)["metrics"] == whole["metrics"]
        np.testing.assert_array_equal(top_of(services, folder), expected)
