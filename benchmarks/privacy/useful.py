"""What noise on features and predictions leaves of a linear regression, on synthetic rows: no data set is needed.

Run with ``python -m benchmarks.privacy.useful`` (``--quick``: two fits each). Writes figures to ``--out`` and prints
those of docs/privacy.md: R2 on held-out rows by `tp.Privacy`, and what several rows of one person are promised.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import tablepuppet as tp
from benchmarks.data import ROOT
from tablepuppet.learn.private.usefulness import prediction_noise_ratio
from tablepuppet.privacy.accountant import group_epsilon, noise_multiplier

OUT = ROOT / "benchmarks" / "results" / "useful.json"
ROWS, COLUMNS, DEVIATION, EXPLAINED, DELTA = 9_365, 5, 10.0, 0.3, 1e-5
CLIP = round(DEVIATION * COLUMNS**0.5)  # about the usual length of a row's gradient
SETTINGS: list[dict[str, float]] = [
    {},
    {"feature_epsilon": 1},
    {"feature_epsilon": 0.1},
    {"feature_epsilon": 1, "prediction_epsilon": 1},
    {"feature_epsilon": 1, "prediction_epsilon": 1, "clip_norm": CLIP},
    {"feature_epsilon": 1, "prediction_epsilon": 10, "clip_norm": CLIP},
    {"feature_epsilon": 1, "prediction_epsilon": 20, "clip_norm": CLIP},
]


def write_rows(folder: Path) -> str:
    """The URL of a database with one table, whose columns explain 0.3 of the label's variance."""
    rng = np.random.default_rng(0)
    columns = rng.normal(size=(ROWS, COLUMNS))
    known = columns.sum(axis=1) * (EXPLAINED / COLUMNS) ** 0.5
    label = DEVIATION * (known + rng.normal(size=ROWS) * (1 - EXPLAINED) ** 0.5)
    table = pa.table({f"x{place}": column for place, column in enumerate(columns.T)} | {"y": label})
    folder.mkdir()
    pq.write_table(table, folder / "measured.parquet")
    return f"parquet:///{folder}"


def by_privacy(folder: Path, repeats: int) -> list[dict[str, Any]]:
    """Mean and deviation of R2 on 15 % of the rows, by what is promised."""
    fed = tp.Federation({"lab": write_rows(folder / "lab")})
    train, test = fed.sql("SELECT * FROM measured", label="y").split(test=0.15, seed=7)
    found = []
    for settings in SETTINGS:
        privacy = tp.Privacy(delta=DELTA, **settings) if settings else None  # type: ignore[arg-type]
        models = [tp.LinearRegression(privacy=privacy).fit(train) for _ in range(repeats)]
        scores = [model.evaluate(test)["r2"] for model in models]
        told = {key: models[0].privacy_[key] for key in ("epsilon", "epsilon_given_messages")}
        noise = None if models[0]._promise is None else prediction_noise_ratio(models[0]._promise)
        deviation = float(np.std(scores))
        found.append(
            {"privacy": settings, **told, "r2": float(np.mean(scores)), "deviation": deviation, "noise": noise}
        )
    return found


def by_rows() -> dict[int, float]:
    """The epsilon of somebody with k rows, where one row has 1."""
    multiplier = noise_multiplier(1.0, DELTA)
    return {rows: group_epsilon(((multiplier, 1, None),), DELTA, rows) for rows in (1, 2, 5, 10)}


def main() -> None:
    """Measure, write the figures, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two fits each")
    parser.add_argument("--out", type=Path, default=OUT, help="the file for figures")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        result: dict[str, Any] = {"fits": 2 if asked.quick else 20}
        result["by privacy"] = by_privacy(Path(place), result["fits"])
    result["by rows"] = by_rows()
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(result, indent=2) + "\n")
    print("| `tp.Privacy(...)` | `epsilon` | given predictions | R2 | deviation |\n| --- | --- | --- | --- | --- |")
    for each in result["by privacy"]:
        spelled = ", ".join(f"{name}={value:g}" for name, value in each["privacy"].items())
        epsilons = f"{each['epsilon']:.2g} | {each['epsilon_given_messages']:.2g}"
        print(f"| `{spelled}` | {epsilons} | {each['r2']:.3f} | {each['deviation']:.3f} |")
    print(
        {rows: round(epsilon, 1) for rows, epsilon in result["by rows"].items()},
        [e["noise"] for e in result["by privacy"]],
    )


if __name__ == "__main__":
    main()
