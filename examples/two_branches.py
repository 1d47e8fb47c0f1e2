"""One bank with two branches: the cards table is two shards at two parties, the store's orders a third.

Makes its own small databases in a temporary folder and trains a model over the union and the join.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import duckdb

import tablepuppet as tp

SQL = """
    SELECT o.price, o.quantity, c.credit_limit, c.kind, o.returned
    FROM orders o JOIN cards c ON o.card_id = c.card_id
"""


def make_databases(folder: Path) -> dict[str, str]:
    """A store's DuckDB file, and a Parquet folder of each branch."""
    with duckdb.connect(str(folder / "store.duckdb")) as store:
        store.execute(
            "CREATE TABLE orders AS SELECT i AS order_id, i % 97 AS card_id, 5 + i % 40 AS price, "
            "1 + i % 4 AS quantity, (i % 97) % 3 = 0 AND i % 2 = 0 AS returned FROM range(5000) t(i)"
        )
        for branch, rows in (("east", "range(0, 50)"), ("west", "range(50, 97)")):
            (folder / branch).mkdir()
            store.execute(
                "COPY (SELECT i AS card_id, 1000.0 + i % 3 * 500 AS credit_limit, "
                "CASE i % 2 WHEN 0 THEN 'gold' ELSE 'blue' END AS kind "
                f"FROM {rows} t(i)) TO '{folder / branch / 'cards.parquet'}'"
            )
    urls = {"store": f"duckdb:///{folder / 'store.duckdb'}"}
    return urls | {f"bank_{branch}": f"parquet:///{folder / branch}" for branch in ("east", "west")}


def main() -> None:
    """Train over both branches at once, then over one."""
    with tempfile.TemporaryDirectory() as folder:
        federation = tp.Federation(make_databases(Path(folder)))
        relation = federation.sql(SQL, label="returned")
        print(relation.explain())
        train, test = relation.split()
        model = tp.LogisticRegression().fit(train)
        print("both branches:", model.evaluate(test))
        one = federation.sql(SQL.replace("JOIN cards", "JOIN bank_east.cards"), label="returned")
        print("east only:    ", tp.LogisticRegression().fit(one).evaluate(one))


if __name__ == "__main__":
    main()
