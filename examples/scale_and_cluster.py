"""Scale, then k-means with k = 4 in 10 runs: the script of "Federated Data Preparation, Learning, and Debugging in
Apache SystemDS" (2.1), over one table in two shards at two banks.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import duckdb
import numpy as np

import tablepuppet as tp


def main() -> None:
    """Find four kinds of customers."""
    with tempfile.TemporaryDirectory() as folder:
        for name, rows in (("east", "range(3000)"), ("west", "range(3000, 7000)")):
            with duckdb.connect(str(Path(folder) / f"{name}.duckdb")) as database:
                database.execute(
                    "CREATE TABLE customers AS SELECT 20 + i % 4 * 15 + hash(i) % 5 AS age, 1000 * (i % 2) + "
                    f"hash(i + 1) % 100 AS income, i % 4 // 2 * 8 + hash(i + 2) % 3 AS orders FROM {rows} t(i)"
                )
        fed = tp.Federation({name: f"duckdb:///{Path(folder) / name}.duckdb" for name in ("east", "west")})
        F = fed.sql("SELECT age, income, orders FROM customers").matrix()
        X = (F - F.mean(axis=0)) / F.std(axis=0, ddof=1)
        found = tp.linalg.kmeans(X, k=4, runs=10, max_iter=20)
        print(f"{X.shape[0]:,} customers, sum of squared distances {found.inertia:,.1f}")
        for number, centre in enumerate(found.centres):
            around = dict(zip(X.columns, centre.round(2).tolist(), strict=True))
            print(f"{np.count_nonzero(found.labels == number):>5} around {around}")
        print(X.explain())


if __name__ == "__main__":
    main()
