"""Learning over relations, against the same model trained on the materialised join.

Run with ``python -m benchmarks.learning`` (``--quick`` for fewer epochs, smaller growth and no five classes). Ratios
are measured in one process, ours and the bare calls in turn; trips and bytes are counted where messages are sent.
Writes ``benchmarks/results/learning.json`` and curves as PNG beside it. Data is read from ``../shared/data``; what is
absent is skipped.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import scipy.sparse
import sklearn.linear_model
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import tablepuppet as tp
import tablepuppet.federation
import tablepuppet.learn.losses
import tablepuppet.relation
import tablepuppet.wire.outbox
from benchmarks.mapping import ROOT, peak_memory, seconds
from tablepuppet.baselines import Centralized
from tablepuppet.party.service import Party
from tablepuppet.wire.distance import communication_seconds
from tablepuppet.wire.engine import Engine

DATA = ROOT.parent / "shared" / "data"
RESULTS = ROOT / "benchmarks" / "results"
CLOSE = 1e-3  # "there" is a training RMSE or log loss within this share of the centralised one

COLUMNS = "u.gender, u.age, u.occupation, g.year, g.genre"
JOIN = "FROM ratings r JOIN users u USING (user_id) JOIN movies_genres g USING (movie_id)"
CATEGORICAL = ["age", "occupation"]
LABELS = {"regression": "r.rating", "classes": "r.rating", "good": "r.rating >= 4"}


# Counting trips


@dataclass
class Trips:
    """Every set of calls that are made at the same time is one trip: what it was for, and its bytes."""

    made: list[tuple[str, int]] = field(default_factory=list)

    def since(self, start: int) -> list[tuple[str, int]]:
        """Trips after the first ``start``."""
        return self.made[start:]


@contextmanager
def counted() -> Iterator[Trips]:
    """Count trips for as long as the context lasts."""
    trips, modules = Trips(), (tablepuppet.federation, tablepuppet.relation, tablepuppet.wire.outbox)
    bare = tablepuppet.wire.outbox.call_all

    def call_all(engine: Engine, calls: Any, *rest: Any) -> Any:
        before, number = engine.traffic.bytes, engine.traffic.trips
        replies = bare(engine, calls, *rest)
        if engine.traffic.trips > number:
            trips.made.append((_purpose(calls), engine.traffic.bytes - before))
        return replies

    try:
        for module in modules:
            module.call_all = call_all  # type: ignore[attr-defined]
        yield trips
    finally:
        for module in modules:
            module.call_all = bare  # type: ignore[attr-defined]


def _purpose(calls: Any) -> str:
    """The op of a round if there is one, else the verb or the last op."""
    ops = [step.op for _, request in calls for step in request.steps] or [calls[0][1].verb]
    return next((op for op in ops if op.startswith(ROUND_OPS)), ops[-1])


def communication(trips: list[tuple[str, int]]) -> dict[str, float]:
    """Seconds that trips take between continents and within one: a latency each, and their bytes."""
    return communication_seconds(len(trips), sum(size for _, size in trips))


# MovieLens: six algorithms and the centralised model


def write_movielens(folder: Path, shards: int) -> dict[str, str]:
    """Parties with one shard of one table each: URLs."""
    urls = {}
    for table in ("ratings", "users", "movies_genres"):
        source = DATA / "movielens-1m" / f"{table}.parquet"
        rows = duckdb.sql(f"SELECT count(*) FROM '{source}'").fetchall()[0][0]
        for number in range(shards):
            place = folder / f"{table}{number}"
            place.mkdir(parents=True)
            size = -(-rows // shards)
            piece = f"SELECT * FROM '{source}' LIMIT {size} OFFSET {size * number}"
            duckdb.sql(f"COPY ({piece}) TO '{place}/{table}.parquet'")
            urls[f"{table}{number}"] = f"parquet:///{place}"
    return urls


def movielens(fed: tp.Federation, task: str) -> tp.Relation:
    """The relation of one task."""
    return fed.sql(f"SELECT {COLUMNS}, {LABELS[task]} AS y {JOIN}", label="y", categorical=CATEGORICAL)


def learner(task: str, **settings: Any) -> Any:
    """The linear learner of one task."""
    return tp.LinearRegression(**settings) if task == "regression" else tp.LogisticRegression(**settings)


def main_metric(found: Mapping[str, float]) -> float:
    """RMSE or log loss."""
    return found["rmse"] if "rmse" in found else found["log_loss"]


def objective(model: Any, relation: tp.Relation) -> float:
    """Mean training loss plus penalty of a fitted model."""
    told = model.evaluate(relation)
    loss = told["rmse"] ** 2 / 2 if "rmse" in told else told["log_loss"]
    return float(loss + 0.5 * model.l2 * sum(float(np.sum(value**2)) for value in model.coef_.values()))


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


ROUND_OPS = ("linear.direction", "linear.gradient", "linear.sgd")


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
    import importlib.util

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
            model = tp.MLPRegressor(hidden=(16,), solver=solver, rounds=rounds).fit(train)  # type: ignore[arg-type]
            found = model.evaluate(test) | {"rounds": len(model.history_), "seconds": time.perf_counter() - start}
            found["test_ratio"] = found["rmse"] / figures["centralised"]["rmse"]
            figures[f"{solver}, {shards} shards"] = found
            print("networks", solver, shards, json.dumps(found), flush=True)
    return figures


# Curves


def draw(task: str, figures: Mapping[str, Any]) -> None:
    """Objective above the centralised one, against rounds and against communication time."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    best = figures["centralised"]["objective"]
    curves = {name: found["curve"] for name, found in figures.items() if isinstance(found, dict) and "curve" in found}
    colours = {"LBFGS": "#1b6ca8", "ADMM": "#c8553d", "SGD": "#5b8c5a"}
    picture, axes = plt.subplots(1, 3, figsize=(13, 4.2), sharey=True)
    for axis, (key, label) in zip(
        axes, [("round", "rounds (SGD: epochs)"), ("US-UK", "seconds, US-UK"), ("US-US", "seconds, US-US")], strict=True
    ):
        for name, points in curves.items():
            colour = next(value for part, value in colours.items() if part in name)
            style = "-" if name.endswith("-V") else "--" if name.startswith("RFL") else ":"
            above = [max(point["objective"] / best - 1, 1e-9) for point in points]
            wide = "LBFGS" in name  # its points may lie under those of ADMM
            axis.plot(
                [point[key] for point in points], above, style, marker="s" if wide else "o", ms=8 if wide else 4,
                markerfacecolor="none" if wide else colour, color=colour, label=name, lw=1.6,
            )  # fmt: skip
        axis.axhline(CLOSE, color="0.6", lw=0.8)
        axis.set_yscale("log")
        axis.set_ylim(3e-10, 1)
        axis.set_xlabel(label)
        axis.grid(alpha=0.25)
        if key != "round":
            axis.set_xscale("log")
    axes[0].set_ylabel("training objective above the optimum (share)")
    axes[0].text(0.98, CLOSE * 1.3, "0.1 %", color="0.4", ha="right", transform=axes[0].get_yaxis_transform())
    axes[0].xaxis.get_major_locator().set_params(integer=True)
    handles, names = axes[0].get_legend_handles_labels()
    picture.legend(handles, names, loc="lower center", ncols=len(names), frameon=False)
    picture.suptitle(f"MovieLens-1M, {task}: mapping and preparation included in seconds")
    picture.tight_layout(rect=(0, 0.07, 1, 1))
    picture.savefig(RESULTS / f"learning-{task}.png", dpi=110)
    plt.close(picture)


# Seconds: a whole fit, and one round


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
    """How often the z-update goes over all rows, in the mean over rounds."""
    seen, losses, inside = [0], tablepuppet.learn.losses, threading.local()
    lock, name = threading.Lock(), ("_unlikely" if task == "good" else "_probabilities")
    bare, proximal = getattr(losses, name), (losses.Logistic if task == "good" else losses.Softmax).proximal

    def count(scores: Any, *rest: Any) -> Any:
        if getattr(inside, "proximal", False):
            with lock:
                seen[0] += len(scores)
        return bare(scores, *rest)

    def watched(self: Any, *rest: Any) -> Any:
        inside.proximal = True
        try:
            return proximal(self, *rest)
        finally:
            inside.proximal = False

    owner = losses.Logistic if task == "good" else losses.Softmax
    try:
        setattr(losses, name, count)
        owner.proximal = watched  # type: ignore[method-assign]
        rounds = len(learner(task, solver="admm", rounds=3).fit(train).history_)
    finally:
        setattr(losses, name, bare)
        owner.proximal = proximal  # type: ignore[method-assign]
    return seen[0] / len(train) / rounds


# Growth


@contextmanager
def party_seconds() -> Iterator[list[float]]:
    """Time spent inside parties, in the ops of rounds."""
    spent: list[float] = []
    bare = Party.run

    def run(party: Party, caller: str, session: str, op: str, *rest: Any) -> Any:
        start = time.perf_counter()
        try:
            return bare(party, caller, session, op, *rest)
        finally:
            if op.startswith(ROUND_OPS):
                spent.append(time.perf_counter() - start)

    try:
        Party.run = run  # type: ignore[method-assign,assignment]
        yield spent
    finally:
        Party.run = bare  # type: ignore[method-assign]


def star(folder: Path, rows: int, customers: int) -> tp.Federation:
    """A fact with the label, and two tables with the features."""
    folder.mkdir(parents=True)
    products = max(10, customers // 10)
    tables = {
        "sales": f"SELECT hash(i) % {customers} AS customer_id, hash(i + 1) % {products} AS product_id, "
        f"hash(i + 2) % 100 < 30 + (hash(i) % {customers}) % 40 AS returned FROM range({rows}) t(i)",
        "customers": f"SELECT i AS customer_id, sin(i) AS age, cos(i * 3) AS score, 'k' || i % 20 AS kind "
        f"FROM range({customers}) t(i)",
        "products": f"SELECT i AS product_id, sin(i * 7) AS price, cos(i * 5) AS size FROM range({products}) t(i)",
    }
    urls = {}
    for name, sql in tables.items():
        (folder / name).mkdir()
        duckdb.sql(f"COPY ({sql}) TO '{folder}/{name}/{name}.parquet'")
        urls[name] = f"parquet:///{folder / name}"
    return tp.Federation(urls)


STAR_SQL = (
    "SELECT c.age, c.score, c.kind, p.price, p.size, f.returned FROM sales f "
    "JOIN customers c USING (customer_id) JOIN products p USING (product_id)"
)


def growth_point(folder: Path, rows: int, customers: int) -> dict[str, float]:
    """One round of L-BFGS over a star of this size: the whole round, the parties' part of it, its bytes."""
    relation = star(folder, rows, customers).sql(STAR_SQL, label="returned")
    with party_seconds() as spent:
        history = tp.LogisticRegression(rounds=4, tol=0.0).fit(relation).history_
    return {
        "joined_rows": len(relation),
        "base_rows": sum(relation.mapping.tables[alias].rows for alias in "cp"),
        "round_seconds": min(entry["seconds"] for entry in history[1:]),
        "party_seconds": sorted(spent)[len(spent) // 2] * 2,  # two tables
        "bytes": history[1]["bytes_up"] + history[1]["bytes_down"],
    }


def growth(folder: Path, quick: bool) -> dict[str, Any]:
    """Joined rows at fixed base tables, then base rows at fixed joined rows; exponents of a power law."""
    sizes = [100_000, 1_000_000] if quick else [100_000, 1_000_000, 10_000_000]
    joined = [growth_point(folder / f"n{rows}", rows, 20_000) for rows in sizes]
    base = [growth_point(folder / f"b{rows}", 1_000_000, rows) for rows in (1_000, 10_000, 100_000)]

    def exponent(points: list[dict[str, float]], by: str, what: str) -> float:
        return float(np.polyfit(np.log([p[by] for p in points]), np.log([p[what] for p in points]), 1)[0])

    figures: dict[str, Any] = {"joined_rows": joined, "base_rows": base}
    for name, points in (("joined_rows", joined), ("base_rows", base)):
        figures[f"exponents_by_{name}"] = {
            what: exponent(points, name, what) for what in ("round_seconds", "party_seconds", "bytes")
        }
    return figures


# Memory, and five tables of a hospital


def memory(urls: Mapping[str, str], task: str) -> dict[str, float]:
    """Peak memory of a fresh process that fits, beyond what the imports take."""
    code = "import sys, json; from benchmarks import learning; learning.report_memory(*json.loads(sys.argv[1]))"
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


MIMIC_SQL = """
    SELECT p.gender, a.admission_type, a.insurance, a.marital_status, a.admission_location,
           i.first_careunit, i.los, d.seq_num, substr(d.icd9_code, 1, 2) AS chapter, l."FLAG", l."VALUEUOM",
           a.hospital_expire_flag
    FROM patients p JOIN admissions a ON a.subject_id = p.subject_id JOIN icustays i ON i.hadm_id = a.hadm_id
    JOIN diagnoses_icd d ON d.hadm_id = a.hadm_id JOIN labevents l ON l."HADM_ID" = a.hadm_id
"""


def mimic(folder: Path) -> dict[str, Any]:
    """Death in hospital from five tables of five departments, logistic regression."""
    urls = {}
    for table in ("patients", "admissions", "icustays", "diagnoses_icd", "labevents"):
        (folder / table).mkdir(parents=True)
        (folder / table / f"{table}.parquet").symlink_to((DATA / "mimic-iii-demo" / f"{table}.parquet").resolve())
        urls[table] = f"parquet:///{folder / table}"
    relation = tp.Federation(urls).sql(MIMIC_SQL, label="hospital_expire_flag")
    train, test = relation.split(test=0.25, seed=1)
    settings = {"l2": 1e-2}
    pooled = Centralized(tp.LogisticRegression(**settings)).fit(train)  # type: ignore[arg-type]
    best = objective(pooled, train)
    figures: dict[str, Any] = {
        "joined_rows": len(relation),
        "base_rows": sum(table.rows for table in relation.mapping.tables.values()),
        "columns": len(pooled.coef_),
        "centralised": {"objective": best, **pooled.evaluate(test)},
    }
    for solver in ("auto", "admm"):
        model = tp.LogisticRegression(solver=solver, rounds=30, tol=1e-8, **settings).fit(train)  # type: ignore[arg-type]
        close = [entry["round"] for entry in model.history_ if entry["objective"] <= best * (1 + CLOSE)]
        last = model.history_[-1]
        figures[solver] = {
            "rounds_to_0.1_percent": close[0] if close else None,
            "rounds": last["round"],
            "objective_ratio": last["objective"] / best,
            "bytes_per_round": last["bytes_up"] + last["bytes_down"],
            **model.evaluate(test),
        }
    return figures


def main() -> None:
    """Measure everything and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer epochs, smaller growth, no five classes")
    quick = parser.parse_args().quick
    result: dict[str, Any] = {}
    RESULTS.mkdir(exist_ok=True)

    def measure(name: str, work: Callable[[], Any]) -> None:
        start = time.perf_counter()
        result[name] = work()
        if name not in LABELS and name != "networks":
            print(name, json.dumps(result[name], indent=2))
        print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        if (DATA / "movielens-1m").exists():
            tasks = ["regression"] if quick else ["regression", "classes"]
            for task in tasks:
                measure(task, lambda task=task: compare(folder / "compare", task, quick))  # type: ignore[misc]
                draw(task, result[task])
            if not quick:
                measure("networks", lambda: networks(folder))
            for task in ("regression", "good"):
                measure(f"whole fit, {task}", lambda task=task: whole_fit(folder, task, 1 if quick else 2))  # type: ignore[misc]
            urls = write_movielens(folder / "round", 1)
            fed = tp.Federation(urls)
            for task in ("regression", "good") if quick else ("regression", "good", "classes"):
                measure(f"one round, {task}", lambda task=task: one_round(fed, task, 3))  # type: ignore[misc]
            measure("memory", lambda: memory(urls, "good"))
        else:
            print("movielens-1m is skipped: ../shared/data is absent")
        measure("growth", lambda: growth(folder / "growth", quick))
        if (DATA / "mimic-iii-demo").exists():
            measure("mimic-iii-demo", lambda: mimic(folder / "mimic"))
        else:
            print("mimic-iii-demo is skipped: ../shared/data is absent")
    (RESULTS / "learning.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
