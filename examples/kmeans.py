"""K-means over a join of two databases, without a label: a program of one's own over products with the joined matrix.

Every row of X is an order with the features of its customer. Nobody builds X: each step is one product X @ V and one
X.T @ U, for all centres at once.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import duckdb
import numpy as np

import tablepuppet as tp
from tablepuppet.algebra.array import LazyArray

SQL = "SELECT o.price, o.quantity, c.income, c.age FROM orders o JOIN customers c USING (customer_id)"


def kmeans(matrix: LazyArray, k: int, rounds: int = 20, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """(centres (k, columns), the number of the nearest centre of every joined row)."""
    rng = np.random.default_rng(seed)
    nearest = rng.permutation(matrix.shape[0]) % (10 * k)  # the first centres are means of some random rows
    labels = np.full(matrix.shape[0], -1)
    for _ in range(rounds):
        chosen = (nearest[:, None] == np.arange(k)).astype(float)  # (rows, k): 1 where a row belongs to a centre
        centres = (matrix.T @ chosen).T / np.maximum(chosen.sum(axis=0), 1)[:, None]
        # |x - c|^2 = |x|^2 - 2 (x @ c - |c|^2 / 2), and |x|^2 is the same for all centres
        nearest = np.argmax(matrix @ centres.T - (centres**2).sum(axis=1) / 2, axis=1)
        if np.array_equal(nearest, labels):
            break
        labels = nearest
    return centres, labels


def make_databases(folder: Path) -> dict[str, str]:
    """Orders of customers who are young and buy much, or old and buy little, or in between."""
    with duckdb.connect(str(folder / "store.duckdb")) as store, duckdb.connect(str(folder / "bank.duckdb")) as bank:
        store.execute(
            "CREATE TABLE orders AS SELECT i % 200 AS customer_id, 10 + 30 * (i % 200 % 3) + i % 7 AS price, "
            "9 - 3 * (i % 200 % 3) + i % 2 AS quantity FROM range(6000) t(i)"
        )
        bank.execute(
            "CREATE TABLE customers AS SELECT i AS customer_id, 1000.0 * (1 + i % 3) + i % 11 AS income, "
            "20 + 20 * (i % 3) + i % 5 AS age FROM range(200) t(i)"
        )
    return {name: f"duckdb:///{folder / name}.duckdb" for name in ("store", "bank")}


def main() -> None:
    """Find the three kinds of orders."""
    with tempfile.TemporaryDirectory() as folder:
        relation = tp.Federation(make_databases(Path(folder))).sql(SQL)
        matrix = relation.matrix()
        centres, labels = kmeans(matrix, k=3)
        print("columns:", ", ".join(matrix.columns))
        for number, centre in enumerate(centres):
            print(f"{np.count_nonzero(labels == number):>5} orders around {np.round(centre, 2)}")


if __name__ == "__main__":
    main()
