"""A model that was fitted with noise on its predictions, saved and loaded: they have noise, and are counted on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tablepuppet as tp
from tablepuppet.baselines import Centralized
from tests.relations import federation, record_wire

ROWS = 600
BOTH = tp.Privacy(feature_epsilon=2.0, prediction_epsilon=2.0)
SQL = "SELECT o.size, c.age, o.price FROM orders o JOIN clients c ON o.client = c.id"
LABEL_APART = "SELECT c.age, o.price FROM orders o JOIN clients c ON o.client = c.id"
LEARNERS: dict[str, tuple[type[Any], dict[str, Any]]] = {
    "statistics": (tp.LinearRegression, {}),
    "steps": (tp.LinearRegression, {"solver": "sgd", "local_steps": 2}),
    "network": (tp.MLPRegressor, {"hidden": (3,), "local_steps": 2}),
}
every_learner = pytest.mark.parametrize("name", LEARNERS)


@pytest.fixture(params=[1, 2], ids=["one shard", "two shards"])
def fed(request: pytest.FixtureRequest, tmp_path: Path, known_noise: None) -> tp.Federation:
    rng = np.random.default_rng(3)
    client, size = rng.integers(0, 50, ROWS), rng.normal(size=ROWS)
    price = 100 + 20 * size + rng.normal(size=ROWS)
    orders = pa.table({"client": client, "size": size, "price": price})
    cut = np.array_split(np.arange(ROWS), request.param)
    parties = {f"store{number}": {"orders": orders.take(pa.array(part))} for number, part in enumerate(cut)}
    clients = pa.table({"id": np.arange(50), "age": rng.normal(40, 9, 50)})
    return federation(tmp_path, parties | {"bank": {"clients": clients}}, wire="float64")


def fitted(fed: tp.Federation, name: str, privacy: tp.Privacy = BOTH) -> tuple[Any, tp.Relation]:
    relation, (kind, settings) = fed.sql(SQL, label="price"), LEARNERS[name]
    return kind(privacy=privacy, **settings).fit(relation), relation


@every_learner
def test_predictions_of_a_loaded_model_have_noise(
    fed: tp.Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """As much as before it was saved, drawn anew each time, and no prediction leaves without."""
    model, relation = fitted(fed, name)
    model.save(tmp_path / "model")
    loaded = tp.load(tmp_path / "model", fed)
    messages = record_wire(monkeypatch)
    again = [loaded.predict(relation) for _ in range(2)]
    asked = {message.request.op for message in messages if message.reply and "outputs" in message.reply}
    assert asked == {"model.apply"}  # parties in this process keep no part
    before = [model.predict(relation) for _ in range(2)]
    assert np.std(again[0] - again[1]) == pytest.approx(np.std(before[0] - before[1]), rel=0.3)
    assert np.mean(again) == pytest.approx(np.mean(before), abs=4 * np.std(before) / 7)  # 50 clients have noise each


@every_learner
def test_predictions_of_a_loaded_model_are_counted_on(fed: tp.Federation, tmp_path: Path, name: str) -> None:
    """After as many predictions both state the same; what was saved is the state of that time."""
    model, relation = fitted(fed, name)
    model.predict(relation)
    model.save(tmp_path / "model")
    loaded = tp.load(tmp_path / "model", fed)
    assert loaded.privacy_ == model.privacy_
    for each in (model, loaded):
        each.predict(relation)
    assert loaded.privacy_ == model.privacy_
    loaded.predict(relation)
    assert loaded.privacy_["epsilon"] > model.privacy_["epsilon"]
    loaded.save(tmp_path / "again")
    assert tp.load(tmp_path / "again", fed).privacy_ == loaded.privacy_


@every_learner
def test_what_is_stated_is_that_of_the_fit(fed: tp.Federation, tmp_path: Path, name: str) -> None:
    """Predictions of rows without a label, under settings that were changed after the fit: the same tables, parties and
    noise are stated as by the model that was fitted.
    """
    relation, (kind, settings) = fed.sql(LABEL_APART, label="price"), LEARNERS[name]
    model = kind(privacy=BOTH, **settings).fit(relation)
    model.set_params(privacy=tp.Privacy(feature_epsilon=2.0, prediction_epsilon=0.01))
    model.save(tmp_path / "model")
    loaded, unlabelled = tp.load(tmp_path / "model", fed), fed.sql(LABEL_APART)
    for each in (model, loaded):
        each.predict(unlabelled)
    assert loaded.privacy_ == model.privacy_
    assert (model.privacy_["tables"]["orders"]["label"], model.privacy_["tables"]["orders"]["epsilon"]) == (
        np.inf,
        None,
    )


def test_a_model_that_has_no_noise_is_refused(fed: tp.Federation) -> None:
    """Trained on pooled rows, it has none to give; so has one that is told after the fit."""
    relation = fed.sql(SQL, label="price")
    pooled = Centralized(tp.LinearRegression(privacy=BOTH)).fit(relation)
    plain = tp.LinearRegression().fit(relation).set_params(privacy=BOTH)
    for model in (pooled, plain):
        with pytest.raises(tp.PrivacyError, match="predictions of this model cannot have noise"):
            model.predict(relation)


@every_learner
def test_without_noise_on_predictions_none_is_added(fed: tp.Federation, tmp_path: Path, name: str) -> None:
    """With feature_epsilon alone a loaded model predicts what the fitted one did."""
    model, relation = fitted(fed, name, tp.Privacy(feature_epsilon=2.0))
    expected = model.predict(relation)
    model.save(tmp_path / "model")
    loaded = tp.load(tmp_path / "model", fed)
    np.testing.assert_allclose(loaded.predict(relation), expected, atol=1e-9)
    assert loaded.privacy_ == model.privacy_
