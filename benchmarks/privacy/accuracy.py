"""Test RMSE on MovieLens-1M under label and feature privacy, against the pooled model without any."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import tablepuppet as tp
from benchmarks.learning.movielens import movielens, write_movielens
from tablepuppet.baselines import Centralized
from tablepuppet.privacy.accountant import gaussian_epsilon, noise_multiplier

BOUNDS = (1.0, 5.0)
DELTA = 1e-5
LABEL_EPSILON = math.sqrt(2) * (BOUNDS[1] - BOUNDS[0]) / 0.5  # of noise with deviation 0.5, the paper's lambda
LABELS: dict[str, Any] = {"label_epsilon": LABEL_EPSILON, "label_bounds": BOUNDS}
PAPER: dict[str, Any] = {**LABELS, "feature_epsilon": 1.0, "delta": DELTA, "clip_norm": 1.0}
EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0)

Make = Callable[[tp.Privacy | None], Any]


def algorithms() -> dict[str, tuple[str, Make]]:
    """(which pooled model it is held against, how it is made) by name."""
    found: dict[str, tuple[str, Make]] = {}
    for solver in ("lbfgs", "admm", "sgd"):
        found[f"linear {solver}"] = ("linear", partial(_linear, solver))
    if importlib.util.find_spec("torch") is not None:
        for solver in ("auto", "admm", "sgd"):
            found[f"network {solver}"] = ("network", partial(_network, solver))
    return found


def _linear(solver: Any, privacy: tp.Privacy | None) -> Any:
    return tp.LinearRegression(solver=solver, privacy=privacy)


def _network(solver: Any, privacy: tp.Privacy | None) -> Any:
    return tp.MLPRegressor(hidden=(16,), solver=solver, privacy=privacy)


def bare_rmse(model: Any, test: tp.Relation) -> float:
    """The RMSE of the model itself on true labels: they are at hand here, and predictions without noise too."""
    if model._promise is not None:
        model._promise.noise.prediction = None
    return float(model.evaluate(test, at_party=True)["rmse"])


def pooled(train: tp.Relation, test: tp.Relation) -> dict[str, float]:
    """Without privacy, by kind of model."""
    found = {"linear": Centralized(tp.LinearRegression()).fit(train).evaluate(test)["rmse"]}
    if importlib.util.find_spec("torch") is not None:
        network = Centralized(tp.MLPRegressor(hidden=(16,), rounds=30)).fit(train)
        found["network"] = network.evaluate(test)["rmse"]
    return found


def at_the_papers_setting(folder: Path, repeats: int) -> dict[str, Any]:
    """Every algorithm with one and two shards: test RMSE, what it loses, and its curve."""
    figures: dict[str, Any] = {"label_epsilon": LABEL_EPSILON}
    for shards in (1, 2):
        fed = tp.Federation(write_movielens(folder / f"paper{shards}", shards))
        train, test = movielens(fed, "regression").split(test=0.15, seed=7)
        if shards == 1:
            figures["pooled"] = pooled(train, test)
        for name, (kind, make) in algorithms().items():
            told = _measured(make, train, test, repeats)
            if "rmse" in told:
                told["loss"] = told["rmse"] - figures["pooled"][kind]
            figures[f"{name}, {shards} shard{'s' * (shards > 1)}"] = told
            print(name, shards, {key: value for key, value in told.items() if key != "curve"}, flush=True)
    return figures


def _measured(make: Make, train: tp.Relation, test: tp.Relation, repeats: int) -> dict[str, Any]:
    """The mean over fits with noise of their own; an algorithm without a private form says so."""
    privacy = tp.Privacy(**PAPER)
    try:
        models = [make(privacy).fit(train) for _ in range(repeats)]
    except tp.PrivacyError as error:
        return {"missing": str(error)}
    found = [bare_rmse(model, test) for model in models]
    told = {"rmse": float(np.mean(found)), "deviation": float(np.std(found))}
    told |= {key: models[0].privacy_[key] for key in ("epsilon", "epsilon_given_messages")}
    watched = make(privacy)
    watched._labels = true_labels  # noisy test labels would move a whole curve by a few thousandths
    curve = [entry["validation_metric"] for entry in watched.fit(train, validation=test).history_]
    without = make(None).set_params(rounds=max(len(curve), 3)).fit(train, validation=test)
    return told | {"curve": curve, "curve_without": [entry["validation_metric"] for entry in without.history_]}


def true_labels(client: Any, label: Any, asked: Any, where: str) -> Any:
    """The true labels of the test side."""
    bare = tp.LinearRegression()
    return bare._labels(client, label, bare._ask_labels(client, label), where)


def both_meanings(epsilon: float) -> Mapping[str, dict[str, Any]]:
    """Settings for an epsilon given messages, and for one of everything: half of it for predictions."""
    half = noise_multiplier(epsilon * 0.999, DELTA) * math.sqrt(2)
    part = gaussian_epsilon(half, DELTA)
    return {
        "given messages": {"feature_epsilon": epsilon},
        "everything noised": {"feature_epsilon": part, "prediction_epsilon": part},
    }


def by_epsilon(folder: Path, repeats: int) -> dict[str, Any]:
    """Test RMSE of linear regression against epsilon, labels as they are."""
    fed = tp.Federation(write_movielens(folder / "epsilon", 1))
    train, test = movielens(fed, "regression").split(test=0.15, seed=7)
    figures: dict[str, Any] = {"pooled": Centralized(tp.LinearRegression()).fit(train).evaluate(test)["rmse"]}
    figures["constant"] = float(np.std(test_labels(test)))
    figures["fits"] = repeats
    for epsilon in EPSILONS:
        for meaning, settings in both_meanings(epsilon).items():
            found, stated = [], 0.0
            for _ in range(repeats):
                model = tp.LinearRegression(privacy=tp.Privacy(delta=DELTA, **settings)).fit(train)
                key = "epsilon_given_messages" if meaning == "given messages" else "epsilon"
                stated = max(stated, model.privacy_[key])
                found.append(bare_rmse(model, test))
            figures.setdefault(meaning, []).append(
                {
                    "epsilon": epsilon,
                    "stated": stated,
                    "mean": float(np.mean(found)),
                    "median": float(np.median(found)),
                    "best": float(np.min(found)),
                    "worst": float(np.max(found)),
                }
            )
            print(meaning, figures[meaning][-1], flush=True)
    return figures


def test_labels(test: tp.Relation) -> Any:
    """The ratings of the test side."""
    learner = tp.LinearRegression()
    assert test.query.label is not None
    asked = learner._ask_labels(test.client, test.query.label)
    return learner._prepare(test.client, test.query.label, asked).rows.labels()
