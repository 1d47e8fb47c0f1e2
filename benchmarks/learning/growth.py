"""How a round grows with joined rows and with base rows, over a star of three tables."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import numpy as np

import tablepuppet as tp
from benchmarks.learning.trips import ROUND_OPS
from tablepuppet.party.service import Party


@contextmanager
def party_seconds() -> Iterator[list[float]]:
    """Time spent inside parties, in the ops of rounds."""
    spent: list[float] = []
    bare = Party.run

    def run(party: Party, caller: str, session: str, op: str, *rest: Any) -> Any:
        start = time.perf_counter()
        try:
            return bare(party, caller, session, op, *rest)
        finally:
            if op.startswith(ROUND_OPS):
                spent.append(time.perf_counter() - start)

    try:
        Party.run = run  # type: ignore[method-assign,assignment]
        yield spent
    finally:
        Party.run = bare  # type: ignore[method-assign]


def star(folder: Path, rows: int, customers: int) -> tp.Federation:
    """A fact with the label, and two tables with the features."""
    folder.mkdir(parents=True)
    products = max(10, customers // 10)
    tables = {
        "sales": f"SELECT hash(i) % {customers} AS customer_id, hash(i + 1) % {products} AS product_id, "
        f"hash(i + 2) % 100 < 30 + (hash(i) % {customers}) % 40 AS returned FROM range({rows}) t(i)",
        "customers": f"SELECT i AS customer_id, sin(i) AS age, cos(i * 3) AS score, 'k' || i % 20 AS kind "
        f"FROM range({customers}) t(i)",
        "products": f"SELECT i AS product_id, sin(i * 7) AS price, cos(i * 5) AS size FROM range({products}) t(i)",
    }
    urls = {}
    for name, sql in tables.items():
        (folder / name).mkdir()
        duckdb.sql(f"COPY ({sql}) TO '{folder}/{name}/{name}.parquet'")
        urls[name] = f"parquet:///{folder / name}"
    return tp.Federation(urls)


STAR_SQL = (
    "SELECT c.age, c.score, c.kind, p.price, p.size, f.returned FROM sales f "
    "JOIN customers c USING (customer_id) JOIN products p USING (product_id)"
)


def growth_point(folder: Path, rows: int, customers: int) -> dict[str, float]:
    """One round of L-BFGS over a star of this size: the whole round, the parties' part of it, its bytes."""
    relation = star(folder, rows, customers).sql(STAR_SQL, label="returned")
    with party_seconds() as spent:
        history = tp.LogisticRegression(rounds=4, tol=0.0).fit(relation).history_
    return {
        "joined_rows": len(relation),
        "base_rows": sum(relation.mapping.tables[alias].rows for alias in "cp"),
        "round_seconds": min(entry["seconds"] for entry in history[1:]),
        "party_seconds": sorted(spent)[len(spent) // 2] * 2,  # two tables
        "bytes": history[1]["bytes_up"] + history[1]["bytes_down"],
    }


def growth(folder: Path, quick: bool) -> dict[str, Any]:
    """Joined rows at fixed base tables, then base rows at fixed joined rows; exponents of a power law."""
    sizes = [100_000, 1_000_000] if quick else [100_000, 1_000_000, 10_000_000]
    joined = [growth_point(folder / f"n{rows}", rows, 20_000) for rows in sizes]
    base = [growth_point(folder / f"b{rows}", 1_000_000, rows) for rows in (1_000, 10_000, 100_000)]

    def exponent(points: list[dict[str, float]], by: str, what: str) -> float:
        return float(np.polyfit(np.log([p[by] for p in points]), np.log([p[what] for p in points]), 1)[0])

    figures: dict[str, Any] = {"joined_rows": joined, "base_rows": base}
    for name, points in (("joined_rows", joined), ("base_rows", base)):
        figures[f"exponents_by_{name}"] = {
            what: exponent(points, name, what) for what in ("round_seconds", "party_seconds", "bytes")
        }
    return figures
