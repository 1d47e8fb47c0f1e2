"""The same result wherever tables are: models beside a new shard, and folds over services.

A model that was saved is loaded by a federation with one more shard of a table: its rows have the categories of the
others, and get the predictions that follow from the model's own coefficients. Folds of one seed are the same source
rows in one process and over services, so that scores are the same.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

import tablepuppet as tp
from tablepuppet import prep

from .report import Report
from .scenes import Random, Star, nullable, number, text
from .tolerances import SCORE


def run(rng: Random, folder: Path, report: Report) -> None:
    """A new shard, or folds."""
    (_new_shard if rng.random() < 0.5 else _folds)(rng, folder, report)


def _tables(rng: Random, classes: bool) -> Star:
    """Facts with categories, joined to items with categories, and a label that depends on both."""
    rows, items = int(rng.integers(90, 300)), int(rng.integers(12, 30))
    item = rng.integers(0, items, rows)
    kinds, colours = text(rng, items, missing=False), text(rng, rows, missing=False)
    x = number(rng, rows, far=2.0, missing=False)
    drive = np.zeros(rows)
    for cells in ([kinds[each] for each in item], colours):
        effects = {each: 2 * rng.normal() for each in sorted({str(cell) for cell in cells})}
        drive += np.array([effects[str(cell)] for cell in cells])
    drive += 0.1 * rng.normal(size=rows)
    label = pa.array(np.where(drive > np.median(drive), "yes", "no") if classes else drive)
    facts = {"ka": pa.array(item), "f0": pa.array(colours, pa.string()), "f1": nullable(x), "y": label}
    tables = {"f": pa.table(facts), "a": pa.table({"ka": np.arange(items), "a0": pa.array(kinds, pa.string())})}
    return Star(tables, {"f": int(rng.integers(2, 4)), "a": int(rng.integers(2, 4))})


def _new_shard(rng: Random, folder: Path, report: Report) -> None:
    """The last shard of a table is there only when the model is loaded."""
    scene, late = _tables(rng, classes=False), str(rng.choice(["f", "a"]))
    missing = f"{late}_{scene.shards[late] - 1}"
    urls, asked = scene.urls(folder / "databases"), scene.sql(["f0", "f1", "a0"], "y")
    program = bool(rng.random() < 0.4)
    where = f"{'lm' if program else 'LinearRegression'}, {missing} is new"
    with report.asking("new shard", where):
        before = tp.Federation({party: url for party, url in urls.items() if party != missing})
        relation = before.sql(asked, label="y")
        if program:
            X = relation.matrix()
            model: Any = tp.linalg.lm(X, relation.label())
            categories, coef = X.categories, model.coef
        else:
            model = tp.LinearRegression().fit(relation)
            categories, coef = model.categories_, model.coef_
        model.save(folder / "model")
        known = scene.frame(relation)
        rows = _predicted(model, coef, categories, known, known)
        at_first = np.asarray(model.predict(relation))
        report.close("predictions by coefficients", at_first, rows, SCORE * float(np.std(rows)), where)
        fed = tp.Federation(urls)
        loaded, whole = tp.load(folder / "model", fed), fed.sql(asked, label="y")
        frame = scene.frame(whole)
        predicted = np.asarray(loaded.predict(whole))
        expected = _predicted(model, coef, categories, frame, known)
        spread = float(np.std(expected))
        report.close("new shard: predictions", predicted, expected, SCORE * spread, where)


def _predicted(model: Any, coef: Any, categories: Any, frame: pd.DataFrame, known: pd.DataFrame) -> Any:
    """The model by its coefficients: numbers in units of the rows that it was fitted on, categories by name."""
    values = known["f1"].to_numpy()
    mean = values[0] + (values - values[0]).mean()
    deviation = np.std(values - values[0])
    found = np.full(
        len(frame), float(np.ravel(model.intercept if hasattr(model, "intercept") else model.intercept_)[0])
    )
    found += float(np.ravel(coef["f.f1"])[0]) * (frame["f1"].to_numpy() - mean) / deviation
    for name in ("f.f0", "a.a0"):
        effects = {each: float(np.ravel(coef[f"{name}={n}"])[0]) for n, each in enumerate(categories.get(name, []))}
        found += frame[name[2:]].map(effects).fillna(0.0).to_numpy(float)  # a category that is new has none
    return found


def _folds(rng: Random, folder: Path, report: Report) -> None:
    """Scores of folds in one process and over services."""
    classes = bool(rng.random() < 0.5)
    scene = _tables(rng, classes)
    urls, asked = scene.urls(folder / "databases"), scene.sql(["f0", "f1", "a0"], "y")
    settings: dict[str, Any] = [
        {}, {"groups": "a0"}, {"groups": "f0"}, {"stratified": True} if classes else {"groups": "f0"},
    ][int(rng.integers(4))]  # fmt: skip
    steps = None
    if rng.random() < 0.3:
        steps, settings = prep.Pipeline([prep.TargetEncode(folds=4, columns=["f0"]), prep.Standardize()]), {}
    seed, learner = int(rng.integers(100)), tp.LogisticRegression(l2=1e-3) if classes else tp.LinearRegression(l2=1e-3)
    where = f"{type(learner).__name__}, {settings}, {'default' if steps is None else list(steps.steps)}, seed {seed}"
    with ExitStack() as stack, report.asking("folds", where, may_refuse=True):
        here = tp.Federation(urls, wire="float64")
        there = stack.enter_context(scene.served(urls, wire="float64"))
        scores = [
            tp.cross_validate(learner, fed.sql(asked, label="y", prep=steps), folds=3, seed=seed, **settings)
            for fed in (here, there)
        ]
        for name in ("test_accuracy", "test_log_loss") if classes else ("test_r2",):
            ours, theirs = (np.asarray(each[name], float) for each in scores)
            report.close(f"folds: {name}", theirs, ours, 1e-4 * np.maximum(1, np.abs(ours)), where)
