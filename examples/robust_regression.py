"""A program of one's own over the lazy array: regression with Huber's loss, which outliers do not pull away.

Each round solves a weighted least-squares problem by X.T @ (w[:, None] * X), which parties compute without sending a
row; with Huber's weights, rows that lie far off count less.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import duckdb
import numpy as np

import tablepuppet as tp

SQL = "SELECT o.quantity, o.weight, c.age, o.price FROM orders o JOIN customers c USING (customer)"


def huber(X: Any, y: np.ndarray, bend: float = 1.345, rounds: int = 50) -> tuple[np.ndarray, float]:
    """(coefficients, intercept) with the least Huber loss, by weights that are computed anew in each round."""
    centre, coefficients = float(np.median(y)), np.zeros(X.shape[1])
    for _ in range(rounds):
        residuals = y - X @ coefficients - centre
        scale = np.median(np.abs(residuals)) / 0.6745
        weights = np.minimum(1.0, bend * scale / np.maximum(np.abs(residuals), 1e-300))
        sums = X.T @ weights
        gram = X.T @ (weights[:, None] * X) - np.outer(sums, sums) / weights.sum()
        mean = weights @ y / weights.sum()
        new = np.linalg.solve(gram, X.T @ (weights * (y - mean)))
        moved = np.abs(new - coefficients).max()
        coefficients, centre = new, mean - sums @ new / weights.sum()
        if moved < 1e-6:
            break
    return coefficients, float(centre)


def main() -> None:
    """Compare with least squares where one order in fifty has a wrong price."""
    with tempfile.TemporaryDirectory() as folder:
        with duckdb.connect(str(Path(folder) / "store.duckdb")) as store:
            store.execute(
                "CREATE TABLE orders AS SELECT i % 100 AS customer, i % 9 AS quantity, i % 11 AS weight, "
                "2.0 * (i % 9) - (i % 11) + (i % 100) / 10 + sin(i) + CASE WHEN i % 50 = 0 THEN 500 ELSE 0 END AS "
                "price FROM range(4000) t(i)"
            )
        with duckdb.connect(str(Path(folder) / "bank.duckdb")) as bank:
            bank.execute("CREATE TABLE customers AS SELECT i AS customer, i AS age FROM range(100) t(i)")
        fed = tp.Federation({name: f"duckdb:///{Path(folder) / name}.duckdb" for name in ("store", "bank")})
        relation = fed.sql(SQL, label="price")
        X, y = relation.matrix(), relation.label()
        plain = tp.linalg.lm(X, y)
        robust, _ = huber(X, y)
        for place, name in enumerate(X.columns):
            print(f"{name:>12}   least squares {plain.coef[name]:+8.3f}   Huber {robust[place]:+8.3f}")


if __name__ == "__main__":
    main()
