"""A star of many joined rows: seconds to map and to fit it, and the most memory that takes.

Run with ``python -m benchmarks.star`` (``--rows 20e6`` for fewer than 100 million). A fact table and three dimensions,
each a DuckDB file of a party in the same process, are made anew in a temporary folder; their values are hashes of row
numbers, so that every run learns from the same. The star is mapped and fitted in a process of its own, whose peak
memory counts. ``--source`` names the ``src`` folder of another checkout, to measure its code on the same tables.
Writes ``benchmarks/results/star.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import duckdb

from benchmarks.data import ROOT

LEARNERS = {"LogisticRegression": "returned", "LinearRegression": "amount"}
DIMENSIONS = {"customers": ("customer_id", "age", 200_000), "products": ("product_id", "price", 20_000),
              "stores": ("store_id", "size", 1_000)}  # fmt: skip
SQL = """
    SELECT c.age, p.price, s.size, f.{label}
    FROM sales f JOIN customers c USING (customer_id) JOIN products p USING (product_id) JOIN stores s USING (store_id)
"""


def uniform(row: str, stream: int) -> str:
    """SQL for a number between 0 and 1 that follows from a row's number."""
    return f"((hash({row} * 64 + {stream}) >> 11) / 9007199254740992.0)"


def write_star(folder: Path, rows: int) -> dict[str, str]:
    """The tables as DuckDB files, by party: their URLs."""
    tables = {}
    keys, signals = [], []
    for stream, (table, (key, column, size)) in enumerate(DIMENSIONS.items(), start=10):
        tables[table] = f"SELECT i AS {key}, {uniform('i', stream)} AS {column} FROM range({size}) t(i)"
        keys.append(f"(hash(i * 64 + {stream}) % {size})::BIGINT AS {key}")
        signals.append(uniform(key, stream))
    facts, noise = f"SELECT i, {', '.join(keys)} FROM range({rows}) t(i)", uniform("i", 1)
    tables["sales"] = (
        f"SELECT * EXCLUDE (i, signal), {noise} < 1 / (1 + exp(1.5 - signal)) AS returned, signal + {noise} AS amount "
        f"FROM (SELECT *, {' + '.join(signals)} AS signal FROM ({facts}))"
    )
    for table, sql in tables.items():
        with duckdb.connect(str(folder / f"{table}.duckdb")) as connection:
            connection.execute(f"CREATE TABLE {table} AS {sql}")
    return {table: f"duckdb:///{folder / table}.duckdb" for table in tables}


def report(urls: dict[str, str], learner: str) -> None:
    """Runs in a fresh process: maps and fits, and prints what that took."""
    import tablepuppet as tp

    learn = getattr(tp, learner)  # imports what a fit needs, which is not measured
    start, before = time.perf_counter(), usage()
    relation = tp.Federation(urls).sql(SQL.format(label=LEARNERS[learner]), label=LEARNERS[learner])
    figures: dict[str, Any] = {"joined_rows": len(relation), "mapping": taken(start, before)}
    start, before = time.perf_counter(), usage()
    model = learn().fit(relation)
    figures |= {"rounds": len(model.history_), "loss": model.history_[-1]["loss"], "fit": taken(start, before)}
    figures["peak_bytes"] = figures["fit"]["peak_bytes"]
    figures["coefficients"] = {name: float(value) for name, value in model.coef_.items()}
    print(json.dumps(figures))


def usage() -> resource.struct_rusage:
    """What this process has used until now."""
    return resource.getrusage(resource.RUSAGE_SELF)


def taken(start: float, before: resource.struct_rusage) -> dict[str, float]:
    """Seconds since ``start``, of which the kernel's, page faults, and the peak of memory until now."""
    now = usage()
    return {
        "seconds": time.perf_counter() - start,
        "user_seconds": now.ru_utime - before.ru_utime,
        "kernel_seconds": now.ru_stime - before.ru_stime,
        "page_faults": now.ru_minflt - before.ru_minflt,
        "peak_bytes": now.ru_maxrss * 1024,
    }


def measure(urls: dict[str, str], learner: str, source: Path) -> dict[str, Any]:
    """The figures of a process of its own, which runs the code in ``source``."""
    code = "import sys, json; from benchmarks import star; star.report(*json.loads(sys.argv[1]))"
    command = [sys.executable, "-c", code, json.dumps([urls, learner])]
    environment = dict(os.environ) | {"PYTHONPATH": f"{source}{os.pathsep}{ROOT}"}
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=float, default=100e6, help="joined rows")
    parser.add_argument("--learner", choices=list(LEARNERS), default="LogisticRegression")
    parser.add_argument("--source", type=Path, default=ROOT / "src", help="the folder of the code to measure")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "star.json")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        urls = write_star(Path(folder), int(given.rows))
        figures = {"learner": given.learner} | measure(urls, given.learner, given.source)
    text = json.dumps(figures, indent=2)
    print(text)
    given.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
