"""What it costs to be watched: a fit with its events kept and a monitor open beside it, and without, in turns.

``python -m benchmarks.watched`` prints, for small and large tables, processor seconds of the fit's process with events
over those without, and seconds likewise: the least of turns each. On a busy machine these are noise of some per
cent; so it also prints what one event costs, and what the events of a round are of its time. A reader of the monitor's
reads the folder once a second in a process of its own, as a page that is open does; metrics and spans are not part.
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
from tablepuppet.runs.event_file import EVENTS, EventFile, read_events
from tablepuppet.runs.events import Events, TripRecord

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


def event_seconds(folder: Path) -> float:
    """Processor seconds of one event that is written: of a call of a party, which most are."""
    events = Events([EventFile(folder / "one" / EVENTS, {})])
    trip = TripRecord(
        trip=1, party="bank", ops=("model.step",), bytes_up=900, bytes_down=100, released={"PREDICTIONS": 900},
        seconds=0.002, answered=True,
    )  # fmt: skip
    turns = []
    for _ in range(10):
        began = time.process_time()
        for _ in range(1000):
            events.emit_trip(trip)
        turns.append((time.process_time() - began) / 1000)
    return median(turns)


def main() -> None:
    """Print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=15)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        reader = subprocess.Popen([sys.executable, "-c", READER, folder])
        (Path(folder) / "one").mkdir()
        cost = event_seconds(Path(folder))
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
                processor, wall = (min(w[at] for _, w in pairs) / min(p[at] for p, _ in pairs) for at in (0, 1))
                each = median(p[0] for p, _ in pairs) / rounds * 1000
                kept = Path(folder) / str(rows) / EVENTS
                before = len(read_events(kept))
                fit(watched, rounds)
                events = (len(read_events(kept)) - before) / rounds
                share = events * cost / (each / 1000)
                print(f"{events:.1f} events a round of {cost * 1e6:.1f} us each: {share:.2%} of it", flush=True)
                print(f"{rows:,} rows, {each:.1f} ms a round: processor {processor:.3f}, time {wall:.3f}", flush=True)
        finally:
            reader.kill()


if __name__ == "__main__":
    main()
