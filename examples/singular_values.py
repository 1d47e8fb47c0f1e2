"""SciPy's `svds` over a join of three databases: the joined table is never built, and SciPy does not know it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import duckdb
import numpy as np
from scipy.sparse.linalg import svds

import tablepuppet as tp

TABLES = {
    "shop": "CREATE TABLE orders AS SELECT i % 300 AS customer, i % 40 AS item, i % 9 + 1 AS quantity, "
    "i % 13 AS discount FROM range(5000) t(i)",
    "bank": "CREATE TABLE customers AS SELECT i AS customer, 20 + i % 50 AS age, i % 4 AS cards FROM range(300) t(i)",
    "maker": "CREATE TABLE items AS SELECT i AS item, 5.0 + i % 17 AS weight, ['red', 'blue', 'grey'][1 + i % 3] AS "
    "colour FROM range(40) t(i)",
}
SQL = (
    "SELECT o.quantity, o.discount, c.age, c.cards, i.weight, i.colour FROM orders o "
    "JOIN customers c USING (customer) JOIN items i USING (item)"
)


def main() -> None:
    """Print singular values, and what the first singular vector is made of."""
    with tempfile.TemporaryDirectory() as folder:
        for name, sql in TABLES.items():
            with duckdb.connect(str(Path(folder) / f"{name}.duckdb")) as database:
                database.execute(sql)
        fed = tp.Federation({name: f"duckdb:///{Path(folder) / name}.duckdb" for name in TABLES}, wire="float64")
        X = fed.sql(SQL).matrix()
        _, values, right = svds(X - X.mean(axis=0), k=3, v0=np.ones(X.shape[1]))
        print(f"{X.shape[0]:,} joined rows, {X.shape[1]} columns")
        print("singular values:", np.round(values[::-1], 2).tolist())
        for place in np.argsort(-np.abs(right[-1]))[:3]:
            print(f"{X.columns[place]:>14} {right[-1, place]:+.3f}")


if __name__ == "__main__":
    main()
