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
from tablepuppet.party.databases.urls import open_database
from tablepuppet.party.policy import ColumnRule, Policy, TableRule
from tablepuppet.party.request import Request
from tablepuppet.party.service import Party
from tablepuppet.privacy.label import keep_probability
from tablepuppet.wire.engine import Engine, InProcessTransport

ROWS, COLUMNS = 200, 60  # half of the rows are members: a model of so many columns knows them by heart
NAMES = [f"x{i}" for i in range(COLUMNS)]


def _federation(folder: Path, tables: dict[str, pa.Table], bounds: tuple[float, float] | None = None) -> tp.Federation:
    """A party for each table; ``bounds`` are those of every column in the parties' policies."""
    policy = Policy(others=TableRule(dict.fromkeys(NAMES, ColumnRule(bounds=bounds))))
    parties, key = {}, secrets.token_bytes(32)
    for name, table in tables.items():
        (folder / name).mkdir(parents=True)
        pyarrow.parquet.write_table(table, folder / name / f"{name}.parquet")
        parties[name] = Party(name, open_database(name, f"parquet:///{folder / name}"), key, policy)
    fed = tp.Federation({name: f"parquet:///{folder / name}" for name in tables})
    fed.engine = Engine({name: InProcessTransport(party) for name, party in parties.items()})
    return fed


def membership(folder: Path, trials: int) -> dict[str, dict[str, float]]:
    """Who was learned from? The guess is the model's error on a row whose features and label are known.

    With the correlation of predictions and labels of others: what is left of the model.
    """
    settings: dict[str, tp.Privacy | None] = {
        "without privacy": None,
        **{f"feature epsilon {e:g}": tp.Privacy(feature_epsilon=e, delta=1e-4) for e in (100.0, 10.0, 1.0)},
    }
    found: dict[str, list[Any]] = {name: [] for name in settings}  # (error, prediction, label) of rows
    for trial in range(trials):
        rng = np.random.default_rng(trial)
        values = rng.uniform(-1.0, 1.0, (ROWS, COLUMNS))
        label = values @ rng.normal(size=COLUMNS) / np.sqrt(COLUMNS / 3) + rng.normal(size=ROWS)
        columns = dict(zip(NAMES, values.T, strict=True)) | {"y": label, "part": np.arange(ROWS) % 2}
        fed = _federation(folder / f"{trial}", {"t": pa.table(columns)}, (-1.0, 1.0))
        sides = [fed.sql(f"SELECT {', '.join(NAMES)}, y FROM t WHERE part = {side}", label="y") for side in (1, 0)]
        for name, privacy in settings.items():
            model = tp.LinearRegression(privacy=privacy, l2=1e-3).fit(sides[0])
            for side, true in zip(sides, (label[1::2], label[::2]), strict=True):
                predicted = model.predict(side)
                found[name].append((np.abs(predicted - true), predicted, true))
    members = np.concatenate([np.full(ROWS // 2, (number + 1) % 2) for number in range(2 * trials)])
    told = {}
    for name, parts in found.items():
        errors, *_ = (np.concatenate(values) for values in zip(*parts, strict=True))
        others = [np.corrcoef(predicted, true)[0, 1] for _, predicted, true in parts[1::2]]
        told[name] = {"auc": float(roc_auc_score(members, -errors)), "correlation": float(np.mean(others))}
    return told


@contextmanager
def heard(party: str) -> Iterator[list[Any]]:
    """What a party is told of its rows in rounds, from now on."""
    found: list[Any] = []
    call = InProcessTransport.call

    def listening(transport: InProcessTransport, request: Request, patience: float | None = None) -> Any:
        if transport.party.name == party:
            steps = [step.arguments for step in request.steps if {"rows", "model"} <= set(step.arguments)]
            found.extend(arguments["rows"] for arguments in steps)
        return call(transport, request, patience)

    InProcessTransport.call = listening  # type: ignore[method-assign,assignment]
    try:
        yield found
    finally:
        InProcessTransport.call = call  # type: ignore[method-assign]


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
        blinded = blind([pa.chunked_array([pa.array(values)])], ["number"], derive_key(key, "join key", run))
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
