"""Networks with default settings: how they end, and how they do on rows that they have not seen.

Run with ``python -m benchmarks.learning.networks`` (``--quick`` for 1,000 and 5,000 rows only). Beside them stand
networks of scikit-learn over the materialised join, with as many units as all tables have together: columns of
different tables interact there. Over synthetic relations of 1,000 to 50,000 rows, the flights of the demonstration and
MovieLens-1M; a fifth of the rows is for the test. Writes ``benchmarks/results/networks.json``.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn import neural_network
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import log_loss, root_mean_squared_error

import tablepuppet as tp
from benchmarks.data import DATA, ROOT
from benchmarks.learning.movielens import main_metric, movielens, write_movielens
from benchmarks.learning.synthetic import Shape, synthetic, write_synthetic
from tablepuppet.baselines import joined_tables
from tablepuppet.demo import LABEL, SQL, build_databases
from tablepuppet.prep.encode.encode import Encoding, apply_encoding

RESULT = ROOT / "benchmarks" / "results" / "networks.json"
SIZES = (1_000, 5_000, 15_000, 50_000)
MANY, MOST_EPOCHS = 100_000, 20  # over more joined rows scikit-learn takes fewer epochs than its usual 200


def relations(folder: Path, quick: bool) -> Iterator[tuple[str, str, tp.Relation]]:
    """(name, task, relation) of everything that is measured; labels of synthetic ones are sums of curves."""
    for rows in SIZES[:2] if quick else SIZES:
        for shards in (1, 2):
            fed = tp.Federation(write_synthetic(folder / f"{rows}-{shards}", Shape(rows, shards, curved=True)))
            for task in ("regression", "binary"):
                yield f"synthetic, {rows:,} rows, {shards} shards, {task}", task, synthetic(fed, task)
    if quick:
        return
    build_databases(folder / "flights")
    yield "flights", "binary", tp.Federation.load(folder / "flights" / "federation.toml").sql(SQL, LABEL)
    if (DATA / "movielens-1m").exists():
        fed = tp.Federation(write_movielens(folder / "movielens", 1))
        yield "MovieLens-1M, regression", "regression", movielens(fed, "regression")
        yield "MovieLens-1M, good", "binary", movielens(fed, "good")
    else:
        print("movielens-1m is skipped: ../shared/data is absent")


def measure(task: str, relation: tp.Relation) -> dict[str, Any]:
    """Our network and scikit-learn's, each with its defaults."""
    train, test = relation.split(test=0.2, seed=1)
    learner: Any = tp.MLPRegressor if task == "regression" else tp.MLPClassifier
    start = time.perf_counter()
    model = learner().fit(train)
    seconds = time.perf_counter() - start
    figures = {
        "joined_rows": len(train), "solver": model.solver_, "stopped": model.stopped_, "rounds": len(model.history_),
        "kept": model.best_round_, "seconds": seconds, "test": main_metric(model.evaluate(test)),
    }  # fmt: skip
    units = 16 * len(model.coefs_)
    start = time.perf_counter()
    figures["scikit_learn"] = pooled(task, units, model.encoding_, train, test)
    return figures | {"scikit_learn_seconds": time.perf_counter() - start}


def pooled(task: str, units: int, encoding: Encoding, train: tp.Relation, test: tp.Relation) -> float:
    """RMSE or log loss on the test rows of scikit-learn's network over the materialised join."""
    (columns, labels), (seen, truth) = (_materialised(side, encoding) for side in (train, test))
    settings = {"hidden_layer_sizes": (units,), "random_state": 0}
    settings |= {"max_iter": MOST_EPOCHS} if len(labels) > MANY else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        if task == "regression":
            network = neural_network.MLPRegressor(**settings)
            unit, centre = labels.std(), labels.mean()
            network.fit(columns, (labels - centre) / unit)
            return float(root_mean_squared_error(truth, unit * network.predict(seen) + centre))
        network = neural_network.MLPClassifier(**settings).fit(columns, labels)
    return float(log_loss(truth, network.predict_proba(seen)))


def _materialised(relation: tp.Relation, encoding: Encoding) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """The encoded joined columns, and the labels."""
    apply_encoding(relation.client, encoding)
    tables = joined_tables(relation.client, encoding).values()
    columns = np.concatenate([table.matrix().astype(np.float32) for table in tables], axis=1)
    return columns, relation.label()


def main() -> None:
    """Measure everything and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small relations only")
    quick = parser.parse_args().quick
    result: dict[str, Any] = {}
    RESULT.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        for name, task, relation in relations(Path(place), quick):
            result[name] = measure(task, relation)
            print(name, json.dumps(result[name]), flush=True)
            RESULT.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
