"""Networks across parties that are processes of their own, with mutual TLS: the same model as in one process."""

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

pytest.importorskip("torch", reason="networks need the extra `deep`")

SQL = f"SELECT {ALL}, o.returned {JOIN}"
SETTINGS: dict[str, Any] = {
    "bottom": tp.bottom.mlp(hidden=(4,), embedding=3), "top": (4,), "epochs": 4, "batch_size": 20, "lr": 0.02,
}  # fmt: skip
ALLOWED = "embeddings = { max_width = 3, max_epochs = 100 }"


@pytest.fixture(scope="module", params=[1, 2], ids=["one shard", "two shards"])
def services(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    with Services(tmp_path_factory.mktemp("services"), shop(request.param), of_tables=ALLOWED) as found:
        yield found


def fitted(fed: tp.Federation, **settings: Any) -> Any:
    relation = fed.sql(SQL, label="returned")
    model: Any = tp.SplitNNClassifier(**SETTINGS | settings).fit(relation)
    return model._model.top.theta, np.sort(model.predict_proba(relation)[:, 1]), model, relation


def test_processes_learn_what_one_process_does(services: Services, tmp_path: Path) -> None:
    shards = sum(name.startswith("bank") for name in services.parties)
    here, there = (
        fitted(federation(tmp_path, shop(shards), wire="float64")),
        fitted(services.federation(wire="float64")),
    )
    # rows are in another order, so batches are others: the same loss, not the same parameters
    assert there[2].history_[-1]["loss"] == pytest.approx(here[2].history_[-1]["loss"], rel=0.2)
    again = fitted(services.federation(wire="float64"))
    assert np.array_equal(again[0], there[0])


def test_a_party_keeps_its_part(services: Services, tmp_path: Path) -> None:
    fed = services.federation(wire="float64")
    _, told, model, relation = fitted(fed)
    model.save(tmp_path / "model")
    found = tp.load(tmp_path / "model", fed).predict_proba(relation)[:, 1]
    assert np.allclose(np.sort(found), told)


def test_a_party_killed_in_the_middle_of_an_epoch_comes_back(services: Services) -> None:
    fed = services.federation(wire="float64", timeout=60.0)
    calm = fitted(fed)
    party, done = services.parties["supplier0"], threading.Event()

    def lose(event: tp.Event) -> None:
        if (
            event.name == "trip"
            and "split." in str(event.fields["ops"])
            and event.fields["party"] == party.name
            and not done.is_set()
        ):
            done.set()
            party.kill()
            threading.Timer(0.5, party.start).start()

    fed.events.subscribe(lose, trips=True)
    assert np.array_equal(fitted(fed)[0], calm[0])
    assert done.is_set()
