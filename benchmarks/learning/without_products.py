"""Rounds of linear learners over three shards with Gram matrices, and without their products of two columns.

Run with ``python -m benchmarks.learning.without_products``. A party with a ``min_group`` sends squares and sums of each
column only. Relations are made up: numbers that are more or less alike, categories, and categories within others.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import tablepuppet as tp
from tablepuppet.prep.encode.encoded_table import EncodedTable

ROWS, SHARDS = 3_000, 3
RELATIONS = {  # numbers, how alike they are, columns of categories, whether these are within each other
    "8 numbers": (8, 0.0, 0, False),
    "10 alike": (10, 0.95, 0, False),
    "10 nearly equal": (10, 0.9995, 0, False),
    "4 and 3 categories": (4, 0.3, 3, False),
    "4 and 3 nested categories": (4, 0.3, 3, True),
    "60 and 2 nested categories": (60, 0.7, 2, True),
}


def relation(folder: Path, rng: np.random.Generator, kind: str, label: str) -> tp.Relation:
    """A table in three shards, with labels ``y`` and ``b``."""
    numbers, alike, categories, is_nested = RELATIONS[kind]
    common = rng.normal(size=(ROWS, 1))
    cells = alike * common + np.sqrt(1 - alike**2) * rng.normal(size=(ROWS, numbers))
    y, leaf = cells @ rng.normal(size=numbers), rng.integers(0, 60, ROWS)
    columns = {f"x{i}": cells[:, i] for i in range(numbers)}
    for i in range(categories):
        code = leaf // (1 + 5 * i) if is_nested else rng.integers(0, 20, ROWS)
        y = y + np.sin(1.7 * code)
        columns[f"c{i}"] = np.array([f"v{each}" for each in code.tolist()])
    features = ", ".join(columns)
    columns |= {"y": y + rng.normal(size=ROWS), "b": (y + rng.normal(size=ROWS) > 0).astype(np.float64)}
    for shard, places in enumerate(np.array_split(np.arange(ROWS), SHARDS)):
        (folder / f"p{shard}").mkdir()
        pq.write_table(pa.table({name: each[places] for name, each in columns.items()}), folder / f"p{shard}/t.parquet")
    fed = tp.Federation({f"p{shard}": f"parquet://{folder}/p{shard}" for shard in range(SHARDS)})
    return fed.sql(f"SELECT {features}, {label} FROM t", label=label)


def rounds(kind: str, learner: type[tp.LinearRegression | tp.LogisticRegression], label: str) -> tuple[int, float]:
    """Rounds until a fit has converged, and its loss."""
    with tempfile.TemporaryDirectory() as folder:
        model = learner().fit(relation(Path(folder), np.random.default_rng(0), kind, label))
    assert model.converged_
    return len(model.history_), model.history_[-1]["loss"]


if __name__ == "__main__":
    print(f"{'':<30}{'linear':>16}{'logistic':>16}   rounds with products, without")
    for name in RELATIONS:
        line = f"{name:<30}"
        for learner, label in ((tp.LinearRegression, "y"), (tp.LogisticRegression, "b")):
            exact, loss = rounds(name, learner, label)
            with mock.patch.object(EncodedTable, "gram", EncodedTable.unrelated_gram):
                hidden, other = rounds(name, learner, label)
            assert np.isclose(loss, other, rtol=1e-6)
            line += f"{exact:>11} {hidden:>4}"
        print(line, flush=True)
