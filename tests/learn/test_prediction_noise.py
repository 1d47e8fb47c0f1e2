"""Steps, intercepts and scores when almost all that is told is noise: not much worse than the mean label."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tablepuppet as tp
from tablepuppet.learn.noise.plan import DirectionNoise, calmed, left_in_mean
from tablepuppet.mapping.joined_rows import SCORES, JoinedRows
from tablepuppet.operators.loj import LearningOverJoin
from tests.relations import federation

ORDERS, CLIENTS = 4000, 1500
MEAN = 3.5


def shop(folder: Path) -> tp.Relation:
    """Orders of clients, some of whom order much; years, whose spread is small beside their size; labels about 1."""
    rng = np.random.default_rng(3)
    year, town = np.round(rng.normal(1986, 15, CLIENTS)), rng.choice(list("abcd"), CLIENTS)
    client = np.minimum(rng.zipf(1.5, ORDERS) - 1, CLIENTS - 1)
    size = rng.normal(size=ORDERS)
    price = MEAN + 0.3 * size + (year[client] - 1986) / 50 + rng.normal(size=ORDERS)
    tables = {
        "shop": {"orders": pa.table({"client": client, "size": size, "price": price})},
        "bank": {"clients": pa.table({"id": range(CLIENTS), "year": year, "town": town})},
    }
    select = "SELECT o.size, c.year, c.town, o.price FROM orders o JOIN clients c ON o.client = c.id"
    return federation(folder, tables).sql(select, label="price")


def bare_rmse(model: Any, relation: tp.Relation) -> float:
    """That of the model itself: its predictions without noise."""
    model._promise.noise.prediction = None
    return float(model.evaluate(relation)["rmse"])


@pytest.mark.usefixtures("known_noise")
@pytest.mark.parametrize("epsilon", [0.05, 0.15, 0.5])
@pytest.mark.parametrize("solver", ["auto", "sgd"])
def test_all_noised_is_not_much_worse_than_a_constant(tmp_path: Path, solver: Any, epsilon: float) -> None:
    """However little may be told, neither the model nor its noisy predictions are far worse than the mean label."""
    relation = shop(tmp_path)
    privacy = tp.Privacy(feature_epsilon=epsilon, prediction_epsilon=epsilon)
    models = [tp.LinearRegression(solver=solver, privacy=privacy).fit(relation) for _ in range(12)]
    told = [model.evaluate(relation) for model in models]
    constant = told[0]["rmse"] / np.sqrt(1 - told[0]["r2"])
    assert max(each["rmse"] for each in told) < 1.1 * constant
    assert max(bare_rmse(model, relation) for model in models) < 1.1 * constant


@pytest.mark.usefixtures("known_noise")
@pytest.mark.parametrize("solver", ["auto", "sgd"])
def test_parameters_noised_is_not_much_worse_than_a_constant(tmp_path: Path, solver: Any) -> None:
    """Nor is a model whose predictions have no noise, with encoders that were fitted on almost nothing but noise."""
    relation = shop(tmp_path)
    models = [
        tp.LinearRegression(solver=solver, privacy=tp.Privacy(feature_epsilon=0.1)).fit(relation) for _ in range(12)
    ]
    assert min(model.evaluate(relation)["r2"] for model in models) > -0.1


def noisy_images(relation: tp.Relation, deviations: dict[str, float], runs: int) -> np.ndarray[Any, Any]:
    """Nothing but noise, gathered to joined rows: (runs, joined_rows)."""
    rng, joined = np.random.default_rng(0), JoinedRows(relation.mapping)
    rows, found = {alias: relation.mapping.tables[alias].rows for alias in deviations}, []
    for _ in range(runs):
        LearningOverJoin(joined).gather({a: rng.normal(0, d, rows[a]) for a, d in deviations.items()})
        found.append(joined.hand_over(SCORES))
    return np.stack(found)


def test_variances_are_those_of_noise(tmp_path: Path) -> None:
    """Mean square, mean and slope of gathered noise vary as is said, though some rows are joined very often."""
    relation, deviations = shop(tmp_path), {"o": 0.5, "c": 2.0}
    gradient = np.random.default_rng(1).normal(size=len(relation)) / len(relation)
    rows = JoinedRows(relation.mapping)
    rows.set_scores(gradient)
    noise = DirectionNoise.of(LearningOverJoin(rows), deviations, 1.0, SCORES)
    found = noisy_images(relation, deviations, 2000)
    np.testing.assert_allclose(noise.square, (found**2).mean(), rtol=0.1)
    np.testing.assert_allclose(noise.of_mean, found.mean(axis=1).var(), rtol=0.15)
    np.testing.assert_allclose(noise.of_slope, (found @ gradient).var(), rtol=0.15)
    assert left_in_mean(relation.joined_rows, "c") > 10 * left_in_mean(relation.joined_rows, "o")


def test_what_is_believed() -> None:
    """Without noise all is as it was seen; the more noise, the shorter a step and the closer scores to their mean."""
    clear, drowned = DirectionNoise(0.0, 1.0, 0.0, 0.0), DirectionNoise(100.0, 1.0, 25.0, 4.0)
    assert clear.curvature(2.0, 1.0) == 2.0
    assert clear.kept_mean == 1.0
    assert drowned.curvature(101.0, 1.0) == pytest.approx(26.0)
    assert drowned.kept_mean == 0.2
    scores, mean = np.array([1.0, 5.0]), np.array([2.0])
    np.testing.assert_array_equal(calmed(scores, mean, 0.0), scores)
    np.testing.assert_allclose(calmed(scores, mean, 3.0), [1.75, 2.75])
