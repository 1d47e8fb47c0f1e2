"""What noisy steps cost: the stated epsilon is the accountant's for steps, samples and encoders as they were."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import dp_accounting as dp
import numpy as np
import pyarrow as pa
import pytest

import tablepuppet as tp
from tablepuppet.learn.private.feature_promise import StepPromise, sampling_of
from tablepuppet.privacy.accountant import gaussian_epsilon, noise_multiplier
from tests.relations import federation

ROWS, DELTA = 2000, 1e-5
JOIN = "FROM visits v JOIN people p ON v.person = p.id"


def tables() -> dict[str, pa.Table]:
    """Visits of people: each of 500 people has four."""
    rng = np.random.default_rng(0)
    person, x, z = np.arange(ROWS) % 500, rng.normal(size=ROWS), rng.normal(size=500)
    kind = np.array(["a", "b"])[rng.integers(0, 2, 500)]
    score = np.sin(2 * x) + z[person] + (kind == "a")[person] + 0.1 * rng.normal(size=ROWS)
    visits = pa.table({"person": person, "x": x, "score": score, "good": score > 0.5})
    return {"visits": visits, "people": pa.table({"id": np.arange(500), "z": z, "kind": kind})}


def federation_of(folder: Path, shards: int = 1) -> tp.Federation:
    """Visits and people, each in so many shards."""
    parties: dict[str, dict[str, pa.Table]] = {}
    for name, table in tables().items():
        size = len(table) // shards
        for number in range(shards):
            parties[f"{name}{number}"] = {name: table.slice(size * number, size)}
    return federation(folder, parties)


def relation_of(fed: tp.Federation, label: str = "score") -> tp.Relation:
    """Visits joined with people."""
    return fed.sql(f"SELECT v.x, p.z, p.kind, v.{label} {JOIN}", label=label)


def relation(folder: Path, shards: int = 1, label: str = "score") -> tp.Relation:
    """Of a new federation."""
    return relation_of(federation_of(folder, shards), label)


def steps_of(model: Any) -> StepPromise:
    assert isinstance(model._promise, StepPromise)
    return model._promise


def linear(**settings: Any) -> tp.LinearRegression:
    """A linear model by noisy steps."""
    privacy = settings.pop("privacy", tp.Privacy(feature_epsilon=8.0, delta=DELTA))
    return tp.LinearRegression(solver="sgd", privacy=privacy, **settings)


def stated(model: Any, table: str) -> float:
    return float(model.privacy_["tables"][table]["epsilon_given_messages"])


@pytest.mark.parametrize("batch_size", [10_000, 100])
def test_stated_epsilon_is_that_of_all_releases(tmp_path: Path, batch_size: int) -> None:
    """An accountant that hears of every noisy statistic and step by itself comes to the stated figure, or below it."""
    model = linear(rounds=2, local_steps=5, batch_size=batch_size).fit(relation(tmp_path))
    promise = steps_of(model)
    for alias, name, rows in (("v", "visits", ROWS), ("p", "people", 500)):
        noise = promise.noise
        assert noise.steps == 10
        q = noise.samplings[alias]
        assert q == min(1.0, batch_size / rows)
        accountant = dp.pld.PLDAccountant(dp.NeighboringRelation.REPLACE_SPECIAL)
        step = dp.GaussianDpEvent(noise.multipliers[alias])
        accountant.compose(step if q == 1 else dp.PoissonSampledDpEvent(q, step), 10)
        statistic = dp.GaussianDpEvent(promise.encoders.multipliers[alias])
        accountant.compose(statistic, promise.encoders.used[alias])
        assert accountant.get_epsilon(DELTA) == pytest.approx(stated(model, name), rel=0.01)
        assert stated(model, name) <= 8.0
        assert stated(model, name) == pytest.approx(8.0, rel=0.01)
    assert ("Poisson" in model.privacy_["assumptions"]) == (batch_size == 100)
    assert model.privacy_["epsilon"] == math.inf
    assert model.privacy_["epsilon_given_messages"] <= 8.0


def test_epsilon_grows_by_rounds(tmp_path: Path) -> None:
    """History tells what was spent after each round; in the end it is no more than was promised."""
    model = linear(rounds=3, local_steps=4, batch_size=200).fit(relation(tmp_path))
    spent = [entry["epsilon"] for entry in model.history_]
    assert spent == sorted(spent)
    assert 0 < spent[0] < spent[-1] <= 8.0


def test_rounds_that_were_not_taken_are_not_spent(tmp_path: Path) -> None:
    """Who stops early has spent less."""
    train, held_out = relation(tmp_path).split(test=0.2, seed=1)
    model = linear(rounds=20, local_steps=2, patience=1, lr=1e-6).fit(train, held_out)
    if len(model.history_) < 20:
        assert stated(model, "visits") < 7.9


def test_sampling_and_encoders_in_one_count() -> None:
    """Noise for a target fills it exactly, with what else is told counted; without sampling precisions add up."""
    for sampling in (None, 0.05):
        multiplier = noise_multiplier(2.0, DELTA, 100, sampling, 0.02)
        assert gaussian_epsilon(multiplier, DELTA, 100, sampling, 0.02) == pytest.approx(2.0, rel=0.01)
        assert gaussian_epsilon(multiplier, DELTA, 100, sampling, 0.02) <= 2.0 * (1 + 1e-6)
        assert multiplier > noise_multiplier(2.0, DELTA, 100, sampling)
    assert gaussian_epsilon(3.0, DELTA, 9, None, 0.5) == pytest.approx(gaussian_epsilon(1.5**-0.5, DELTA))
    with pytest.raises(tp.PrivacyError, match="is used up by the other releases"):
        noise_multiplier(1.0, DELTA, 10, None, 10.0)


def test_predictions_with_noise_make_epsilon_finite(tmp_path: Path) -> None:
    """Steps, statistics and predictions are one count, and every evaluation adds to it."""
    rel = relation(tmp_path)
    privacy = tp.Privacy(feature_epsilon=4.0, prediction_epsilon=2.0, delta=DELTA)
    model = linear(privacy=privacy, rounds=1, local_steps=5).fit(rel)
    first = model.privacy_["epsilon"]
    assert 4.0 < first < 6.0
    model.evaluate(rel)
    assert first < model.privacy_["epsilon"] < math.inf
    assert stated(model, "people") <= 4.0


def test_sampling_of() -> None:
    """The default means all rows of a small table; another size must fit."""
    rows = {"a": 100, "b": 40_000}
    assert sampling_of("auto", rows) == sampling_of(10_000, rows) == {"a": 1.0, "b": 0.25}
    with pytest.raises(tp.PrivacyError, match=r"batch_size 200 is larger than the 100 rows of table 'a'"):
        sampling_of(200, rows)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 3000}, "larger than the"),
        ({"inner_rounds": 2}, "consensus releases parameters"),
        ({"reduce": False}, "leave it at True"),
    ],
)
def test_settings_that_cannot_be_private(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    """They are refused with advice."""
    with pytest.raises(tp.PrivacyError, match=message):
        linear(**settings).fit(relation(tmp_path))


def test_validation_with_noisy_predictions_is_refused(tmp_path: Path) -> None:
    """It would need noise in every round that nobody planned."""
    train, held_out = relation(tmp_path).split(test=0.2, seed=1)
    privacy = tp.Privacy(feature_epsilon=4.0, prediction_epsilon=2.0, delta=DELTA)
    with pytest.raises(tp.PrivacyError, match="fit without validation"):
        linear(privacy=privacy).fit(train, held_out)


def test_choosing_noise_is_told(tmp_path: Path) -> None:
    """It may take seconds, so an event says so."""
    rel, seen = relation(tmp_path), []
    rel.events.subscribe(lambda event: seen.append(event.name))
    linear(rounds=1, local_steps=1).fit(rel)
    assert "privacy.noise" in seen


@pytest.mark.parametrize("batch_size", [10_000, 100])
@pytest.mark.parametrize("predictions", [None, 4.0])
def test_several_tables_are_counted_together(tmp_path: Path, batch_size: int, predictions: float | None) -> None:
    """By moments somebody with a row in both tables has more than that of either, and not more than the sum; what is
    predicted later is counted as well.
    """
    privacy = tp.Privacy(feature_epsilon=4.0, prediction_epsilon=predictions, delta=DELTA)
    rel = relation(tmp_path)
    model = linear(privacy=privacy, rounds=2, batch_size=batch_size).fit(rel)
    for name, key in (("epsilon_given_messages", "moments_given_messages"), ("epsilon", "moments")):
        alone, total = [table[name] for table in model.privacy_["tables"].values()], model.privacy_["total"]
        assert max(alone) <= total[key]
        assert total[key] < sum(alone) or math.isinf(sum(alone))
    before = model.privacy_["total"]["moments"]
    model.predict(rel)
    assert model.privacy_["total"]["moments"] > before or predictions is None
