"""Linear learners: a fit that says it converged is at the optimum of the materialised join; one near it is near it.

Whatever the solver, the precision of the wire, and whether parties are in this process or services. The optimum is that
of the encoded matrix in float64 (`optimum.py`); no round may claim an objective below it.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from sklearn import metrics as sk
from sklearn.metrics import accuracy_score, log_loss, r2_score, root_mean_squared_error

import tablepuppet as tp
from tablepuppet import prep
from tablepuppet.learn.linear.descent import CLOSE, NEAR

from .optimum import condition, least_squares, logistic, objective_of
from .report import Report
from .scenes import Array, Random, Star, exact, nullable, number, text, with_joins
from .tolerances import CONDITION, CONSTANT_OBJECTIVE, OBJECTIVE, SCORE

NATIONS = 5  # of each region


def scene(rng: Random, far: float) -> Star:
    """Tables whose columns are hard to tell apart: other scales, nearly equal ones, categories within categories."""
    rows, items = int(rng.integers(60, 400)), int(rng.integers(8, 30))
    sizes = {"f": rows} | ({"a": items} if rng.random() < 0.6 else {})
    tables: dict[str, dict[str, Any]] = {name: {} for name in sizes}
    if "a" in sizes:  # some keys point nowhere
        tables["f"]["ka"] = pa.array(rng.integers(0, items + int(rng.choice([0, 4])), rows))
        tables["a"]["ka"] = pa.array(np.arange(items))
    for name, size in sizes.items():
        cells = tables[name]
        for place in range(int(rng.integers(1, 4))):
            cells[f"{name}{place}"] = nullable(number(rng, size, far=far))
        if rng.random() < 0.3:  # a column that is nearly another one
            twin = np.nan_to_num(np.asarray(cells[f"{name}0"].to_numpy(zero_copy_only=False)))
            spread = float(np.std(twin)) or 1.0
            cells[f"{name}5"] = nullable(twin + 10 ** rng.uniform(-6, -1) * spread * rng.normal(size=size))
        if rng.random() < 0.3:
            cells[f"{name}6"] = pa.array(text(rng, size), pa.string())
        if rng.random() < 0.3:  # nations within regions
            nation = rng.integers(0, 3 * NATIONS, size)
            cells[f"{name}7"] = pa.array([f"n{each}" for each in nation])
            cells[f"{name}8"] = pa.array([f"r{each // NATIONS}" for each in nation])
    shards = {name: int(rng.integers(1, 3)) for name in tables}
    return with_joins(rng, Star({name: pa.table(cells) for name, cells in tables.items()}, shards))


def labelled(rng: Random, made: Star, classes: int) -> Star:
    """The same with a label that depends on every column."""
    facts = made.tables["f"]
    drive = np.zeros(len(facts))
    for name, rows in made.tables.items():
        places = np.arange(len(facts)) if name == "f" else facts["ka"].to_numpy() % len(rows)
        for field in rows.column_names:
            if not field[1:].isdigit():
                continue
            if pa.types.is_string(rows.schema.field(field).type):
                effects = {each: rng.normal() for each in rows[field].unique().to_pylist()}
                drive += np.array([effects[cell] for cell in rows[field].to_pylist()])[places]
                continue
            values = rows[field].to_numpy(zero_copy_only=False)
            known = values[~np.isnan(values)]
            if len(known) and np.ptp(known):
                units = (values - known[0] - (known - known[0]).mean()) / np.std(known - known[0])
                drive += rng.normal() * np.nan_to_num(units)[places]
    noise = rng.choice([0.01, 0.5, 2.0]) * rng.normal(size=len(facts))
    if not classes:
        far = 10 ** rng.uniform(0, 9) if rng.random() < 0.4 else 0.0
        label = pa.array(10 ** rng.uniform(-2, 2) * (drive + noise + far))
    else:
        cuts = np.quantile(drive + noise, np.linspace(0, 1, classes + 1)[1:-1])
        label = pa.array(["xyz"[each] for each in np.searchsorted(cuts, drive + noise)])
    made.tables["f"] = facts.append_column("y", label)
    return made


def pipeline(rng: Random) -> prep.Pipeline | None:
    """The usual preparation, or columns in their own units, or powers of them."""
    drawn = rng.random()
    if drawn < 0.5:
        return None
    return prep.Pipeline([] if drawn < 0.85 else [prep.Polynomial(int(rng.integers(2, 4)))])


def farthest(rng: Random, steps: prep.Pipeline | None) -> float:
    """The largest mean, as a power of ten of the spread: the third power of a column is the larger by as many."""
    return 0.7 if steps is not None and steps.steps else float(rng.choice([0.5, 3.0, 6.0, 9.0]))


def run(rng: Random, folder: Path, report: Report) -> None:
    """One fit."""
    classes = int(rng.choice([0, 0, 2, 3]))
    steps = pipeline(rng)
    made = labelled(rng, scene(rng, farthest(rng, steps)), classes)
    columns = made.columns()
    wire: Any = str(rng.choice(["float32", "float32", "float64"]))
    solver: Any = str(rng.choice(["lbfgs", "lbfgs", "admm", "admm", "sgd"]))
    services, l2 = bool(rng.random() < 0.25), float(rng.choice([0.0, 1e-6, 1e-6, 1e-3]))
    urls, asked = made.urls(folder / "databases"), made.sql(columns, "y")
    truth = tp.Federation(urls, wire="float64").sql(asked, label="y", prep=steps)
    X, matrix = truth.matrix(), exact(truth)
    if condition(matrix) > CONDITION:
        return
    labels, class_names = _labels(truth.label(), classes)
    if classes and len(class_names) < classes:
        return
    l2 = l2 or (1e-6 if classes else 0.0)  # without a penalty classes that can be told apart have no optimum
    best = logistic(matrix, labels, classes, l2) if classes else least_squares(matrix, labels, l2)
    constant = _constant(labels, classes)
    kind = tp.LogisticRegression if classes else tp.LinearRegression
    where = (
        f"{kind.__name__}({solver}, l2={l2:g}), {wire}, {'services' if services else 'one process'}, "
        f"{'default' if steps is None else list(steps.steps)}, {matrix.shape[0]} x {matrix.shape[1]}"
    )
    with ExitStack() as stack, report.asking("learner", where):
        fed = stack.enter_context(made.served(urls, wire=wire)) if services else tp.Federation(urls, wire=wire)
        relation = fed.sql(asked, label="y", prep=steps)
        model = kind(solver=solver, l2=l2).fit(relation)
        reached = objective_of(model, _names(model, X), matrix, labels, classes)
        best = min(best, reached)  # what was reached is possible
        within = OBJECTIVE * best + CONSTANT_OBJECTIVE * constant
        told = f"{where}: {model.stopped_} after {len(model.history_)} rounds"
        facts = f"{told}: objective {reached:.9g}, optimum {best:.9g}, constant {constant:.9g}"
        report.compared["learner: " + model.stopped_] += 1
        if model.stopped_ == "converged":
            report.that(
                f"learner: {'classes' if classes else 'number'}: not at the optimum", reached - best <= within, facts
            )
        if model.stopped_ == "near the optimum":
            report.that("learner: not near the optimum", reached - best <= max(CLOSE * best, NEAR) + within, facts)
        if solver == "sgd":  # its history has means over batches, while parameters move
            return
        lowest = min(entry["objective"] for entry in model.history_)
        report.that("learner: history below the optimum", lowest >= best - within, f"{facts}; lowest {lowest:.9g}")
        report.close("learner: last objective", model.history_[-1]["objective"], reached, within, facts)
        measure_by_name(rng, report, model, relation, where)
        if not services:
            _measured(report, model, relation, matrix, labels, classes, X, where)


def _names(model: Any, X: Any) -> list[str]:
    """Names of the model's coefficients in the order of X: codes of equally frequent categories may differ."""
    found, there, here = [], model.categories_, X.categories
    for name in X.columns:
        column, _, code = name.partition("=")
        if code and column in there and column in here:
            listed = [str(each) for each in there[column]]
            name = f"{column}={listed.index(str(here[column][int(code)]))}"
        found.append(name)
    return found


def _labels(values: NDArray[Any], classes: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Numbers as they are, classes as numbers."""
    if not classes:
        return np.asarray(values, float), np.zeros(0)
    names, numbers = np.unique(values, return_inverse=True)
    return numbers, names


def _constant(labels: NDArray[Any], classes: int) -> float:
    """The objective of the best constant."""
    if not classes:
        return 0.5 * float(np.var(labels - labels[0]))
    shares = np.bincount(labels) / len(labels)
    return float(-np.sum(shares * np.log(shares)))


def _measured(
    report: Report,
    model: Any,
    relation: tp.Relation,
    matrix: Array,
    labels: NDArray[Any],
    classes: int,
    X: Any,
    where: str,
) -> None:
    """Predictions follow from coefficients, metrics from predictions."""
    metrics = model.evaluate(relation)
    if classes:
        chances = model.predict_proba(relation)
        loss = log_loss(labels, np.clip(chances, 1e-300, 1.0), labels=range(classes))
        report.close("evaluate: log_loss", metrics["log_loss"], loss, SCORE * max(1, loss), where)
        report.close(
            "evaluate: accuracy", metrics["accuracy"], accuracy_score(labels, chances.argmax(axis=1)), SCORE, where
        )
        own = objective_of(model, _names(model, X), matrix, labels, classes)
        theta = sum(float(np.sum(np.asarray(each) ** 2)) for each in model.coef_.values())
        report.close("predict: loss", loss, own - 0.5 * model.l2 * theta, SCORE * max(1, loss), where)
        return
    predicted = model.predict(relation)
    spread = float(np.std(labels - labels[0]))
    report.close("evaluate: r2", metrics["r2"], r2_score(labels - labels[0], predicted - labels[0]), SCORE, where)
    error = root_mean_squared_error(labels, predicted)
    report.close("evaluate: rmse", metrics["rmse"], error, SCORE * (spread + error), where)


def measure_by_name(rng: Random, report: Report, model: Any, relation: tp.Relation, where: str) -> None:
    """``evaluate(metrics=, threshold=)`` is scikit-learn's, on the model's predictions."""
    labels = relation.label()
    if not model.learns_classes:
        predicted = model.predict(relation)
        truth = {
            "mean_absolute_error": sk.mean_absolute_error(labels, predicted),
            "median_absolute_error": sk.median_absolute_error(labels, predicted),
            "pinball_0.2": sk.mean_pinball_loss(labels, predicted, alpha=0.2),
        }
        _compare_metrics(report, model.evaluate(relation, metrics=list(truth)), truth, where)
        return
    numbers, chances = np.searchsorted(model.classes_, labels), model.predict_proba(relation)
    threshold = round(float(rng.random()), 2) if len(model.classes_) == 2 and rng.random() < 0.5 else None
    guessed = chances.argmax(axis=1) if threshold is None else (chances[:, 1] > threshold).astype(int)
    listed = range(len(model.classes_))
    truth = {
        "accuracy": sk.accuracy_score(numbers, guessed),
        "f1_macro": sk.f1_score(numbers, guessed, average="macro", labels=listed, zero_division=0.0),
        "recall_weighted": sk.recall_score(numbers, guessed, average="weighted", labels=listed, zero_division=0.0),
        "matthews_corrcoef": sk.matthews_corrcoef(numbers, guessed),
    }
    found = model.evaluate(relation, metrics=list(truth), threshold=threshold)
    _compare_metrics(report, found, truth, f"threshold {threshold}, {where}")


def _compare_metrics(report: Report, found: Any, truth: dict[str, float], where: str) -> None:
    for name, value in truth.items():
        report.close(f"evaluate: {name}", found[name], value, SCORE * max(1.0, abs(value)), where)
