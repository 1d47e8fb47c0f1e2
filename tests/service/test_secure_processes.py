"""Secure sums between three parties as processes, each with its own certificate, over mutual TLS."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tablepuppet as tp
from tablepuppet.runs.event_file import FAILED
from tests import warm
from tests.learn.materialised import ALL, JOIN, shop
from tests.relations import federation
from tests.service.processes import COMMAND, PartyProcess, Services, run_command
from tests.service.test_processes import SETTINGS, wait_for, write_job

SECURE = tp.Privacy(secure_sum=True)
SHOP = shop(3, together=True)
PEERS = f"peers = {json.dumps(list(SHOP))}"


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    with Services(tmp_path_factory.mktemp("services"), SHOP, PEERS, "secure_sum = true") as found:
        yield found


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> tp.Federation:
    return federation(tmp_path_factory.mktemp("here"), SHOP, wire="float64")


def relation(fed: tp.Federation, label: str) -> tp.Relation:
    return fed.sql(f"SELECT {ALL}, o.{label} {JOIN}", label=label)


@pytest.mark.parametrize(
    ("make", "label", "settings"),
    [
        (tp.LinearRegression, "paid", {}),
        (tp.LogisticRegression, "returned", {}),
        (tp.LogisticRegression, "grade", {"inner_rounds": 2}),
        (tp.MLPClassifier, "returned", {"rounds": 5, "hidden": (6,)}),
    ],
)
def test_models_are_those_without(
    services: Services, here: tp.Federation, make: Any, label: str, settings: dict[str, Any]
) -> None:
    """The model of three processes that mask their sums is that of the same tables in one process, unmasked."""
    fed = services.federation(wire="float64")
    plain, secure = (
        make(**settings).fit(relation(here, label)),
        make(privacy=SECURE, **settings).fit(relation(fed, label)),
    )
    found, expected = secure._model.parameters(), plain._model.parameters()
    within = 1e-4 if label == "grade" else 1e-5  # what all classes share is held by the penalty of 1e-6 alone
    for name, theta in expected.items():  # categories of one frequency may stand in another order
        np.testing.assert_allclose(np.sort(found[name], axis=0), np.sort(theta, axis=0), atol=within)
    assert secure.evaluate(relation(fed, label)) == pytest.approx(plain.evaluate(relation(here, label)), abs=1e-6)


def audit(services: Services, party: str) -> list[dict[str, Any]]:
    log = services.folder / f"{party}.jsonl"  # a party that was asked for nothing has none
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def test_a_coordinator_that_forgets_is_refused(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parties' files demand secure sums, so nothing is told without; their audit logs say why."""
    monkeypatch.setattr("tablepuppet.learn.learners.planner.check_sums_demanded", lambda plan, privacy: None)
    with pytest.raises(tp.PrivacyError, match="secure_sum"):
        tp.LinearRegression().fit(relation(services.federation(), "paid"))
    assert any(line["rule"] == "secure_sum" for line in audit(services, "owner0"))


def test_a_job_that_forgets_is_refused_before_a_party_reads(services: Services) -> None:
    """A job file is held against what parties demand when they say what they publish."""
    before = len(audit(services, "owner0"))
    done = run_command("train", str(write_job(services, "without", **SETTINGS)), "--json")
    assert done.returncode != 0
    assert "privacy=tp.Privacy(secure_sum=True) (policy rule secure_sum)" in done.stderr
    verbs = {line["verb"] for line in audit(services, "owner0")[before:]}
    assert verbs - {"close"} == {"describe"}  # a session of an earlier test may close meanwhile
    assert not (services.folder / "without").exists()


def stopped(party: PartyProcess, seconds: float) -> Callable[[tp.Event], None]:
    """A callback that stops a process after the second round, and lets it go on some seconds later."""

    def stop(event: tp.Event) -> None:
        if event.fields.get("round") == 2 and party.process is not None:
            party.process.send_signal(signal.SIGSTOP)
            threading.Timer(seconds, party.process.send_signal, [signal.SIGCONT]).start()

    return stop


def test_a_silent_party_is_waited_for(services: Services) -> None:
    """With on_party_lost="wait" the same request is repeated, for the same roster, until the party answers."""
    fed = services.federation(on_party_lost="wait", timeout=1.0)
    calm = tp.LogisticRegression(privacy=SECURE).fit(relation(services.federation(), "returned"))
    learner = tp.LogisticRegression(privacy=SECURE, callbacks=[stopped(services.parties["owner1"], 4.0)])
    assert learner.fit(relation(fed, "returned")).history_[-1]["loss"] == calm.history_[-1]["loss"]


def test_a_silent_party_ends_a_job(services: Services) -> None:
    """One error, which says why the session ends; there is nothing to resume."""
    job = _job(services, "silent")
    services.write_federation(wire="float64", timeout=2.0)
    party = services.parties["owner1"].process
    assert party is not None
    record = services.folder / "silent" / "record" / "owner1.replies"
    process = warm.start([*COMMAND, "train", str(job)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    wait_for(lambda: record.exists() and record.stat().st_size > 20_000)
    party.send_signal(signal.SIGSTOP)
    try:
        told = " ".join(process.communicate(timeout=120)[1].split())
    finally:
        party.send_signal(signal.SIGCONT)
    assert process.returncode != 0
    assert "would unmask what it holds, so the session ends" in told
    assert "tablepuppet resume" not in told
    assert [path.name for path in (services.folder / "silent").iterdir()] == [FAILED]


@pytest.mark.parametrize("mode", ["fail", "wait"])
def test_a_party_that_was_killed_ends_the_session(services: Services, mode: str) -> None:
    """Its key is in no file: started again, it says that the session ends, though all else is restored."""
    party = services.parties["owner1"]

    def lose(event: tp.Event) -> None:
        if event.fields.get("round") == 2 and not lost:
            lost.append(True)
            party.kill()
            party.start()

    lost: list[bool] = []
    with pytest.raises(tp.PrivacyError, match=r"'owner1'.*holds no key .*start a new run"):
        tp.LogisticRegression(privacy=SECURE, callbacks=[lose]).fit(
            relation(services.federation(on_party_lost=mode), "grade")
        )
    assert tp.LogisticRegression(privacy=SECURE).fit(relation(services.federation(), "grade")).converged_


def test_a_coordinator_that_dies_is_resumed(services: Services) -> None:
    """kill -9 of the coordinator: `resume` goes on with the roster and ends with the model of an undisturbed run."""
    jobs = [_job(services, output) for output in ("whole", "broken")]
    whole = run_command("train", str(jobs[0]), "--json")
    assert whole.returncode == 0, whole.stderr
    record = services.folder / "broken" / "record" / "owner0.replies"
    process = warm.start([*COMMAND, "train", str(jobs[1])], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(lambda: record.exists() and record.stat().st_size > 20_000)
    process.kill()
    process.wait()
    assert not (services.folder / "broken" / "model").exists()
    resumed = run_command("resume", str(services.folder / "broken"), "--json")
    assert resumed.returncode == 0, resumed.stderr
    assert json.loads(resumed.stdout)["metrics"] == json.loads(whole.stdout)["metrics"]


def _job(services: Services, output: str) -> Path:
    path = write_job(services, output, **SETTINGS)
    path.write_text(path.read_text().replace("[split]", "privacy = { secure_sum = true }\n[split]"))
    return path


def test_a_peer_that_is_not_named_is_refused(tmp_path: Path) -> None:
    """A party sums with those that its own file names, whatever the others and the coordinator say."""
    with Services(tmp_path, SHOP, PEERS) as services:
        party = services.parties["owner2"]
        party.end()
        files = services.certificates.files("owner2")
        party.write(services.urls["owner2"], SHOP["owner2"], files, 'peers = ["owner0", "owner3"]')
        party.start()
        with pytest.raises(tp.PrivacyError, match="'owner1' is not among the peers"):
            tp.LinearRegression(privacy=SECURE).fit(relation(services.federation(), "paid"))
