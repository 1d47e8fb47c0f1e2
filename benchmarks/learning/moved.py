"""Bytes and rounds of whole fits of linear learners with default settings, by solver and precision of the wire.

Run with ``python -m benchmarks.learning.moved``; ``PYTHONPATH=FOLDER/src`` before it measures the code of another
checkout. Parties are services, each a process of this machine with mutual TLS, and then databases in this process.
MovieLens-1M has the ratings of 600 users, MIMIC-III's demonstration three tables. Messages are counted where they are
sent, from the call of `fit` to its return. Writes ``benchmarks/results/moved.json``.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tablepuppet as tp
from benchmarks.data import DATA, ROOT, is_there
from benchmarks.learning.movielens import CATEGORICAL, COLUMNS, JOIN, write_movielens
from benchmarks.parties import serving
from benchmarks.wire import federation

SOLVERS = ("lbfgs", "admm", "sgd")
MIMIC_JOIN = """
    FROM patients p JOIN admissions a ON a.subject_id = p.subject_id JOIN diagnoses_icd d ON d.hadm_id = a.hadm_id
"""
MIMIC_COLUMNS = (
    "p.gender, a.insurance, a.marital_status, a.admission_location, d.seq_num, substr(d.icd9_code, 1, 2) AS s"
)
LEARNERS: dict[str, tuple[type[Any], dict[str, Any]]] = {
    "regression": (tp.LinearRegression, {}),
    "regression, l2=0.01": (tp.LinearRegression, {"l2": 0.01}),
    "two classes": (tp.LogisticRegression, {}),
    "three classes": (tp.LogisticRegression, {}),
}
LABELS = {
    "movielens-1m": {
        "regression": "r.rating",
        "two classes": "r.rating >= 4",
        "three classes": "CASE WHEN r.rating < 3 THEN 'bad' WHEN r.rating < 4 THEN 'fair' ELSE 'good' END",
    },
    "mimic-iii-demo": {
        "regression": "ln(1 + date_diff('hour', a.admittime, a.dischtime))",
        "two classes": "a.hospital_expire_flag",
        "three classes": "a.admission_type",
    },
}


def parties(folder: Path, data: str) -> dict[str, str]:
    """Each table at a party of its own: URLs."""
    if data == "movielens-1m":
        return write_movielens(folder, 1)
    urls = {}
    for table in ("patients", "admissions", "diagnoses_icd"):
        (folder / table).mkdir(parents=True)
        (folder / table / f"{table}.parquet").symlink_to((DATA / data / f"{table}.parquet").resolve())
        urls[table] = f"parquet:///{folder / table}"
    return urls


def relation(fed: tp.Federation, data: str, learner: str) -> tp.Relation:
    """What a learner is fitted on."""
    label = LABELS[data][learner.partition(",")[0]]
    if data == "movielens-1m":
        sql = f"SELECT {COLUMNS}, {label} AS y {JOIN} WHERE u.user_id <= 600"
        return fed.sql(sql, label="y", categorical=CATEGORICAL)
    return fed.sql(f"SELECT {MIMIC_COLUMNS}, {label} AS y {MIMIC_JOIN}", label="y")


def fits(fed: tp.Federation, data: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """What each fit has cost."""
    for learner, (kind, settings) in LEARNERS.items():
        found = relation(fed, data, learner)
        assert found.mapping is not None
        for solver in SOLVERS:
            before = fed.engine.traffic.bytes
            model = kind(solver=solver, **settings).fit(found)
            yield (
                f"{learner}, {solver}",
                {
                    "bytes": fed.engine.traffic.bytes - before,
                    "rounds": len(model.history_),
                    "ended": model.stopped_,
                    "objective": model.history_[-1]["objective"],
                },
            )


def measure(folder: Path, data: str, wire: Any) -> dict[str, Any]:
    """The fits over services, then in this process."""
    urls = parties(folder / "databases", data)
    result: dict[str, Any] = {}
    with serving(folder / "parties", urls) as ports:
        for place in ("services", "one process"):
            made = (
                federation(folder / "parties", ports, wire=wire)
                if place == "services"
                else tp.Federation(urls, wire=wire)
            )
            result[place] = {}
            for what, cost in fits(made, data):
                result[place][what] = cost
                print(f"{data}, {place}, {wire}: {what}: {json.dumps(cost)}", flush=True)
    return result


def main() -> None:
    """Measure everything and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wire", choices=("float32", "float64"), default="float32")
    wire = parser.parse_args().wire
    result: dict[str, Any] = {"wire": wire}
    with tempfile.TemporaryDirectory() as place:
        for data in LABELS:
            if is_there(data):
                result[data] = measure(Path(place) / data, data, wire)
    target = ROOT / "benchmarks" / "results" / "moved.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
