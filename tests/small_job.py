"""A small job in a folder: a store, a supplier, a federation file and a job file."""

from __future__ import annotations

from pathlib import Path

import duckdb

SQL = "SELECT o.price, o.day, i.weight, o.returned FROM orders o JOIN items i USING (item_id)"


def write_job(folder: Path) -> Path:
    """Fill a folder; its job trains into ``runs/returns``."""
    with duckdb.connect(str(folder / "store.duckdb")) as store:
        store.execute(
            "CREATE TABLE orders AS SELECT i AS order_id, i % 20 AS item_id, (i * 37) % 100 / 10.0 AS price, "
            "DATE '2024-01-01' + (i % 30)::INT AS day, (i * 37) % 100 > 40 AS returned FROM range(400) t(i)"
        )
        (folder / "supplier").mkdir()
        store.execute(
            f"COPY (SELECT i AS item_id, i * 0.5 AS weight FROM range(25) t(i)) TO '{folder}/supplier/items.parquet'"
        )
    (folder / "federation.toml").write_text(
        '[parties]\nstore = "duckdb:///store.duckdb"\nsupplier = "parquet:///supplier"\n'
    )
    (folder / "job.toml").write_text(
        f'federation = "federation.toml"\nsql = "{SQL}"\nlabel = "returned"\noutput = "runs/returns"\n'
        '[learner]\nkind = "LogisticRegression"\nl2 = 0.01\n'
    )
    return folder
