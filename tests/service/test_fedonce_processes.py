"""FedOnce with parties that are processes of their own: one message, policies, and a guest that is killed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tablepuppet as tp
from tests.learn.materialised import ALL, JOIN, shop
from tests.service.processes import Services

pytest.importorskip("torch", reason="networks need the extra `deep`")

SQL = f"SELECT {ALL}, o.returned {JOIN}"
SETTINGS: dict[str, Any] = {
    "bottom": tp.bottom.mlp(hidden=(4,)), "embedding": 3, "top": (4,), "epochs": 3, "guest_epochs": 4, "batch_size": 50,
    "lr": 0.02,
}  # fmt: skip
ALLOWED = "embeddings = { max_width = 3, max_epochs = 20 }"


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    with Services(tmp_path_factory.mktemp("services"), shop(1), of_tables=ALLOWED) as found:
        yield found


def fitted(fed: tp.Federation, **settings: Any) -> tuple[Any, tp.Relation]:
    relation = fed.sql(SQL, label="returned")
    return tp.FedOnceClassifier(**SETTINGS | settings).fit(relation), relation


def test_guests_send_one_message_and_keep_their_part(services: Services, tmp_path: Path) -> None:
    """EMBEDDINGS of a guest are one message; a loaded model predicts the same, each party with its own part."""
    fed = services.federation(wire="float64")
    model, relation = fitted(fed)
    sent = {e["party"]: e["messages"] for e in fed.traffic if e["release"] == "EMBEDDINGS" and e["direction"] == "up"}
    assert (sent["supplier0"], sent["bank0"]) == (1, 1)
    assert sent["store0"] > 3
    found = model.predict_proba(relation)
    model.save(tmp_path / "model")
    np.testing.assert_allclose(tp.load(tmp_path / "model", fed).predict_proba(relation), found)


def test_a_run_that_needs_more_than_is_allowed_is_refused_before_it_begins(services: Services) -> None:
    """By width and by how often a row's embedding would be released; no guest has learned by then."""
    for settings, rule in (({"embedding": 4}, "embeddings.max_width"), ({"rounds": 30}, "embeddings.max_epochs")):
        fed = services.federation()
        with pytest.raises(tp.PrivacyError) as error:
            fitted(fed, **settings)
        assert error.value.rule == rule
        assert not [each for each in fed.traffic if each["release"] in ("EMBEDDINGS", "PARAMETERS")]


def test_a_guest_that_is_killed_while_it_learns_comes_back(services: Services) -> None:
    """It computes its epochs again, and the model is the same."""
    fed = services.federation(wire="float64", timeout=60.0)
    calm, _ = fitted(fed)
    party, done = services.parties["supplier0"], threading.Event()

    def lose(event: tp.Event) -> None:
        if event.name == "trip" and "nat." in str(event.fields["ops"]) and not done.is_set():
            done.set()
            party.kill()
            threading.Timer(0.5, party.start).start()

    fed.events.subscribe(lose, trips=True)
    again, _ = fitted(fed)
    assert done.is_set()
    np.testing.assert_array_equal(again._model.top.theta, calm._model.top.theta)
