"""Learning over relations, against the same model trained on the materialised join.

Run with ``python -m benchmarks.learning`` (``--quick`` for fewer epochs, smaller growth and no five classes). Ratios
are measured in one process, ours and the bare calls in turn; trips and bytes are counted where messages are sent.
Writes ``benchmarks/results/learning.json`` and curves as PNG beside it. What needs data
that is absent (benchmarks/data.py) is skipped.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tablepuppet as tp
from benchmarks.data import ROOT, is_there
from benchmarks.learning.algorithms import compare, networks
from benchmarks.learning.cost import memory, one_round, whole_fit
from benchmarks.learning.curves import draw
from benchmarks.learning.growth import growth
from benchmarks.learning.mimic import mimic
from benchmarks.learning.movielens import LABELS, write_movielens

RESULTS = ROOT / "benchmarks" / "results"


def main() -> None:
    """Measure everything and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer epochs, smaller growth, no five classes")
    quick = parser.parse_args().quick
    result: dict[str, Any] = {}
    RESULTS.mkdir(exist_ok=True)

    def measure(name: str, work: Callable[[], Any]) -> None:
        start = time.perf_counter()
        result[name] = work()
        if name not in LABELS and name != "networks":
            print(name, json.dumps(result[name], indent=2))
        print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        if is_there("movielens-1m"):
            tasks = ["regression"] if quick else ["regression", "classes"]
            for task in tasks:
                measure(task, lambda task=task: compare(folder / "compare", task, quick))  # type: ignore[misc]
                draw(task, result[task], RESULTS / f"learning-{task}.png")
            if not quick:
                measure("networks", lambda: networks(folder))
            for task in ("regression", "good"):
                measure(f"whole fit, {task}", lambda task=task: whole_fit(folder, task, 1 if quick else 2))  # type: ignore[misc]
            urls = write_movielens(folder / "round", 1)
            fed = tp.Federation(urls)
            for task in ("regression", "good") if quick else ("regression", "good", "classes"):
                measure(f"one round, {task}", lambda task=task: one_round(fed, task, 3))  # type: ignore[misc]
            measure("memory", lambda: memory(urls, "good"))
        measure("growth", lambda: growth(folder / "growth", quick))
        if is_there("mimic-iii-demo"):
            measure("mimic-iii-demo", lambda: mimic(folder / "mimic"))
    (RESULTS / "learning.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
