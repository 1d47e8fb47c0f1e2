"""The stated epsilon of whole fits: the same model is trained many times in two neighbouring worlds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tablepuppet as tp
from tablepuppet.privacy.noise import gaussian_sigma
from tests.privacy.audit import least_epsilon
from tests.privacy.worlds import DELTA, World

RUNS = 80
every_solver = pytest.mark.parametrize("solver", ["lbfgs", "sgd"])


def trained(world: World, solver: Any, epsilon: float) -> tuple[list[float], float]:
    """(what the receiver of a model sees of it, what is stated for a row of table b)."""
    privacy = tp.Privacy(feature_epsilon=epsilon, prediction_epsilon=epsilon, delta=DELTA)
    model = tp.LinearRegression(solver=solver, rounds=2, local_steps=3, privacy=privacy).fit(world.relation)
    seen = [*np.ravel(list(model.coef_.values())), *np.ravel(model.intercept_), model.history_[-1]["objective"]]
    return [float(value) for value in seen], float(model.privacy_["tables"]["b"]["epsilon"])


def audited(folder: Path, solver: str, epsilon: float) -> tuple[float, float]:
    """(the least epsilon that an attack proves, the stated one).

    The row of b that differs is joined forty times, with labels unlike the others'.
    """
    worlds = [World(folder / str(z), first_x=1.0, first_z=z, first_y=3.0) for z in (-1.0, None)]
    fits = [[trained(world, solver, epsilon) for _ in range(RUNS)] for world in worlds]
    here, there = (np.array([found for found, _ in each]) for each in fits)
    return least_epsilon(here, there, DELTA), max(stated for each in fits for _, stated in each)


@every_solver
def test_fits_keep_what_they_state(tmp_path: Path, solver: str) -> None:
    """From parameters and losses of many fits no attack tells the worlds apart beyond the stated epsilon."""
    found, stated = audited(tmp_path, solver, 0.3)
    assert found <= stated < 1


@every_solver
def test_fits_without_noise_are_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, solver: str) -> None:
    """With noise a thousand times smaller than stated the same attack goes beyond."""
    monkeypatch.setattr("tablepuppet.party.local_table.gaussian_sigma", lambda *asked: 1e-3 * gaussian_sigma(*asked))
    found, stated = audited(tmp_path, solver, 0.3)
    assert found > 1 > stated
