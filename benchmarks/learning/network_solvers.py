"""How soon networks reach a given loss, by solver: what ``solver="auto"`` of `tp.MLP*` is chosen by.

Run with ``OMP_NUM_THREADS=1 python -m benchmarks.learning.network_solvers`` (``--quick``: the two smallest relations
only; ``--held-out``: relations that the choice was not made by). Some rows are for the test, and their loss is measured
after every round of every solver, all with default settings. The loss to reach is 95 % of the way from a constant to
the best that any solver has reached on the same relation (``--share``). For each solver: seconds, processor seconds of
all threads, rounds, trips and bytes until then, and with the time that these would take between the US and the UK; the
same for its best round, and for its last, which is where ``--limit`` processor seconds were over if not before. SplitNN
stands beside them, though it is another model: there, columns of different tables interact. Then a whole fit by
default, which sees no test row. Writes ``benchmarks/results/network_solvers.json``.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from shutil import copyfile
from typing import Any

import numpy as np

import tablepuppet as tp
from benchmarks.data import DATA, is_there
from benchmarks.deep.data import covtype, relations
from benchmarks.deep.results import Results
from benchmarks.learning.movielens import CATEGORICAL, COLUMNS, JOIN, write_movielens
from benchmarks.learning.synthetic import LABELS, Shape, synthetic, write_synthetic
from benchmarks.learning.trips import Trips, counted
from tablepuppet.demo import LABEL, SQL, build_databases
from tablepuppet.learn.learners.planner import tables_of
from tablepuppet.wire.traffic import communication_seconds

LIMIT, SHARE, PATIENCE = 30.0, 0.95, 20
TWO_TABLES = """
    SELECT f.a, f.b, f.channel, c.age, c.income, c.town, f.grade FROM facts f JOIN customers c USING (customer_id)
"""
NO_FACTS = """
    SELECT c.age, c.income, c.spent, c.town, p.price, p.weight, p.kind, f.{label}
    FROM facts f JOIN customers c USING (customer_id) JOIN products p USING (product_id)
"""
LABORATORY = """
    SELECT a.admission_type, a.insurance, a.ethnicity, a.marital_status, d.category, d.fluid,
        l.flag IS NOT NULL AS abnormal
    FROM labevents l JOIN admissions a ON l.hadm_id = a.hadm_id JOIN d_labitems d ON l.itemid = d.itemid
"""
Sides = tuple[tp.Relation, tp.Relation]


@dataclass(frozen=True)
class Case:
    """A relation: what it is, and how its rows to learn from and its test rows are made in a folder."""

    name: str
    task: str
    make: Callable[[Path], Sides]
    needs: str | None = None  # a data set
    is_small: bool = False


@dataclass(frozen=True)
class Point:
    """What a fit has cost after a round, and what it has reached on test rows."""

    seconds: float
    processor_seconds: float
    rounds: int
    trips: int
    bytes: int
    test_loss: float
    test_metric: float

    @property
    def seconds_us_uk(self) -> float:
        """Seconds if every party were on another continent than the coordinator."""
        return self.seconds + communication_seconds(self.trips, self.bytes)["US-UK"]


class TimeIsUpError(Exception):
    """A fit has taken too long."""


def _synthetic(rows: int, task: str) -> Callable[[Path], Sides]:
    def make(folder: Path) -> Sides:
        fed = tp.Federation(write_synthetic(folder, Shape(rows, curved=True)), verbose=False)
        return synthetic(fed, task).split(test=0.2, seed=1)

    return make


def _joined_often(rows: int, often: int, task: str, seed: int = 0) -> Callable[[Path], Sides]:
    """Without features of the facts, of which a customer has ``often``."""

    def make(folder: Path) -> Sides:
        fed = tp.Federation(write_synthetic(folder, Shape(rows, often=often, curved=True), seed), verbose=False)
        return fed.sql(NO_FACTS.format(label=LABELS[task]), label=LABELS[task]).split(test=0.2, seed=1)

    return make


def _two_tables(folder: Path) -> Sides:
    fed = tp.Federation(write_synthetic(folder, Shape(50_000, curved=True)), verbose=False)
    return fed.sql(TWO_TABLES, label="grade").split(test=0.2, seed=1)


def _flights(folder: Path) -> Sides:
    build_databases(folder)
    return tp.Federation.load(folder / "federation.toml").sql(SQL, LABEL).split(test=0.2, seed=1)


def _movielens(label: str, users: int = 1000, shards: int = 1) -> Callable[[Path], Sides]:
    def make(folder: Path) -> Sides:
        sql = f"SELECT {COLUMNS}, {label} AS y {JOIN} WHERE u.user_id <= {users}"
        fed = tp.Federation(write_movielens(folder, shards), verbose=False)
        return fed.sql(sql, label="y", categorical=CATEGORICAL).split(test=0.2, seed=1)

    return make


def _laboratory(folder: Path) -> Sides:
    """Whether a value of a laboratory is abnormal, by admission and by what was measured."""
    urls = {}
    for table in ("labevents", "admissions", "d_labitems"):
        (folder / table).mkdir()
        copyfile(DATA / "mimic-iii-demo" / f"{table}.parquet", folder / table / f"{table}.parquet")
        urls[table] = f"parquet://{folder / table}"
    fed = tp.Federation(urls, verbose=False)
    return fed.sql(LABORATORY, label="abnormal").split(test=0.2, seed=1)


CASES = (
    Case("synthetic, 3 tables", "regression", _synthetic(2_500, "regression"), is_small=True),
    Case("synthetic, 3 tables", "two classes", _synthetic(2_500, "binary"), is_small=True),
    Case("synthetic, 2 tables", "four classes", _two_tables),
    Case("synthetic, 3 tables, more rows", "regression", _synthetic(125_000, "regression")),
    Case("flights, 3 tables", "two classes", _flights),
    Case("covtype, 4 tables", "two classes", lambda folder: relations(folder, covtype(0, 50_000)), "covtype"),
    Case("MovieLens, 3 tables", "regression", _movielens("r.rating"), "movielens-1m"),
    Case("MovieLens, 3 tables", "two classes", _movielens("r.rating >= 4"), "movielens-1m"),
    Case("MovieLens, 300 users", "regression", _movielens("r.rating", 300), "movielens-1m"),
    Case("MovieLens, two shards each", "regression", _movielens("r.rating", shards=2), "movielens-1m"),
    Case("joined 5 times", "regression", _joined_often(125_000, 8, "regression")),
    Case("joined 10 times", "regression", _joined_often(125_000, 15, "regression")),
    Case("joined 10 times", "two classes", _joined_often(125_000, 15, "binary")),
    Case("joined 27 times", "four classes", _joined_often(125_000, 40, "classes")),
    Case("joined 27 times", "regression", _joined_often(12_500, 40, "regression")),
)

# Relations that were chosen before they were measured, to test a rule that the others had led to.
HELD_OUT = (
    Case("held out, joined 8 times", "regression", _joined_often(60_000, 12, "regression", 5)),
    Case("held out, joined 12 times", "four classes", _joined_often(60_000, 18, "classes", 5)),
    Case("held out, joined 14 times", "two classes", _joined_often(60_000, 20, "binary", 5)),
    Case("held out, joined 20 times", "regression", _joined_often(60_000, 30, "regression", 5)),
    Case("held out, joined 40 times", "two classes", _joined_often(200_000, 60, "binary", 5)),
    Case("held out, MIMIC, 3 tables", "two classes", _laboratory, "mimic-iii-demo"),
)


def learners(task: str) -> Iterator[tuple[str, Any]]:
    """(name, learner) of all that are compared, with default settings; each stops when the test loss falls no more."""
    sums, across = (
        (tp.MLPRegressor, tp.SplitNNRegressor) if task == "regression" else (tp.MLPClassifier, tp.SplitNNClassifier)
    )
    for solver in ("lbfgs", "admm", "sgd"):
        yield solver, sums(solver=solver, patience=PATIENCE)
    yield "SplitNN", across(patience=PATIENCE)


def points(learner: Any, train: tp.Relation, test: tp.Relation, limit: float) -> tuple[list[Point], str]:
    """One for each round; and how the fit ended."""
    found: list[Point] = []
    sent, begun, before = [0], time.perf_counter(), time.process_time()

    def read(event: tp.Event) -> None:
        if event.name == "fit":
            sent[0] += event.fields["bytes_up"] + event.fields["bytes_down"]
            spent = time.process_time() - before
            found.append(
                Point(
                    time.perf_counter() - begun, spent, event.fields["round"], len(trips.made), sent[0],
                    event.fields["validation_loss"], event.fields["validation_metric"],
                )
            )  # fmt: skip
            if spent > limit:
                raise TimeIsUpError

    trips: Trips
    with counted() as trips:
        try:
            learner.set_params(callbacks=[read]).fit(train, validation=test)
        except TimeIsUpError:
            return found, f"more than {limit:g} processor seconds"
    return found, learner.stopped_


def by_default(task: str, train: tp.Relation, test: tp.Relation) -> dict[str, Any]:
    """A whole fit by default."""
    learner: Any = tp.MLPRegressor() if task == "regression" else tp.MLPClassifier()
    begun, before = time.perf_counter(), time.process_time()
    learner.fit(train)
    seconds, processor = time.perf_counter() - begun, time.process_time() - before
    return {
        "solver": learner.solver_, "seconds": seconds, "processor_seconds": processor,
        "rounds": len(learner.history_), "ended": learner.stopped_, **learner.evaluate(test),
    }  # fmt: skip


def constant_loss(task: str, train: tp.Relation, test: tp.Relation) -> float:
    """The test loss of the mean, or of the shares of the classes."""
    known, wanted = train.label(), test.label()
    if task == "regression":
        return float(np.mean((wanted - known.mean()) ** 2) / 2)
    classes, counts = np.unique(known, return_counts=True)
    return float(-np.log((counts / counts.sum())[np.searchsorted(classes, wanted)]).mean())


def measure(case: Case, folder: Path, limit: float, share: float) -> dict[str, Any]:
    """All learners over one relation."""
    train, test = case.make(folder)
    assert min(len(train), len(test))  # opened before the clock starts
    ran = {name: points(learner, train, test, limit) for name, learner in learners(case.task)}
    constant = constant_loss(case.task, train, test)
    best = min(point.test_loss for name, (found, _) in ran.items() if name != "SplitNN" for point in found)
    loss = constant - share * (constant - best)
    rows = sum(train.mapping.tables[alias].rows for alias in tables_of(train.query))
    figures: dict[str, Any] = {
        "joined_rows": len(train),
        "rows": rows,
        "constant": constant,
        "best": best,
        "loss_to_reach": loss,
    }
    for name, (found, ended) in ran.items():
        reached = next((point for point in found if point.test_loss <= loss), None)
        figures[name] = {
            "reached": None if reached is None else _figures(reached),
            "best": _figures(min(found, key=lambda point: point.test_loss)),
            "last": _figures(found[-1]),
            "ended": ended,
        }
    return figures | {"auto": by_default(case.task, train, test)}


def _figures(point: Point) -> dict[str, float]:
    return {name: round(value, 4) for name, value in (asdict(point) | {"seconds_us_uk": point.seconds_us_uk}).items()}


def _warm_up() -> None:
    """A short fit by each learner: the first loads torch, and compiles what it needs."""
    with tempfile.TemporaryDirectory() as folder:
        train, _ = _synthetic(500, "regression")(Path(folder))
        for _, learner in learners("regression"):
            learner.set_params(**{"epochs" if isinstance(learner, tp.SplitNNRegressor) else "rounds": 2}).fit(train)


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the two smallest relations only")
    parser.add_argument("--only", default="", help="relations with this in their name")
    parser.add_argument("--limit", type=float, default=LIMIT, help="processor seconds of a fit at most")
    parser.add_argument("--share", type=float, default=SHARE, help="of the way from a constant to the best loss")
    parser.add_argument("--held-out", action="store_true", help="relations that tested a rule for admm")
    given = parser.parse_args()
    results = Results("network_solvers_held_out" if given.held_out else "network_solvers")
    _warm_up()
    for case in HELD_OUT if given.held_out else CASES:
        if given.only in case.name and (case.is_small or not given.quick) and (not case.needs or is_there(case.needs)):
            with tempfile.TemporaryDirectory() as folder:
                results.put(f"{case.name}, {case.task}", measure(case, Path(folder), given.limit, given.share))


if __name__ == "__main__":
    main()
