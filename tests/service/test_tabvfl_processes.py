"""TabVFL over parties that are processes of their own, with mutual TLS."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tablepuppet as tp
from tests.learn.materialised import ALL, JOIN, shop
from tests.relations import federation
from tests.service.processes import Services

pytest.importorskip("pytorch_tabnet", reason="TabNet needs the extra `deep`")

SQL = f"SELECT {ALL}, o.returned {JOIN}"
SETTINGS: dict[str, Any] = {
    "latent": 5, "steps": 2, "pretrain_epochs": 2, "epochs": 4, "batch_size": 50, "lr": 0.02,
}  # fmt: skip
ALLOWED = "embeddings = { max_width = 30, max_epochs = 400 }"


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    with Services(tmp_path_factory.mktemp("services"), shop(2), of_tables=ALLOWED) as found:
        yield found


def fitted(fed: tp.Federation) -> tuple[Any, tp.Relation]:
    relation = fed.sql(SQL, label="returned")
    return tp.TabVFLClassifier(**SETTINGS).fit(relation), relation


def test_processes_learn_what_one_process_does(services: Services, tmp_path: Path) -> None:
    """Rows are in another order there, so batches and masks are others: losses are alike. Twice is the same; so is a
    saved model, of which parties keep their parts.
    """
    here, _ = fitted(federation(tmp_path, shop(2), wire="float64"))
    fed = services.federation(wire="float64")
    there, relation = fitted(fed)
    assert there.pretraining_[-1]["loss"] == pytest.approx(here.pretraining_[-1]["loss"], rel=1.0)  # of hidden cells
    assert there.history_[-1]["loss"] == pytest.approx(here.history_[-1]["loss"], rel=0.5)
    again, _ = fitted(services.federation(wire="float64"))
    assert np.array_equal(again._model.top.theta, there._model.top.theta)
    there.save(tmp_path / "model")
    loaded: Any = tp.load(tmp_path / "model", fed)
    assert np.allclose(loaded.transform(relation), there.transform(relation))


def test_a_party_killed_in_the_middle_of_pretraining_comes_back(services: Services) -> None:
    """It computes its requests again, and the model is that of an undisturbed run."""
    fed = services.federation(wire="float64", timeout=60.0)
    calm, _ = fitted(fed)
    party, killed = services.parties["supplier0"], threading.Event()

    def lose(event: tp.Event) -> None:
        tried = event.name == "trip" and "_error" in str(event.fields["ops"])
        if tried and event.fields["party"] == party.name and not killed.is_set():
            killed.set()
            party.kill()
            threading.Timer(0.5, party.start).start()

    fed.events.subscribe(lose, trips=True)
    disturbed, _ = fitted(fed)
    assert killed.is_set()
    assert np.array_equal(disturbed._model.top.theta, calm._model.top.theta)
