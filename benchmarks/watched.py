"""What it costs to be watched: a fit with its events kept and a monitor open beside it, and without, in turns.

``python -m benchmarks.watched`` prints, for small and large tables, processor seconds of the fit's process with events
over those without, and seconds likewise: the median of pairs of turns. A reader of the monitor's reads the folder once
a second in a process of its own, as a page that is open does; metrics and spans are not part of it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

import tablepuppet as tp

READER = (
    "import sys, time; from pathlib import Path; from tablepuppet.monitor import charts, run_page;"
    "from tablepuppet.monitor.run_files import Runs\n"
    "runs = Runs([Path(sys.argv[1])])\n"
    "while True:\n"
    "    for run in runs.look():\n"
    "        run.look(whole=True); run_page.headline(run); run_page.tiles(run); charts.curve(run.state.main, 'loss')\n"
    "    time.sleep(1)\n"
)


def tables(rows: int) -> dict[str, dict[str, dict[str, list[object]]]]:
    """Orders of one party, and the customers of another, 20 orders each."""
    draw = np.random.default_rng(0)
    customers = rows // 20
    one = {"id": list(range(customers)), **{f"c{at}": draw.normal(size=customers).tolist() for at in range(10)}}
    keys, own = draw.integers(0, customers, rows), {f"o{at}": draw.normal(size=rows) for at in range(10)}
    late = np.asarray(own["o0"]) + draw.normal(size=rows) > 0
    other = {"customer": keys.tolist(), **{name: each.tolist() for name, each in own.items()}, "late": late.tolist()}
    return {"shop": {"orders": other}, "bank": {"customers": one}}


def fit(relation: tp.Relation, rounds: int) -> tuple[float, float]:
    """Processor seconds and seconds of a fit of so many rounds."""
    began, before = time.perf_counter(), time.process_time()
    tp.LogisticRegression(solver="sgd", rounds=rounds, tol=0.0).fit(relation)
    return time.process_time() - before, time.perf_counter() - began


def opened(rows: int, callbacks: list[tp.callbacks.Keep]) -> tp.Relation:
    """The join, with or without events that are kept."""
    sql = "SELECT * FROM orders JOIN customers ON orders.customer = customers.id"
    return tp.Federation(tables(rows), callbacks=callbacks, verbose=False).sql(sql, label="late")


def main() -> None:
    """Print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=15)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        reader = subprocess.Popen([sys.executable, "-c", READER, folder])
        try:
            for rows, rounds in ((2000, 60), (200_000, 5)):
                plain = opened(rows, [])
                watched = opened(rows, [tp.callbacks.Keep(Path(folder) / str(rows))])
                fit(plain, rounds), fit(watched, rounds)
                pairs = []
                for at in range(given.pairs):  # who is second finds warm caches
                    first, second = (plain, watched) if at % 2 else (watched, plain)
                    turns = {id(each): fit(each, rounds) for each in (first, second)}
                    pairs.append((turns[id(plain)], turns[id(watched)]))
                processor, wall = (median(w[at] / p[at] for p, w in pairs) for at in (0, 1))
                each = median(p[0] for p, _ in pairs) / rounds * 1000
                print(f"{rows:,} rows, {each:.1f} ms a round: processor {processor:.3f}, time {wall:.3f}", flush=True)
        finally:
            reader.kill()


if __name__ == "__main__":
    main()
