"""Trees over joins, outer joins, subqueries and shards: those of our own learner on the materialised join.

Bins over the same joined rows are the same, so that gains, columns and counts of every node are, and predictions.
Tables with several shards have bins of another kind: their columns are in a second table with two shards, joined one to
one.
Where two splits gain the same, either may be taken: what follows is not compared.
"""

from __future__ import annotations

from contextlib import ExitStack
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

import tablepuppet as tp

from .learners import measure_by_name
from .report import Report
from .scenes import Random, Star, as_pandas, star
from .tolerances import PRODUCT

CLASSES = np.array(["no", "yes", "maybe"])


def run(rng: Random, folder: Path, report: Report) -> None:
    """One fit on both sides."""
    classes = int(rng.choice([0, 0, 2, 3]))
    scene = star(rng, rows=int(rng.choice([40, 150, 400])), far=6.0, label=True)
    _label(rng, scene, classes)
    urls, asked = scene.urls(folder / "databases"), scene.sql(scene.columns(), "y")
    whole = [name for name in scene.columns() if pa.types.is_integer(scene.rows(name[0]).schema.field(name).type)]
    categorical = [name for name in whole if rng.random() < 0.4]
    fed = tp.Federation(urls, wire="float64")
    relation = fed.sql(asked, label="y", categorical=categorical)
    scene.check(report, relation, asked)
    table = scene.joined(relation)
    if len(table) < 10 or len(table["y"].unique()) < max(classes, 2):
        return
    learner = _learner(rng, classes)
    where = f"{learner!r}, {classes} classes, {len(table)} rows: {asked}"
    ask = "predict_proba" if classes else "predict"
    with ExitStack() as stack, report.asking("trees", where):
        ours = learner.fit(relation)
        twin, order = _twin(scene, table, categorical)
        theirs = type(learner)(**learner.get_params()).fit(twin)
        if not _same_trees(report, ours, theirs, where):
            return
        found, expected = np.asarray(getattr(ours, ask)(relation)), np.asarray(getattr(theirs, ask)(twin))
        within = PRODUCT * float(np.abs(expected).max())
        report.close("trees: predictions", found[order], expected, within, where)
        measure_by_name(rng, report, ours, relation, where)
        if rng.random() < 0.2:
            there = stack.enter_context(scene.served(urls, wire="float64"))
            again = there.sql(asked, label="y", categorical=categorical)
            remote = type(learner)(**learner.get_params()).fit(again)
            if _same_trees(report, remote, ours, f"services, {where}"):
                known = np.asarray(getattr(remote, ask)(again))  # rows come in another order there
                report.close("trees: services", np.sort(known, axis=0), np.sort(found, axis=0), within, where)


def _learner(rng: Random, classes: int) -> Any:
    """Boosted trees or a forest, without anything that is drawn."""
    settings: dict[str, Any] = {
        "max_bins": int(rng.choice([4, 20, 255])),
        "min_samples_leaf": int(rng.choice([1, 5, 20])),
        "max_depth": [None, 3][int(rng.integers(2))],
        "max_leaf_nodes": [None, 7, 31][int(rng.integers(3))],
        "min_gain": 1e-6,  # more than rounding gains
        "max_features": 1.0,
    }
    if classes and rng.random() < 0.3:
        settings["class_weight"] = "balanced"
    if rng.random() < 0.4:
        forest = tp.RandomForestClassifier if classes else tp.RandomForestRegressor
        return forest(n_estimators=1, bootstrap=False, **settings)
    settings |= {"max_iter": 3, "l2_regularization": float(rng.choice([0.0, 1.0])), "early_stopping": False}
    if classes:
        return tp.GradientBoostingClassifier(**settings)
    return tp.GradientBoostingRegressor(loss=str(rng.choice(["squared_error", "squared_error", "poisson"])), **settings)


def _label(rng: Random, scene: Star, classes: int) -> None:
    """A label that depends on the columns of ``f`` and, by their keys, on those of other tables."""
    facts = scene.tables["f"]
    drive = 0.3 * rng.normal(size=len(facts))
    for name in facts.column_names[1:]:
        values = as_pandas(facts[name])
        codes = pd.factorize(values)[0] if values.dtype == object else values.rank().fillna(0).to_numpy()
        effects = (
            rng.normal(size=int(codes.max(initial=0)) + 2) if name[0] == "k" else np.linspace(0, 2, len(codes) + 2)
        )
        drive += effects[codes.astype(int) % len(effects)]
    cuts = np.quantile(drive, np.linspace(0, 1, classes + 1)[1:-1]) if classes else np.zeros(0)
    label = CLASSES[np.searchsorted(cuts, drive)] if classes else np.exp(drive / 4)
    scene.tables["f"] = facts.append_column("y", pa.array(label))


def _twin(scene: Star, table: pa.Table, categorical: list[str]) -> tuple[tp.Relation, Any]:
    """The materialised join as one table, or as two; and where its joined rows stand in the materialised join."""
    table = table.append_column("id", pa.array(np.arange(len(table))))
    shared = [name for name in table.column_names if name != "id" and scene.shards["f" if name == "y" else name[0]] > 1]
    own = [name for name in table.column_names if name != "id" and name not in shared]
    parties: dict[str, Any] = {"one": {"own": table.select([*own, "id"])}} if own else {}
    if shared:
        half = len(table) // 2
        parties |= {
            f"shard{n}": {"shared": table.select([*shared, "id"])[part]}
            for n, part in enumerate([slice(half), slice(half, None)])
        }
    source = {name: alias for alias, names in (("own", own), ("shared", shared)) for name in names}
    items = ", ".join(f"{source[name]}.{name}" for name in table.column_names if name != "id")
    tables = [alias for alias, names in (("own", own), ("shared", shared)) if names]
    joined = tables[0] + "".join(f" JOIN {alias} ON {alias}.id = own.id" for alias in tables[1:])
    relation = tp.Federation(parties, wire="float64").sql(
        f"SELECT {items} FROM {joined}", label="y", categorical=categorical
    )
    rows, alias = relation.rows(), tables[0]
    starts = {"one": 0, "shard0": 0, "shard1": len(table) // 2}
    order = [
        starts[party] + row
        for party, row in zip(rows[f"{alias}.party"].to_pylist(), rows[f"{alias}.row"].to_pylist(), strict=True)
    ]
    return relation, np.array(order)


def _same_trees(report: Report, ours: Any, theirs: Any, where: str) -> bool:
    """Whether all nodes are the same; that gains are is a fact until one of two equal ones was taken."""
    for number, (tree, other) in enumerate(zip_longest(ours.trees_, theirs.trees_, fillvalue=())):
        root = max((node["gain"] for node in other), default=0.0)
        for a, b in zip_longest(tree, other):
            there = a is not None and b is not None
            gains = (a["gain"], b["gain"]) if there else "no such node"
            same = there and abs(a["gain"] - b["gain"]) <= PRODUCT * root
            report.that("trees: gains", same, f"tree {number}: {gains}, {a} instead of {b}; {where}")
            if not same:
                return False
            if a["count"] != b["count"] or _column(a) != _column(b):
                report.compared["trees: two splits gain the same"] += 1
                return False
    return True


def _column(node: Any) -> str | None:
    return None if node["column"] is None else str(node["column"].split(".")[-1])
