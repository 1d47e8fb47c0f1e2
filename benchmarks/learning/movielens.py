"""MovieLens-1M: users, movies with their genres, ratings, in any number of shards, and its three tasks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow.parquet as pq

import tablepuppet as tp
from benchmarks.data import DATA

CLOSE = 1e-3  # "there" is a training RMSE or log loss within this share of the centralised one

COLUMNS = "u.gender, u.age, u.occupation, g.year, g.genre"
JOIN = "FROM ratings r JOIN users u USING (user_id) JOIN movies_genres g USING (movie_id)"
CATEGORICAL = ["age", "occupation"]
LABELS = {"regression": "r.rating", "classes": "r.rating", "good": "r.rating >= 4"}


def write_movielens(folder: Path, shards: int) -> dict[str, str]:
    """Parties with one shard of one table each: URLs."""
    urls = {}
    for table in ("ratings", "users", "movies_genres"):
        source = DATA / "movielens-1m" / f"{table}.parquet"
        rows = pq.read_metadata(source).num_rows
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
