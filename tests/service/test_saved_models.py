"""Saved models whose parts stay with parties that are processes: they outlive restarts, and nobody sees half of one."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tablepuppet as tp
from tablepuppet.learn.tables.federated import FederatedModel
from tablepuppet.store.folder import ModelFolder
from tests import warm
from tests.learn.materialised import ALL, JOIN, shop
from tests.service.processes import Services, run_command

SQL = f"SELECT {ALL}, o.returned {JOIN}"
SETTINGS: dict[str, Any] = {"rounds": 3}


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    with Services(tmp_path_factory.mktemp("services"), shop(1)) as found:
        yield found


def fitted(fed: tp.Federation, **settings: Any) -> tuple[tp.LogisticRegression, tp.Relation]:
    relation = fed.sql(SQL, label="returned")
    return tp.LogisticRegression(**(SETTINGS | settings)).fit(relation), relation


def restart(services: Services) -> None:
    for party in services.parties.values():
        party.kill()
        party.start()


def sent(fed: tp.Federation, release: str) -> int:
    return sum(entry["messages"] for entry in fed.traffic if entry["release"] == release)


def parts(services: Services, name: str) -> list[Path]:
    return sorted((services.parties[name].state / "models").rglob("*.part"))


def test_parties_keep_their_own_part(services: Services, tmp_path: Path) -> None:
    """No parameter leaves a party for save, load and predict, also after all parties were killed and started again."""
    fed = services.federation(wire="float64")
    model, relation = fitted(fed)
    expected = model.predict_proba(relation)
    model.save(tmp_path / "model")
    assert sent(fed, "PARAMETERS") == 0
    [arrays] = (tmp_path / "model").rglob("arrays.npz")
    with np.load(arrays) as stored:
        assert not [name for name in stored.files if name.startswith("theta/")]
    restart(services)
    fed = services.federation(wire="float64")
    found = tp.load(tmp_path / "model", fed)
    np.testing.assert_allclose(found.predict_proba(fed.sql(SQL, label="returned")), expected, atol=1e-12)
    assert sent(fed, "PARAMETERS") == 0
    coefficients = found.coef_  # asks for them
    assert sent(fed, "PARAMETERS") > 0
    np.testing.assert_allclose([*map(np.sum, coefficients.values())], [*map(np.sum, model.coef_.values())], atol=1e-9)


def test_a_run_folder_predicts_after_a_restart(services: Services) -> None:
    """`train`, then all daemons start anew, then `evaluate` and `predict` use the parts that these kept."""
    federation = services.write_federation(wire="float64")
    job = services.folder / "kept.toml"
    job.write_text(
        f'federation = "{federation.name}"\nsql = """{SQL}"""\nlabel = "returned"\noutput = "kept"\n'
        '[learner]\nkind = "LogisticRegression"\nrounds = 3\n[split]\ntest = 0.2\n'
    )
    trained = run_command("train", str(job), "--json")
    assert trained.returncode == 0, trained.stderr
    restart(services)
    evaluated = run_command("evaluate", str(services.folder / "kept"), "--json")
    assert evaluated.returncode == 0, evaluated.stderr
    assert json.loads(evaluated.stdout) == pytest.approx(json.loads(trained.stdout)["metrics"]["test"])
    predicted = run_command("predict", str(services.folder / "kept"), "--json")
    assert predicted.returncode == 0, predicted.stderr


def test_a_party_killed_between_the_steps_of_a_save(
    services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kill -9 of a party before each step of a save, and a restart: the save ends, and its model can be used."""
    fed = services.federation(wire="float64", timeout=240.0)
    model, relation = fitted(fed)
    expected = model.predict_proba(relation)
    name, party, before = "store0", services.parties["store0"], len(parts(services, "store0"))
    for place, step in [(FederatedModel, "store"), (ModelFolder, "write"), (ModelFolder, "end")]:
        with monkeypatch.context() as patch, party.restarted(1):
            patch.setattr(place, step, after(party.strike, getattr(place, step)))
            model.save(tmp_path / "model")
    fresh = services.federation(wire="float64")
    found = tp.load(tmp_path / "model", fresh)
    np.testing.assert_allclose(found.predict_proba(fresh.sql(SQL, label="returned")), expected, atol=1e-12)
    assert len(parts(services, name)) == before + 1
    tp.forget(tmp_path / "model", fresh)
    assert len(parts(services, name)) == before


def after(first: Callable[..., None], then: Callable[..., Any]) -> Callable[..., Any]:
    """A function that does one thing, then another."""

    def both(*arguments: Any) -> Any:
        first()
        return then(*arguments)

    return both


SAVE_FOR_EVER = """
import sys
from pathlib import Path
import tablepuppet as tp
from tests import warm
fed = tp.Federation.load(sys.argv[1])
relation = fed.sql(sys.argv[2], label="returned")
models = [tp.LogisticRegression(rounds=rounds).fit(relation) for rounds in (1, 3)]
models[0].save(sys.argv[3])
print("saved", flush=True)
while True:
    for model in reversed(models):
        model.save(sys.argv[3])
"""


def test_a_coordinator_killed_while_it_saves(services: Services, tmp_path: Path) -> None:
    """kill -9 of the coordinator at any moment: the folder holds one of the two models whole, and parties keep at most
    one part more until the next save.
    """
    federation = services.write_federation(wire="float64")
    fed = services.federation(wire="float64")
    relation = fed.sql(SQL, label="returned")
    expected = [tp.LogisticRegression(rounds=n).fit(relation).predict_proba(relation) for n in (1, 3)]
    before = len(parts(services, "bank0"))
    for _ in range(4):
        command = [sys.executable, "-c", SAVE_FOR_EVER, str(federation), SQL, str(tmp_path / "model")]
        process = warm.start(command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == "saved\n"
        time.sleep(random.uniform(0.0, 0.3))
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        found = tp.load(tmp_path / "model", fed).predict_proba(relation)
        assert any(np.allclose(found, one, atol=1e-9) for one in expected)
        assert len(parts(services, "bank0")) - before <= 2
    tp.LogisticRegression(rounds=1).fit(relation).save(tmp_path / "model")
    assert len(parts(services, "bank0")) - before == 1
    assert sorted(path.name[:8] for path in (tmp_path / "model").iterdir()) == ["content-", "model.js"]
    tp.forget(tmp_path / "model", fed)
    assert len(parts(services, "bank0")) == before
    assert not (tmp_path / "model").exists()


def test_a_part_belongs_to_its_caller(services: Services, tmp_path: Path) -> None:
    """Somebody else who gets the folder cannot use what the parties keep."""
    fed = services.federation()
    fitted(fed)[0].save(tmp_path / "model")
    for party in services.parties.values():
        party.end()
        party.file.write_text(party.file.read_text().replace('["analyst"]', '["analyst", "rival"]'))
        party.start()
    rival = services.federation(tls=services.certificates.client("rival"))
    with pytest.raises(tp.LearnError, match=r"(?s)'store0' does not keep its part of this model.*somebody else"):
        tp.load(tmp_path / "model", rival)
    assert tp.load(tmp_path / "model", services.federation())


def test_a_part_that_is_gone(services: Services, tmp_path: Path) -> None:
    """Whoever lost its part is named, with what to do; a damaged file is noticed."""
    fed = services.federation()
    known = parts(services, "bank0")
    fitted(fed)[0].save(tmp_path / "model")
    [part] = [path for path in parts(services, "bank0") if path not in known]
    assert part.stat().st_mode & 0o077 == 0
    content = part.read_bytes()
    part.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(
        tp.PartyError, match=r"'bank0' cannot read its part of this model: its file '\w+\.\w+\.part' is damaged"
    ):
        tp.load(tmp_path / "model", fed)
    part.unlink()
    with pytest.raises(tp.LearnError, match=r"'bank0' does not keep its part of this model for table 'c'.*save it"):
        tp.load(tmp_path / "model", fed)


def test_a_restart_without_state_ends_the_run(tmp_path: Path) -> None:
    """A party that was started restarted without a state_dir says so, and what would help."""
    with Services(tmp_path, shop(1)) as services:
        bank = services.parties["bank0"]
        bank.end()
        bank.file.write_text(bank.file.read_text().replace("state_dir", "# state_dir"))
        bank.start()
        relation = services.federation().sql(SQL, label="returned")
        bank.kill()
        bank.start()
        with pytest.raises(
            tp.PartyError, match=r"'bank0' knows no such session.*restarted without a state_dir.*operator"
        ):
            tp.LogisticRegression().fit(relation)


def test_a_party_without_state_tells_its_parameters(tmp_path: Path) -> None:
    """Where a party keeps nothing, its parameters are in the folder, and the folder says so."""
    with Services(tmp_path, shop(1)) as services:
        bank = services.parties["bank0"]
        bank.end()
        bank.file.write_text(bank.file.read_text().replace("state_dir", "# state_dir"))
        bank.start()
        model, relation = fitted(services.federation(wire="float64"))
        model.save(tmp_path / "model")
        kept = json.loads((tmp_path / "model" / "model.json").read_text())["kept"]
        assert sorted(entry["party"] for entry in kept.values()) == ["store0", "supplier0"]
        expected = model.predict_proba(relation)
        restart(services)
        fed = services.federation(wire="float64")
        found = tp.load(tmp_path / "model", fed).predict_proba(fed.sql(SQL, label="returned"))
        np.testing.assert_allclose(found, expected, atol=1e-12)
