"""What learning costs: a whole fit and one round against bare calls, and peak memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import duckdb
import numpy as np
import scipy.sparse
import sklearn.linear_model
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import tablepuppet as tp
from benchmarks.data import ROOT
from benchmarks.learning.movielens import CLOSE, COLUMNS, JOIN, LABELS, learner, movielens, write_movielens
from benchmarks.mapping import peak_memory, seconds
from tablepuppet.learn.loss import losses, softmax
from tablepuppet.learn.loss.losses import Logistic, Loss
from tablepuppet.learn.loss.softmax import Softmax


def whole_fit(folder: Path, task: str, repeats: int) -> dict[str, float]:
    """From open databases to 0.1 % of the optimum, against DuckDB materialising the join plus scikit-learn's fit."""
    urls = write_movielens(folder / f"fit-{task}", 1)

    def ours() -> Any:
        return learner(task, tol=CLOSE / 10).fit(movielens(tp.Federation(urls), task))

    def bare() -> Any:
        files = {name: f"'{url.removeprefix('parquet:///')}/{name[:-1]}.parquet'" for name, url in urls.items()}
        sql = JOIN.replace("ratings r", f"{files['ratings0']} r").replace("users u", f"{files['users0']} u")
        sql = sql.replace("movies_genres g", f"{files['movies_genres0']} g")
        with duckdb.connect() as connection:
            rows = connection.sql(f"SELECT {COLUMNS}, {LABELS[task]} AS y {sql}").fetchnumpy()
        coded = OneHotEncoder().fit_transform(
            np.stack([rows[name].astype(str) for name in ("gender", "age", "occupation", "genre")], axis=1)
        )
        table = scipy.sparse.hstack([coded, StandardScaler().fit_transform(rows["year"][:, None])], format="csr")
        if task == "regression":
            return sklearn.linear_model.Ridge(alpha=1e-6 * len(rows["y"])).fit(table, rows["y"])
        return sklearn.linear_model.LogisticRegression(C=1e6 / len(rows["y"]), max_iter=1000).fit(table, rows["y"])

    times = [(seconds(ours), seconds(bare)) for _ in range(repeats)]
    best_ours, best_bare = (min(column) for column in zip(*times, strict=True))
    return {"ours_seconds": best_ours, "bare_seconds": best_bare, "ratio": best_ours / best_bare}


def one_round(fed: tp.Federation, task: str, repeats: int) -> dict[str, float]:
    """A round of ADMM against the takes and bincounts it must make, and the exponentials of its z-update."""
    train, _ = movielens(fed, task).split(test=0.15, seed=7)
    rows, outputs = len(train), 5 if task == "classes" else 1
    rng = np.random.default_rng(0)
    joined = [rng.random(rows) for _ in range(outputs)]
    tables = [train.mapping.tables[alias] for alias in ("u", "g")]
    indexes = [table.index.astype(np.intp) for table in tables]
    bases = [[rng.random(table.rows) for _ in range(outputs)] for table in tables]
    passes = 0 if task == "regression" else newton_steps(train, task)

    def bare() -> None:
        for index, base, table in zip(indexes, bases, tables, strict=True):
            for values, target in zip(base, joined, strict=True):
                values.take(index)
                np.bincount(index, target, minlength=table.rows)
        for target in joined:
            for _ in range(round(passes)):
                np.exp(target)

    ours, exact = [], []
    for _ in range(repeats):
        history = learner(task, solver="admm", rounds=6, tol=0.0).fit(train).history_
        ours.append(min(entry["seconds"] for entry in history[1:]))  # the first rounds fill memory
        exact.append(min(seconds(bare) for _ in range(2)))
    return {
        "ours_seconds": min(ours),
        "bare_seconds": min(exact),
        "exp_passes": passes,
        "ratio": min(ours) / min(exact),
    }


def newton_steps(train: tp.Relation, task: str) -> float:
    """Newton steps of the z-update over all rows, in the mean over rounds: each needs the exponentials of all scores.

    Those of the first are the ones that the search along the step has just made, so they are made once for both.
    """
    seen, inside, lock = [0], threading.local(), threading.Lock()
    owner: type[Loss]
    module: ModuleType
    module, owner, name = (losses, Logistic, "_unlikely")
    if task != "good":
        module, owner, name = (softmax, Softmax, "_exponentials")
    bare, step = getattr(module, name), owner.proximal_step

    def count(scores: Any, *rest: Any) -> Any:
        if getattr(inside, "step", False):
            with lock:
                seen[0] += scores.shape[-1]
        return bare(scores, *rest)

    def watched(self: Any, start: Any, away: Any, rho: float, labels: Any, known: Any = None) -> Any:
        inside.step = True
        if known is not None:
            with lock:
                seen[0] += len(start)
        try:
            return step(self, start, away, rho, labels, known)
        finally:
            inside.step = False

    try:
        setattr(module, name, count)
        owner.proximal_step = watched  # type: ignore[method-assign]
        rounds = len(learner(task, solver="admm", rounds=3).fit(train).history_)
    finally:
        setattr(module, name, bare)
        owner.proximal_step = step  # type: ignore[method-assign]
    return seen[0] / len(train) / rounds


def memory(urls: Mapping[str, str], task: str) -> dict[str, float]:
    """Peak memory of a fresh process that fits, beyond what the imports take."""
    code = "import sys, json; from benchmarks.learning import cost; cost.report_memory(*json.loads(sys.argv[1]))"
    command = [sys.executable, "-c", code, json.dumps([urls, task])]
    done = subprocess.run(command, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def report_memory(urls: Mapping[str, str], task: str) -> None:
    """Runs in the fresh process."""
    tp.Federation(urls).catalog()
    before = peak_memory()
    relation = movielens(tp.Federation(urls), task)
    assert len(relation)
    mapped = peak_memory()
    model = learner(task, rounds=4).fit(relation)
    width = len(model.coef_)
    dense = len(relation) * width * 8
    figures = {"mapping_bytes": mapped - before, "fit_bytes": peak_memory() - before, "joined_table_bytes": dense}
    print(json.dumps(figures))
