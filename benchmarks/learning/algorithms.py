"""Six algorithms and the centralised model, on MovieLens-1M; networks of every table beside them."""

from __future__ import annotations

import importlib.util
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import tablepuppet as tp
from benchmarks.learning.movielens import CLOSE, learner, main_metric, movielens, objective, write_movielens
from benchmarks.learning.trips import ROUND_OPS, communication, counted
from tablepuppet.baselines import Centralized


def algorithms(shards: int, quick: bool, task: str) -> dict[str, dict[str, Any]]:
    """Settings by name: -V where every table has one shard, as in the paper."""
    suffix = "-V" if shards == 1 else ""
    rounds, epochs = (4 if task == "classes" else 6), (1 if quick or task == "classes" else 3)
    found = {
        f"RFL-LBFGS{suffix}": {"solver": "auto", "rounds": rounds},
        f"RFL-ADMM{suffix}": {"solver": "admm", "rounds": rounds},
        f"RFL-SGD{suffix}": {"solver": "sgd", "rounds": epochs},
    }
    if shards == 1:
        found["VFL-ADMM"] = {"solver": "admm", "rounds": 3, "reduce": False}
        found["VFL-SGD"] = {"solver": "sgd", "rounds": 1, "reduce": False}
    return found


def training_metric(entry: Mapping[str, float], task: str) -> float:
    """RMSE or log loss on the training side, after a round."""
    return float(np.sqrt(2 * entry["loss"])) if task == "regression" else entry["loss"]


def run_algorithm(
    urls: Mapping[str, str], task: str, settings: Mapping[str, Any], pooled: Mapping[str, float]
) -> dict[str, Any]:
    """One algorithm from nothing: its curve, and what it took to come close to the centralised model."""
    with counted() as trips:
        fed = tp.Federation(urls)
        whole = movielens(fed, task)
        assert len(whole)
        mapped = len(trips.made)
        train, test = whole.split(test=0.15, seed=7)
        prepared = len(trips.made)
        ends: list[int] = []  # trips at the end of each round
        model = learner(
            task, **settings, callbacks=[lambda event: ends.append(len(trips.made)) if event.name == "fit" else None]
        ).fit(train)
    first = next(place for place, (op, _) in enumerate(trips.made) if op.startswith(ROUND_OPS))
    setup = trips.made[:mapped] + trips.made[prepared:first]  # a split is the experiment's, not the training's
    curve = []
    for end, entry in zip(ends, model.history_, strict=True):
        spent = setup + trips.made[first:end]
        curve.append(
            {
                "round": entry["round"],
                "objective": entry["objective"],
                "train": training_metric(entry, task),
                "trips": len(spent),
                **communication(spent),
            }
        )
    figures: dict[str, Any] = {"test": main_metric(model.evaluate(test)), "curve": curve}
    figures["trips"] = {"mapping": mapped, "preparation": first - prepared}
    reached = [place for place, point in enumerate(curve) if point["train"] <= pooled["train"] * (1 + CLOSE)]
    if reached:
        stopped = learner(task, **(dict(settings) | {"rounds": reached[0] + 1})).fit(train)
        rounds = trips.made[first : ends[reached[0]]]
        mapping_and_rounds = trips.made[:mapped] + rounds
        figures["there"] = {
            "rounds": reached[0] + 1,
            "trips_of_rounds": len(rounds),
            "seconds": communication(setup + rounds),
            "seconds_without_preparation": communication(mapping_and_rounds),
            "test_ratio": main_metric(stopped.evaluate(test)) / pooled["test"],
        }
    outputs = 5 if task == "classes" else 1
    base = sum(train.mapping.tables[alias].rows for alias in ("u", "g"))
    if len(curve) > 1 and settings["solver"] != "sgd":
        entry = model.history_[1]
        figures["bytes_per_round"] = entry["bytes_up"] + entry["bytes_down"]
        figures["bytes_ratio"] = figures["bytes_per_round"] / (8 * base * outputs)
    return figures


def compare(folder: Path, task: str, quick: bool) -> dict[str, Any]:
    """Every algorithm on one task, with one shard per table and with two."""
    urls = {shards: write_movielens(folder / f"{task}{shards}", shards) for shards in (1, 2)}
    train, test = movielens(tp.Federation(urls[1]), task).split(test=0.15, seed=7)
    pooled = Centralized(learner(task)).fit(train)
    best = {
        "objective": objective(pooled, train),
        "train": main_metric(pooled.evaluate(train)),
        "test": main_metric(pooled.evaluate(test)),
    }
    figures: dict[str, Any] = {"joined_rows": len(train), "centralised": best}
    del pooled, train, test
    for shards in (1, 2):
        for name, settings in algorithms(shards, quick, task).items():
            found = run_algorithm(urls[shards], task, settings, best)
            found["test_ratio"] = found["test"] / best["test"]
            figures[name] = found
            told = {key: value for key, value in found.items() if key != "curve"}
            print(task, name, json.dumps(told), flush=True)
    return figures


def networks(folder: Path) -> dict[str, Any]:
    """A network of 16 hidden units per table: test RMSE of every algorithm against the pooled rows."""
    if importlib.util.find_spec("torch") is None:
        return {"skipped": "torch is not installed"}
    figures: dict[str, Any] = {}
    for shards in (1, 2):
        fed = tp.Federation(write_movielens(folder / f"networks{shards}", shards))
        train, test = movielens(fed, "regression").split(test=0.15, seed=7)
        if shards == 1:
            figures["centralised"] = Centralized(tp.MLPRegressor(hidden=(16,), rounds=30)).fit(train).evaluate(test)
        for solver, rounds in (("admm", 30), ("lbfgs", 30), ("sgd", 3)):
            start = time.perf_counter()
            model = tp.MLPRegressor(hidden=(16,), solver=solver, rounds=rounds).fit(train)
            found = model.evaluate(test) | {"rounds": len(model.history_), "seconds": time.perf_counter() - start}
            found["test_ratio"] = found["rmse"] / figures["centralised"]["rmse"]
            figures[f"{solver}, {shards} shards"] = found
            print("networks", solver, shards, json.dumps(found), flush=True)
    return figures
