"""Five tables of a hospital: logistic regression over MIMIC-III's demonstration data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tablepuppet as tp
from benchmarks.data import DATA
from benchmarks.learning.movielens import CLOSE, objective
from tablepuppet.baselines import Centralized

MIMIC_SQL = """
    SELECT p.gender, a.admission_type, a.insurance, a.marital_status, a.admission_location,
           i.first_careunit, i.los, d.seq_num, substr(d.icd9_code, 1, 2) AS chapter, l."FLAG", l."VALUEUOM",
           a.hospital_expire_flag
    FROM patients p JOIN admissions a ON a.subject_id = p.subject_id JOIN icustays i ON i.hadm_id = a.hadm_id
    JOIN diagnoses_icd d ON d.hadm_id = a.hadm_id JOIN labevents l ON l."HADM_ID" = a.hadm_id
"""


def mimic(folder: Path) -> dict[str, Any]:
    """Death in hospital from five tables of five departments, logistic regression."""
    urls = {}
    for table in ("patients", "admissions", "icustays", "diagnoses_icd", "labevents"):
        (folder / table).mkdir(parents=True)
        (folder / table / f"{table}.parquet").symlink_to((DATA / "mimic-iii-demo" / f"{table}.parquet").resolve())
        urls[table] = f"parquet:///{folder / table}"
    relation = tp.Federation(urls).sql(MIMIC_SQL, label="hospital_expire_flag")
    train, test = relation.split(test=0.25, seed=1)
    settings = {"l2": 1e-2}
    pooled = Centralized(tp.LogisticRegression(**settings)).fit(train)  # type: ignore[arg-type]
    best = objective(pooled, train)
    figures: dict[str, Any] = {
        "joined_rows": len(relation),
        "base_rows": sum(table.rows for table in relation.mapping.tables.values()),
        "columns": len(pooled.coef_),
        "centralised": {"objective": best, **pooled.evaluate(test)},
    }
    for solver in ("auto", "admm"):
        model = tp.LogisticRegression(solver=solver, rounds=30, tol=1e-8, **settings).fit(train)  # type: ignore[arg-type]
        close = [entry["round"] for entry in model.history_ if entry["objective"] <= best * (1 + CLOSE)]
        last = model.history_[-1]
        figures[solver] = {
            "rounds_to_0.1_percent": close[0] if close else None,
            "rounds": last["round"],
            "objective_ratio": last["objective"] / best,
            "bytes_per_round": last["bytes_up"] + last["bytes_down"],
            **model.evaluate(test),
        }
    return figures
