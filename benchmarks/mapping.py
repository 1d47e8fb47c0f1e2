"""From open databases to a ready mapping, against DuckDB joining the raw keys.

Run with ``python -m benchmarks.mapping`` (``--quick`` for a tenth of the rows). Ratios are measured side by side
in one process, ours and the bare call in turn; peak memory in a process of its own. Writes
``benchmarks/results/mapping.json``. MovieLens-1M is skipped where it is absent (benchmarks/data.py).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

import tablepuppet as tp
from benchmarks.data import DATA, ROOT, is_there
from tablepuppet.party.blind import blind

MOVIELENS = DATA / "movielens-1m"
REPEATS = 5

MOVIELENS_SQL = """
    SELECT u.*, g.*, r.rating
    FROM ratings r JOIN users u USING (user_id) JOIN movies_genres g USING (movie_id)
"""
STAR_SQL = """
    SELECT f.x, f.y, c.age, p.price, s.size, f.returned
    FROM sales f JOIN customers c USING (customer_id) JOIN products p USING (product_id) JOIN stores s USING (store_id)
"""


def movielens(folder: Path) -> tuple[dict[str, str], str, str]:
    """Three Parquet parties of one table each: (URLs, SQL, SQL for bare DuckDB)."""
    urls = {}
    for table in ("ratings", "users", "movies_genres"):
        (folder / table).mkdir()
        shutil.copy(MOVIELENS / f"{table}.parquet", folder / table)
        urls[table] = f"parquet:///{folder / table}"
    files = {t: f"read_parquet('{folder}/{t}/{t}.parquet', file_row_number = true)" for t in urls}
    raw = (
        f"SELECT r.file_row_number, u.file_row_number, g.file_row_number FROM {files['ratings']} r "
        f"JOIN {files['users']} u USING (user_id) JOIN {files['movies_genres']} g USING (movie_id)"
    )
    return urls, MOVIELENS_SQL, raw


def star(folder: Path, rows: int) -> tuple[dict[str, str], str, str]:
    """A fact table and three dimensions, each a DuckDB file of its own party."""
    tables = {
        "sales": f"SELECT (random() * 199999)::BIGINT AS customer_id, (random() * 19999)::BIGINT AS product_id, "
        f"(random() * 999)::BIGINT AS store_id, random() AS x, random() AS y, random() > 0.5 AS returned "
        f"FROM range({rows})",
        "customers": "SELECT i AS customer_id, random() AS age FROM range(200000) t(i)",
        "products": "SELECT i AS product_id, random() AS price FROM range(20000) t(i)",
        "stores": "SELECT i AS store_id, random() AS size FROM range(1000) t(i)",
    }
    urls = {}
    for number, (table, sql) in enumerate(tables.items()):
        path = folder / f"{table}.duckdb"
        with duckdb.connect(str(path)) as connection:
            connection.execute(f"SELECT setseed({number / 10})")
            connection.execute(f"CREATE TABLE {table} AS {sql}")
        urls[table] = f"duckdb:///{path}"
    raw = (
        "SELECT f.rowid, c.rowid, p.rowid, s.rowid FROM sales.sales f JOIN customers.customers c USING (customer_id) "
        "JOIN products.products p USING (product_id) JOIN stores.stores s USING (store_id)"
    )
    return urls, STAR_SQL, raw


def seconds(work: Callable[[], Any]) -> float:
    """How long ``work`` takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def side_by_side(ours: Callable[[], Any], bare: Callable[[], Any], repeats: int = REPEATS) -> dict[str, float]:
    """Both in turn; the best time of each, and their ratio."""
    ours(), bare()
    times = [(seconds(ours), seconds(bare)) for _ in range(repeats)]
    best_ours, best_bare = (min(column) for column in zip(*times, strict=True))
    return {"ours_seconds": best_ours, "bare_seconds": best_bare, "ratio": best_ours / best_bare}


def bare_join(urls: dict[str, str], raw: str) -> Callable[[], Any]:
    """DuckDB running the same join on raw keys and returning row ids as NumPy arrays."""

    def work() -> Any:
        with duckdb.connect() as connection:
            for name, url in urls.items():
                if url.startswith("duckdb"):
                    connection.execute(f"ATTACH '{url.removeprefix('duckdb:///')}' AS {name} (READ_ONLY)")
            return connection.sql(raw).fetchnumpy()

    return work


def our_join(urls: dict[str, str], sql: str) -> tp.Relation:
    """The mapping of the same join, from open databases."""
    relation = tp.Federation(urls).sql(sql)
    assert relation.mapping is not None
    return relation


def memory(urls: dict[str, str], sql: str) -> dict[str, float]:
    """Peak memory of a fresh process that builds the mapping, beyond what an empty one takes."""
    code = "import sys, json; from benchmarks import mapping; mapping.report_memory(*json.loads(sys.argv[1]))"
    command = [sys.executable, "-c", code, json.dumps([urls, sql])]
    done = subprocess.run(command, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def peak_memory() -> int:
    """The most memory this process has held, in bytes."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))


def report_memory(urls: dict[str, str], sql: str) -> None:
    """Runs in the fresh process: prints the peak, and the size of what is kept."""
    tp.Federation(urls).sql(f"{sql} WHERE FALSE").explain()  # what is allocated once, whatever the rows
    before = peak_memory()
    relation = our_join(urls, sql)
    peak = peak_memory() - before
    snapshots = 0
    for scan in relation.plan.scans:
        table = relation.client.engine.capabilities(scan.party).table
        assert table is not None
        snapshot = table(relation.client.session, scan.alias).snapshot
        snapshots += snapshot.outputs.nbytes + snapshot.keys.nbytes
        snapshots += sum(key.codes.nbytes + key.digests.nbytes for key in snapshot.blind_keys(b""))
    kept = relation.mapping.nbytes + snapshots
    figures = {"mapping_bytes": relation.mapping.nbytes, "snapshot_bytes": snapshots, "peak_bytes": peak}
    print(json.dumps(figures | {"peak_ratio": peak / kept}))


def blinding() -> dict[str, float]:
    """Distinct keys blinded per second: integers from a wide range, and text."""
    rng = np.random.default_rng(0)
    wide = pa.chunked_array([pa.array(rng.integers(0, 2**62, 1_000_000))])
    text = pa.chunked_array([pa.array([f"customer-{value}" for value in wide.to_numpy()])])
    return {
        "integers_per_second": 1e6 / min(seconds(lambda: blind([wide], ["number"], bytes(32))) for _ in range(3)),
        "texts_per_second": 1e6 / min(seconds(lambda: blind([text], ["text"], bytes(32))) for _ in range(3)),
    }


def moving(relation: tp.Relation, alias: str) -> dict[str, Any]:
    """`gather` and `scatter_sum` against NumPy's `take` and `bincount` of the same size, for one class and for ten."""
    mapping = relation.mapping
    table = mapping.tables[alias]
    index, rng = table.index.astype(np.intp), np.random.default_rng(0)
    base, joined = rng.random(table.rows), rng.random(len(mapping))
    base10, joined10 = rng.random((table.rows, 10)), np.asfortranarray(rng.random((len(mapping), 10)))
    take = side_by_side(lambda: mapping.gather(alias, base), lambda: base.take(index))
    count = side_by_side(
        lambda: mapping.scatter_sum(alias, joined), lambda: np.bincount(index, joined, minlength=table.rows)
    )
    take10 = side_by_side(lambda: mapping.gather(alias, base10), lambda: base10.take(index, axis=0), 3)
    count10 = side_by_side(
        lambda: mapping.scatter_sum(alias, joined10),
        lambda: [np.bincount(index, joined10[:, c], minlength=table.rows) for c in range(10)],
        3,
    )
    return {
        "base_rows": table.rows,
        "gather_ratio": take["ratio"],
        "scatter_sum_ratio": count["ratio"],
        "gather_ratio_ten_classes": take10["ratio"],
        "scatter_sum_ratio_ten_classes": count10["ratio"],
    }


def measure(name: str, urls: dict[str, str], sql: str, raw: str, aliases: tuple[str, ...]) -> dict[str, Any]:
    """All figures of one data set."""
    relation = our_join(urls, sql)
    figures: dict[str, Any] = {"joined_rows": len(relation)}
    figures |= {f"moving_{alias}": moving(relation, alias) for alias in aliases}
    del relation
    figures["mapping"] = side_by_side(lambda: our_join(urls, sql), bare_join(urls, raw))
    figures["memory"] = memory(urls, sql)
    print(name, json.dumps(figures, indent=2))
    return figures


def main() -> None:
    """Measure everything and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows")
    rows = 1_000_000 if parser.parse_args().quick else 10_000_000
    result: dict[str, Any] = {"blinding": blinding()}
    print("blinding", json.dumps(result["blinding"], indent=2))
    with tempfile.TemporaryDirectory() as folder:
        if is_there("movielens-1m"):
            (Path(folder) / "movielens").mkdir()
            result["movielens-1m"] = measure("movielens-1m", *movielens(Path(folder) / "movielens"), ("u", "g"))
        result["star"] = measure("star", *star(Path(folder), rows), ("f", "c"))
    target = ROOT / "benchmarks" / "results" / "mapping.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
