"""Stated epsilons against attacks: two neighbouring worlds, many runs in each, and the best guess which it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

import tablepuppet as tp
from tablepuppet.learn.noise.plan import FeatureNoise
from tablepuppet.learn.private.feature_promise import SumPromise
from tablepuppet.learn.tables.linear import Linear
from tablepuppet.privacy.accountant import gaussian_epsilon
from tablepuppet.privacy.label import noisy_classes, noisy_numbers
from tests.privacy.audit import least_epsilon
from tests.privacy.worlds import BOTH, DELTA, ROWS, World, worlds

RUNS = 1000
LOUD = tp.Privacy(feature_epsilon=4.0, prediction_epsilon=4.0, delta=DELTA)


def noise_of(world: World, factor: float = 1.0, predictions: bool = True, privacy: tp.Privacy = BOTH) -> FeatureNoise:
    """The noise of a fit with one round, times a factor."""
    assert world.promise is not None
    found = SumPromise(privacy, world.promise.statistics, 1).noise
    prediction = found.prediction * factor if found.prediction is not None and predictions else None
    return FeatureNoise(found.clip, found.gram * factor, found.step * factor, prediction=prediction)


def stated(noise: FeatureNoise) -> float:
    """The epsilon of a fit with that noise."""
    assert noise.prediction is not None
    return gaussian_epsilon((noise.gram**-2 + noise.step**-2 + noise.prediction**-2) ** -0.5, DELTA)


def one_table(world: World, noise: FeatureNoise, wanted: NDArray[Any]) -> list[float]:
    """All that leaves a shard in one round: Gram matrix, gradient, the prediction of the row that is looked for."""
    known: dict[str, Any] = {"encoding": world.encoding}
    gram = world.ask("a", "matrix.gram", **known, joined_rows=ROWS, noise=noise.of_gram(ROWS))["gram"]
    known["spec"] = Linear(1)
    sums = world.ask("a", "model.gradient", **known, rows=wanted, noise=noise.of_sums(ROWS))["sums"]
    told = world.ask("a", "model.apply", **known, theta=np.ones(1), noise=noise.of_predictions(0.5))["outputs"]
    return [gram[0, 0], sums[0], told[0]]


@pytest.mark.parametrize("noisy", [True, False], ids=["noise as stated", "noise switched off"])
def test_a_row_seen_by_its_own_releases(tmp_path: Path, noisy: bool) -> None:
    """Everything that is told of a table in a round tells a row apart no better than stated; without noise it does."""
    here, there = worlds(tmp_path, first_x=None)
    privacy = LOUD if noisy else BOTH
    noise = noise_of(here, 1.0 if noisy else 1e-3, privacy=privacy)
    wanted, runs = np.full(ROWS, 5.0 / ROWS), RUNS if noisy else RUNS // 3
    seen = [np.array([one_table(world, noise, wanted) for _ in range(runs)]) for world in (here, there)]
    found = least_epsilon(seen[0], seen[1], DELTA)
    promised = stated(noise_of(here, privacy=privacy))
    if noisy:
        assert 0.5 < found <= promised
    else:
        assert found > 3 > promised


def through_parameters(world: World, noise: FeatureNoise) -> list[float]:
    """The parameters of a after a round of b and one of a: b's rows are seen in a's residuals."""
    size = world.relation.mapping.tables["b"].rows
    joined = world.relation.mapping.tables["b"].index
    asked = world.start("b", noise)
    extra = {} if noise.prediction is None else {"prediction_noise": noise.of_predictions(None)}
    wanted = np.bincount(joined, minlength=size) * -0.5 / ROWS
    image = world.ask("b", "ridge.direction", **asked, rows=wanted, **extra)["outputs"]
    residuals = image[joined] - 0.5
    rows = np.zeros(ROWS)
    np.add.at(rows, world.relation.mapping.tables["a"].index, residuals / ROWS)
    asked = world.start("a", noise)
    world.ask("a", "ridge.direction", **asked, rows=rows)
    world.ask("a", "ridge.advance", model=asked["model"], mix=np.ones(1), memory=0)
    theta = world.ask("a", "model.parameters", model=asked["model"], noisy=True)["theta"]
    world.forget("a", "b")
    return [float(theta[0]), float(theta[0] ** 2)]


@pytest.mark.parametrize("predictions", [True, False], ids=["predictions noised", "predictions as they are"])
def test_a_row_seen_through_another_table(tmp_path: Path, predictions: bool) -> None:
    """A row of b is seen in a's parameters: within epsilon if predictions have noise; if not, beyond what is stated
    given messages, which is why epsilon is infinite then.
    """
    here, there = worlds(tmp_path, first_z=None)
    noise = noise_of(here, predictions=predictions)
    runs = RUNS if predictions else RUNS // 3
    seen = [np.array([through_parameters(world, noise) for _ in range(runs)]) for world in (here, there)]
    found = least_epsilon(seen[0], seen[1], DELTA)
    if predictions:
        assert found <= stated(noise)
    else:
        assert found > 2 > gaussian_epsilon((noise.gram**-2 + noise.step**-2) ** -0.5, DELTA)


def labels_seen(truth: int, epsilon: float, runs: int, number: bool) -> NDArray[Any]:
    """Noisy labels of many rows with the same true one, each as one run."""
    rows = pa.array([f"row {i}" for i in range(runs)])
    told: dict[str, Any] = {"epsilon": epsilon, "secret": b"secret of the audit" + bytes([truth]), "expression": "y"}
    if number:
        found = noisy_numbers(np.full(runs, float(truth)), rows, bounds=(0.0, 1.0), **told)
    else:
        found = noisy_classes(np.full(runs, truth), rows, classes=(0, 1), **told).astype(np.float64)
    return found[:, None]


@pytest.mark.parametrize("number", [False, True], ids=["randomised response", "Laplace noise"])
def test_labels(number: bool) -> None:
    """A noisy label tells two true ones apart by epsilon and no better; half the noise is found out if 1 was stated."""
    for epsilon, least in ((1.0, 0.85), (2.0, 1.0)):
        here, there = (labels_seen(truth, epsilon, 40_000, number) for truth in (1, 0))
        assert least < least_epsilon(here, there, 0.0) <= epsilon
