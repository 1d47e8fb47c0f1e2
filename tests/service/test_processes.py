"""Parties as processes, killed and started again: a run ends with its model, or in one clear error."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tablepuppet as tp
from tablepuppet.wire.record import recorded_sessions
from tests import warm
from tests.learn.materialised import ALL, JOIN, shop
from tests.service.processes import COMMAND, Services, run_command

SQL = f"SELECT {ALL}, o.returned {JOIN}"
SETTINGS: dict[str, Any] = {"solver": "sgd", "rounds": 6, "batch_size": 20, "lr": 0.05}


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    with Services(tmp_path_factory.mktemp("services"), shop(1)) as found:
        yield found


def learned(fed: tp.Federation, **settings: Any) -> dict[str, Any]:
    return tp.LogisticRegression(**(SETTINGS | settings)).fit(fed.sql(SQL, label="returned")).coef_


@pytest.fixture(scope="module")
def undisturbed(services: Services) -> dict[str, Any]:
    return learned(services.federation(wire="float64"))


def same(found: dict[str, Any], expected: dict[str, Any]) -> bool:
    return all(np.allclose(found[name], value, atol=1e-9) for name, value in expected.items())


def when(round_number: int, work: Callable[[], None]) -> Callable[[tp.Event], None]:
    """A callback that does something once, after a round."""
    done = threading.Event()

    def callback(event: tp.Event) -> None:
        if event.fields.get("done") == round_number and not done.is_set():
            done.set()
            work()

    return callback


def test_a_party_killed_between_rounds_comes_back(services: Services, undisturbed: dict[str, Any]) -> None:
    """kill -9 and a restart with the same state_dir: the run goes on and ends with the same model."""
    party = services.parties["bank0"]

    def lose() -> None:
        party.kill()
        threading.Timer(0.5, party.start).start()

    fed = services.federation(wire="float64", timeout=60.0)
    assert same(learned(fed, callbacks=[when(3, lose)]), undisturbed)
    assert "restored" in (services.folder / "bank0.log").read_text()


def test_a_party_killed_after_the_mapping_comes_back(services: Services, undisturbed: dict[str, Any]) -> None:
    """Between the join and the first round nothing is lost either."""
    fed = services.federation(wire="float64")
    relation = fed.sql(SQL, label="returned")
    assert len(relation)
    services.parties["supplier0"].kill()
    services.parties["supplier0"].start()
    assert same(tp.LogisticRegression(**SETTINGS).fit(relation).coef_, undisturbed)


def test_a_party_that_stays_away_ends_the_run(services: Services) -> None:
    """One clear error within the timeout, whatever the phase; the others serve on."""
    bank = services.parties["bank0"]
    relation = services.federation(timeout=3.0).sql(SQL, label="returned")
    bank.kill()
    try:
        for ask in (lambda: services.federation(timeout=3.0).sql(SQL), lambda: tp.LogisticRegression().fit(relation)):
            with pytest.raises(tp.PartyError, match=r"'bank0' at .* does not answer within 3 s"):
                ask()
    finally:
        bank.start()
    assert len(services.federation().sql(SQL))


def test_data_that_changed_meanwhile_is_noticed(tmp_path: Path) -> None:
    """A party that comes back with other rows ends the run: half of a model would be of the old ones."""
    parties = shop(1)
    with Services(tmp_path, parties) as services:
        relation = services.federation().sql(SQL, label="returned")
        assert len(relation)
        bank = services.parties["bank0"]
        bank.kill()
        import pyarrow.parquet

        cards = parties["bank0"]["cards"]
        pyarrow.parquet.write_table(cards.slice(1), tmp_path / "bank0" / "cards.parquet")
        bank.start()
        with pytest.raises(tp.PartyError, match="its data, its secrets or the rules of its columns have changed"):
            tp.LogisticRegression().fit(relation)


def test_a_party_stops_cleanly(services: Services) -> None:
    """SIGTERM ends the process with code 0 and its sessions with a line each; waiting callers go on when it is back."""
    bank = services.parties["bank0"]
    fed = services.federation(on_party_lost="wait", timeout=2.0)
    relation = fed.sql(SQL, label="returned")
    assert len(relation)
    assert bank.end() == 0
    assert "stopped" in (services.folder / "bank0.log").read_text()
    threading.Timer(3.0, bank.start).start()
    assert tp.LogisticRegression(rounds=3).fit(relation).history_


def write_job(services: Services, output: str, **learner: Any) -> Path:
    federation = services.write_federation(wire="float64", timeout=5.0)
    settings = "\n".join(f"{name} = {json.dumps(value)}" for name, value in learner.items())
    path = services.folder / f"{output}.toml"
    path.write_text(
        f'federation = "{federation.name}"\nsql = """{SQL}"""\nlabel = "returned"\noutput = "{output}"\n'
        f'[learner]\nkind = "LogisticRegression"\n{settings}\n[split]\ntest = 0.2\n'
    )
    return path


def test_a_coordinator_that_dies_is_resumed(services: Services) -> None:
    """kill -9 of the coordinator: `resume` ends with the model that an undisturbed run has."""
    job = write_job(services, "whole", **SETTINGS)
    whole = run_command("train", str(job), "--json")
    assert whole.returncode == 0, whole.stderr
    job = write_job(services, "broken", **SETTINGS)
    record = services.folder / "broken" / "record" / "bank0.replies"
    process = warm.start([*COMMAND, "train", str(job)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(lambda: record.exists() and record.stat().st_size > 5000)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (services.folder / "broken" / "model").exists()
    resume = [*COMMAND, "resume", str(services.folder / "broken"), "--json"]
    resumed = subprocess.run(resume, capture_output=True, text=True, timeout=240, check=False)
    assert resumed.returncode == 0, resumed.stderr
    assert json.loads(resumed.stdout)["metrics"] == json.loads(whole.stdout)["metrics"]
    again = run_command("resume", str(services.folder / "broken"))
    assert again.returncode == 1
    assert "finished" in again.stderr
    predicted = run_command("predict", str(services.folder / "broken"), "--json")
    assert predicted.returncode == 0, predicted.stderr


def wait_for(happens: Callable[[], bool]) -> None:
    for _ in range(1200):
        if happens():
            return
        time.sleep(0.05)
    raise AssertionError("it did not happen")


def test_a_run_that_loses_a_party_is_resumed(services: Services) -> None:
    """A party that stays away ends the run with a word on how to go on, and that way works."""
    job = write_job(services, "lost", **SETTINGS)
    record = services.folder / "lost" / "record" / "bank0.replies"
    process = warm.start([*COMMAND, "train", str(job)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    wait_for(lambda: record.exists() and record.stat().st_size > 5000)
    services.parties["bank0"].kill()
    _, told = process.communicate(timeout=120)
    services.parties["bank0"].start()
    assert process.returncode == 1
    assert "tablepuppet resume" in told
    resumed = run_command("resume", str(services.folder / "lost"), "--json")
    assert resumed.returncode == 0, resumed.stderr


def test_an_analyst_without_room_resumes(services: Services) -> None:
    """The record cannot grow: one clear error; with room again `resume` ends as an undisturbed run does."""
    whole = run_command("train", str(write_job(services, "roomy", **SETTINGS)), "--json")
    job = write_job(services, "full", **SETTINGS)
    small = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000)); "
    command = [sys.executable, "-c", small + "from tablepuppet.cli import main; main()", "train", str(job)]
    full = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert full.returncode == 1
    told = " ".join(full.stderr.split())
    assert "cannot be written (No space left on device); make room, then `" in told
    assert "goes on from here" in told
    assert "Traceback" not in told
    resumed = run_command("resume", str(services.folder / "full"), "--json")
    assert resumed.returncode == 0, resumed.stderr
    assert json.loads(resumed.stdout)["metrics"] == json.loads(whole.stdout)["metrics"]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_its_user_stops_is_resumed(services: Services, how: signal.Signals) -> None:
    """Ctrl-C and SIGTERM: the record stays, parties keep their sessions, and `resume` asks for nothing twice."""
    whole = run_command("train", str(write_job(services, f"whole-{how.name}", **SETTINGS)), "--json")
    output = services.folder / f"stopped-{how.name}"
    stop(services, write_job(services, output.name, **SETTINGS), how)
    answered = (output / "record" / "bank0.replies").read_bytes()
    refused = run_command("evaluate", str(output))
    assert refused.returncode == 1
    assert f"tablepuppet resume {output}" in refused.stderr
    assert not (services.folder / "bank0.log").read_text().strip().endswith("closed")
    resumed = run_command("resume", str(output), "--json")
    assert resumed.returncode == 0, resumed.stderr
    assert json.loads(resumed.stdout)["metrics"] == json.loads(whole.stdout)["metrics"]
    assert len(answered) > 5000


def test_a_stopped_run_that_is_given_up(services: Services) -> None:
    """A new run in its folder ends the sessions that parties keep for it."""
    job = write_job(services, "given-up", **SETTINGS)
    stop(services, job, signal.SIGINT)
    [session] = recorded_sessions(services.folder / "given-up" / "record")
    assert run_command("train", str(job)).returncode == 1
    done = run_command("train", str(job), "--overwrite")
    assert done.returncode == 0, done.stderr
    assert f"session {session[:8]}… of analyst: closed" in (services.folder / "bank0.log").read_text()


def stop(services: Services, job: Path, how: signal.Signals) -> None:
    """Train a job, and stop it when it is well under way."""
    record = job.with_suffix("") / "record" / "bank0.replies"
    process = warm.start(
        [*COMMAND, "train", str(job)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    wait_for(lambda: record.exists() and record.stat().st_size > 5000)
    process.send_signal(how)
    _, told = process.communicate(timeout=120)
    assert process.returncode == 128 + how, told
    last = told.splitlines()[-1]
    assert last == f"stopped; `tablepuppet resume {job.with_suffix('')}` goes on from here"


def test_policies_hold_over_the_wire(services: Services, tmp_path: Path) -> None:
    """A caller that no party allows is told the rule, and the party's log has it."""
    stranger = services.federation(tls=services.certificates.client("stranger"))
    with pytest.raises(tp.PrivacyError, match=r"(?s)'stranger'.*allow"):
        stranger.catalog()
    lines = (services.folder / "store0.jsonl").read_text().splitlines()
    assert any(json.loads(line)["outcome"] == "denied" for line in lines)
