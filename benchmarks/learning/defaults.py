"""Default settings: the objective of ``sgd`` against that of ``lbfgs``; networks.py measures those of networks.

Run with ``python -m benchmarks.learning.defaults`` (``--quick`` for small relations only). Over MovieLens-1M, the
flights of the demonstration and synthetic relations of 1,000 to 50,000 rows. Writes
``benchmarks/results/defaults.json``.
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
from benchmarks.data import DATA, ROOT
from benchmarks.learning.movielens import LABELS, movielens, objective, write_movielens
from benchmarks.learning.synthetic import LABELS as TASKS
from benchmarks.learning.synthetic import Shape, synthetic, write_synthetic
from tablepuppet.demo import LABEL, SQL, build_databases

RESULT = ROOT / "benchmarks" / "results" / "defaults.json"
SIZES = (1_000, 5_000, 15_000, 50_000)


def relations(folder: Path, quick: bool) -> Iterator[tuple[str, str, tp.Relation]]:
    """(name, task, relation) of everything that is measured."""
    for rows in SIZES[:2] if quick else SIZES:
        for shards in (1, 2):
            fed = tp.Federation(write_synthetic(folder / f"{rows}-{shards}", Shape(rows, shards)))
            for task in TASKS:
                yield f"synthetic, {rows:,} rows, {shards} shards, {task}", task, synthetic(fed, task)
    if quick:
        return
    build_databases(folder / "flights")
    yield "flights", "binary", tp.Federation.load(folder / "flights" / "federation.toml").sql(SQL, LABEL)
    if (DATA / "movielens-1m").exists():
        fed = tp.Federation(write_movielens(folder / "movielens", 1))
        for task in LABELS:
            yield f"MovieLens-1M, {task}", task, movielens(fed, task)
    else:
        print("movielens-1m is skipped: ../shared/data is absent")


def linear(task: str, relation: tp.Relation) -> dict[str, Any]:
    """Both solvers, with nothing set."""
    learner: Any = tp.LinearRegression if task == "regression" else tp.LogisticRegression
    found: dict[str, Any] = {"joined_rows": len(relation)}
    for solver in ("lbfgs", "sgd"):
        start = time.perf_counter()
        model = learner(solver=solver).fit(relation)
        seconds = time.perf_counter() - start
        found[solver] = {
            "objective": objective(model, relation), "rounds": len(model.history_), "seconds": seconds,
            "stopped": model.stopped_,
        }  # fmt: skip
    found["ratio"] = found["sgd"]["objective"] / found["lbfgs"]["objective"]
    found["difference"] = found["sgd"]["objective"] - found["lbfgs"]["objective"]
    return found


def main() -> None:
    """Measure everything and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small relations only")
    quick = parser.parse_args().quick
    result: dict[str, Any] = {"linear": {}}
    RESULT.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        for name, task, relation in relations(Path(place), quick):
            result["linear"][name] = found = linear(task, relation)
            print(f"{name}: ratio {found['ratio']:.5f}, {json.dumps(found['sgd'])}", flush=True)
            RESULT.write_text(json.dumps(result, indent=2) + "\n")
    RESULT.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
