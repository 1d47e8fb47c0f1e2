"""Seconds of a short fit by every solver and kind of learner, on MovieLens-1M, parties in this process.

Run with ``python -m benchmarks.learning.solvers`` (``--users 1500`` for fewer than 6,040). Every fit has a fixed number
of rounds, so that two versions of the code do the same work; `benchmarks.pairs` compares two. Seconds of the processor
are those of all threads. Writes ``benchmarks/results/solvers.json``.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tablepuppet as tp
from benchmarks.data import ROOT, is_there
from benchmarks.learning.movielens import CATEGORICAL, COLUMNS, JOIN, LABELS, write_movielens

USERS = 6040
REPEATS = 3
ROUNDS: dict[str, Any] = {"rounds": 5, "tol": 0.0}
LABEL_NOISE: dict[str, Any] = {"label_epsilon": 11.3, "label_bounds": (1.0, 5.0)}


def fits(most: int) -> Iterator[tuple[str, int, str, int, Any]]:
    """(what, shards of each table, task, users, learner)."""
    some = most // 10  # networks and batches take longer
    linear, logistic = tp.LinearRegression, tp.LogisticRegression
    for solver in ("lbfgs", "admm"):
        yield f"linear {solver}", 1, "regression", most, linear(solver=solver, **ROUNDS)
        yield f"linear {solver}, two shards", 2, "regression", most, linear(solver=solver, **ROUNDS)
        yield f"logistic {solver}", 1, "good", most, logistic(solver=solver, **ROUNDS)
        yield f"softmax {solver}", 1, "classes", most, logistic(solver=solver, **ROUNDS)
    yield "linear lbfgs, consensus", 2, "regression", most, linear(solver="lbfgs", inner_rounds=3, **ROUNDS)
    yield "linear lbfgs, reduce=False", 1, "regression", some, linear(solver="lbfgs", reduce=False, **ROUNDS)
    yield "linear sgd", 1, "regression", some, linear(solver="sgd", rounds=2, batch_size=2000)
    yield "linear sgd, two shards", 2, "regression", some, linear(solver="sgd", rounds=2, batch_size=2000)
    for solver in ("lbfgs", "admm", "sgd"):
        settings: dict[str, Any] = {"solver": solver, "rounds": 3} | ({"batch_size": 2000} if solver == "sgd" else {})
        network = tp.MLPRegressor(hidden=(16,), **settings)
        yield f"network {solver}", 1, "regression", some, network
    noise = tp.Privacy(feature_epsilon=1.0, delta=1e-5, clip_norm=1.0, **LABEL_NOISE)
    yield "linear, noisy sums and labels", 1, "regression", most, linear(rounds=5, privacy=noise)
    yield (
        "network, noisy steps and labels",
        1,
        "regression",
        some,
        tp.MLPRegressor(hidden=(16,), rounds=3, privacy=noise),
    )


def measure(folder: Path, users: int, only: str = "", repeats: int = REPEATS) -> dict[str, dict[str, float]]:
    """Wall and processor seconds of each fit whose name has a text in it, the least of some; relations are made before
    the clock starts.
    """
    feds = {shards: tp.Federation(write_movielens(folder / str(shards), shards)) for shards in (1, 2)}
    found: dict[str, dict[str, float]] = {}
    for what, shards, task, most, learner in (each for each in fits(users) if only in each[0]):
        sql = f"SELECT {COLUMNS}, {LABELS[task]} AS y {JOIN} WHERE u.user_id <= {most}"
        relation = feds[shards].sql(sql, label="y", categorical=CATEGORICAL)
        assert relation.mapping is not None
        taken = [_fit(learner, relation) for _ in range(repeats + 1)][1:]  # the first loads what it needs
        wall, processor = (min(column) for column in zip(*taken, strict=True))
        found[what] = {"seconds": wall, "processor_seconds": processor}
        print(what, json.dumps(found[what]), flush=True)
    return found


def _fit(learner: Any, relation: tp.Relation) -> tuple[float, float]:
    start, before = time.perf_counter(), time.process_time()
    learner.fit(relation)
    return time.perf_counter() - start, time.process_time() - before


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=USERS, help="users whose ratings are learned from")
    parser.add_argument("--only", default="", help="fits with this in their name")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    given = parser.parse_args()
    if is_there("movielens-1m"):
        with tempfile.TemporaryDirectory() as folder:
            result = measure(Path(folder), given.users, given.only, given.repeats)
        target = ROOT / "benchmarks" / "results" / "solvers.json"
        target.parent.mkdir(exist_ok=True)
        target.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
