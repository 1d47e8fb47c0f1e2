"""The stated epsilon of noisy steps (DP-SGD) against an attack on what a step tells."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import tablepuppet as tp
from tablepuppet.learn.private.feature_promise import StepPromise
from tablepuppet.learn.tables.dense import Network
from tablepuppet.learn.tables.linear import Linear
from tablepuppet.learn.tables.model import Spec
from tablepuppet.learn.tables.parameters import first_parameters
from tablepuppet.party.arguments import SampleNoise
from tests.privacy.audit import least_epsilon
from tests.privacy.worlds import DELTA, ROWS, World, worlds

PULLED = 50.0  # what is asked of the row that is looked for: far more than clipping allows
RUNS = 1000  # of steps in each world; fewer for networks, whose steps take longer
MODELS = pytest.mark.parametrize("hidden", [None, [1]], ids=["linear", "network"])

pytestmark = pytest.mark.usefixtures("known_noise")


@dataclass(frozen=True)
class Steps:
    """Steps as they are promised, and what the party does instead."""

    epsilon: float
    sampling: float
    noise: float = 1.0  # that is drawn, as a share of what is promised
    drawn: float | None = None  # the probability with which rows are in samples; None: as promised

    def promise(self, world: World, hidden: list[int] | None) -> StepPromise:
        """What a fit of one such step promises."""
        assert world.promise is not None
        tables = {"a": replace(world.promise.statistics["a"], expected=0)}  # steps have all of epsilon
        privacy = tp.Privacy(feature_epsilon=self.epsilon, delta=DELTA)
        promise = StepPromise(privacy, tables, 1, 1, {"a": self.sampling})
        promise.choose({"a": math.prod(spec_of(hidden).theta_shape(1))}).steps = 1
        return promise


def spec_of(hidden: list[int] | None) -> Spec:
    return Linear(1) if hidden is None else Network(hidden, 1)


def seen_in(world: World, promise: StepPromise, hidden: list[int] | None, steps: Steps, runs: int) -> NDArray[Any]:
    """What leaves a shard in a step, many times: all else of the fit is made from it.

    No other row is asked for anything, so that none hides the one that is looked for: an attacker may choose that.
    """
    noise = promise.noise
    spec = spec_of(hidden)
    theta = first_parameters(spec.over(1, "a"), 0, "a", 1, zero=True).theta
    added = SampleNoise(ROWS, noise.clip, noise.multipliers["a"] * steps.noise, steps.drawn or steps.sampling)
    asked = {"encoding": world.encoding, "model": "m", "spec": spec, "theta": theta, "proximal": 0.0, "noise": added}
    rows = np.append(-PULLED / ROWS, np.zeros(ROWS - 1))
    first = world.ask("a", "steps.gradient", **asked, rows=rows)["sums"]
    others = [world.ask("a", "steps.gradient", **asked)["sums"] for _ in range(runs - 1)]
    return np.stack([first, *others]).reshape(runs, -1)


def audited(folder: Path, hidden: list[int] | None, steps: Steps, runs: int) -> tuple[float, float]:
    """(what an attack finds, what is stated)."""
    if hidden is not None:
        pytest.importorskip("torch", reason="private networks need the extra `deep`")
    both = worlds(folder, first_x=None)
    promise = steps.promise(both[0], hidden)
    seen = [seen_in(world, promise, hidden, steps, runs) for world in both]
    return least_epsilon(seen[0], seen[1], DELTA), promise.epsilon(["a"], given_messages=True)


@MODELS
def test_a_row_seen_in_a_sampled_step(tmp_path: Path, hidden: list[int] | None) -> None:
    """A step on a hidden sample tells a row apart no better than stated."""
    found, stated = audited(tmp_path, hidden, Steps(epsilon=8.0, sampling=0.5), RUNS if hidden is None else RUNS // 2)
    assert 0.2 < found <= stated


@MODELS
def test_a_step_without_noise_is_found_out(tmp_path: Path, hidden: list[int] | None) -> None:
    """A sample alone hides no row: with noise a thousand times smaller it is told apart better than stated."""
    found, stated = audited(tmp_path, hidden, Steps(epsilon=0.5, sampling=0.5, noise=1e-3), RUNS // 5)
    assert found > 1.5 * stated


def test_a_sample_that_is_none_is_found_out(tmp_path: Path) -> None:
    """Where amplification is counted, but every row is in every sample, a row is told apart better than stated."""
    found, stated = audited(tmp_path, None, Steps(epsilon=0.5, sampling=0.001, drawn=1.0), RUNS)
    assert found > 1 > stated
