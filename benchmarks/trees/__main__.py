"""``python -m benchmarks.trees`` writes ``benchmarks/results/trees.json``; name a part to measure only that.

LightGBM takes part if it is installed. Categories of rows to test that were not in those to learn from are missing.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tablepuppet as tp
from benchmarks.data import ROOT
from benchmarks.learning.trips import communication, counted
from benchmarks.trees.kernels import kernels
from benchmarks.trees.libraries import libraries
from benchmarks.trees.relations import QUALITY, Task, like_a9a, movielens, star
from benchmarks.trees.rivals import RIVALS, Size, metric, ours, xgboost

RESULTS = ROOT / "benchmarks" / "results" / "trees.json"
Figures = dict[str, Any]


def quality(name: str, *, beside: bool) -> Figures:
    """AUC or RMSE of rows held out: ours, theirs, and with ``beside`` of our other learners."""
    task, size, found = QUALITY[name](), Size(), dict[str, float]()
    with tempfile.TemporaryDirectory() as folder:
        fed = tp.Federation(task.write(Path(folder)))
        train, test = (task.relation(fed, task.part(test=each)) for each in (False, True))
        kind = "auc" if task.is_flag else "rmse"
        found["ours"] = ours(size, is_flag=task.is_flag).fit(train).evaluate(test)[kind]
        for other in others(task) if beside else []:
            found[type(other).__name__] = other.fit(train).evaluate(test)[kind]
        columns, labels = task.pooled(Path(folder), task.part(test=False))
        unseen, wanted = task.pooled(Path(folder), task.part(test=True))
        for each in columns.select_dtypes("category"):
            unseen[each] = unseen[each].astype(columns[each].dtype)
        for rival, learn in RIVALS.items():
            try:
                predicted = learn(size, columns, labels, is_flag=task.is_flag)(unseen)
            except ValueError as error:  # scikit-learn: too many categories
                print(f"{name}: {rival}: {error}")
                continue
            found[rival] = metric(wanted, predicted, is_flag=task.is_flag)
    return {"metric": kind, "rows": len(columns), "rows_held_out": len(unseen), **found}


def others(task: Task) -> list[Any]:
    """A linear model and SplitNN."""
    if task.is_flag:
        return [tp.LogisticRegression(), tp.MLPClassifier()]
    return [tp.LinearRegression(), tp.MLPRegressor()]


def timed(work: Callable[[], Any]) -> tuple[float, float, Any]:
    """Seconds, and processor seconds of this process."""
    start, used = time.perf_counter(), time.process_time()
    found = work()
    return time.perf_counter() - start, time.process_time() - used, found


def speed(task: Task, size: Size, repeats: int) -> Figures:
    """The whole fit from files, beside DuckDB's join and XGBoost's fit of these; in turns, the least of each."""
    with tempfile.TemporaryDirectory() as folder:
        urls, at, pairs = task.write(Path(folder)), Path(folder), list[tuple[Any, Any]]()
        learner = ours(size, is_flag=task.is_flag)
        for _ in range(repeats):
            with counted() as trips:
                here = timed(lambda: learner.fit(task.relation(tp.Federation(urls))))
            theirs = timed(lambda: xgboost(size, *task.pooled(at), is_flag=task.is_flag))
            pairs.append((here[:2], theirs[:2]))
        last = learner.history_[-1]
        (mine, own), (their, used) = (tuple(map(min, zip(*each, strict=True))) for each in zip(*pairs, strict=True))
        grown = [each for each in trips.made if each[0].startswith("trees.")]
        return {
            "seconds": mine, "xgboost_seconds": their, "ratio": mine / their,
            "processor_seconds": own, "xgboost_processor_seconds": used, "processor_ratio": own / used,
            "seconds_a_tree": last["seconds"] / size.rounds,
            "trips_a_tree": len(grown) / size.rounds,
            "bytes_a_tree": (last["bytes_up"] + last["bytes_down"]),
            "communication_seconds_a_tree": {
                line: seconds / size.rounds for line, seconds in communication(grown).items()
            },
        }  # fmt: skip


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", nargs="?", choices=["quality", "speed", "a9a", "growth", "kernels", "libraries"])
    parser.add_argument("--only", choices=list(QUALITY))
    parser.add_argument("--beside", action="store_true", help="our linear learners and networks too")
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    found: Figures = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    small = Size(rounds=20)
    work: Mapping[str, Callable[[], Figures]] = {
        "quality": lambda: {
            name: quality(name, beside=given.beside) for name in QUALITY if given.only in (None, name)
        },
        "speed": lambda: {
            "star": speed(star(2_000_000), small, given.repeats),
            "movielens-1m": speed(movielens(), small, given.repeats),
        },
        "a9a": lambda: speed(like_a9a(), small, given.repeats),
        "growth": lambda: {str(rows): speed(star(rows), small, 1) for rows in (500_000, 1_000_000, 2_000_000)},
        "kernels": kernels,
        "libraries": libraries,
    }  # fmt: skip
    for part, measure in work.items():
        if given.part in (None, part):
            found[part] = found.get(part, {}) | measure()
            print(json.dumps({part: found[part]}, indent=2), flush=True)
            RESULTS.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
