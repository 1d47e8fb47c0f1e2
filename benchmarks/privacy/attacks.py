"""Attacks with and without privacy, as AUC: 0.5 is guessing, 1 is knowing."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from sklearn.metrics import roc_auc_score

import tablepuppet as tp
from tablepuppet.party.blind import blind, derive_key
from tablepuppet.party.request import Reply, Request
from tablepuppet.privacy.label import keep_probability
from tablepuppet.wire.engine import InProcessEngine

ROWS, COLUMNS = 200, 60  # half of the rows are members: a model of so many columns knows them by heart


def _federation(folder: Path, tables: dict[str, pa.Table]) -> tp.Federation:
    urls = {}
    for name, table in tables.items():
        (folder / name).mkdir(parents=True)
        pyarrow.parquet.write_table(table, folder / name / f"{name}.parquet")
        urls[name] = f"parquet:///{folder / name}"
    return tp.Federation(urls)


def membership(folder: Path, trials: int) -> dict[str, float]:
    """Who was learned from? The guess is the model's error on a row whose features and label are known."""
    settings: dict[str, tp.Privacy | None] = {
        "without privacy": None,
        **{f"feature epsilon {e:g}": tp.Privacy(feature_epsilon=e, delta=1e-4) for e in (10.0, 1.0)},
    }
    errors: dict[str, list[float]] = {name: [] for name in settings}
    members: list[int] = []
    names = [f"x{i}" for i in range(COLUMNS)]
    for trial in range(trials):
        rng = np.random.default_rng(trial)
        columns = {name: rng.normal(size=ROWS) for name in names}
        part = np.arange(ROWS) % 2
        fed = _federation(folder / f"{trial}", {"t": pa.table({**columns, "y": rng.normal(size=ROWS), "part": part})})
        sides = [fed.sql(f"SELECT {', '.join(names)}, y FROM t WHERE part = {side}", label="y") for side in (1, 0)]
        members += [1] * (ROWS // 2) + [0] * (ROWS // 2)
        for name, privacy in settings.items():
            model = tp.LinearRegression(privacy=privacy, l2=1e-3).fit(sides[0])
            for side in sides:
                learner = tp.LinearRegression()
                assert side.query.label is not None
                asked = learner._ask_labels(side.client, side.query.label)
                true = learner._prepare(side.client, side.query.label, asked).labels
                errors[name] += (-np.abs(model.predict(side) - true)).tolist()
    return {name: float(roc_auc_score(members, found)) for name, found in errors.items()}


@contextmanager
def heard(party: str) -> Iterator[list[Any]]:
    """What a party is told of its rows in rounds, from now on."""
    found: list[Any] = []
    call = InProcessEngine.call

    def listening(engine: InProcessEngine, name: str, request: Request) -> Reply:
        if name == party:
            found.extend(step.arguments["rows"] for step in request.steps if "rows" in step.arguments and "model" in step.arguments)
        return call(engine, name, request)

    InProcessEngine.call = listening  # type: ignore[method-assign, assignment]
    try:
        yield found
    finally:
        InProcessEngine.call = call  # type: ignore[method-assign]


def label_inference(folder: Path) -> dict[str, float]:
    """What does a party without labels learn of them? The guess is what the first round wants of its rows."""
    rng = np.random.default_rng(0)
    rows = np.arange(4000)
    label = (rng.random(len(rows)) < 0.3).astype(int)
    tables = {
        "bank": pa.table({"id": rows, "y": label}),
        "shop": pa.table({"id": rows, "x": rng.normal(size=len(rows)) + label}),
    }
    relation = _federation(folder, tables).sql("SELECT s.x, b.y FROM bank b JOIN shop s USING (id)", label="y")
    found = {}
    settings: dict[str, tp.Privacy | None] = {"without privacy": None}
    settings["feature epsilon 1"] = tp.Privacy(feature_epsilon=1.0)
    for epsilon in (4.0, 1.0, 0.1):
        settings[f"label epsilon {epsilon:g}"] = tp.Privacy(label_epsilon=epsilon, label_classes=(0, 1))
    for name, privacy in settings.items():
        with heard("shop") as told:
            tp.LogisticRegression(rounds=1, privacy=privacy).fit(relation)
        wanted = next(array for array in told if array.dtype.kind == "f" and len(array) == len(rows))
        found[name] = float(roc_auc_score(label, -wanted))  # parties of this process have no secret order
    return found


def dictionary() -> dict[str, float]:
    """Which of all possible keys are in a table? The guess is whether a candidate's digest is among those seen."""
    rng = np.random.default_rng(0)
    candidates = np.arange(20_000)
    inside = rng.random(len(candidates)) < 0.5
    secret, run = secrets.token_bytes(32), "run"

    def digests(values: Any, key: bytes) -> list[bytes]:
        blinded = blind([pa.chunked_array([pa.array(values)])], ["number"], derive_key(key, run, "class"))
        return [blinded.digests[code].tobytes() for code in blinded.codes]

    seen = set(digests(candidates[inside], secret))
    found = {}
    for name, key in (("without the key", secrets.token_bytes(32)), ("with the key", secret)):
        guesses = [digest in seen for digest in digests(candidates, key)]
        found[name] = float(roc_auc_score(inside, guesses))
    return found


def kept_labels() -> list[dict[str, float]]:
    """How many labels stay true, by randomised response and by the paper's Laplace noise at the same epsilon."""
    return [
        {
            "classes": classes,
            "epsilon": epsilon,
            "randomised response": keep_probability(classes, epsilon),
            "laplace": keep_probability(classes, epsilon, "laplace"),
        }
        for classes in (2, 5, 10)
        for epsilon in (0.5, 1.0, 2.0, 4.0, 5.66)
    ]
