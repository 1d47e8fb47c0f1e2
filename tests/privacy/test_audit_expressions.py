"""Stated epsilons against attacks, whatever a feature's expression makes of NULL; and what is found at half the noise.

A hostile analyst asks for the part of one row only, so that no other hides it. A row's cell is 1 in one world and NULL
in the other; ``COALESCE(x, -1)`` and the ELSE of a CASE are then not NULL, and without care the row would move from one
end of its bound to the other.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.fuzz.worlds import CALLER, SESSION, World
from tablepuppet.learn.tables.dense import Network
from tablepuppet.learn.tables.linear import Linear
from tablepuppet.learn.tables.model import Spec as Model
from tablepuppet.learn.tables.parameters import first_parameters
from tablepuppet.party.arguments import PredictionNoise, SampleNoise
from tablepuppet.party.policy import Policy
from tablepuppet.prep.encode.specs import Fill, FittedStep, Missing, Scale
from tablepuppet.privacy.accountant import gaussian_epsilon
from tablepuppet.privacy.noise import gaussian_sigma
from tests.privacy.audit import least_gaussian_epsilon

DELTA, ROWS, RUNS, MULTIPLIER = 1e-5, 8, 600, 1.0
MODELS = pytest.mark.parametrize("hidden", [None, [2]], ids=["linear", "network"])


def begun(folder: Path, x: float | None, feature: str) -> World:
    """A session with one feature, encoded; ``steps`` is one that a pipeline fills, flags and scales."""
    steps: list[FittedStep] = []
    if feature == "steps":
        feature, steps = "x", [Missing("x", "flag"), Fill("x", -9.0), Scale("x", 0.0, 2.0)]
    ones: list[Any] = [1.0] * (ROWS - 1)
    cells = {"id": list(range(ROWS)), "x": [x, *ones], "z": [None if x is None else 1, *[1] * (ROWS - 1)]}
    cells |= {"t": ["a"] * ROWS, "d": [0] * ROWS, "y": ["a"] * ROWS, "s": [0.5] * ROWS}
    world = World(folder, cells, Policy())
    assert world.open().error is None
    ask(world, "rows.use", chosen=None, counts=np.ones(ROWS, np.int32))
    means, scales = np.zeros(1 + bool(steps)), np.ones(1 + bool(steps))
    given = {"columns": [feature], "means": means, "scales": scales, "categories": [], "private": True, "steps": steps}
    ask(world, "encode.build", encoding="e", **given)
    return world


def ask(world: World, op: str, **arguments: Any) -> Any:
    return world.party.run(CALLER, SESSION, op, "t", {"view": "v", **arguments})


def spec_of(hidden: list[int] | None) -> Model:
    return Linear(1) if hidden is None else Network(hidden, 1)


def gradients(world: World, hidden: list[int] | None) -> NDArray[Any]:
    """Of a step in which only the first row is asked for anything, far more than clipping allows."""
    spec, noise = spec_of(hidden), SampleNoise(ROWS, 1.0, MULTIPLIER, 1.0)
    width = world.table.state["v/e"].data.width
    theta = first_parameters(spec.over(width, "t"), 0, "t", width, zero=True).theta + 0.5
    asked = {"encoding": "e", "model": "m", "spec": spec, "theta": theta, "proximal": 0.0, "noise": noise}
    rows = np.append(-50.0, np.zeros(ROWS - 1))
    told = [ask(world, "steps.gradient", **asked, rows=rows)["sums"] for _ in range(RUNS)]
    return np.stack(told).reshape(RUNS, -1)


def predictions(world: World, hidden: list[int] | None) -> NDArray[Any]:
    """That of the first row, which is cut to the bound."""
    spec, noise = spec_of(hidden), PredictionNoise(MULTIPLIER, 1.0)
    theta = first_parameters(spec.over(1, "t"), 0, "t", 1, zero=True).theta + 9.0
    told = [
        ask(world, "model.apply", encoding="e", spec=spec, theta=theta, noise=noise)["outputs"] for _ in range(RUNS)
    ]
    return np.stack(told)[:, :1]


def audited(folder: Path, feature: str, hidden: list[int] | None, seen: Any) -> float:
    """What an attack finds."""
    pytest.importorskip("torch", reason="networks need the extra `deep`")
    here, there = (seen(begun(folder / str(x), x, feature), hidden) for x in (1.0, None))
    return least_gaussian_epsilon(here, there, DELTA)


@pytest.mark.parametrize("feature", ["x", "coalesce", "case", "missing", "steps"])
@MODELS
def test_gradients_keep_what_is_stated(tmp_path: Path, feature: str, hidden: list[int] | None) -> None:
    """A row whose cells are NULL adds nothing, so that no attack finds more than the noise promises."""
    assert audited(tmp_path, feature, hidden, gradients) <= gaussian_epsilon(MULTIPLIER, DELTA)


def test_predictions_keep_what_is_stated(tmp_path: Path) -> None:
    """A null record predicts zero, whatever its expression."""
    assert audited(tmp_path, "coalesce", None, predictions) <= gaussian_epsilon(MULTIPLIER, DELTA)


@pytest.mark.parametrize("feature", ["x", "coalesce"])
@MODELS
def test_half_the_noise_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, feature: str, hidden: list[int] | None
) -> None:
    """The same attack goes beyond what is stated as soon as noise is half of it."""
    monkeypatch.setattr("tablepuppet.party.local_table.gaussian_sigma", lambda *asked: 0.5 * gaussian_sigma(*asked))
    assert audited(tmp_path, feature, hidden, gradients) > gaussian_epsilon(MULTIPLIER, DELTA)


def test_half_the_noise_of_predictions_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So for predictions."""
    monkeypatch.setattr("tablepuppet.party.local_table.gaussian_sigma", lambda *asked: 0.5 * gaussian_sigma(*asked))
    assert audited(tmp_path, "coalesce", None, predictions) > gaussian_epsilon(MULTIPLIER, DELTA)


@pytest.mark.parametrize("feature", ["coalesce", "steps"])
def test_without_null_records_the_audit_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, feature: str) -> None:
    """Were COALESCE, or what a pipeline fills, taken as it is, the row would move by twice its bound, and the attack
    would see it.
    """
    nobody = np.zeros(ROWS, bool)
    monkeypatch.setattr("tablepuppet.party.local_table.LocalTable.null_rows", lambda *_: nobody)
    assert audited(tmp_path, feature, None, gradients) > gaussian_epsilon(MULTIPLIER, DELTA)
